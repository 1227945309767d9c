"""Log-writes of Zeek: bytes of its own serializer, round trips, and garbage."""

import math
import struct
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog.record import decode_value
from callboard.model.errors import InvalidData
from callboard.zeek import log_write
from callboard.zeek.log_write import LogField, LogType, LogWriteDecoder, encode_log_write

#: What Zeek 9.1-dev makes of two records with the field `ts`, 1.0 and 2.0: its own test has it.
GOLDEN = bytes.fromhex(
    "0000000c4c6f673a3a554e4b4e4f574e000000104c6f673a3a5752495445525f4e4f4e450000000764656661756c74"
    "000000076d792d706174680000000100000000027473000000050000001600000000020000000500000016013ff000"
    "000000000000000005000000160140000000 00000000"
)
CONN = (
    LogField("ts", LogType.TIME),
    LogField("uid", LogType.STRING),
    LogField("id.orig_h", LogType.ADDR),
    LogField("id.resp_p", LogType.PORT),
    LogField("service", LogType.STRING, is_optional=True),
    LogField("orig_bytes", LogType.COUNT, is_optional=True),
    LogField("tunnel_parents", LogType.SET, LogType.STRING, is_optional=True),
)
ROWS = (
    (1.5, "CAb", "10.0.0.1", (443, 1), "ssl", 7, ["CXy"]),
    (2.5, "CAc", "2001:db8::1", 53, None, None, None),
)


def decoded(payload):
    header, records = LogWriteDecoder().decode(payload)
    return header, [decode_value(record) for record in records]


def test_bytes_of_zeeks_own_serializer_are_read_and_written():
    header, records = decoded(GOLDEN)

    assert (header.stream, header.writer) == ("Log::UNKNOWN", "Log::WRITER_NONE")
    assert (header.filter, header.path) == ("default", "my-path")
    assert header.fields == (LogField("ts", LogType.TIME),)
    assert records == [{"ts": datetime(1970, 1, 1, 0, 0, n, tzinfo=UTC)} for n in (1, 2)]
    written = encode_log_write(
        "my-path",
        header.fields,
        [(1.0,), (2.0,)],
        stream="Log::UNKNOWN",
        writer="Log::WRITER_NONE",
    )
    # Zeek writes TYPE_ERROR for a subtype that is none, where ours is 0.
    assert written == GOLDEN.replace(b"\0\0\0\x16", bytes(4))


def test_records_are_maps_with_every_field_and_null_for_what_is_absent():
    header, records = decoded(encode_log_write("conn", CONN, ROWS))

    assert header.stream == "Conn::LOG"
    assert header.fields == CONN
    assert records == [
        {
            "ts": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
            "uid": "CAb",
            "id.orig_h": "10.0.0.1",
            "id.resp_p": 443,
            "service": "ssl",
            "orig_bytes": 7,
            "tunnel_parents": ["CXy"],
        },
        {
            "ts": datetime(1970, 1, 1, 0, 0, 2, 500_000, UTC),
            "uid": "CAc",
            "id.orig_h": "2001:db8::1",
            "id.resp_p": 53,
            "service": None,
            "orig_bytes": None,
            "tunnel_parents": None,
        },
    ]


def test_fields_have_columns_and_zeeks_names_of_types():
    found = [tuple(field.column) for field in CONN]

    assert found == [
        ("ts", "time", "time"),
        ("uid", "text", "string"),
        ("id.orig_h", "text", "addr"),
        ("id.resp_p", "int", "port"),
        ("service", "text", "string"),
        ("orig_bytes", "uint", "count"),
        ("tunnel_parents", "text[]", "set[string]"),
    ]


TEXTS = st.text(max_size=300) | st.binary(max_size=20)
TIMES = st.floats(-62_135_596_800, 253_402_300_799)
VALUES = {
    LogType.BOOL: st.booleans(),
    LogType.INT: st.integers(-(2**63), 2**63 - 1),
    LogType.COUNT: st.integers(0, 2**64 - 1),
    LogType.DOUBLE: st.floats(),
    LogType.INTERVAL: st.floats(),
    LogType.TIME: TIMES | st.sampled_from([math.inf, -math.inf, math.nan, 1e300]),
    LogType.PORT: st.tuples(st.integers(0, 65_535), st.integers(0, 3)),
    LogType.ADDR: st.ip_addresses(),
    LogType.SUBNET: st.builds(
        lambda address, bits: ip_network((address, min(bits, address.max_prefixlen)), False),
        st.ip_addresses(),
        st.integers(0, 128),
    ),
    **dict.fromkeys((LogType.STRING, LogType.ENUM, LogType.FUNC, LogType.FILE), TEXTS),
}


