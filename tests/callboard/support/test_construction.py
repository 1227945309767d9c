"""Every decoder keeps the sent or stored values of a class with code of its own."""

import ast
import logging
import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

import callboard
from callboard.basp import MessageRegistry, PayloadCodec
from callboard.basp.errors import MessageRefused
from callboard.basp.payload import read_flat_record
from callboard.basp.registry import RecordType
from callboard.entity.event_json import EventSerializer
from callboard.model.scalar import Count
from callboard.support.construction import Restoring, constructor_of, has_own_code
from callboard.support.dataclass import dataclass as lazy_dataclass
from callboard.zeek.event import from_value, zeek_event
from tests.sources import mentioning


@dataclass
class Plain:
    cents: int


@dataclass
class Money:
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


@dataclass(frozen=True)
class Name:
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text + "!")


@dataclass
class Appended:
    tags: list[str]

    def __post_init__(self) -> None:
        self.tags.append("default")


@dataclass
class InnerChanged:
    money: Plain
    table: dict[str, list[int]]

    def __post_init__(self) -> None:
        self.money.cents += 1
        self.table["more"] = [1]


@dataclass(init=False)
class OwnInit:
    cents: int

    def __init__(self, cents: int) -> None:
        self.cents = cents * 100


@dataclass
class OwnSetter:
    cents: int

    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value * 100)


@dataclass
class WithInitVar:
    a: int
    scale: InitVar[int] = 2
    b: int = field(init=False, default=0)

    def __post_init__(self, scale: int) -> None:
        self.b = self.a * scale


@dataclass(slots=True)
class Slots:
    cents: int

    def __post_init__(self) -> None:
        self.cents += 1


@dataclass(kw_only=True)
class ByName:
    cents: int

    def __post_init__(self) -> None:
        self.cents += 1


@lazy_dataclass(frozen=True)
class Lazy:
    cents: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cents", self.cents + 1)


class _Pair(NamedTuple):
    one: int
    other: list[int]


class OwnNew(_Pair):
    def __new__(cls, one: int, other: list[int]) -> Self:
        return super().__new__(cls, one + 1, [*other, 1])


def samples() -> list[Any]:
    """Values of classes that change their fields, each made once as its sender does."""
    return [
        Money(3), Name("a"), Appended(["x"]), InnerChanged(Plain(1), {"a": [1]}), OwnInit(3),
        OwnSetter(3), WithInitVar(3, 10), Slots(1), ByName(cents=1), Lazy(1), OwnNew(1, [2]),
    ]  # fmt: skip


CLASSES = (Plain, *map(type, samples()))


@pytest.fixture
def codec() -> PayloadCodec:
    registry = MessageRegistry()
    for cls in CLASSES:
        registry.register(f"construction.{cls.__name__}", cls)
    return PayloadCodec(registry, max_items=1 << 20)


def _in_pieces(codec: PayloadCodec, value: Any) -> Any:
    pieces = codec.decode_in_pieces(codec.encode(value))
    while True:
        try:
            next(pieces)
        except StopIteration as stop:
            return stop.value


def _flat(codec: PayloadCodec, value: Any) -> Any:
    """By the short cut, where the value has its form; else as any message."""
    payload = codec.encode(value)
    found = read_flat_record(payload, codec.registry.flat)
    return found if isinstance(found, type(value)) else codec.decode_message(payload)


def _event(codec: PayloadCodec, value: Any) -> Any:
    """As recovery and journals make a stored event."""
    form = EventSerializer(codec)
    kind = form.kind_of(value)
    return kind.build(form.read(form.write_fields(kind, value)))


