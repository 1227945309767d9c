"""Typed events: every type of Zeek to and from a topic's value, and what does not fit."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated, Any

import pytest

from callboard import Endpoint
from callboard.model.address import Port
from callboard.model.data import Data, ImmutableData
from callboard.model.encoding import python_from_cbor, python_to_cbor
from callboard.model.errors import InvalidData, UnsupportedData
from callboard.model.scalar import Count, Enum
from callboard.zeek import from_value, zeek_event, zeek_events


class Severity(StrEnum):
    LOW = "Notice::LOW"
    HIGH = "Notice::HIGH"


@dataclass(frozen=True)
class ConnId:
    orig_h: IPv4Address | IPv6Address
    orig_p: Port


@zeek_event("Test::everything")
@dataclass
class Everything:
    flag: bool
    number: int
    amount: Count
    plain: Annotated[int, Count]
    real: float
    text: str
    note: Enum
    severity: Severity
    net: IPv4Network | IPv6Network
    when: datetime
    span: timedelta
    matches: re.Pattern[str]
    conn: ConnId
    names: list[str]
    ports: set[Port]
    pairs: set[tuple[str, Count]]
    table: dict[str, dict[Count, ConnId]]
    rest: tuple[int, ...]
    anything: Any
    absent: ConnId | None = None
    late: list[ConnId | None] = field(default_factory=list)


def everything() -> Everything:
    conn = ConnId(IPv4Address("10.0.0.1"), Port(80, Port.TCP))
    return Everything(
        flag=True, number=-1, amount=Count(2), plain=3, real=4.5, text="ü",
        note=Enum("Scan::Port"), severity=Severity.HIGH, net=IPv6Network("2001:db8::/32"),
        when=datetime(2026, 1, 2, 3, 4, 5, 6000, UTC), span=timedelta(seconds=1.5),
        matches=re.compile("a|b"), conn=conn, names=["x"], ports={Port(53, Port.UDP)},
        pairs={("a", Count(1))}, table={"k": {Count(1): conn}}, rest=(1, 2),
        anything=("any", 1), absent=conn, late=[None, conn],
    )  # fmt: skip


def arrived(event):
    return python_from_cbor(python_to_cbor(event))


def test_an_event_of_every_type_finds_back():
    event = everything()

    assert from_value(Everything, arrived(event)) == event
    assert from_value(Everything, ImmutableData.to_py(Data(event))) == event
    event.absent = None
    assert from_value(Everything, arrived(event)) == event


def test_it_travels_as_zeek_has_it():
    conn = ConnId(IPv4Address("10.0.0.1"), Port(80, Port.TCP))

    @zeek_event("Test::small")
    @dataclass
    class Small:
        conn: ConnId
        count: Annotated[int, Count]
        matches: re.Pattern[str]

    value = arrived(Small(conn, 7, re.compile("x")))

    assert value == (
        Count(1),
        Count(1),
        (
            "Test::small",
            (
                (IPv4Address("10.0.0.1"), Port(80, Port.TCP)),
                Count(7),
                ("^?(x)$?", "^?(.|\\n)*(x)"),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, 1, "flag"), (1, True, "number"), (2, 1, "amount"), (3, "x", "plain"),
        (6, "x", "note"), (7, Enum("Notice::NO"), "severity"), (9, 1.0, "when"),
        (11, ("[", "["), "matches"), (12, (1,), "conn"), (13, "x", "names"), (15, {1}, "pairs"),
        (16, (), "table"), (19, 5, "absent"),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_refused_by_its_name(at, value, text):
    one, two, (name, args) = arrived(everything())
    changed = (*args[:at], value, *args[at + 1 :])

    with pytest.raises(InvalidData, match=f"Test::everything: {text}"):
        from_value(Everything, (one, two, (name, changed)))


@pytest.mark.parametrize("count", [0, 18, 22])
def test_so_many_arguments_are_refused(count):
    one, two, (name, args) = arrived(everything())

    with pytest.raises(InvalidData, match="19 to 21 fields"):
        from_value(Everything, (one, two, (name, (args * 2)[:count])))


def test_only_known_events_are_typed_and_other_values_pass():
    read = zeek_events(Everything)
    other = (Count(1), Count(1), ("Other::event", (1,)))

    assert read("/t", arrived(everything())) == everything()
    for value in (other, 7, None, (), "x"):
        assert read("/t", value) is value
    with pytest.raises(InvalidData, match="not the event"):
        from_value(Everything, other)


def test_what_cannot_be_an_event_is_refused_when_it_is_made():
    with pytest.raises(UnsupportedData, match="above @dataclass"):
        zeek_event("X")(int)

    @zeek_event("X")
    @dataclass
    class Odd:
        odd: complex

    with pytest.raises(UnsupportedData, match="complex"):
        zeek_events(Odd)
    for classes in ((ConnId,), (Everything, Everything)):
        with pytest.raises(UnsupportedData):
            zeek_events(*classes)


def test_it_is_published_and_read_like_any_value():
    with Endpoint() as a, Endpoint() as b, b.make_subscriber("/zeek") as subscriber:
        assert b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
        assert a.await_filter_entry("/zeek")
        a.publish("/zeek/event", everything())

        assert zeek_events(Everything)(*subscriber.get(10.0)) == everything()
