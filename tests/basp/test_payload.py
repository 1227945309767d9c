# ruff: noqa: DTZ001, DTZ901  (naive datetimes must survive too)
import datetime as dt
import ipaddress
import threading
import uuid
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from zoneinfo import ZoneInfo

import cbor2
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from callboard.basp.errors import (
    MalformedPayload,
    MessageVersion,
    NotSerializable,
    RemoteProtocolError,
    UnknownMessageType,
)
from callboard.basp.options import NO_OPTIONS
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import MessageRegistry
from callboard.cbor import tags
from tests.basp.message_types import Box, Color, Derived, Empty, Old, Point, Ref, make_registry
from tests.basp.strategies import is_same, messages, scalars


def make_codec(**options):
    return PayloadCodec(
        make_registry(),
        ref_types=(Ref,),
        ref_to_pair=lambda ref: ref.pair,
        pair_to_ref=Ref,
        **options,
    )


CODEC = make_codec()


@given(messages)
def test_messages_are_equal_and_of_the_same_type(message):
    payload = CODEC.encode(message)

    assert is_same(CODEC.decode_message(payload), message)
    assert is_same(CODEC.decode(payload)[0], message)


@given(scalars)
def test_scalars_read_by_hand_agree_with_cbor2(value):
    payload = CODEC.encode(value)

    assert is_same(cbor2.loads(payload), [value])
    assert is_same(CODEC.decode_message(cbor2.dumps([value])), value)


EXAMPLES = [
    0, 23, 24, 255, 256, 1023, 1024, 65535, 65536, 2**32, 2**64 - 1, 2**64, -1, -24, -25,
    -(2**64), -(2**64) - 1, 10**5000, 0.0, -0.0, 1e308, float("inf"), float("nan"), "",
    "a" * 23, "a" * 24, "a" * 300, "é" * 70000, b"", b"x" * 24, bytearray(b"x"), True, False,
    None, (), [], {}, set(), frozenset(), ((1, [2]), {3: (4,)}), {1, "a", (2, 3)},
    {frozenset([1]): {2}}, {(1, 2): [3]}, {True: 1, 2: 3, None: 4, 1.5: 5, b"x": 6},
    {1: {2: {3: {}}}}, list(range(100)), tuple("abc" * 10), set(range(50)),
    {n: str(n) for n in range(50)}, [1] * 20 + [(1,)], Decimal("1.50"), Decimal("-0"),
    Decimal("NaN"), Decimal("sNaN1"), Decimal("-Infinity"), Decimal("1E+999999"),
    dt.datetime(1, 1, 1), dt.datetime.max, dt.date(1, 1, 1), dt.date.max,
    dt.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, fold=1),
    dt.time(1, 2, 3, fold=1), dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=1))),
    dt.timedelta.min, dt.timedelta.max, uuid.UUID(int=5), ipaddress.ip_address("1.2.3.4"),
    ipaddress.ip_address("fe80::1%eth0"), ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_network("2001:db8::/32"), ipaddress.ip_interface("10.1.2.3/8"),
    ipaddress.ip_interface("2001:db8::1/32"), Old(1), Empty(),
    Box([Point(1, (2,))], "x", [Color.RED]),
]  # fmt: skip


@pytest.mark.parametrize("message", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_survive(message):
    assert is_same(CODEC.decode_message(CODEC.encode(message)), message)


def test_derived_fields_and_zones_survive_as_equals():
    message = Derived(2)
    message.double = 9
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))

    assert CODEC.decode_message(CODEC.encode(message)) == message
    assert CODEC.decode_message(CODEC.encode(moment)) == moment


def test_golden_bytes():
    assert CODEC.encode(5).hex() == "8105"
    assert CODEC.encode("a", {1: 1000}).hex() == "826161d9bf0682011a000003e8"
    assert CODEC.encode("a", {2: 1000}).hex() == "826161d9bf0682021903e8"
    assert CODEC.encode({"a": 1, b"b": 2}).hex() == "81a2616101416202"
    assert CODEC.encode({5: 1}).hex() == "81d9bf06820501"
    assert CODEC.encode(Point(1, "a")).hex() == "81d9bf078265706f696e74a261780161796161"
    assert CODEC.encode((1,)).hex() == "81d9bf048101"


