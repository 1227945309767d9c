"""Two releases of a program read each other's messages: one codec for each."""

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from callboard.basp.errors import (
    MalformedPayload,
    MessageRefused,
    MessageVersion,
    UnknownMessageType,
)
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import MessageRegistry


class Earlier:
    """The types as the earlier release has them."""

    @dataclass(frozen=True)
    class Order:
        item: str
        note: str = ""

    class Place(NamedTuple):
        row: int

    @dataclass(frozen=True)
    class Basket:
        orders: list[Any]
        main: Any = None

    class Color(enum.Enum):
        RED = 1
        GREY = 2

    class Right(enum.Flag):
        READ = 1

    @dataclass(frozen=True)
    class Count:
        number: int


class Later:
    """And the later one: fields and members came and went."""

    @dataclass(frozen=True)
    class Order:
        item: str
        amount: int = 1
        tags: list[str] = field(default_factory=list)

    class Place(NamedTuple):
        row: int
        column: int = 7

    @dataclass(frozen=True, kw_only=True)
    class Basket:
        orders: list[Any]
        main: Any = None
        owner: str = "nobody"

    class Color(enum.Enum):
        RED = 1
        GRAY = 2
        GREY = 2
        BLUE = 3

    class Right(enum.Flag):
        READ = 1
        WRITE = 2

    @dataclass(frozen=True)
    class Count:
        number: int
        unit: str

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("less than nothing")


NAMES = ("Order", "Place", "Basket", "Color", "Right", "Count")


def codec_of(release: type) -> PayloadCodec:
    registry = MessageRegistry()
    for name in NAMES:
        registry.register(f"shop.{name}", getattr(release, name))
    return PayloadCodec(registry)


@pytest.fixture
def earlier() -> PayloadCodec:
    return codec_of(Earlier)


@pytest.fixture
def later() -> PayloadCodec:
    return codec_of(Later)


def test_a_field_that_is_missing_takes_its_default(earlier, later):
    payload = earlier.encode(Earlier.Order("tea"))

    assert later.decode_message(payload) == Later.Order("tea", 1, [])


def test_a_default_factory_makes_a_value_for_each_message(earlier, later):
    payload = earlier.encode(Earlier.Order("tea"))
    first, second = later.decode_message(payload), later.decode_message(payload)

    assert first.tags == second.tags == []
    assert first.tags is not second.tags


def test_a_field_that_is_unknown_is_dropped_and_counted(earlier, later):
    payload = later.encode(Later.Order("tea", 3, ["hot"]))

    assert earlier.decode_message(payload) == Earlier.Order("tea")
    assert earlier.dropped_fields == 2
    assert later.dropped_fields == 0


def test_named_tuples_grow_as_dataclasses_do(earlier, later):
    assert later.decode_message(earlier.encode(Earlier.Place(1))) == Later.Place(1, 7)
    assert earlier.decode_message(later.encode(Later.Place(1, 2))) == Earlier.Place(1)


def test_nested_types_are_fitted_too(earlier, later):
    sent = Later.Basket(
        orders=[Later.Order("tea", 2), (Later.Place(1, 2),)],
        main={"key": Later.Order("milk")},
        owner="somebody",
    )

    found = earlier.decode_message(later.encode(sent))

    assert found == Earlier.Basket(
        [Earlier.Order("tea"), (Earlier.Place(1),)], {"key": Earlier.Order("milk")}
    )
    assert earlier.dropped_fields == 6
    assert later.decode_message(earlier.encode(found)).owner == "nobody"


@pytest.mark.parametrize("inside", [lambda m: m, lambda m: [{"a": (m,)}]])
def test_a_missing_field_without_default_names_type_and_field(earlier, later, inside):
    payload = earlier.encode(inside(Earlier.Count(5)))

    with pytest.raises(MessageVersion, match=r"'shop\.Count' lacks field 'unit'"):
        later.decode_message(payload)


def test_an_unknown_member_of_an_enum_is_an_error_of_versions(earlier, later):
    with pytest.raises(MessageVersion, match=r"'shop\.Color' has no member 'BLUE'"):
        earlier.decode_message(later.encode(Later.Color.BLUE))


def test_a_member_with_a_new_name_is_understood_while_the_old_one_is_an_alias(earlier, later):
    assert later.decode_message(earlier.encode(Earlier.Color.GREY)) is Later.Color.GRAY


def test_an_unknown_bit_of_a_flag_is_an_error_of_versions(earlier, later):
    assert earlier.decode_message(later.encode(Later.Right.READ)) is Earlier.Right.READ
    with pytest.raises(MessageVersion, match=r"'shop\.Right': this node does not know"):
        earlier.decode_message(later.encode(Later.Right.READ | Later.Right.WRITE))


@pytest.mark.parametrize("extra", [{}, {"more": 1}])
def test_a_class_that_refuses_the_fields_is_named(later, extra):
    fields = {"number": -1, "unit": "kg", **extra}
    kind = later.registry.by_name["shop.Count"]

    with pytest.raises(MessageRefused, match=r"'shop\.Count' is refused .*less than nothing"):
        kind.build(fields)


def test_the_short_cut_names_a_class_that_refuses_too(later):
    @dataclass(frozen=True)
    class Count:
        number: int
        unit: str

    registry = MessageRegistry()
    registry.register("shop.Count", Count)
    payload = PayloadCodec(registry).encode(Count(-1, "kg"))

    with pytest.raises(MessageRefused, match="less than nothing"):
        later.decode_message(payload)


def test_a_type_that_only_one_release_has_is_named(later):
    @dataclass(frozen=True)
    class Fresh:
        a: int

    registry = MessageRegistry()
    registry.register("shop.Fresh", Fresh)
    payload = PayloadCodec(registry).encode([Fresh(1)])

    with pytest.raises(UnknownMessageType, match=r"'shop\.Fresh' is not registered here"):
        later.decode_message(payload)


def test_errors_between_releases_are_not_malformed_payloads():
    """An error of exactly `MalformedPayload` ends a link; these concern one message."""
    for error in (MessageVersion, MessageRefused, UnknownMessageType):
        assert issubclass(error, MalformedPayload)
        assert error is not MalformedPayload