DECODERS: dict[str, Callable[[PayloadCodec, Any], Any]] = {
    "message": lambda codec, value: codec.decode_message(codec.encode(value)),
    "with options": lambda codec, value: codec.decode(codec.encode(value, {9: 1}))[0],
    "in a list": lambda codec, value: codec.decode_message(codec.encode([value]))[0],  # type: ignore[index]
    "in pieces": _in_pieces,
    "flat": _flat,
    "event": _event,
    "state, job or reminder": lambda codec, value: EventSerializer(codec).read(
        EventSerializer(codec).write(value)
    ),
    "in stored state": lambda codec, value: EventSerializer(codec).read(
        EventSerializer(codec).write({"a": [value]})
    )["a"][0],
    "copy for an outbox": lambda codec, value: EventSerializer(codec).copy(value),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("value", samples(), ids=lambda value: type(value).__name__)
def test_each_decoder_returns_the_sent_values(
    codec: PayloadCodec, decoder: str, value: Any
) -> None:
    shown = repr(value)
    once = DECODERS[decoder](codec, value)
    twice = DECODERS[decoder](codec, once)
    assert type(twice) is type(value)
    assert (repr(once), repr(twice)) == (shown, shown)
    assert repr(value) == shown


def test_an_event_of_zeek_has_the_values_that_were_sent() -> None:
    @zeek_event("Test::money")
    @dataclass
    class Event:
        cents: int

        def __post_init__(self) -> None:
            self.cents *= 100

    one = Count(1)
    assert from_value(Event, (one, one, ("Test::money", (Event(3).cents,)))).cents == 300


def test_a_class_that_changes_a_field_is_named_once(
    codec: PayloadCodec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            codec.decode_message(codec.encode(Money(3)))
            codec.decode_message(codec.encode(Plain(3)))
    (told,) = caplog.records
    assert "Money" in told.getMessage()
    assert "'cents'" in told.getMessage()


def test_a_class_that_only_checks_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Checked:
        number: float
        items: list[float]

        def __post_init__(self) -> None:
            if self.number == 7:
                raise ValueError("seven")
            self.items = list(self.items)

    registry = MessageRegistry()
    registry.register("construction.Checked", Checked)
    codec = PayloadCodec(registry)
    with caplog.at_level(logging.WARNING):
        got = codec.decode_message(codec.encode(Checked(math.nan, [math.nan])))
    assert isinstance(got, Checked)
    assert not caplog.records
    bad = Checked(1, [])
    bad.number = 7
    with pytest.raises(MessageRefused, match="seven"):
        codec.decode_message(codec.encode(bad))


def test_the_class_sets_fields_that_an_older_sender_lacks() -> None:
    @dataclass
    class Order:
        items: list[int]
        total: int = 0
        count: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            self.total = sum(self.items)
            self.count = len(self.items)
            self.items = [*self.items, 9]

    kind = RecordType("construction.Order", Order)
    made = kind.build({"items": [1, 2]})
    assert made == kind.build({"items": [1, 2], "total": 3, "count": 2})


def test_instances_of_classes_without_own_code_are_created_directly() -> None:
    @dataclass(frozen=True, slots=True)
    class Frozen:
        a: int

    @lazy_dataclass(slots=True)
    class LazyPlain:
        a: int = 1

    for cls in (Plain, Frozen, LazyPlain, _Pair):
        assert constructor_of(cls, ["a"]) is cls
    for sample in samples():
        assert has_own_code(type(sample)), type(sample)
        assert isinstance(constructor_of(type(sample), ()), Restoring)


#: Here people write the fields of a message, which the class may complete.
WRITTEN_BY_PEOPLE = {"cli/actor.py", "dashboard/actions.py"}


def test_no_other_code_makes_instances_of_registered_types() -> None:
    found = []
    root = Path(callboard.__file__).parent
    for room in (root, root.parent / "basp", root.parent / "proxies", root.parent / "actors"):
        for path, tree in mentioning(room, ".cls"):
            name = str(path.relative_to(room))
            for node in ast.walk(tree):
                called = node.func if isinstance(node, ast.Call) else None
                # `self.cls(…)` of the registry makes flags, of a number.
                if isinstance(called, ast.Attribute) and called.attr == "cls":
                    is_flag = room.name == "basp" and ast.unparse(node) == "self.cls(content)"
                    if not is_flag and name not in WRITTEN_BY_PEOPLE:
                        found.append(f"{name}:{node.lineno}")
    assert not found, "make it by the `construct` of its RecordType"