def test_options_survive_a_round_trip_unknown_ones_too():
    options = {1: 500, 2: ("00-ab", b"x"), 99: [1]}

    assert CODEC.decode(CODEC.encode([1], options)) == ([1], options)
    assert CODEC.decode(CODEC.encode([1])) == ([1], NO_OPTIONS)
    assert CODEC.decode_message(CODEC.encode([1], options)) == [1]
    assert CODEC.encode([1], {}) == CODEC.encode([1])


@dataclass
class Unknown:
    a: int


class SubList(list):
    pass


class SubInt(int):
    pass


CASES = [
    (Unknown(1), "message is a "),
    (threading.Lock(), "message is a _thread.lock"),
    ([1, {"a": SubList()}], r"message\[1\]\['a'\] is a .*SubList"),
    (Box(1, "x", [0, 1, 2, Point(1, threading.Lock())]), r"message\.items\[3\]\.y"),
    (SubInt(3), "SubInt"),
    (OrderedDict(a=1), "OrderedDict"),
    (defaultdict(list), "defaultdict"),
    ({SubInt(1): 2}, r"message key 1 is a"),
    ([SubInt(1)] * 50, r"message\[0\] is a"),
    ({SubInt(1)}, r"message\{1\} is a"),
    (1 + 2j, "complex"),
    ("\ud800", "surrogates"),
    (["x" * 30] * 20 + ["\ud800"], r"message\[20\]"),
    (len, "builtin_function"),
    (int, "builtins.type"),
    (dt.time(1, tzinfo=ZoneInfo("Europe/Berlin")), "offset"),
    (object.__new__(Point), "cannot be encoded"),
]


@pytest.mark.parametrize(("message", "text"), CASES, ids=[text for _, text in CASES])
def test_a_value_without_wire_form_is_named_with_its_path(message, text):
    with pytest.raises(NotSerializable, match=text) as caught:
        CODEC.encode(message)
    assert isinstance(caught.value, TypeError)


def test_the_error_gives_advice_for_options_too():
    with pytest.raises(NotSerializable, match=r'register it with @message\("Unknown"\)'):
        CODEC.encode(Unknown(1))
    with pytest.raises(NotSerializable, match=r"options\[9\] is a"):
        CODEC.encode(1, {9: Unknown(1)})


def test_cycles_and_deep_messages_are_refused_at_the_sender():
    cycle: list = []
    cycle.append(cycle)

    with pytest.raises(NotSerializable, match="nested deeper than 64"):
        CODEC.encode(cycle)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: [m],
        lambda m: (m,),
        lambda m: {1: m},
        lambda m: Point(m, 0),
        Old,
        lambda m: {Color.RED: m},
    ],
)
def test_sender_and_receiver_allow_the_same_depth(wrap):
    message = 1
    for _ in range(64):
        message = wrap(message)

    assert CODEC.decode_message(CODEC.encode(message)) == message
    with pytest.raises(NotSerializable, match="nested deeper"):
        CODEC.encode(wrap(message))


def test_deep_payload_is_refused():
    for depth in (300, 100_000):
        with pytest.raises(MalformedPayload, match="depth"):
            CODEC.decode_message(b"\x81" * depth + b"\x01")


def test_types_registered_later_are_known():
    codec = PayloadCodec(MessageRegistry())
    with pytest.raises(NotSerializable):
        codec.encode(Point(1, 2))
    codec.registry.register("point", Point)

    assert codec.decode_message(codec.encode(Point(1, 2))) == Point(1, 2)


def test_an_unknown_type_and_a_missing_field_are_different_errors():
    tag = tags.REGISTERED
    with pytest.raises(UnknownMessageType, match="'nobody' is not registered here"):
        CODEC.decode_message(cbor2.dumps([cbor2.CBORTag(tag, ["nobody", {}])]))
    nested = [
        [cbor2.CBORTag(tag, ["box", {"content": cbor2.CBORTag(tag, ["point", {"x": 1}])}])]
    ]
    with pytest.raises(MessageVersion, match="lacks field 'y'"):
        CODEC.decode_message(cbor2.dumps(nested))


