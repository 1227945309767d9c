"""Payloads parsed a batch at a time: the same columns as one by one, the same bytes back."""

import datetime
import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from cbor2 import CBORTag, dumps, loads  # noqa: E402

from callboard.commitlog.fields.declared import DeclaredField  # noqa: E402
from callboard.commitlog.fields.decoding import (  # noqa: E402
    Rules,
    decode_arrays,
    decode_payloads,
)
from callboard.commitlog.fields.restoring import (  # noqa: E402
    restore_payloads,
    templates_from_json,
    templates_to_json,
)
from callboard.commitlog.fields.segment_fields import COMPLETE, SegmentFields  # noqa: E402
from callboard.commitlog.fields.templates import scan, template_of  # noqa: E402

MOMENT = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, datetime.UTC)
TIMES = st.datetimes(timezones=st.just(datetime.UTC))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.integers(-30, 300),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    TIMES,
    st.sampled_from(["2026-01-31T12:00:00Z", "2026-02-31T12:00:00Z", "7" * 10]),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.lists(st.integers(0, 3), max_size=2),
    st.just(CBORTag(4000, 1)),
)
KEYS = st.sampled_from(["a", "b", "c", "long name of a field", "d.e", ""])
MAPS = st.dictionaries(KEYS, SCALARS | st.dictionaries(KEYS, SCALARS, max_size=2), max_size=4)
PAYLOADS = st.one_of(MAPS, MAPS, st.lists(SCALARS, max_size=3), SCALARS)
TYPES = st.sampled_from(
    [
        pa.int64(),
        pa.uint64(),
        pa.int16(),
        pa.uint8(),
        pa.float64(),
        pa.float32(),
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("us"),
        pa.decimal128(38, 18),
        pa.list_(pa.int64()),
    ]
)
NAMES = ["a", "b", "a.b", "d.e", "_1", "value", "payload.a", "long name of a field"]
ENCODED = st.builds(dumps, PAYLOADS, canonical=st.booleans()) | st.binary(max_size=9)


def encoded(*payloads):
    return pa.array([dumps(payload) for payload in payloads], pa.binary())


def cbor(payloads):
    return pa.array([False] * len(payloads))


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(ENCODED, st.booleans()), max_size=30),
    st.lists(
        st.tuples(st.sampled_from(NAMES), TYPES), max_size=4, unique_by=lambda row: row[0]
    ),
    st.builds(
        Rules,
        texts=st.sets(st.sampled_from(NAMES), max_size=1).map(frozenset),
        required=st.sets(st.sampled_from(NAMES), max_size=1).map(frozenset),
        keeps_nan=st.booleans(),
    ),
)
def test_columns_are_those_of_payloads_that_are_decoded_one_by_one(rows, fields, rules):
    payloads = pa.array([data for data, _ in rows], pa.binary())
    kinds = pa.array([is_bytes and index % 3 == 0 for index, (_, is_bytes) in enumerate(rows)])
    kinds = kinds.cast(pa.bool_())
    columns = [pa.field(name, kind) for name, kind in fields]

    found = decode_arrays(payloads, kinds, columns, rules)

    expected = decode_payloads(payloads.to_pylist(), kinds.to_pylist(), columns, rules)
    for ours, theirs in zip(found.columns, expected.columns, strict=True):
        assert repr(ours.to_pylist()) == repr(theirs.to_pylist())
        assert ours.type == theirs.type
    if columns:
        assert found.reasons == expected.reasons


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.lists(ENCODED, min_size=1, max_size=12), min_size=1, max_size=3),
    st.sets(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["int", "time", "float"]))
    ),
)
def test_columns_and_templates_give_the_same_bytes_back(batches, declared):
    names = dict(sorted(declared))
    fields = SegmentFields([DeclaredField(*item) for item in names.items()], [])
    batches = [pa.array(batch, pa.binary()) for batch in batches]
    for batch in batches:
        fields.survey(batch, cbor(batch))
    fields.decide()
    templates = templates_from_json(templates_to_json(fields.templates))

    for batch in batches:
        columns = fields.columns_of(batch, cbor(batch))

        from callboard.commitlog.fields.declared import arrow_fields

        named = {
            field.name: column
            for field, column in zip(arrow_fields(fields.fields), columns.fields, strict=True)
        }
        again = restore_payloads(columns.payloads, columns.templates, templates, named)
        assert again.to_pylist() == batch.to_pylist()
        for stored, number in zip(
            columns.payloads.to_pylist(), columns.templates.to_pylist(), strict=True
        ):
            assert (stored is None) == (number is not None and number != COMPLETE)


