"""Values on Broker's wires: bytes captured from version 1.4, round trips, damaged bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.caf.wire.varbyte import read_varbyte, write_varbyte
from callboard.model.data import DEPTH_LIMIT, Data
from callboard.model.errors import InvalidData
from callboard.zeek.value import value_from_bytes, value_to_bytes
from tests.callboard.model.strategies import DATA, build

SIXTEEN = bytes(range(16))

#: What two endpoints of version 1.4 sent each other for these values, seen between them.
CAPTURED = [
    (("none", None), "00"),
    (("boolean", True), "0101"),
    (("boolean", False), "0100"),
    (("count", 2**64 - 1), "02ffffffffffffffff"),
    (("integer", -(2**63)), "038000000000000000"),
    (("integer", 5), "030000000000000005"),
    (("real", "1.5"), "043ff8000000000000"),
    (("string", "hé"), "050368c3a9"),
    (("string", "x" * 200), "05c801" + "78" * 200),
    (("address", (b"abcd", 4)), "0600000000000000000000ffff61626364"),
    (("address", (SIXTEEN, 6)), "06000102030405060708090a0b0c0d0e0f"),
    (("subnet", ((b"abcd", 4), 20)), "0700000000000000000000ffff6162600074"),
    (("subnet", ((SIXTEEN, 6), 20)), "070001000000000000000000000000000014"),
    (("port", (80, 1)), "08005001"),
    (("port", (53, 2)), "08003502"),
    (("timestamp", 1_769_862_600), "09188fd0a8563fd000"),
    (("timespan", 1_500_000_000), "0a0000000059682f00"),
    (("enum", "Notice::LOG"), "0b0b4e6f746963653a3a4c4f47"),
    (("set", [("integer", 2), ("integer", 1)]), "0c02030000000000000001030000000000000002"),
    (
        ("table", [(("string", "k"), ("none", None)), (("count", 1), ("boolean", True))]),
        "0d020200000000000000010101" + "05016b00",
    ),
    (
        ("vector", [("integer", 1), ("vector", []), ("string", "")]),
        "0e030300000000000000010e000500",
    ),
]


@pytest.mark.parametrize(("description", "captured"), CAPTURED)
def test_values_have_the_bytes_of_the_real_broker(description, captured):
    data = build(description)

    assert value_to_bytes(data).hex() == captured
    assert value_from_bytes(bytes.fromhex(captured)) == data


@given(DATA)
def test_a_value_comes_back(data):
    again = value_from_bytes(value_to_bytes(data))

    assert again == data
    assert str(again) == str(data)


def test_as_much_nesting_as_data_may_have_comes_back():
    data = Data()
    for _ in range(DEPTH_LIMIT):
        data = Data([data])

    assert value_from_bytes(value_to_bytes(data)) == data
    with pytest.raises(InvalidData, match="deeper"):
        value_to_bytes(Data([data]))
    with pytest.raises(InvalidData, match="deeper"):
        value_from_bytes(b"\x0e\x01" + value_to_bytes(data))


@given(DATA, st.data())
def test_a_cut_value_is_refused(data, draws):
    whole = value_to_bytes(data)

    with pytest.raises(InvalidData):
        value_from_bytes(whole[: draws.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InvalidData, match="bytes follow"):
        value_from_bytes(whole + b"\x00")


@given(DATA, st.data())
def test_a_flipped_bit_gives_another_value_or_a_typed_error(data, draws):
    damaged = bytearray(value_to_bytes(data))
    bit = draws.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    try:
        again = value_from_bytes(bytes(damaged))
    except InvalidData:
        return
    assert value_from_bytes(value_to_bytes(again)) == again


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "0f",
        "0102",
        "05ff",
        "05ffffffffffffffffffff01",
        "0e05",
        "0effffffffff7f",
        "07" + "00" * 16 + "81",
        "0700000000000000000000ffff6162636410",
        "08005004",
        "0b01ff",
        "0d0100",
    ],
)
def test_what_is_no_value_is_refused(damaged):
    with pytest.raises(InvalidData):
        value_from_bytes(bytes.fromhex(damaged))


@given(st.integers(0, 2**64 - 1))
def test_a_varbyte_comes_back(number):
    out = bytearray(b"ahead")
    write_varbyte(number, out)

    assert read_varbyte(bytes(out), 5) == (number, len(out))
    assert len(out) == 5 + max(1, -(-number.bit_length() // 7))
