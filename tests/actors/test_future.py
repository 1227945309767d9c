"""Design, section 4: one outcome, from any thread, for waiters of every kind."""

import asyncio
import threading
import time

import pytest

from callboard import Actor, Future, handler
from callboard.actors.errors import (
    ActorDown,
    AskTimeout,
    ResultTimeout,
    WouldBlock,
    WouldDeadlock,
)
from tests.actors.sample import Echo, Gate, Waiter, instance

TOLERANCE = 10.0  # seconds; shared machines are slow at times


@pytest.fixture
def gate(runtime):
    ref = runtime.start_actor(Gate)
    actor = instance(ref)
    yield ref, actor.opened
    actor.opened.set()


def test_the_first_outcome_stays():
    future = Future()

    assert future.set_result(1)
    assert not future.set_result(2)
    assert not future.set_exception(ValueError())
    assert not future.cancel()
    assert future.result(0) == 1


def test_exactly_one_of_many_threads_completes_a_future():
    futures = [Future() for _ in range(200)]
    wins = [[] for _ in futures]
    start = threading.Barrier(4)

    def complete(me):
        start.wait()
        for future, won in zip(futures, wins, strict=True):
            won.append(future.set_result(me))

    threads = [threading.Thread(target=complete, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [won.count(True) for won in wins] == [1] * 200


def test_result_wakes_threads_that_wait():
    future, results = Future(), []
    threads = [
        threading.Thread(target=lambda: results.append(future.result(5))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()

    future.set_result("x")
    for thread in threads:
        thread.join(5)

    assert results == ["x"] * 5


def test_ask_timeout_comes_when_the_time_of_the_ask_is_over(gate):
    ref, _ = gate
    started = time.monotonic()

    with pytest.raises(AskTimeout, match=r"did not answer within 0\.1 s"):
        ref.ask("x", timeout=0.1).result()

    assert 0.1 <= time.monotonic() - started < 0.1 + TOLERANCE


def test_ask_timeout_is_also_raised_by_an_await(gate, runtime):
    ref, _ = gate

    class Asking(Actor):
        @handler
        async def go(self, msg: str) -> float:
            started = time.monotonic()
            with pytest.raises(AskTimeout):
                await ref.ask("x", timeout=0.1)
            return time.monotonic() - started

    assert 0.1 <= runtime.start_actor(Asking).ask("go").result(5) < 0.1 + TOLERANCE


def test_result_timeout_leaves_the_ask_going_on(gate):
    ref, opened = gate
    future = ref.ask("x")

    with pytest.raises(ResultTimeout, match="the ask continues"):
        future.result(0.05)
    opened.set()

    assert future.result(5) == "x"


def test_both_timeouts_are_timeout_errors():
    assert issubclass(AskTimeout, TimeoutError)
    assert issubclass(ResultTimeout, TimeoutError)


def test_no_limit_and_an_infinite_one_wait(runtime):
    echo = runtime.start_actor(Echo)

    assert echo.ask("x", timeout=None).result(float("inf")) == "x"
    assert echo.ask("x", timeout=float("inf")).result() == "x"
    assert echo.ask("the runner lives").result(5) == "the runner lives"


def test_an_unanswered_ask_with_an_infinite_limit_leaves_the_runner_alive(gate, runtime):
    ref, opened = gate
    future = ref.ask("x", timeout=float("inf"))
    runtime.start_actor(Echo).ask("x", timeout=0.001)

    with pytest.raises(ResultTimeout):
        future.result(0.1)
    assert runtime.start_actor(Echo).ask("x").result(5) == "x"
    opened.set()


def test_a_late_answer_is_dropped_and_counted(gate, runtime):
    ref, opened = gate
    with pytest.raises(AskTimeout):
        ref.ask("x", timeout=0.01).result()
    again = ref.ask("again")
    opened.set()

    assert again.result(5) == "again"
    assert runtime.counters.late_answers == 1


def test_exception_of_a_pending_future_raises():
    with pytest.raises(ResultTimeout):
        Future().exception()


# --- waits that could never end ---


def test_result_in_a_handler_would_deadlock(runtime):
    echo = runtime.start_actor(Echo)

    class Blocking(Actor):
        @handler
        def go(self, msg: str) -> str:
            with pytest.raises(WouldDeadlock, match="async def"):
                echo.ask(msg).result(1)
            return "refused"

        @handler
        async def wait(self, msg: int) -> str:
            with pytest.raises(WouldDeadlock):
                echo.ask("x").result(1)
            return "refused"

    ref = runtime.start_actor(Blocking)

    assert ref.ask("go").result(5) == "refused"
    assert ref.ask(1).result(5) == "refused"


def test_result_in_a_handler_is_fine_when_it_is_there(runtime):
    done = Future()
    done.set_result(7)

    class Looking(Actor):
        @handler
        def go(self, msg: str) -> int:
            return done.result(0)

    assert runtime.start_actor(Looking).ask("go").result(5) == 7


def test_awaiting_an_answer_from_oneself_would_deadlock(runtime):
    class Selfish(Actor):
        @handler
        async def go(self, msg: str) -> str:
            with pytest.raises(WouldDeadlock, match="call the method directly"):
                await self.me.ask(1)
            return "refused"

        @handler
        def number(self, msg: int) -> int:
            return msg

    ref = runtime.start_actor(Selfish)

    assert ref.ask("go").result(5) == "refused"
    assert ref.ask(1).result(5) == 1


def test_result_on_the_thread_of_an_event_loop_would_block(runtime, gate):
    ref, _ = gate

    async def main():
        with pytest.raises(WouldBlock, match="await"):
            ref.ask("x").result(1)

    asyncio.run(main())


# --- foreign event loops ---


def in_new_thread(coroutine):
    outcome = Future()
    thread = threading.Thread(target=lambda: outcome.set_result(asyncio.run(coroutine)))
    thread.start()
    thread.join(10)
    return outcome.result(0)


def test_an_ask_can_be_awaited_from_any_loop(runtime):
    echo = runtime.start_actor(Echo)

    async def main():
        return [await echo.ask(str(i)) for i in range(20)]

    assert in_new_thread(main()) == [str(i) for i in range(20)]


async def gathered(echo):
    return await asyncio.gather(*(echo.ask(str(i)) for i in range(20)))


async def waited_for(echo):
    return [await asyncio.wait_for(echo.ask(str(i)), 5) for i in range(20)]


async def shielded(echo):
    return [await asyncio.shield(echo.ask(str(i))) for i in range(20)]


async def waited(echo):
    asks = [echo.ask(str(i)) for i in range(20)]
    await asyncio.wait(asks)
    return [ask.result() for ask in asks]


@pytest.mark.parametrize("way", [gathered, waited_for, shielded, waited])
def test_asyncio_takes_an_ask_for_a_future_of_its_own(runtime, way):
    echo = runtime.start_actor(Echo)

    started = time.monotonic()

    assert in_new_thread(way(echo)) == [str(i) for i in range(20)]
    assert time.monotonic() - started < 3 + TOLERANCE


@pytest.mark.parametrize("way", [gathered, waited_for, shielded, waited])
def test_so_it_does_in_a_handler(runtime, way):
    echo = runtime.start_actor(Echo)

    class Asking(Actor):
        @handler
        async def go(self, msg: str) -> list:
            return list(await way(echo))

    assert runtime.start_actor(Asking).ask("go").result(5) == [str(i) for i in range(20)]


def test_wait_for_in_a_foreign_loop_runs_out_of_time(runtime, gate):
    ref, _ = gate

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref.ask("x"), 0.05)
        return "in time"

    assert in_new_thread(main()) == "in time"


def test_several_loops_threads_and_handlers_wait_for_one_future(runtime, gate):
    ref, opened = gate
    future = ref.ask("x")
    entered = threading.Semaphore(0)

    class Waiting(Actor):
        @handler
        async def go(self, msg: str) -> str:
            entered.release()
            return await future

    async def main():
        async def one():
            entered.release()
            return await future

        return await asyncio.gather(one(), one())

    asks = [runtime.start_actor(Waiting).ask("go") for _ in range(3)]
    results = []
    thread = threading.Thread(target=lambda: results.extend(asyncio.run(main())))
    thread.start()
    for _ in range(5):
        assert entered.acquire(timeout=5)
    opened.set()
    thread.join(5)

    assert [ask.result(5) for ask in asks] == ["x"] * 3
    assert results == ["x"] * 2


def test_cancelling_the_task_that_awaits_cancels_the_future(gate):
    ref, opened = gate

    async def main():
        future = ref.ask("x")
        task = asyncio.ensure_future(consume(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return future

    future = in_new_thread(main())
    opened.set()

    assert future.cancelled()


async def consume(future):
    return await future


def test_an_answer_after_the_loop_was_closed_is_ignored(gate, runtime):
    ref, opened = gate
    future = ref.ask("x")

    async def main():
        future.add_done_callback(lambda _: None)

    in_new_thread(main())
    opened.set()

    assert future.result(5) == "x"
    assert ref.ask("still here").result(5) == "still here"


def test_a_failing_callback_does_not_end_the_actor_that_answers(gate):
    ref, opened = gate
    future = ref.ask("x")
    future.add_done_callback(lambda _: 1 / 0)
    opened.set()

    assert future.result(5) == "x"
    assert ref.ask("still here").result(5) == "still here"


def test_a_removed_callback_is_not_called():
    future, called = Future(), []
    future.add_done_callback(called.append)

    assert future.remove_done_callback(called.append) == 1
    future.set_result(1)

    assert called == []


def test_a_callback_added_late_is_called_at_once():
    future, called = Future(), []
    future.set_result(1)
    future.add_done_callback(called.append)

    assert called == [future]


def test_asks_in_progress_fail_when_the_actor_ends(runtime):
    ref = runtime.start_actor(Waiter)
    actor = instance(ref)
    first, second = ref.ask("first"), ref.ask("second")
    assert actor.entered.wait(5)

    ref.kill()

    for ask in (first, second):
        with pytest.raises(ActorDown) as caught:
            ask.result(5)
        assert caught.value.reason == "killed"
