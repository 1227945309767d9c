"""Zeek's events: made, read, refused."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.broker.zeek import Event as LooseEvent
from callboard.broker.zeek import MetadataType, SafeEvent
from callboard.broker.zeek import StrictEvent as Event
from callboard.model.data import Data
from callboard.model.errors import InvalidData
from callboard.model.scalar import Count
from callboard.model.timespan import Timestamp
from tests.callboard.model.strategies import DATA

ONE = Count(1)


def test_an_event_travels_as_three_vectors():
    event = Event("pong", 1, "x")

    assert Data.to_py(event.as_data()) == (ONE, ONE, ("pong", (1, "x")))
    assert Data(event) == event.as_data()
    assert str(event.as_data()) == "(1, 1, (pong, (1, x)))"


@given(st.lists(DATA, max_size=4))
def test_an_event_comes_back(args):
    event = Event("name", *args)

    assert Event(event.as_data()) == event
    assert hash(Event(event.as_data())) == hash(event)


def test_an_event_is_read_from_python_values():
    event = Event((ONE, ONE, ("pong", (1, {2}))))

    assert (event.name(), event.args(), event.valid()) == ("pong", [1, {2}], True)
    assert Event("none").args() == []


def test_metadata_is_optional():
    entries = [(MetadataType.NetworkTimestamp, Timestamp(5.0)), (Count(200), "mine")]
    event = Event("pong", 7, metadata=entries)

    again = Event(event.as_data())

    assert again == event == Event("pong", 7, metadata=dict(entries)) != Event("pong", 7)
    five = datetime.fromtimestamp(5.0, UTC)
    assert again.metadata() == [(Count(1), five), (MetadataType.UserMetadataStart, "mine")]
    assert Event("pong").metadata() is None
    assert Event("pong", metadata=[]).metadata() == []


def test_a_network_time_is_a_timestamp():
    late = [ONE, ONE, ["pong", [], [[ONE, 5.0]]]]

    assert not LooseEvent(Data(late)).valid()
    with pytest.raises(InvalidData, match="network time"):
        LooseEvent("pong", metadata={1: 5.0})


def test_arguments_of_a_safe_event_cannot_be_changed():
    event = SafeEvent(Event("pong", {1}, [{2: 3}]).as_data())

    assert event.args() == [frozenset({1}), ({2: 3},)]
    with pytest.raises(TypeError):
        event.args()[1][0][2] = 4


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        [],
        [ONE, ONE],
        [1, 1, ["name", []]],
        [ONE, Count(2), ["name", []]],
        [ONE, ONE, "name"],
        [ONE, ONE, ["name"]],
        [ONE, ONE, [5, []]],
        [ONE, ONE, ["name", 5]],
        [ONE, ONE, [b"\xff", []]],
        [ONE, ONE, ["name", [], 5]],
        [ONE, ONE, ["name", [], [[1, 2]]]],
        [ONE, ONE, ["name", [], [[ONE]]]],
    ],
)
def test_what_is_no_event_is_refused(value):
    with pytest.raises(InvalidData):
        Event(value)


def test_an_event_needs_a_name():
    with pytest.raises(InvalidData, match="name and arguments"):
        Event()
    assert repr(SafeEvent("pong", 7)) == "<SafeEvent pong(7)>"
