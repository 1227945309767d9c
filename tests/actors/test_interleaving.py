"""Concurrent handlers interleave at their awaits, and nowhere else."""

import asyncio
import threading

import pytest

from callboard import Actor, handler
from callboard.actors.dispatch import InvalidHandler
from callboard.actors.errors import ActorDown, RemoteError
from tests.actors.sample import instance


class Fetching(Actor):
    concurrent_limit = 3

    def __init__(self):
        self.events = {}
        self.log = []
        self.most = self.now = 0
        self.cancelled = 0

    @handler(concurrent=True)
    async def fetch(self, msg: int) -> int:
        self.log.append(("start", msg))
        self.now += 1
        self.most = max(self.most, self.now)
        self.events[msg] = asyncio.Event()
        try:
            await self.events[msg].wait()
            await self.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.now -= 1
        self.log.append(("end", msg))
        if msg == 13:
            raise ValueError("no luck")
        return msg * 10

    @handler(concurrent=True)
    async def promise_later(self, msg: bytes) -> object:
        promise = self.promise()
        await self.sleep(0.001)
        promise.set_result(msg)
        return b"not this"

    @handler(concurrent=True)
    async def who(self, msg: float) -> object:
        before = self._cell.sender
        await self.sleep(msg)
        return before is self._cell.sender

    @handler
    def let_go(self, msg: str) -> bool:
        event = self.events.get(int(msg))
        if event is not None:
            event.set()
        return event is not None

    @handler
    async def alone(self, msg: tuple) -> list:
        started = len(self.log)
        for number in msg:
            self.events[number].set()
        await self.sleep(0.01)
        return self.log[started:]


def test_other_messages_are_handled_while_a_concurrent_handler_awaits(runtime):
    ref = runtime.start_actor(Fetching)

    first, second = ref.ask(1), ref.ask(2)
    ref.ask("2").result(5)
    assert second.result(5) == 20
    assert not first.done()
    ref.ask("1").result(5)

    assert first.result(5) == 10


def test_no_concurrent_handler_resumes_while_an_unmarked_one_awaits(runtime):
    ref = runtime.start_actor(Fetching)
    asked = [ref.ask(1), ref.ask(2)]

    seen = ref.ask((1, 2)).result(5)

    assert seen == []
    assert [answer.result(5) for answer in asked] == [10, 20]


def test_no_more_than_the_limit_are_under_way_and_the_order_is_kept(runtime):
    ref = runtime.start_actor(Fetching)
    asked = {number: ref.ask(number) for number in range(10)}
    actor = instance(ref)

    waiting = set(asked)
    while waiting:
        for number in list(waiting):
            if asked[number].done():
                waiting.discard(number)
            elif number in actor.events:
                ref.tell(str(number), priority="high")

    assert [answer.result(5) for answer in asked.values()] == [n * 10 for n in range(10)]
    assert actor.most == 3
    assert [number for what, number in actor.log if what == "start"] == list(range(10))


def test_kill_cancels_all_that_are_under_way(runtime):
    ref = runtime.start_actor(Fetching)
    actor = instance(ref)
    asked = [ref.ask(number) for number in range(5)]
    down = runtime.monitor(ref)
    while len(actor.log) < 3:
        threading.Event().wait(0.001)

    ref.kill()

    assert down.result(5).reason == "killed"
    for answer in asked[1:]:
        with pytest.raises(ActorDown):
            answer.result(5)
    assert actor.cancelled >= 2


def test_stop_waits_for_those_that_are_under_way(runtime):
    ref = runtime.start_actor(Fetching)
    asked = [ref.ask(1), ref.ask(2)]
    down = runtime.monitor(ref)
    while len(instance(ref).log) < 2:
        threading.Event().wait(0.001)

    ref.stop()
    for number in ("1", "2"):
        ref.tell(number, priority="high")

    assert down.result(5).reason == "normal"
    assert [answer.result(5) for answer in asked] == [10, 20]


def test_one_that_fails_ends_the_actor_and_the_others(runtime):
    ref = runtime.start_actor(Fetching)
    failing, other = ref.ask(13), ref.ask(2)
    down = runtime.monitor(ref)

    ref.tell("13")

    with pytest.raises(RemoteError, match="no luck"):
        failing.result(5)
    with pytest.raises(ActorDown):
        other.result(5)
    assert down.result(5).reason == "error"


def test_each_keeps_its_own_promise_and_sender(runtime):
    ref = runtime.start_actor(Fetching)

    promised = [ref.ask(bytes([number])) for number in range(3)]
    senders = [ref.ask(0.001 * number) for number in range(3)]

    assert [answer.result(5) for answer in promised] == [b"\x00", b"\x01", b"\x02"]
    assert [answer.result(5) for answer in senders] == [True, True, True]


def test_only_coroutines_can_be_concurrent():
    with pytest.raises(InvalidHandler, match="async def"):

        class Wrong(Actor):
            @handler(concurrent=True)
            def take(self, msg: int) -> None:
                pass
