"""A handler that holds its thread for long is named, and the time of handlers is sampled."""

import asyncio
import threading
import time

import pytest

from callboard import Actor, handler
from callboard.actors.events import SlowHandler
from callboard.actors.runner.slow_handlers import Stuck, TimeSheet
from callboard.actors.runtime import Runtime
from tests.actors.sample import Echo, Gate, instance
from tests.polling import eventually


class Busy(Actor):
    def __init__(self):
        self.gate = threading.Event()

    @handler
    async def hold(self, msg: str) -> None:
        await self.sleep(0)
        wait_for(self.gate)


def wait_for(gate):
    assert gate.wait(20)


def slow_handler_of(runtime, ref, message):
    runtime.runner.times.slow_after = 0.02
    told, seen = threading.Event(), []

    def note(event):
        if isinstance(event, SlowHandler):
            seen.append(event)
            told.set()

    with runtime.subscribed(note):
        ref.tell(message)
        assert told.wait(10)
    return seen


def test_a_slow_handler_is_named_while_it_runs(runtime):
    ref = runtime.start_actor(Gate)

    [event] = slow_handler_of(runtime, ref, "x")

    assert event.ref == ref
    assert event.handler == "Gate.wait"
    assert event.seconds >= 0.02
    assert runtime.counters.slow_handlers == 1
    instance(ref).opened.set()


class Flooding(Actor):
    def __init__(self, to):
        self.to, self.enough = to, False

    @handler
    def flood(self, msg: str) -> None:
        while not self.enough:
            self.send(self.to, msg)


def test_a_handler_that_stands_in_a_call_of_ours_is_named(runtime):
    ref = runtime.start_actor(Flooding, (runtime.start_actor(Echo),))

    [event] = slow_handler_of(runtime, ref, "x")
    instance(ref).enough = True

    assert event.handler == "Flooding.flood"


def test_time_in_detached_actors_is_counted_with_that_of_the_others(runtime):
    class Detached(Gate):
        detached = True

    ref, other, name = (
        runtime.start_actor(Detached),
        runtime.start_actor(Gate),
        Detached.__qualname__,
    )
    began = time.monotonic()
    ref.tell("x")
    assert instance(ref).entered.wait(5)
    [event] = slow_handler_of(runtime, other, "x")
    for each in (ref, other):
        instance(each).opened.set()
    eventually(lambda: name in runtime.handler_seconds)

    assert event.seconds <= runtime.handler_seconds[name] <= time.monotonic() - began


def test_the_slow_coroutine_handler_is_named_instead_of_a_function_it_calls(runtime):
    ref = runtime.start_actor(Busy)

    [event] = slow_handler_of(runtime, ref, "x")

    assert event.handler == "Busy.hold"
    instance(ref).gate.set()


def test_a_handler_that_returned_is_stuck_no_more(runtime):
    ref = runtime.start_actor(Gate)
    slow_handler_of(runtime, ref, "x")

    instance(ref).opened.set()
    while runtime.runner.times.stuck:
        runtime.start_actor(Echo).ask("x").result(5)

    assert ref.ask("y").result(5) == "y"


def test_time_is_sampled_by_class():
    class Cell:
        def __init__(self, actor):
            self.actor = actor

    sheet = TimeSheet()
    sheet.stuck[1] = Stuck(Cell(1), 1, 0.0)

    sheet.sample(Cell("text"), 0.5)
    sheet.sample(Cell("text"), 0.25)
    sheet.sample(None, 1.0)

    assert sheet.seconds == {"str": 0.75, "int": 1.75}


class Turn:
    """A cell as the watcher sees it, in a turn with many messages."""

    def __init__(self, depth):
        self.actor, self.sender, self.depth = "text", None, depth


def told_of(turn, looks):
    """Return the seconds that are told when the watcher looks at these times."""
    sheet, told = TimeSheet(), []
    sheet.on_slow = lambda cell, name, seconds: told.append(seconds)
    sheet.stuck[1] = Stuck(turn, 1, 0.0)
    for now, change in looks:
        change(turn)
        sheet.report_slow(now)
    return told


@pytest.mark.parametrize(
    "next_message",
    [
        pytest.param(lambda turn: vars(turn).update(depth=turn.depth - 1), id="of the mailbox"),
        pytest.param(lambda turn: vars(turn).update(sender=object()), id="of another sender"),
    ],
)
def test_a_turn_of_many_quick_messages_is_not_slow(next_message):
    assert told_of(Turn(depth=9), [(now / 2, next_message) for now in range(1, 9)]) == []


def test_a_stuck_handler_is_reported_once_while_its_mailbox_grows():
    def grow(turn):
        turn.depth += 1

    assert told_of(Turn(depth=9), [(now / 2, grow) for now in range(1, 9)]) == [1.0]


def test_closing_cancels_the_tasks_that_handlers_have_started(no_thread_left):
    class Starting(Actor):
        def __init__(self):
            self.ended = []

        @handler
        async def start(self, msg: str) -> None:
            self.task = asyncio.create_task(self.forever())
            await asyncio.sleep(0)

        async def forever(self):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                self.ended.append("cancelled")

    runtime = Runtime("closing")
    ref = runtime.start_actor(Starting)
    ref.ask("x").result(5)
    actor = instance(ref)

    runtime.end_actors()
    runtime.close()

    assert actor.ended == ["cancelled"]
    assert actor.task.cancelled()
