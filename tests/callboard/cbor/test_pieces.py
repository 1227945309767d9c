"""Large items: their weight, and reading them in pieces as cbor2 reads them at once."""

import subprocess
import sys
from datetime import date
from decimal import Decimal
from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, PayloadTooHeavy, RemoteProtocolError
from callboard.cbor import tags
from callboard.cbor.pieces import CONTAINER, check_weight, weigh
from callboard.cbor.reader import PYTHON_TAGS, CborReader
from callboard.cbor.writer import EncoderTable
from tests.basp.strategies import scalars
from tests.basp.wire import empty_lists

DEPTH = 30
READER = CborReader("tests", PYTHON_TAGS, max_depth=DEPTH, trusted=tags.TRUSTED_TAGS)
WRITER = EncoderTable(DEPTH)
PLENTY = 1 << 40

# The order of a set that holds NaN is chance: the hash of NaN is its place in memory.
elements = scalars.filter(lambda value: value == value)
keys = st.text(max_size=30) | st.binary(max_size=30) | st.integers()
trees = st.recursive(
    scalars | st.dates() | st.uuids() | st.decimals(allow_nan=False),
    lambda inner: st.one_of(
        st.lists(inner, max_size=30),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(keys, inner, max_size=8),
        st.sets(elements, max_size=8),
    ),
    max_leaves=60,
)


def run(generator):
    """Run to the end; returns the result and the number of pauses."""
    pauses = 0
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


def in_pieces(payload, at=0, count=1):
    return run(READER.read_in_pieces(payload, at, count))


def weight_of(payload, most=PLENTY):
    return run(weigh(payload, most))[0]


def outcome(read, payload):
    try:
        return repr(read(payload))
    except RemoteProtocolError:
        return "refused"


@given(st.lists(trees, min_size=1, max_size=3))
def test_reading_in_pieces_gives_the_values_of_cbor2(values):
    payload = b"?" + b"".join(map(WRITER.encode, values))

    items, _ = in_pieces(payload, 1, len(values))

    assert repr(items) == repr(READER.read(bytes((0x80 + len(values),)) + payload[1:]))


@given(trees, st.data())
def test_damaged_bytes_fail_alike_in_pieces_and_whole(value, data):
    payload = bytearray(WRITER.encode(value))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    del payload[data.draw(st.integers(len(payload) // 2, len(payload))) :]
    damaged = bytes(payload)

    at_once = outcome(READER.read, damaged)
    slowly = outcome(lambda octets: in_pieces(octets)[0][0], damaged)

    assert slowly == at_once or (slowly == "refused" and has_open_length(damaged))


def has_open_length(payload):
    """Whether a byte could be the head of an item without a length."""
    return any(head & 0x1F == 0x1F for head in payload)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_typed_error(payload):
    outcome(lambda octets: in_pieces(octets)[0][0], payload)


def slow_weight(value):
    """Return the weight of a value by its definition."""
    match value:
        case list() | tuple():
            own = CONTAINER * (1 + isinstance(value, tuple))
            return own + sum(map(slow_weight, value))
        case set():
            return 2 * CONTAINER + sum(slow_weight(one) + CONTAINER - 1 for one in value)
        case dict():
            own, parts = CONTAINER, [part for pair in value.items() for part in pair]
            if not set(map(type, value)) <= {str, bytes}:
                own += CONTAINER + len(parts) * (CONTAINER - 1)
            return own + sum(map(slow_weight, parts))
        case int() if not -(2**64) <= value < 2**64:
            return CONTAINER + 1
        case Decimal() | date() | UUID():
            return CONTAINER + 1
    return 1


@given(trees)
def test_the_weight_is_the_sum_of_the_parts(value):
    payload = WRITER.encode(value)
    weight = slow_weight(value)

    assert weight_of(payload) == weight
    check_weight(payload, weight)
    with pytest.raises(PayloadTooHeavy):
        check_weight(payload, weight - 1)


def test_a_registered_type_weighs_as_its_tag_array_and_map():
    payload = cbor2.dumps([cbor2.CBORTag(tags.REGISTERED, ["name", {"a": 1}])] * 50)
    assert weight_of(payload) == CONTAINER + 50 * (3 * CONTAINER + 3)


def test_counting_stops_early():
    counting = weigh(empty_lists(4_000_000), CONTAINER * 10)
    with pytest.raises(PayloadTooHeavy):
        next(counting)
    assert run(weigh(empty_lists(400_000), PLENTY))[1] >= 4


def test_a_large_item_has_pauses():
    items, pauses = in_pieces(WRITER.encode([{"a": [i, str(i)]} for i in range(20_000)]))
    assert items[0][19_999] == {"a": [19_999, "19999"]}
    assert pauses > 15
    assert in_pieces(cbor2.dumps(list(range(200_000))))[1] > 8
    big_map = {str(i): i for i in range(100_000)}
    assert in_pieces(cbor2.dumps(big_map))[0] == [big_map]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", "ends inside"),
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "ends inside"),
        (b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "cannot be read"),
        (b"\x9f" + b"\x01" * 9_000 + b"\xff", "indefinite length"),
        (b"\x81" * (DEPTH + 1) + b"\x01", "too deep"),
        (b"\xa1\x01\x02", "not int"),
        (b"\xa1\x81\x01\x02", "not list|not tuple"),
        (b"\xd8\x1c\x81\x01", "cannot be read"),
        (b"\x01\x02", "follow"),
        (b"\x82\x01", "ends inside"),
        (b"", "ends inside"),
    ],
)
def test_hostile_items_are_refused(payload, text):
    with pytest.raises(MalformedPayload, match=text):
        in_pieces(payload)


WITHOUT_MEMORY = """
import resource, sys
from callboard.basp.errors import RemoteProtocolError
from tests.callboard.cbor.test_pieces import READER, in_pieces
from tests.basp.wire import empty_lists

payload = empty_lists(1_000_000)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for read in (READER.read, in_pieces):
    try:
        read(payload)
    except RemoteProtocolError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
@pytest.mark.parametrize("mebibytes", [2, 7, 20, 50])
def test_without_memory_only_the_message_fails(mebibytes):
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(mebibytes)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 0, ran.stderr
    assert "no memory" in ran.stdout