@st.composite
def fields(draw):
    made = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(LogType))
        inner = None
        if kind in {LogType.SET, LogType.VECTOR}:
            inner = draw(st.sampled_from(sorted(VALUES)))
        name = draw(st.sampled_from(["id.", "a", "", "ü"])) + str(number)
        made.append(LogField(name, kind, inner, draw(st.booleans())))
    return made


def value_of(field):
    if field.subtype is None:
        return st.none() | VALUES[field.type]
    return st.none() | st.lists(st.none() | VALUES[field.subtype], max_size=4)


def in_log(kind, value):
    """Return what a value is to be in the log: nothing of the codec is used."""
    if value is None:
        return None
    if kind is LogType.TIME:
        if not -62_135_596_800 <= value <= 253_402_300_799:
            return None
        return datetime.fromtimestamp(value, UTC)
    if kind is LogType.PORT:
        return value[0]
    if kind in {LogType.ADDR, LogType.SUBNET}:
        return str(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value


@pytest.mark.slow
@given(st.data())
def test_what_is_encoded_comes_back(data):
    made = data.draw(fields())
    rows = data.draw(st.lists(st.tuples(*map(value_of, made)), max_size=4))

    header, records = decoded(encode_log_write("a/b", made, rows))

    assert header.fields == tuple(made)
    expected = [
        {
            field.name: value
            if value is None
            else in_log(field.type, value)
            if field.subtype is None
            else [in_log(field.subtype, each) for each in value]
            for field, value in zip(made, row, strict=True)
        }
        for row in rows
    ]
    assert repr(records) == repr(expected)  # so NaN is equal to itself, and True is not 1


@given(st.data())
def test_garbage_is_a_typed_error_or_records(data):
    payload = bytearray(encode_log_write("conn", CONN, ROWS))
    decoder = LogWriteDecoder()
    decoder.decode(bytes(payload))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload += data.draw(st.binary(max_size=3))

    try:
        _, records = decoder.decode(bytes(payload))
    except InvalidData:
        return
    for record in records:
        assert len(decode_value(record)) == len(CONN)


def test_each_truncation_is_a_typed_error():
    payload = encode_log_write("conn", CONN, ROWS)
    decoder = LogWriteDecoder()
    for decode in (decoder.decode, LogWriteDecoder().decode):
        for end in range(len(payload)):
            with pytest.raises(InvalidData):
                decode(payload[:end])
        decoder.decode(payload)


def announcing(count):
    """Return a message that announces so many records, and has one."""
    one = encode_log_write("conn", CONN[:1], [(1.0,)])
    return one.replace(struct.pack(">II", 1, LogType.TIME), struct.pack(">II", count, 5))


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (announcing(2**32 - 1), "4,294,967,295 records are announced, but 17 bytes are left"),
        (announcing(2), "2 records are announced"),
        (announcing(0), "17 bytes follow the 0 records"),
        (encode_log_write("conn", CONN[:1], [(1.0,)]) + b"\0", "1 bytes follow"),
        (encode_log_write("conn", (), []), "0 fields"),
        (encode_log_write("conn", [*CONN[:1]] * 2, []), "'ts' appears twice"),
        (encode_log_write("conn", [CONN[0], LogField("TS", LogType.INT)], []), "'TS' appears"),
        (encode_log_write("", CONN, []), "a name of 0 bytes"),
        (encode_log_write("x" * 129, CONN, []), "a name of 134 bytes"),
        (encode_log_write("a\x1b[2J", CONN, []), "is not printable"),
        (encode_log_write("conn", [LogField("p", LogType.PORT)], [((1, 4),)]), "is not a port"),
        (encode_log_write("conn", [LogField("p", LogType.PORT)], [(65536,)]), "is not a port"),
        (b"", "is cut off after 0 bytes"),
        (GOLDEN.replace(b"\0\0\0\x05", b"\0\0\0\x08"), "type 8 at byte"),
        (GOLDEN[:-17] + GOLDEN[-17:].replace(b"\x05", b"\x04", 1), "instead of time"),
        (GOLDEN[:-9] + b"\2" + GOLDEN[-8:], "2 at byte"),
    ],
)
def test_garbage_is_told(payload, why):
    with pytest.raises(InvalidData, match=why.replace("(", r"\(")):
        LogWriteDecoder().decode(payload)


