"""Asks that their asker cancelled, or that took too long: who works on them stops."""

import asyncio
import concurrent.futures
import threading

import pytest

from callboard import Actor, Future, Node, handler
from callboard.actors.errors import AskTimeout, ResultTimeout
from tests.polling import eventually


class Works(Actor):
    def __init__(self):
        self.log = []
        self.started = threading.Event()

    async def work(self):
        self.started.set()
        try:
            await self.sleep(1000)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    @handler
    async def plain(self, msg: int) -> None:
        await self.work()

    @handler(concurrent=True)
    async def at_once(self, msg: float) -> None:
        await self.work()

    @handler(cancellable=False)
    async def to_its_end(self, msg: str) -> str:
        self.started.set()
        await self.sleep(0.2)
        self.log.append("done")
        return msg

    @handler
    async def asks(self, msg: bytes) -> None:
        await asyncio.gather(self.work(), self.work())

    @handler
    def sync(self, msg: list) -> None:
        self.log.append(msg)

    async def method(self) -> None:
        await self.work()

    def read(self) -> list:
        return self.log


@pytest.fixture(scope="module")
def node():
    with Node() as made:
        yield made


@pytest.fixture
def ref(node):
    return node.spawn(Works)


ASKS = [
    lambda ref, **options: ref.ask(1, **options),
    lambda ref, **options: ref.ask(1.5, **options),
    lambda ref, **options: ref.ask(b"", **options),
]


@pytest.mark.parametrize("ask", [*ASKS, lambda ref: ref.call(Works.method)])
def test_a_coroutine_handler_is_cancelled_with_its_ask(ref, ask):
    asked = ask(ref)
    actor = ref.target.actor
    assert actor.started.wait(20)

    assert asked.cancel()

    eventually(lambda: set(actor.log) == {"cancelled"})
    assert ref.call(Works.read).result(20)  # the actor goes on


@pytest.mark.parametrize("ask", ASKS)
def test_a_coroutine_handler_is_cancelled_when_its_time_is_over(ref, ask):
    asked = ask(ref, timeout=0.05)
    actor = ref.target.actor

    with pytest.raises(AskTimeout):
        asked.result(20)
    eventually(lambda: set(actor.log) == {"cancelled"} or not actor.started.is_set())


def test_a_handler_that_is_not_cancellable_runs_to_its_end(ref):
    asked = ref.ask("to its end")
    actor = ref.target.actor
    assert actor.started.wait(20)

    assert asked.cancel()

    eventually(lambda: actor.log == ["done"])


def test_a_message_that_waits_is_not_handled(ref):
    before = ref.ask(1)
    assert ref.target.actor.started.wait(20)
    waiting = ref.ask([1])

    assert waiting.cancel()
    before.cancel()

    assert ref.call(Works.read).result(20) == ["cancelled"]


def test_a_task_that_asks_gives_its_ask_up(ref):
    actor = ref.target.actor

    async def run():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ref.aask(1))
            await asyncio.to_thread(actor.started.wait, 20)
            task.cancel()

    asyncio.run(run())

    eventually(lambda: actor.log == ["cancelled"])


class Chain(Actor):
    def __init__(self, other):
        self.other = other

    @handler
    async def through(self, msg: int) -> None:
        await self.other.aask(msg)


def test_a_chain_of_asks_is_given_up_by_aask(node, ref):
    asked = node.spawn(Chain, ref).ask(1)
    assert ref.target.actor.started.wait(20)

    asked.cancel()

    eventually(lambda: ref.target.actor.log == ["cancelled"])


# --- one kind of error for each world ---


def test_a_thread_gets_the_error_of_its_futures():
    future = Future()
    future.cancel("why")

    for get in (future.result, future.exception):
        with pytest.raises(concurrent.futures.CancelledError, match="why"):
            get()


def test_a_coroutine_gets_asyncios():
    future = Future()
    future.cancel("why")

    async def run():
        with pytest.raises(asyncio.CancelledError, match="why"):
            future.result()
        with pytest.raises(asyncio.CancelledError, match="why"):
            await future
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(future)

    asyncio.run(run())


def test_a_waiting_coroutine_gets_asyncios(ref):
    async def run():
        asked = ref.ask(1)
        asyncio.get_running_loop().call_later(0.01, asked.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(run())


def test_exception_waits_for_its_timeout(ref):
    failing, pending = ref.ask(1, timeout=0.01), Future()

    assert isinstance(failing.exception(20), AskTimeout)
    with pytest.raises(ResultTimeout):
        pending.exception(0.01)
    pending.set_result(1)
    assert pending.exception() is None


def test_a_twin_for_code_that_wants_the_librarys(ref):
    answered, failed, cancelled = Future(), Future(), Future()
    twins = [each.as_concurrent() for each in (answered, failed, cancelled)]
    answered.set_result(1)
    failed.set_exception(KeyError("k"))
    cancelled.cancel()

    done, _ = concurrent.futures.wait(twins, 20)

    assert len(done) == 3
    assert twins[0].result(0) == 1
    assert isinstance(twins[1].exception(0), KeyError)
    assert twins[2].cancelled()


def test_to_cancel_the_twin_cancels_the_ask(ref):
    asked = ref.ask(1)
    twin = asked.as_concurrent()
    actor = ref.target.actor
    assert actor.started.wait(20)

    assert twin.cancel()

    assert asked.cancelled()
    eventually(lambda: actor.log == ["cancelled"])
    assert concurrent.futures.wait([twin], 20).done == {twin}
