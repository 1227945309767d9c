"""Coroutine handlers: only their actor waits, and asyncio's own parts work inside them."""

import asyncio
import contextvars
import operator
import threading
import time

import pytest

from callboard import Actor, handler
from callboard.actors.errors import RemoteError
from tests.actors.sample import Echo, instance

number = contextvars.ContextVar("number")


class Running(Actor):
    """Runs the coroutine function that it is told as its handler."""

    @handler
    async def go(self, msg: object) -> object:
        return await msg(self)


@pytest.fixture
def run(runtime):
    return lambda function: runtime.start_actor(Running).ask(function).result(10)


def test_a_handler_that_awaits_holds_up_only_its_actor(runtime):
    never = asyncio.Event()
    waiting = runtime.start_actor(Running).ask(lambda _: never.wait())

    assert [runtime.start_actor(Echo).ask("x").result(5) for _ in range(3)] == ["x"] * 3
    assert not waiting.done()


def test_sleep_of_the_actor_and_of_asyncio(run):
    async def go(actor):
        started = time.monotonic()
        await actor.sleep(0.02)
        await asyncio.sleep(0.02)  # asyncio's own is what is tested
        await asyncio.sleep(0)
        return time.monotonic() - started

    assert 0.04 <= run(go) < 2


def test_timeout_cuts_a_wait_short(run):
    async def go(_):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.Event().wait()
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        return "done"

    assert run(go) == "done"


def test_wait_for_gather_and_create_task(run):
    async def add(a, b):
        return await asyncio.to_thread(operator.add, a, b)

    async def go(_):
        first = asyncio.create_task(add(1, 2))
        both = await asyncio.gather(add(3, 4), add(5, 6))
        return [await first, *both, await asyncio.wait_for(add(7, 8), 5)]

    assert run(go) == [3, 7, 11, 15]


def test_a_task_group_waits_for_all_and_cancels_all_when_one_fails(run):
    async def go(_):
        done, cancelled = [], []

        async def wait(event, name):
            try:
                await event.wait()
                done.append(name)
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        async def fail():
            await asyncio.to_thread(int)
            raise KeyError

        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(event, "first"))
            group.create_task(wait(event, "second"))
            asyncio.get_running_loop().call_later(0.001, event.set)
        with pytest.raises(ExceptionGroup):  # noqa: PT012  # the block's end is what raises
            async with asyncio.TaskGroup() as group:
                group.create_task(wait(asyncio.Event(), "third"))
                group.create_task(fail())
        return done, cancelled

    assert run(go) == (["first", "second"], ["third"])


@pytest.mark.parametrize("wrap", [asyncio.create_task, asyncio.gather])
def test_a_timeout_cancels_the_task_that_is_awaited(run, wrap):
    async def go(_):
        ended = []

        async def inner():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await wrap(inner())
        return ended

    assert run(go) == [True]


def test_the_end_of_the_actor_cancels_the_task_that_is_awaited(runtime):
    entered, left = threading.Event(), threading.Event()

    async def inner():
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            left.set()

    async def go(_):
        await asyncio.gather(inner())

    ref = runtime.start_actor(Running)
    ref.tell(go)
    assert entered.wait(5)
    ref.kill()

    assert left.wait(5)


def test_blocking_work_on_other_threads(run):
    async def go(actor):
        loop = asyncio.get_running_loop()
        here = threading.get_ident()
        there = await asyncio.to_thread(threading.get_ident)
        summed = await loop.run_in_executor(None, sum, [1, 2, 3])
        return here != there, summed

    assert run(go) == (True, 6)


def test_an_ask_may_be_waited_for_on_a_thread_of_its_own(runtime, run):
    echo = runtime.start_actor(Echo)

    async def go(_):
        return await asyncio.to_thread(lambda: echo.ask("x").result(5))

    assert run(go) == "x"


def test_streams(run):
    async def serve(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def go(_):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return line

    assert run(go) == b"HELLO\n"


def test_event_lock_and_queue(run):
    async def go(_):
        event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue(1)

        async def produce():
            async with lock:
                for i in range(5):
                    await queue.put(i)
            event.set()

        task = asyncio.create_task(produce())
        got = [await queue.get() for _ in range(5)]
        await event.wait()
        async with lock:
            await task
        return got

    assert run(go) == [0, 1, 2, 3, 4]


def test_context_variables_are_kept_over_awaits_and_are_the_handlers_own(runtime):
    async def go(actor):
        number.set(id(actor))
        for _ in range(3):
            await actor.sleep(0.001)
        inside = await asyncio.create_task(look())
        return number.get() == inside == id(actor)

    async def look():
        return number.get()

    asks = [runtime.start_actor(Running).ask(go) for _ in range(5)]

    assert [ask.result(5) for ask in asks] == [True] * 5


def test_the_current_task_can_be_cancelled_and_names_its_actor(run):
    async def go(actor):
        task = asyncio.current_task()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        return task.cancelling(), task.uncancel(), task.get_name() == str(actor.me)

    assert run(go) == (1, 0, True)


def test_an_object_that_is_not_awaitable_fails_the_handler(run):
    class Odd:
        def __await__(self):
            yield 5

    async def go(_):
        await Odd()

    with pytest.raises(RemoteError, match="no event loop knows"):
        run(go)


def test_sys_exit_in_a_task_ends_no_thread_of_the_runner(runtime, run):
    async def leave():
        raise SystemExit(3)

    async def go(_):
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        return type(task.exception())

    assert run(go) is SystemExit
    assert runtime.start_actor(Echo).ask("x").result(5) == "x"


def test_messages_wait_in_order_while_the_handler_awaits(runtime):
    class Slow(Actor):
        def __init__(self):
            self.order = []

        @handler
        async def go(self, msg: int) -> list:
            await self.sleep(0.001 * (5 - msg))
            self.order.append(msg)
            return self.order

    ref = runtime.start_actor(Slow)
    asks = [ref.ask(i) for i in range(5)]

    assert asks[-1].result(5) == [0, 1, 2, 3, 4]
    assert instance(ref).order == [0, 1, 2, 3, 4]
