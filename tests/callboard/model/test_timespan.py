"""Spans and points of time: exact nanoseconds, arithmetic as in C++, text."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData
from callboard.model.timespan import Timespan, Timestamp

NANOSECONDS = st.integers(-(2**63), 2**63 - 1)
HIGHEST = Timespan(2**63 - 1)


def test_an_int_is_nanoseconds_and_a_float_is_seconds():
    assert (Timespan(5).count(), Timespan(1.5).count(), Timespan().count()) == (
        5,
        1_500_000_000,
        0,
    )
    assert Timespan(1.4e-9).count() == 1
    assert Timestamp(5).time_since_epoch() == Timestamp(5.0).time_since_epoch() == Timespan(5.0)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1e10, float("inf"), float("nan")])
def test_a_span_out_of_range_raises(value):
    with pytest.raises(DataOverflow):
        Timespan(value)


@pytest.mark.parametrize("value", [True, "5", None])
def test_a_span_is_made_of_a_number(value):
    with pytest.raises(UnsupportedData):
        Timespan(value)


def test_division_goes_towards_zero():
    """As in C++ and unlike Python."""
    assert Timespan(-7) / 2 == Timespan(-3)
    assert Timespan(-7) % 4 == Timespan(-3)
    assert Timespan(7) / Timespan(3) == 2
    assert Timespan(7) % Timespan(4) == Timespan(3)
    assert 3 * Timespan(7) == Timespan(7) * 3 == Timespan(21)
    with pytest.raises(ZeroDivisionError):
        Timespan(1) / 0


@given(NANOSECONDS, NANOSECONDS)
def test_spans_add_and_compare_as_integers(a, b):
    assert (Timespan(a) < Timespan(b), Timespan(a) == Timespan(b)) == (a < b, a == b)
    assert Timespan(a // 2) + Timespan(b // 2) == Timespan(a // 2 + b // 2)
    assert Timespan(a // 2) - Timespan(b // 2) == Timespan(a // 2 - b // 2)


def test_sums_out_of_range_raise():
    with pytest.raises(DataOverflow):
        HIGHEST + Timespan(1)
    with pytest.raises(DataOverflow):
        Timestamp(HIGHEST) + Timespan(1)
    with pytest.raises(TypeError):
        Timespan(1) + 1


def test_points_and_spans_add_up():
    assert Timestamp(5.0) + Timespan(1.0) == Timestamp(6.0)
    assert Timestamp(5.0) - Timespan(1.0) == Timestamp(4.0) < Timestamp(5.0)
    assert Timestamp(5.0) - Timestamp(3.0) == Timespan(2.0)
    assert len({Timestamp(5.0), Timestamp(5), Timespan(5.0)}) == 2


@given(st.timedeltas(datetime.timedelta(days=-100_000), datetime.timedelta(days=100_000)))
def test_a_timedelta_comes_back(span):
    assert Timespan.from_timedelta(span).to_timedelta() == span


@given(
    st.datetimes(
        datetime.datetime(1678, 1, 1),  # noqa: DTZ001
        datetime.datetime(2262, 1, 1),  # noqa: DTZ001
        timezones=st.timezones(),
    )
)
def test_a_datetime_comes_back(moment):
    there = moment.astimezone(datetime.UTC)  # some local times never were: equal to nothing

    assert Timestamp.from_datetime(moment).to_datetime() == there


@given(NANOSECONDS)
def test_text_comes_back(ns):
    assert Timespan.parse(str(Timespan(ns))) == Timespan(ns)
    point = Timestamp(Timespan(ns))
    assert Timestamp.parse(point.isoformat()) == point


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1500000000.0ns", 1_500_000_000),
        ("1.5ms", 1_500_000),
        ("-2us", -2_000),
        ("3s", 3 * 10**9),
        ("0.5min", 30 * 10**9),
        ("1h", 3_600 * 10**9),
        ("1d", 86_400 * 10**9),
        ("0.9ns", 0),
    ],
)
def test_spans_are_read_with_unit_and_fraction(text, ns):
    assert Timespan.parse(text).count() == ns


@pytest.mark.parametrize("text", ["", "5", "ns", "5 ns", "5NS", "1e3ns", "9" * 20 + "d", ".5s"])
def test_other_text_is_no_span(text):
    with pytest.raises(InvalidData):
        Timespan.parse(text)


def test_points_are_read_with_zone_and_fraction():
    noon = Timestamp.parse("2026-01-31T12:00:00.000")

    assert Timestamp.parse("2026-01-31T12:00:00Z") == noon
    assert Timestamp.parse("2026-01-31T13:30:00+01:30") == noon
    assert Timestamp.parse("2026-01-31T12:00:00.000000001") == noon + Timespan(1)
    assert (noon.isoformat(), str(noon)) == ("2026-01-31T12:00:00.000", "1769860800000000000ns")


@pytest.mark.parametrize(
    "text", ["", "2026-01-31", "2026-02-30T00:00:00", "2500-01-01T00:00:00", "now"]
)
def test_other_text_is_no_point(text):
    with pytest.raises(InvalidData, match="is not a timestamp"):
        Timestamp.parse(text)
