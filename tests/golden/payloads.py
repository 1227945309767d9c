"""Payloads of dispatches: CBOR with every tag, registered and plain types, options."""

# ruff: noqa: DTZ001  (naive datetimes have bytes too)
import datetime as dt
import enum
import ipaddress
import uuid
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from callboard.basp.options import DispatchOptions, read_options
from callboard.basp.payload import PayloadCodec
from callboard.basp.plain_types import PlainRegistry
from callboard.basp.registry import MessageRegistry
from callboard.cbor import tags
from tests.golden.sample import Sample


@dataclass(frozen=True)
class Reading:
    sensor: str
    value: Any = 0.0
    notes: tuple[str, ...] = ()


class Pair(NamedTuple):
    left: Any
    right: Any = 7


Old = namedtuple("Old", ["a"])  # noqa: PYI024  (both kinds must work)


class Color(enum.Enum):
    RED = "r"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.__dict__ == self.__dict__

    __hash__ = None


class Ref(NamedTuple):
    node: bytes
    number: int


def make_codec() -> PayloadCodec:
    shared = MessageRegistry()
    for cls in (Reading, Pair, Old, Color, Access):
        shared.register(f"golden.{cls.__name__}", cls)
    known = {Plain.__qualname__: Plain}
    # The name of this module stands in the bytes of plain types.
    registry = PlainRegistry(shared, [__name__], lambda _module, name: known.get(name))
    return PayloadCodec(registry, ref_types=(Ref,), ref_to_pair=tuple, pair_to_ref=Ref)


CODEC = make_codec()
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def message(value: Any) -> Sample:
    return Sample(value, CODEC.encode, CODEC.decode_message)


def with_options(options: DispatchOptions) -> Sample:
    return Sample(
        options,
        lambda value: CODEC.encode(["late"], value.to_map()),
        lambda data: read_options(CODEC.decode(data)[1]),
    )


VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "small integers": [0, 23, 24, 255, 256, 65_535, 65_536, 2**32, 2**64 - 1],
    "negative integers": [-1, -24, -25, -256, -257, -65_537, -(2**32) - 1, -(2**64)],
    "big integers": [2**64, -(2**64) - 1, 10**40],
    "floats": [0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf")],
    "text": ["", "a", "ä€😀", "x" * 24, "y" * 300],
    "bytes": [b"", b"\0\xff", b"z" * 300],
    "large bytes": b"q" * 5000,
    "lists": [[], [1, [2, [3]]], list(range(30))],
    "tuples": ((), (1, (2,)), (1, "a", b"b")),
    "map": {"a": 1, "b": {"c": [1]}, b"d": None},
    "map with other keys": {1: "a", (1, 2): "b", None: "c"},
    "set": {5},
    "frozenset": frozenset({"only"}),
    "bytearray": bytearray(b"changes"),
    "decimals": [Decimal("1.10"), Decimal("-1E+5"), Decimal("Infinity")],
    "datetimes": [
        dt.datetime(2024, 2, 29, 12, 30, 1, 5),
        dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
        dt.datetime(2024, 10, 27, 2, 30, fold=1),
    ],
    "date": dt.date(2024, 2, 29),
    "times": [dt.time(23, 59, 58, 7), dt.time(1, fold=1)],
    "timedelta": [dt.timedelta(-1, 5, 7), dt.timedelta(weeks=100)],
    "uuid": uuid.UUID(int=2**127 + 5),
    "addresses": [
        ipaddress.ip_address("192.0.2.1"),
        ipaddress.ip_network("192.0.2.0/24"),
        ipaddress.ip_interface("192.0.2.1/24"),
        ipaddress.ip_address("2001:db8::1"),
        ipaddress.ip_network("2001:db8::/32"),
        ipaddress.ip_interface("2001:db8::1/64"),
    ],
    "reference": [Ref(b"r" * 18, 17), Ref(bytes(range(18)), 2**32 - 1)],
    "flat record": Reading("t1", 21.5),
    "nested record": Reading("t1", [Reading("t2", {"x": Pair(1)}), Old(2)], ("a", "b")),
    "named tuples": [Pair("l", "r"), Old(None)],
    "enum": Color.RED,
    "flag": Access.READ | Access.WRITE,
    "plain object": Plain(a=1, b=[Plain(c="d")]),
    "class": Plain,
}
OPTIONS = {
    "deadline": DispatchOptions(deadline_ms=1500),
    "trace": DispatchOptions(trace_parent=TRACE),
    "all options": DispatchOptions(9, TRACE, "vendor=1", b"key", {77: ["later"]}),
}
SAMPLES = {name: message(value) for name, value in VALUES.items()}
SAMPLES |= {f"options: {name}": with_options(value) for name, value in OPTIONS.items()}


def head(tag: int) -> bytes:
    """Return how CBOR writes a tag."""
    if tag < 24:
        return bytes((0xC0 | tag,))
    return b"\xd8" + bytes((tag,)) if tag < 256 else b"\xd9" + tag.to_bytes(2, "big")


def missing() -> set[str]:
    """Return tags that no sample has."""
    written = b"".join(sample.write(sample.value) for sample in SAMPLES.values())
    ours = {name: number for name, number in vars(tags).items() if type(number) is int}
    ours |= {"big": 2, "negative big": 3, "uuid": 37, "date": 1004}
    lost = {name for name, number in ours.items() if head(number) not in written}
    return lost | {kind.__name__ for kind in tags.IP_TYPES} - {
        type(each).__name__ for each in VALUES["addresses"]
    }
