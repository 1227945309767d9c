"""Payloads become columns; what does not fit is told apart, with the reason."""

import datetime

import pytest

pa = pytest.importorskip("pyarrow")

from cbor2 import dumps  # noqa: E402

from callboard.pipeline.spark.schema import decode_payloads, infer_fields  # noqa: E402

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


def test_a_record_that_is_bad_in_one_field_is_null_in_all():
    columns, reasons = decode(
        [{"load": 1.0, "host": "a"}, {"load": "much", "host": "b"}], LOAD, HOST
    )

    assert columns == [[1.0, None], ["a", None]]
    assert reasons == {1: "field load is 'much', which is no double"}


def test_bytes_that_are_no_cbor_are_told_with_the_reason():
    columns, reasons = decode([b"\xa1", {"load": 2.0}], LOAD)

    assert columns == [[None, 2.0]]
    assert list(reasons) == [0]
    assert reasons[0].startswith("no CBOR: ")


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
