"""Messages whose classes run functions of their users while they are decoded."""

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from callboard import Actor, Entity, handler, message
from callboard.errors import CallboardError
from tests.proxies.cast import Echo, eventually, line

#: Set while code of a class may go on; the test's own thread never waits for it.
GATE = threading.Event()
SECONDS = 20.0


def _wait() -> None:
    if threading.current_thread() is not threading.main_thread():
        assert GATE.wait(SECONDS)


@pytest.fixture(autouse=True)
def gate():
    """Hold code of classes up until the test opens the gate."""
    GATE.clear()
    yield GATE
    GATE.set()


@message("tests.user_code.Checked")
@dataclass(frozen=True)
class Checked:
    text: str = ""

    def __post_init__(self) -> None:
        _wait()


@message("tests.user_code.Hashed")
@dataclass(frozen=True)
class Hashed:
    text: str = ""

    def __hash__(self) -> int:
        _wait()
        return 1


@message("tests.user_code.Compared")
@dataclass(frozen=True, eq=False)
class Compared:
    text: str = ""

    def __eq__(self, other: object) -> bool:
        _wait()
        return isinstance(other, Compared)

    def __hash__(self) -> int:
        return 1


def _slow_default() -> list[int]:
    _wait()
    return []


@message("tests.user_code.Defaulted")
@dataclass
class Defaulted:
    text: str = ""
    more: list[int] = field(default_factory=_slow_default)


@message("tests.user_code.Bits")
class Bits(enum.Flag):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        _wait()
        return super()._missing_(value)


@message("tests.user_code.Refusing")
@dataclass
class Refusing:
    text: str = ""

    def __post_init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(self.text)


class Giver(Actor):
    """Answers with what its class makes slow."""

    @handler
    def give(self, what: str) -> object:
        return Checked(what)


class Collector(Actor):
    """Remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    @handler
    def take(self, msg: object) -> None:
        self.seen.append(msg)

    def all_seen(self) -> list[object]:
        return self.seen


SLOW: dict[str, Callable[[], object]] = {
    "__post_init__": lambda: Checked("x"),
    "in a list": lambda: [1, {"a": Checked("x")}],
    "__hash__ of an element": lambda: {Hashed("x")},
    "__hash__ of a key": lambda: {Hashed("x"): 1},
    "__eq__ of elements": lambda: frozenset({Compared("x"), Compared("y")}),
    "large": lambda: [b"x" * 70_000, Checked("x")],
}


@pytest.mark.parametrize("make", SLOW.values(), ids=SLOW)
def test_slow_code_of_a_message_class_delays_no_other_sender(make_node, gate, make):
    victim, sender, bystander = make_node("victim"), make_node("a"), make_node("b")
    victim.listen("127.0.0.1", 0)
    for node in (sender, bystander):
        node.connect(victim.address)
    sink, echo = victim.spawn(Collector), victim.spawn(Echo)
    slow = make()

    sender.ref(str(sink)).tell(slow)

    for _ in range(3):
        assert bystander.ref(str(echo)).ask("y").result(SECONDS) == "y"
    assert sender.ref(str(echo)).ask("z").result(SECONDS) == "z"  # another actor, too
    gate.set()
    assert eventually(lambda: sink.call(Collector.all_seen).result(SECONDS)) == [slow]


def test_messages_of_a_pair_keep_their_order_around_slow_ones(make_node, gate):
    victim, sender = make_node("victim"), make_node("a")
    line(victim, sender)
    sink = victim.spawn(Collector)
    ref = sender.ref(str(sink))
    sent = [1, Checked("a"), 2, 3, Checked("b"), Checked("c"), 4, "last"]

    for each in sent:
        ref.tell(each)
    gate.set()

    seen = lambda: sink.call(Collector.all_seen).result(SECONDS)  # noqa: E731
    eventually(lambda: "last" in seen())
    assert seen() == sent


def test_an_answer_with_slow_code_delays_no_other_answer(make_node, gate):
    victim, giver = make_node("victim"), make_node("a")
    line(victim, giver)
    slow = victim.ref(str(giver.spawn(Giver))).ask("x", timeout=SECONDS)

    echo = victim.ref(str(giver.spawn(Echo)))

    assert [echo.ask(text).result(SECONDS) for text in "abc"] == list("abc")
    gate.set()
    assert slow.result(SECONDS) == Checked("x")


def test_a_class_that_refuses_its_fields_fails_its_ask_alone(make_node, gate):
    victim, sender = make_node("victim"), make_node("a")
    line(victim, sender)
    ref = sender.ref(str(victim.spawn(Echo)))

    asks = [ref.ask(Refusing("no")), ref.ask("after")]

    with pytest.raises(CallboardError, match="no"):
        asks[0].result(SECONDS)
    assert asks[1].result(SECONDS) == "after"


class Basket(Entity):
    """An entity that takes messages with code of their own."""

    name = "tests.user_code.Basket"

    @handler
    def checked(self, msg: Checked) -> str:
        return msg.text

    @handler
    def plain(self, msg: str) -> str:
        return msg


def test_slow_code_of_a_message_to_an_entity_delays_no_other_sender(make_node, gate):
    victim, sender, bystander = make_node("victim"), make_node("a"), make_node("b")
    victim.listen("127.0.0.1", 0)
    for node in (sender, bystander):
        node.connect(victim.address)
    victim.host(Basket)
    assert bystander.entity(Basket, "b").ask("first").result(SECONDS) == "first"

    slow = sender.entity(Basket, "a").ask(Checked("x"), timeout=SECONDS)

    asks = [bystander.entity(Basket, "b").ask(text) for text in "uvw"]
    assert [ask.result(SECONDS) for ask in asks] == list("uvw")
    gate.set()
    assert slow.result(SECONDS) == "x"