def test_every_other_tag_is_refused():
    used = {2, 3, 37, 258, 1004, *range(48900, 48912)}
    for tag in [*range(0, 1100), 43000, *range(48800, 49000), 55799, 2**32]:
        if tag not in used:
            with pytest.raises(MalformedPayload, match="CBOR tag"):
                CODEC.decode_message(cbor2.dumps([cbor2.CBORTag(tag, [1, 2])]))


@pytest.mark.parametrize("tag", [2, 3, 37, 258, 1004, *range(48900, 48912)])
@pytest.mark.parametrize(
    "content",
    [None, 1, "x", b"x", [], [1], [[]], {}, [1, 2], ["point", 3], [[1], 2], [99, "1.2.3.4"]],
)
def test_bad_content_of_our_tags_is_malformed_or_harmless(tag, content):
    payload = cbor2.dumps([cbor2.CBORTag(tag, content)])
    try:
        message = CODEC.decode_message(payload)
    except RemoteProtocolError:
        return
    assert type(message) in {
        int, tuple, set, frozenset, dict, bytearray, Decimal, dt.datetime, dt.date, dt.time,
    }  # fmt: skip


HOSTILE = {
    "empty": "",
    "not an array": "05",
    "no message": "80",
    "three items": "83010203",
    "trailing": "810505",
    "trailing after string": "81616161",
    "trailing after a list": "81810505",
    "options no map": "820105",
    "option key no integer": "8201a1616105",
    "bad utf-8": "8161ff",
    "long bad utf-8": "817818" + "ff" * 24,
    "truncated float": "81fb00",
    "unhashable set element": "81d902" + "02818105",
    "huge array": "819bffffffffffffffff",
    "huge string": "815bffffffffffffffff",
    "break alone": "81ff",
    "reserved": "811c",
    "shared value": "82d81c80d81d00",
    "cycle": "81d81c81d81d00",
    "string reference": "81d90100826161d81900",
    "unhashable key": "81a1d9bf09416105",
    "reference to no node": "81d9bf08824105",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_payloads_are_malformed(text):
    with pytest.raises(RemoteProtocolError):
        CODEC.decode_message(bytes.fromhex(text))
    with pytest.raises(RemoteProtocolError):
        CODEC.decode(bytes.fromhex(text))


def test_errors_of_constructors_are_the_peers():
    @dataclass
    class Picky:
        a: int

        def __post_init__(self):
            if self.a:
                raise ZeroDivisionError

    codec = PayloadCodec(MessageRegistry())
    codec.registry.register("picky", Picky)
    payload = codec.encode(Picky(0)).replace(b"\x61a\x00", b"\x61a\x05")

    with pytest.raises(MalformedPayload, match="ZeroDivisionError"):
        codec.decode_message(payload)


def test_references_need_the_hooks():
    payload = CODEC.encode(Ref(b"a" * 18, 5))
    codec = PayloadCodec(make_registry())

    with pytest.raises(MalformedPayload, match="reference"):
        codec.decode_message(payload)
    with pytest.raises(NotSerializable):
        codec.encode(Ref(b"a" * 18, 5))


@given(messages)
@settings(max_examples=25)
def test_every_truncation_is_malformed(message):
    payload = CODEC.encode(message)
    for end in range(min(len(payload), 300)):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(payload[:end])


@given(messages, st.data())
def test_any_flipped_bit_gives_a_message_or_a_typed_error(message, data):
    payload = bytearray(CODEC.encode(message))
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    try:
        CODEC.decode(bytes(payload))
    except RemoteProtocolError:
        event("refused")


@given(st.binary(max_size=100))
@settings(max_examples=300)
def test_any_bytes_give_a_message_or_a_typed_error(data):
    for payload in (data, b"\x81" + data, b"\x82" + data):
        try:
            CODEC.decode(payload)
        except RemoteProtocolError:
            event("refused")
