"""Hostile fields: the record is undecodable, and the query continues."""

from decimal import Decimal
from fractions import Fraction

import pytest
from cbor2 import dumps

pa = pytest.importorskip("pyarrow")

from callboard.commitlog.fields.decoding import decode_payloads, infer_fields, time_of  # noqa: E402

INTEGER, TIME, DATE = pa.int64(), pa.timestamp("us", tz="UTC"), pa.date32()
#: With so many digits that to write them out takes minutes and gigabytes.
LONG, FINE = Decimal("1E+999999999"), Decimal("1E-999999999")


def decoded(value, kind):
    column, reasons = decode_payloads([dumps({"v": value})], [False], [pa.field("v", kind)])
    return column[0].to_pylist()[0], reasons.get(0)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (10**5000, INTEGER),
        ([10**5000], INTEGER),
        (10**5000, pa.string()),
        (10**5000, TIME),
        (Decimal("1E+3000"), INTEGER),
        (Decimal("1E-3000"), pa.decimal128(38, 18)),
        (Decimal(3), DATE),
        (Decimal(3), pa.duration("us")),
        (Decimal("3.7"), INTEGER),
        (Fraction(10**5000, 3), INTEGER),
        (float("inf"), TIME),
        (float("-inf"), TIME),
        (1e20, TIME),
    ],
    ids=lambda _: "",  # pytest writes integers out
)
def test_a_value_that_does_not_fit_is_a_reason(value, kind):
    found, reason = decoded(value, kind)
    assert found is None
    assert reason.startswith("field v is ")
    assert len(reason) <= 200


@pytest.mark.parametrize(
    "kind",
    [INTEGER, TIME, DATE, pa.duration("us"), pa.list_(INTEGER), pa.decimal128(38, 18)],
    ids=str,
)
@pytest.mark.parametrize(
    "value", [LONG, FINE, Decimal("-1E+999999999"), Decimal("0E-999999999")]
)
def test_a_decimal_too_large_for_memory_is_undecodable(value, kind):
    """Arrow hung, or took the process with it."""
    found, reason = decoded(value, kind)
    assert found is None
    assert reason.startswith("not CBOR")
    assert infer_fields([dumps({"v": [value]})], [False]) == []


def test_decimals_that_are_whole_are_integers():
    assert decoded(Decimal("3.00"), INTEGER) == (3, None)
    assert decoded(Decimal("-9E+18"), INTEGER) == (-9 * 10**18, None)
    assert decoded([Decimal(3)], pa.list_(INTEGER)) == ([3], None)


def test_times_have_tenths_of_microseconds_at_most():
    assert time_of(Decimal("1.5")).timestamp() == 1.5
    assert time_of(Decimal("0.0000019")).microsecond == 1
    assert time_of(FINE).timestamp() == 0


def test_a_payload_with_shared_references_is_not_a_sample():
    doublings = b"\x98\x29\xd8\x1c\x80" + b"".join(
        b"\xd8\x1c\x82" + b"\xd8\x1d\x18%c" % n * 2 for n in range(40)
    )
    assert infer_fields([doublings], [False]) == []
    _, reasons = decode_payloads([doublings], [False], [pa.field("_1", INTEGER)])
    assert reasons[0].startswith("not CBOR")