def test_names_of_fields_may_not_blow_records_up(monkeypatch):
    monkeypatch.setattr(log_write, "RECORDS_LIMIT", 10_000)
    wide = [LogField("x" * 120 + str(n), LogType.COUNT) for n in range(9)]
    payload = encode_log_write("conn", wide, [[None] * 9] * 10)

    with pytest.raises(InvalidData, match="names in 10 records exceed 10,000 bytes"):
        LogWriteDecoder().decode(payload)


def test_a_container_of_containers_is_refused():
    odd = [LogField("x", LogType.SET, LogType.VECTOR)]

    with pytest.raises(InvalidData, match="holds containers"):
        LogWriteDecoder().decode(encode_log_write("conn", odd, []))


@pytest.mark.parametrize("count", [-1, 2**60])
def test_the_size_of_a_list_is_bounded_by_what_is_left(count):
    payload = encode_log_write("conn", CONN[-1:], [([],)])

    with pytest.raises(InvalidData, match="items are announced at byte"):
        LogWriteDecoder().decode(payload[:-8] + struct.pack(">q", count))


@pytest.mark.parametrize("family", [0, 5])
def test_an_address_has_family_4_or_6(family):
    payload = encode_log_write("conn", CONN[2:3], [("10.0.0.1",)])

    with pytest.raises(InvalidData, match="not an address family"):
        LogWriteDecoder().decode(payload[:-5] + bytes((family,)) + payload[-4:])


@pytest.mark.parametrize("kind", [LogType.ADDR, LogType.SUBNET])
def test_an_address_of_ipv6_that_is_cut_is_none_of_ipv4(kind):
    value = "2001:db8::1" if kind is LogType.ADDR else "2001:db8::/104"
    payload = encode_log_write("conn", [LogField("x", kind)], [(value,)])

    with pytest.raises(InvalidData, match="is cut off"):
        LogWriteDecoder().decode(payload[:-12])


def test_a_subnet_of_ipv4_counts_its_bits_as_one_of_ipv6():
    net = [LogField("net", LogType.SUBNET)]
    payload = encode_log_write("conn", net, [(ip_network("10.0.0.0/8"),)])

    assert payload[-6:] == bytes((96 + 8, 4, 10, 0, 0, 0))
    with pytest.raises(InvalidData, match="has the invalid length -88"):
        LogWriteDecoder().decode(payload[:-6] + bytes((8,)) + payload[-5:])


def test_fields_of_a_log_that_change_are_read_anew():
    decoder = LogWriteDecoder()
    first = encode_log_write("conn", CONN[:2], [(1.0, "a")])
    second = encode_log_write("conn", CONN[:3], [(1.0, "b", "10.0.0.1")])

    headers = [decoder.decode(each).header for each in (first, first, second, first)]

    assert headers[0] is headers[1]
    assert [len(header.fields) for header in headers] == [2, 2, 3, 2]


def test_a_field_with_a_second_name_is_read():
    plain = encode_log_write("conn", CONN[:1], [(1.0,)])
    at = plain.index(b"\0\0\0\0\x02ts")
    second = plain[:at] + b"\x01\0\0\0\x01x" + plain[at + 1 :]

    assert decoded(second)[0].fields == CONN[:1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LogType.COUNT, -1),
        (LogType.ADDR, "10.0.0.256"),
        (LogType.STRING, 7),
        (LogType.TIME, timedelta(seconds=1)),
        (LogType.SUBNET, IPv6Address("::1").packed[:3]),
    ],
)
def test_what_is_no_value_of_its_type_is_not_written(kind, value):
    with pytest.raises(InvalidData, match=f"is not of the type {kind.name.lower()}"):
        encode_log_write("conn", [LogField("x", kind)], [(value,)])


def test_addresses_are_texts_as_zeek_writes_them():
    fields = [LogField("a", LogType.ADDR), LogField("n", LogType.SUBNET)]
    rows = [(IPv4Address("10.0.0.1"), IPv6Network("2001:db8::/32"))]

    assert decoded(encode_log_write("conn", fields, rows))[1] == [
        {"a": "10.0.0.1", "n": "2001:db8::/32"}
    ]
