import dataclasses
import enum
from collections.abc import Collection
from typing import NamedTuple

import pytest

from callboard.basp.errors import (
    DuplicateMessageType,
    MalformedPayload,
    MessageVersion,
    NotSerializable,
)
from callboard.basp.registry import MessageRegistry
from tests.basp.message_types import Access, Box, Color, Derived, Pair, Point, make_registry


def declare(fields=(("a", int),), name="Thing"):
    return dataclasses.make_dataclass(name, fields, namespace={"__module__": "m"})


def test_the_same_source_replaces():
    registry = MessageRegistry()
    first, second = declare(), declare()
    registry.register("thing", first)
    registry.register("thing", second)

    assert registry.by_name["thing"].cls is second
    assert registry.by_class[first].name == registry.by_class[second].name == "thing"


@pytest.mark.parametrize("other", [declare((("b", int),)), declare(name="Other"), Color])
def test_another_class_under_the_same_name_is_refused(other):
    registry = MessageRegistry()
    registry.register("thing", declare())

    with pytest.raises(DuplicateMessageType, match="'thing' is already registered"):
        registry.register("thing", other)


def test_a_second_name_for_a_class_is_refused():
    registry = MessageRegistry()
    registry.register("color", Color)
    registry.register("color", Color)

    with pytest.raises(DuplicateMessageType, match="second name"):
        registry.register("paint", Color)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_have_a_limit(name):
    with pytest.raises(ValueError, match="1-255 characters"):
        MessageRegistry().register(name, Color)


def test_plain_classes_are_refused():
    with pytest.raises(NotSerializable, match="not a dataclass"):
        MessageRegistry().register("x", type("X", (), {}))


def test_dataclasses_with_hidden_content_are_refused():
    @dataclasses.dataclass
    class Hidden(dict):
        a: int = 0

    with pytest.raises(NotSerializable, match="built-in"):
        MessageRegistry().register("x", Hidden)


def test_constructor_arguments_that_are_not_fields_are_refused():
    @dataclasses.dataclass
    class Once:
        a: int
        seed: dataclasses.InitVar[int]

    with pytest.raises(NotSerializable, match="'seed'"):
        MessageRegistry().register("x", Once)


def test_missing_fields_take_their_defaults():
    registry = make_registry()
    first = registry.by_name["box"].build({"content": 1})
    second = registry.by_name["box"].build({"content": 1})

    assert first == Box(1, "none", [])
    assert first.items is not second.items
    assert registry.by_name["pair"].build({"left": 1}) == Pair(1, 7)


def test_missing_field_without_default_is_a_version_error():
    with pytest.raises(MessageVersion, match="'point' lacks field 'y'"):
        make_registry().by_name["point"].build({"x": 1})


def test_unknown_fields_are_dropped_and_counted():
    dropped: list[tuple[str, Collection[str]]] = []
    point = make_registry().by_name["point"]

    def note(name: str, fields: Collection[str]) -> None:
        dropped.append((name, fields))

    assert point.build({"x": 1, "y": 2, "z": 3, 5: 6}, note) == Point(1, 2)
    assert point.build({"x": 1, "y": 2}, note) == Point(1, 2)
    assert dropped == [("point", ["5", "z"])]


def test_fields_that_init_does_not_take_are_set():
    built = make_registry().by_name["derived"].build({"base": 1, "double": 5})

    assert (built.base, built.double) == (1, 5)


def test_unknown_enum_member_is_a_version_error():
    with pytest.raises(MessageVersion, match="no member 'BLUE'"):
        make_registry().by_name["color"].build("BLUE")


@pytest.mark.parametrize(
    ("name", "content"), [("point", [1, 2]), ("color", 5), ("access", "READ"), ("access", True)]
)
def test_wrong_content_is_malformed(name, content):
    with pytest.raises(MalformedPayload):
        make_registry().by_name[name].build(content)


def test_aliases_and_flags_are_read():
    registry = make_registry()

    assert registry.by_name["color"].build("ROT") is Color.RED
    assert registry.by_name["access"].build(3) == Access.READ | Access.WRITE


def test_dataclass_without_init_is_filled():
    @dataclasses.dataclass(init=False)
    class Bare:
        a: int

    registry = MessageRegistry()
    registry.register("bare", Bare)
    assert registry.by_name["bare"].build({"a": 3}).a == 3


def test_registries_are_independent():
    class Here(enum.Enum):
        A = 1

    class There(NamedTuple):
        a: int

    first, second = MessageRegistry(), MessageRegistry()
    first.register("x", Here)
    second.register("x", There)

    assert first.by_name["x"].cls is not second.by_name["x"].cls
    assert Derived not in first.by_class


@pytest.mark.parametrize("base", [enum.IntFlag, enum.Flag])
def test_unused_combinations_of_flags_from_peers_are_removed(base):
    kind = base("Bits", {"A": 1, "B": 2}, boundary=enum.KEEP)
    registry = MessageRegistry()
    registry.register("bits", kind)
    build = registry.by_name["bits"].build
    held = [build(number << 8) for number in range(1, 200)]

    for number in range(1, 2_000):
        assert build(number << 20).value == number << 20

    assert len(kind._value2member_map_) < 3 * len(held)
    # Python 3.11.2 keeps no combination of bits that have no name.
    if kind(1 << 40) is kind(1 << 40):
        assert all(kind(number << 8) is each for number, each in enumerate(held, 1))
    held.clear()
    for number in range(1, 2_000):
        build(number << 30)
    assert len(kind._value2member_map_) < 100
