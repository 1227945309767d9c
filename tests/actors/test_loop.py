"""The event loop that handlers and libraries find on the runner's threads."""

import asyncio
import contextvars
import os
import selectors
import sys
import threading

import pytest

from callboard import Actor, handler


class Running(Actor):
    @handler
    async def go(self, msg: object) -> object:
        return await msg()


@pytest.fixture
def run(runtime):
    return lambda function: runtime.start_actor(Running).ask(function).result(10)


def test_the_running_loop_is_the_runners(runtime, run):
    async def go():
        return asyncio.get_running_loop()

    loop = run(go)

    assert loop is runtime.runner.loop
    assert loop.is_running()


def test_a_loop_that_belongs_to_a_node_cannot_be_run(runtime):
    with pytest.raises(RuntimeError, match="belongs to a node"):
        runtime.runner.loop.run_forever()


def test_callbacks_run_in_their_order(run):
    async def go():
        loop, done, order = asyncio.get_running_loop(), asyncio.Event(), []
        for i in range(300):
            loop.call_soon(order.append, i)
        loop.call_soon(done.set)
        await done.wait()
        return order

    assert run(go) == list(range(300))


def test_a_cancelled_call_is_not_made(run):
    async def go():
        loop, made, done = asyncio.get_running_loop(), [], asyncio.Event()
        loop.call_soon(made.append, "soon").cancel()
        loop.call_later(0.001, made.append, "later").cancel()
        loop.call_at(loop.time() + 0.001, made.append, "at")
        loop.call_at(loop.time() + 0.002, done.set)  # due after all others
        await done.wait()
        return made

    assert run(go) == ["at"]


def test_calls_from_other_threads_arrive(run):
    async def go():
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        await asyncio.to_thread(loop.call_soon_threadsafe, arrived.set)
        await arrived.wait()
        return True

    assert run(go)


def test_a_callback_that_fails_does_not_hold_up_the_next(run):
    async def go():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)
        loop.call_soon(lambda: 1 / 0)
        loop.call_soon(sys.exit)
        loop.call_soon(done.set)
        await asyncio.wait_for(done.wait(), 5)
        return True

    assert run(go)


def test_subprocesses(run):
    async def go():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('hello')", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out, process.returncode

    assert run(go) == (b"hello\n", 0)


def test_a_blocking_step_of_a_task_is_not_an_error(run, caplog):
    async def blocking():
        entered.set()
        other_thread.wait(5)
        await asyncio.sleep(0)
        return "done"

    async def go():
        task = asyncio.create_task(blocking())
        await asyncio.to_thread(entered.wait, 5)
        other_thread.set()  # on another thread, while the task blocks its own
        return await task

    entered, other_thread = threading.Event(), threading.Event()

    assert run(go) == "done"
    assert [record.getMessage() for record in caplog.records] == []


def test_a_callback_waits_until_another_thread_has_left_its_context(run, caplog):
    entered, leave = threading.Event(), threading.Event()

    def stay():
        entered.set()
        leave.wait(5)

    async def go():
        context, done = contextvars.copy_context(), asyncio.Event()
        loop, tried = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=context.run, args=(stay,))
        thread.start()
        entered.wait(5)
        loop.call_soon(done.set, context=context)
        loop.call_soon(tried.set)
        await tried.wait()
        assert not done.is_set()
        leave.set()
        await asyncio.wait_for(done.wait(), 5)
        thread.join()
        return "done"

    assert run(go) == "done"
    assert [record.getMessage() for record in caplog.records] == []


def test_an_error_of_a_callback_is_logged(run, caplog):
    async def go():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon([].pop)
        loop.call_soon(done.set)
        await done.wait()

    run(go)

    assert "pop from empty list" in caplog.text


def test_a_reader_of_a_descriptor_is_called_until_it_is_removed(runtime, run):
    async def go():
        selector, told, polled = runtime.runner.selector, asyncio.Event(), asyncio.Event()
        reading, writing = os.pipe()
        later_reading, later_writing = os.pipe()
        events = []

        def ready(mask):
            events.append((mask, os.read(reading, 1)))
            told.set()

        selector.register(reading, selectors.EVENT_READ, ready)
        os.write(writing, b"a")
        await told.wait()
        selector.unregister(reading)
        os.write(writing, b"b")
        selector.register(later_reading, selectors.EVENT_READ, lambda _: polled.set())
        os.write(later_writing, b"c")
        await polled.wait()  # the poll that saw this would have seen "b"
        selector.unregister(later_reading)
        for descriptor in (reading, writing, later_reading, later_writing):
            os.close(descriptor)
        return events

    assert run(go) == [(selectors.EVENT_READ, b"a")]
