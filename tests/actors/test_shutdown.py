"""The end of a node: waits fail in their phase, steps run in order, one deadline holds."""

import asyncio
import gc
import threading
from functools import partial

import pytest

from callboard import Node, errors
from callboard.actors.future import Future
from callboard.actors.waits.shutdown import (
    CLOSE_SECONDS,
    GRACE_SECONDS,
    CloseStep,
    Deadline,
    Phase,
    Shutdown,
)


class Clock:
    """A clock whose timers fire when the test says so."""

    def __init__(self):
        self.time = 100.0
        self.timers = []

    def now(self):
        return self.time

    def call_later(self, seconds, callback, *args):
        self.timers.append((self.time + seconds, partial(callback, *args)))

    def advance(self, seconds):
        self.time += seconds
        due = [timer for timer in self.timers if timer[0] <= self.time]
        self.timers = [timer for timer in self.timers if timer[0] > self.time]
        for _, call in due:
            call()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shutdown(clock):
    return Shutdown("n", clock.now, clock.call_later)


def test_a_guarded_future_fails_in_its_phase_and_not_before(shutdown):
    taker = shutdown.guard(Future(), until=Phase.DRAINING)
    wait = shutdown.guard(Future())
    shutdown.begin(Phase.DRAINING)
    with pytest.raises(errors.NodeClosed, match="n is draining"):
        taker.result()
    assert not wait.done()
    shutdown.begin(Phase.CLOSING)
    assert not wait.done()
    shutdown.begin(Phase.ENDED)
    with pytest.raises(errors.NodeClosed, match="n was closed"):
        wait.result()
    assert isinstance(shutdown.guard(Future()).exception(), errors.NodeClosed)


def test_phases_only_go_forward(shutdown):
    shutdown.begin(Phase.ENDED)
    shutdown.begin(Phase.DRAINING)
    assert shutdown.phase is Phase.ENDED


@pytest.mark.slow
def test_nothing_is_kept_of_waits_that_are_over_or_dropped(shutdown):
    done = shutdown.guard(Future())
    done.set_result(None)
    shutdown.guard(Future())  # dropped
    take_back = shutdown.on(Phase.ENDED, list)
    take_back()
    gc.collect()
    assert shutdown.pending == 0


def test_a_retry_comes_in_its_time_or_with_the_end_and_once(shutdown, clock):
    calls = []
    shutdown.retry_in(5.0, partial(calls.append, "early"))
    shutdown.retry_in(50.0, partial(calls.append, "late"))
    clock.advance(5.0)
    assert calls == ["early"]
    shutdown.begin(Phase.ENDED)
    assert calls == ["early", "late"]
    clock.advance(50.0)
    assert calls == ["early", "late"]
    shutdown.retry_in(5.0, partial(calls.append, "after the end"))
    assert calls[-1] == "after the end"


def test_steps_of_closing_run_in_their_order_also_when_one_fails(shutdown, clock):
    steps = []

    def fail(_):
        steps.append("links")
        raise ValueError

    shutdown.add_close_step(CloseStep.FILES, lambda _: steps.append("files"))
    shutdown.add_close_step(CloseStep.LINKS, fail)
    shutdown.add_close_step(CloseStep.PAGES, lambda _: steps.append(shutdown.phase))
    shutdown.close()
    assert steps == [Phase.CLOSING, "links", "files"]
    assert shutdown.phase is Phase.ENDED


def test_a_part_that_fails_at_its_end_does_not_keep_others_from_theirs(shutdown):
    wait = shutdown.guard(Future())
    shutdown.on(Phase.ENDED, lambda: 1 / 0)
    shutdown.begin(Phase.ENDED)
    assert wait.done()


@pytest.mark.parametrize(
    ("drained", "left"),
    [(None, CLOSE_SECONDS), (100.0, CLOSE_SECONDS), (4.0, 1.0), (2.0, GRACE_SECONDS)],
)
def test_closing_has_the_rest_of_the_time_of_a_drain(shutdown, clock, drained, left):
    if drained is not None:
        asyncio.run(shutdown.drain(Deadline.after(clock.now, drained)))
    clock.advance(3.0)
    seen = []
    shutdown.add_close_step(CloseStep.ACTORS, lambda deadline: seen.append(deadline.left()))
    shutdown.close()
    assert seen == [left]


def test_a_coroutine_ends_with_the_node_and_not_with_another_cancellation(shutdown):
    async def wait():
        with shutdown.ending():
            await asyncio.Event().wait()

    async def main():
        cancelled, ended = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        threading.Thread(target=shutdown.begin, args=(Phase.ENDED,)).start()
        return await asyncio.wait_for(
            asyncio.gather(cancelled, ended, wait(), return_exceptions=True), 10
        )

    kinds = [type(outcome) for outcome in asyncio.run(main())]
    assert kinds == [asyncio.CancelledError, errors.NodeClosed, errors.NodeClosed]


def test_a_coroutine_that_was_done_is_left_alone(shutdown):
    async def main():
        with shutdown.ending():
            pass
        shutdown.begin(Phase.ENDED)
        for _ in range(3):
            await asyncio.sleep(0)
        return "done"

    assert asyncio.run(main()) == "done"


def test_finished_waits_leave_no_entries_while_the_node_runs():
    with Node() as node:
        before = node.runtime.shutdown.pending
        group = node.group("nobody")
        for _ in range(100):
            group.ready(1).cancel()
        gc.collect()
        assert node.runtime.shutdown.pending <= before + 1  # the watcher of the group
