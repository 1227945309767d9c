"""Other handlers, the stash, and messages with high priority."""

import threading

import pytest

from callboard import Actor, handler
from callboard.actors import cell
from callboard.actors.dispatch import InvalidHandler
from callboard.actors.errors import ActorDown, RemoteError, UnexpectedMessage
from tests.actors.sample import Collector, Gate, instance


class Locked:
    @handler
    def coin(self, msg: int) -> str:
        self.coins += msg
        self.become(Unlocked)
        return "unlocked"


class Unlocked:
    @handler
    def push(self, msg: str) -> str:
        self.unbecome()
        return "pushed"


class Turnstile(Actor):
    def __init__(self):
        self.coins = 0

    @handler
    def coin(self, msg: int) -> str:
        self.become(Locked)
        return "in order"

    @handler
    def functions(self, msg: bytes) -> None:
        self.become({str: lambda text: text.upper(), int: self.later})

    @handler
    def behave(self, msg: tuple) -> None:
        self.become(msg[0])

    async def later(self, msg: int) -> int:
        await self.sleep(0.001)
        return msg + 1


class Desk(Actor):
    """Takes nothing but keys until it is open."""

    def __init__(self):
        self.is_open = False
        self.seen = []

    @handler
    def work(self, msg: int) -> object:
        if not self.is_open:
            self.stash()
            return None
        self.seen.append(msg)
        return msg

    @handler
    async def slow_work(self, msg: float) -> object:
        await self.sleep(0.001)
        if not self.is_open:
            self.stash()
            return None
        self.seen.append(msg)
        return msg

    @handler
    def open(self, msg: str) -> None:
        self.is_open = True
        self.unstash_all()


# --- other handlers ---


def test_become_handles_the_next_message_with_another_class(runtime):
    ref = runtime.start_actor(Turnstile)

    answers = [ref.ask(message) for message in (1, 5, "push", 1)]

    assert [answer.result(5) for answer in answers] == [
        "in order",
        "unlocked",
        "pushed",
        "in order",
    ]
    assert instance(ref).coins == 5


def test_a_message_without_a_handler_after_become_is_unexpected(runtime):
    ref = runtime.start_actor(Turnstile)
    ref.ask(1).result(5)

    with pytest.raises(UnexpectedMessage):
        ref.ask("push").result(5)


def test_become_takes_functions_by_message_type(runtime):
    ref = runtime.start_actor(Turnstile)
    ref.tell(b"")

    assert ref.ask("push").result(5) == "PUSH"
    assert ref.ask(41).result(5) == 42


def test_become_takes_an_object_with_handlers(runtime):
    class Own:
        @handler
        def text(self, msg: str) -> bool:
            return isinstance(self, Own)

    ref = runtime.start_actor(Turnstile)
    ref.tell((Own(),))

    assert ref.ask("x").result(5)


@pytest.mark.parametrize("nothing", [object(), {str: 1}, {"str": print}])
def test_become_refuses_an_object_without_handlers(runtime, nothing):
    ref = runtime.start_actor(Turnstile)

    with pytest.raises(RemoteError) as raised:
        ref.ask((nothing,)).result(5)
    assert raised.value.type_name == InvalidHandler.__name__


# --- the stash ---


@pytest.mark.parametrize("kind", [int, float])
def test_stashed_messages_are_handled_after_unstash_in_their_order(runtime, kind):
    ref = runtime.start_actor(Desk)

    early = [ref.ask(kind(number)) for number in range(3)]
    ref.tell("open")
    late = ref.ask(kind(3))

    assert late.result(5) == 3
    assert [answer.result(5) for answer in early] == [0, 1, 2]
    assert instance(ref).seen == [0, 1, 2, 3]


def test_a_stashed_ask_fails_when_the_actor_ends(runtime):
    ref = runtime.start_actor(Desk)
    asked = ref.ask(1)
    ref.tell(2)
    ref.stop()

    with pytest.raises(ActorDown):
        asked.result(5)
    with pytest.raises(ActorDown):
        ref.ask("x").result(5)
    assert runtime.counters.dead_letters == 3


def test_a_stash_has_a_limit(runtime, monkeypatch):
    monkeypatch.setattr(cell, "STASH_LIMIT", 2)
    ref = runtime.start_actor(Desk)
    down = runtime.monitor(ref)

    for number in range(3):
        ref.tell(number)

    assert "2 messages in its stash, the limit" in down.result(5).detail


# --- high priority ---


def test_messages_with_high_priority_go_first_and_keep_their_order(runtime):
    class Held(Collector):
        def __init__(self):
            super().__init__()
            self.entered, self.gate = threading.Event(), threading.Event()

        @handler
        def hold(self, msg: bytes) -> None:
            self.entered.set()
            assert self.gate.wait(10)

    ref = runtime.start_actor(Held)
    ref.tell(b"")
    assert instance(ref).entered.wait(10)
    for number in (1, 2):
        ref.tell(number)
    for number in (10, 20):
        ref.tell(number, priority="high")
    asked = ref.ask(list, priority="high")
    instance(ref).gate.set()

    assert asked.result(5) == [10, 20]
    assert ref.ask(list).result(5) == [10, 20, 1, 2]


def test_an_urgent_message_to_an_ended_actor_is_a_dead_letter(runtime):
    ref = runtime.start_actor(Gate)
    down = runtime.monitor(ref)
    ref.kill()
    down.result(5)

    ref.tell("x", priority="high")

    with pytest.raises(ActorDown):
        ref.ask("x", priority="high").result(5)
    assert runtime.counters.dead_letters == 2


def test_a_failing_urgent_ask_receives_the_error(runtime):
    class Failing(Actor):
        @handler
        def fail(self, msg: str) -> None:
            raise ValueError(msg)

    with pytest.raises(RemoteError, match="as asked"):
        runtime.start_actor(Failing).ask("as asked", priority="high").result(5)
