import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from callboard.basp import header
from callboard.basp.errors import MalformedFrame
from callboard.basp.header import HEADER, Operation, check_header
from callboard.basp.node_id import NO_NODE

A, B = b"a" * 18, b"b" * 18

# CAF 0.17 manual: operation, payload length, operation data, source node, destination
# node, source actor, destination actor.
GOLDEN = bytes.fromhex(
    "00000002000000034100000900000007" + "61" * 18 + "62" * 18 + "0000001000000011"
)


def test_golden_bytes():
    position = (1 << header.SEQUENCE_BITS | 9) << header.POSITION_SHIFT
    fields = (2, 3, header.HIGH_PRIORITY | position | 7, A, B, 16, 17)

    assert HEADER.pack(*fields) == GOLDEN
    assert HEADER.unpack_from(b"x" + GOLDEN, 1) == fields
    assert HEADER.size == len(GOLDEN) == header.HEADER_SIZE == 60


def test_operations_have_the_numbers_of_the_design():
    assert [op.name.lower() for op in Operation] == [
        "server_handshake",
        "client_handshake",
        "dispatch_message",
        "announce_proxy_instance",
        "down_message",
        "heartbeat",
        "hello",
        "originator_syn",
        "responder_syn_ack",
        "originator_ack",
        "drop_conn",
        "routing_update",
        "release_proxy_instance",
        "delivery_report",
        "path_end",
    ]


def test_message_id_bits_fill_eight_bytes_without_overlap():
    position = header.POSITION_MASK << header.POSITION_SHIFT
    parts = [header.RESPONSE, header.HIGH_PRIORITY, position, header.MESSAGE_ID_MASK]

    assert sum(parts) == 2**64 - 1
    assert header.EPOCH_COUNT * header.SEQUENCE_COUNT == header.POSITION_MASK + 1
    assert header.EPOCH_SHIFT == header.POSITION_SHIFT + header.SEQUENCE_BITS


@pytest.mark.parametrize(
    ("kind", "message_id", "source_actor", "destination_actor", "count"),
    [
        (0, 7, 5, header.CARRIED, 5),
        (0, 7, 0, header.CARRIED, 1),
        (0, 7, 100, header.CARRIED, 10),
        (0, 7, 5, header.ENTITIES, 1),
        (0, 0, 5, 17, 1),
        (header.RESPONSE, 0, 5, 0, 5),
        (header.RESPONSE, 0, 2**32 - 1, 0, 10),
        (header.RESPONSE, 7, 5, header.CARRIED, 1),
    ],
)
def test_a_dispatch_is_as_many_messages_as_its_source_actor_says_if_it_carries_some(
    kind, message_id, source_actor, destination_actor, count
):
    position = (3 << header.SEQUENCE_BITS | 9) << header.POSITION_SHIFT
    data = kind | position | message_id

    assert header.count_of(data, source_actor, destination_actor) == count


GOOD = [
    (0, 20, 0x43420002, A, NO_NODE, 0, 0),
    (1, 50, 0x43420002, A, B, 0, 0),
    (2, 9, 5, A, B, 16, 17),
    (2, 9, 0, A, B, 0, 0),
    (3, 0, 0, A, B, 0, 17),
    (4, 9, 2, A, B, 17, 0),
    (5, 0, 0, A, B, 0, 0),
    (10, 0, 1, A, B, 0, 0),
    (11, 9, 0, A, B, 0, 0),
    (12, 0, 3, A, B, 0, 17),
    (13, 9, 0, A, B, 0, 0),
]


@pytest.mark.parametrize("fields", GOOD)
def test_good_headers_pass(fields):
    check_header(fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ((15, 0, 0, A, B, 0, 0), "operation 15"),
        ((2, 0, 0, NO_NODE, B, 0, 0), "source node"),
        ((2, 0, 0, A, NO_NODE, 0, 0), "destination node"),
        ((0, 0, 0, A, B, 0, 0), "destination node"),
        ((5, 1, 0, A, B, 0, 0), "payload must be empty, has 1 B"),
        ((5, 0, 9, A, B, 0, 0), "operation data must be 0, is 9"),
        ((5, 0, 0, A, B, 3, 0), "source actor must be 0, is 3"),
        ((5, 0, 0, A, B, 0, 4), "destination actor must be 0, is 4"),
        ((12, 0, 0, A, B, 0, 4), "sightings"),
        ((4, 0, 0, A, B, 0, 0), "actor that ended"),
    ],
)
def test_contradictions_are_named(fields, problem):
    with pytest.raises(MalformedFrame, match=problem):
        check_header(fields)


@given(st.binary(min_size=60, max_size=60))
def test_any_header_passes_or_is_refused(data):
    fields = HEADER.unpack_from(data, 0)

    assert HEADER.pack(*fields) == data
    try:
        check_header(fields)
    except MalformedFrame:
        event("refused")
