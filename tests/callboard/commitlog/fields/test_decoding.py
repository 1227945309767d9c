"""Payloads become columns; what does not fit is told apart, with the reason."""

import datetime
from zoneinfo import ZoneInfo

import pytest

pa = pytest.importorskip("pyarrow")

from cbor2 import dumps  # noqa: E402

from callboard.commitlog.fields.decoding import Rules, decode_payloads, infer_fields  # noqa: E402

LOAD = pa.field("load", pa.float64())
HOST = pa.field("host", pa.string())


def decode(payloads, *fields):
    data = [each if isinstance(each, bytes) else dumps(each) for each in payloads]
    columns, reasons = decode_payloads(data, [False] * len(data), fields)
    return [column.to_pylist() for column in columns], reasons


def infer(payloads):
    data = [dumps(each) for each in payloads]
    return {field.name: str(field.type) for field in infer_fields(data, [False] * len(data))}


def test_fields_of_maps_are_columns_and_missing_ones_are_null():
    columns, reasons = decode([{"load": 0.5, "host": "a"}, {"load": 1}, {}], LOAD, HOST)

    assert columns == [[0.5, 1.0, None], ["a", None, None]]
    assert reasons == {}


def test_items_of_lists_are_numbered_and_anything_else_is_the_value():
    columns, _ = decode(
        [["cpu", 0.5], 7], pa.field("_1", pa.string()), pa.field("value", pa.int64())
    )

    assert columns == [["cpu", None], [None, 7]]


def test_plain_bytes_are_the_value():
    columns, reasons = decode_payloads([b"\xff"], [True], [pa.field("value", pa.binary())])

    assert columns[0].to_pylist() == [b"\xff"]
    assert reasons == {}


def test_a_value_that_does_not_fit_is_null_and_the_other_fields_stay():
    columns, reasons = decode(
        [{"load": 1.0, "host": "a"}, {"load": "much", "host": "b"}], LOAD, HOST
    )

    assert columns == [[1.0, None], ["a", "b"]]
    assert reasons == {1: "field load is 'much', which does not fit the type double"}


def test_bytes_that_are_no_cbor_are_told_with_the_reason():
    columns, reasons = decode([b"\xa1", {"load": 2.0}], LOAD)

    assert columns == [[None, 2.0]]
    assert list(reasons) == [0]
    assert reasons[0].startswith("not CBOR: ")


def test_a_number_that_is_no_integer_does_not_fit_an_integer():
    _, reasons = decode([{"n": 1.5}, {"n": 2**70}, {"n": 3}], pa.field("n", pa.int64()))

    assert sorted(reasons) == [0, 1]


def test_types_are_those_of_the_sample():
    moment = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)

    found = infer(
        [{"load": 1, "host": "a", "at": moment, "up": True, "in": {"x": [1]}}, {"load": 0.5}]
    )

    assert found == {
        "load": "double",
        "host": "string",
        "at": "timestamp[us, tz=UTC]",
        "up": "bool",
        "in": "struct<x: list<item: int64>>",
    }


def test_where_a_sample_disagrees_the_type_is_that_of_most():
    assert infer([{"n": 1}, {"n": "x"}, {"n": 2}, {"m": None}]) == {
        "n": "int64",
        "m": "string",
    }


def fit(kind, *values, **rules):
    data = [dumps({"x": value}) for value in values]
    field = pa.field("x", kind)
    (column,), reasons = decode_payloads(data, [False] * len(data), [field], Rules(**rules))
    return column.to_pylist(), sorted(reasons)


def test_times_are_text_or_numbers_since_1970_as_well():
    moments, bad = fit(
        pa.timestamp("us", tz="UTC"),
        "2013-03-10T02:30:00-05:00",
        "2001/01/14 21:55",
        "2001-01-03",
        1_700_000_000,
        1_700_000_000_123,
        "1700000000",
        -3600.5,
        datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC),
        float("nan"),
        "soon",
        True,
        10**30,
    )

    assert [each and each.isoformat() for each in moments] == [
        "2013-03-10T07:30:00+00:00",
        "2001-01-14T21:55:00+00:00",
        "2001-01-03T00:00:00+00:00",
        "2023-11-14T22:13:20+00:00",
        "2023-11-14T22:13:20.123000+00:00",
        "2023-11-14T22:13:20+00:00",
        "1969-12-31T22:59:59.500000+00:00",
        "2026-01-31T00:00:00+00:00",
        *[None] * 4,
    ]
    assert bad == [9, 10, 11]


def test_times_without_a_zone_are_at_home_where_it_is_said():
    """Of the two hours in autumn it is the first, and the one that spring leaves out moves."""
    texts = ["2013-03-10T02:30:00", "2013-11-03T01:30:00", "2013-07-01T00:00:00Z"]
    zone = ZoneInfo("America/New_York")

    moments, bad = fit(pa.timestamp("us", tz="UTC"), *texts, zone=zone)

    assert [f"{each:%H:%M}" for each in moments] == ["07:30", "05:30", "00:00"]
    assert bad == []


def test_numbers_fit_where_nothing_is_cut():
    assert fit(pa.float64(), 2**60 + 1, 2**70, 7) == ([2.0**60, 2.0**70, 7.0], [])
    assert fit(pa.int64(), 5, float("nan"), 1.5, 2**70) == ([5, None, None, None], [2, 3])
    assert fit(pa.string(), "a", float("nan")) == (["a", None], [])
    assert fit(pa.list_(pa.int64()), [1, 2], [1.5]) == ([[1, 2], None], [1])
    inside = pa.struct([("n", pa.int64()), ("at", pa.timestamp("s", tz="UTC"))])
    found, bad = fit(inside, {"n": 2, "at": 60}, {"n": 1.5})
    assert (found[0]["n"], found[0]["at"].minute, bad) == (2, 1, [1])


def test_fields_stand_within_others_and_beside_those_of_records():
    payloads = [{"main": {"temp": 1.5}, "time": "noon"}, {"main.temp": 2.5}, {"main": 3}, 7]
    names = pa.field("main.temp", pa.float64()), pa.field("payload.time", pa.string())

    columns, reasons = decode(payloads, *names)

    assert columns == [[1.5, 2.5, None, None], ["noon", None, None, None]]
    assert reasons == {}


def test_fields_are_text_or_required_where_it_is_said():
    values = [5, True, "a", 1.5, None, [1]]

    found, bad = fit(pa.string(), *values, texts=frozenset(["x"]), required=frozenset(["x"]))

    assert found == ["5", "true", "a", "1.5", None, None]
    assert bad == [4, 5]