def test_payloads_of_one_kind_are_left_out():
    fields = SegmentFields([DeclaredField("at", "time")], [])
    rows = [
        {"n": n * 97, "load": n / 7, "host": f"host {n}", "up": n % 2 == 0, "at": moment}
        for n, moment in enumerate([MOMENT, MOMENT.replace(microsecond=0)] * 50)
    ]
    batch = encoded(*rows, {"n": 1, "load": None, "host": "x", "up": None, "at": MOMENT})
    fields.survey(batch, cbor(batch))
    fields.decide()

    columns = fields.columns_of(batch, cbor(batch))

    assert columns.payloads.null_count == len(batch)
    assert [(field.name, field.type) for field in fields.fields] == [
        ("at", "time"),
        ("n", "int"),
        ("load", "float"),
        ("host", "text"),
        ("up", "bool"),
    ]


def test_a_field_keeps_its_type_or_becomes_wider():
    fields = SegmentFields([], [DeclaredField("n", "int"), DeclaredField("old", "text")])
    batch = encoded({"n": 1.5}, {"n": 2, "new": "x"})
    fields.survey(batch, cbor(batch))
    fields.decide()

    assert fields.fields == [
        DeclaredField("n", "float"),
        DeclaredField("old", "text"),
        DeclaredField("new", "text"),
    ]


def test_fields_beyond_the_limit_are_counted():
    fields = SegmentFields([], [])
    batch = encoded(*[{f"f{number}": 1} for number in range(60)] * 2, {"wide": [{"x": 1}]})
    wide = {f"g{number}": 1 for number in range(190)}
    batch = pa.concat_arrays([batch, encoded(wide, wide)])
    fields.survey(batch, cbor(batch))
    fields.decide()

    assert len(fields.fields) == 200
    assert fields.unknown["wide"] == 1
    assert fields.unknown["g189"] == 2


@pytest.mark.parametrize(
    "payload",
    [
        {"a": {"b": 1}, "a.b": 2},  # two values for one name
        {"a": {}},
        {"": 1},
        {1: 2},
        {"a": [1]},
        Decimal("1.5"),
        CBORTag(0, 5),
    ],
)
def test_a_payload_that_names_do_not_describe_has_no_template(payload):
    assert template_of(dumps(payload)) is None


def test_a_damaged_payload_has_no_template():
    whole = dumps({"a": 1.5, "b": "text"})
    for end in range(len(whole)):
        assert template_of(whole[:end]) is None
    assert template_of(whole + b"\x00") is None


def test_nan_is_null_or_kept():
    batch = encoded({"x": math.nan}, {"x": 1.0})
    field = [pa.field("x", pa.float64())]

    nulls = decode_arrays(batch, cbor(batch), field).columns[0]
    kept = decode_arrays(batch, cbor(batch), field, Rules(keeps_nan=True)).columns[0]

    assert nulls.to_pylist() == [None, 1.0]
    assert math.isnan(kept.to_pylist()[0])


def test_a_slice_of_an_array_is_parsed_alike():
    batch = encoded(*[{"n": n} for n in range(10)])
    part = batch.slice(3, 4)

    assert [
        loads(bytes(found.data[begin:end]))["n"]
        for found in [scan(part, cbor(part), [])]
        for begin, end in zip(found.begins, found.ends, strict=True)
    ] == [3, 4, 5, 6]
