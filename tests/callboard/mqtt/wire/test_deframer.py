"""Complete packets from reads of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import MalformedPacket, ProtocolViolation
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import PingReq, Publish
from tests.callboard.mqtt.packets import packets

written = st.lists(packets(4).map(lambda packet: encode(packet, 4)), max_size=10)


def read_all(network, reads):
    chunks = []
    for data in reads:
        chunks.append(network.receive(data))
        while network.is_full:
            chunks.append(network.receive(b""))
    return [chunk for chunk in chunks if chunk]


@given(written, st.lists(st.integers(0, 400)), st.integers(1, 20))
def test_reads_return_complete_packets_for_any_boundary(parts, cuts, most):
    whole = b"".join(parts)
    borders = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    reads = [whole[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    ends = {len(b"".join(parts[:n])) for n in range(len(parts) + 1)}

    chunks = read_all(Deframer(packets_per_read=most), reads)

    assert b"".join(chunks) == whole
    position = 0
    for chunk in chunks:
        position += len(chunk)
        assert position in ends


def test_a_read_that_ends_with_a_packet_is_passed_on_without_a_copy():
    data = encode(PingReq(), 4) * 3

    assert Deframer().receive(data) is data


def test_network_hands_on_at_most_max_inflight_count_packets_at_once():
    network = Deframer(packets_per_read=4)

    assert len(network.receive(encode(PingReq(), 4) * 10)) == 8
    assert network.is_full
    assert network.packets == 4
    assert len(network.receive(b"")) == 8
    assert len(network.receive(b"")) == 4
    assert not network.is_full


def test_the_packet_size_is_checked_before_the_packet_is_complete():
    network = Deframer(packet_size=100)
    good = encode(PingReq(), 4)

    assert network.receive(good + b"\x30\x65") == good
    assert network.is_full
    with pytest.raises(ProtocolViolation, match="103 bytes exceeds the limit of 100"):
        network.receive(b"")


def test_a_large_packet_is_parsed_when_it_is_complete():
    packet = encode(Publish("a", bytes(500_000)), 4)
    network = Deframer()

    chunks = read_all(network, [packet[i : i + 1000] for i in range(0, len(packet), 1000)])

    assert chunks == [packet]
    assert not network.rest


def test_packets_before_a_malformed_one_are_processed_first():
    network = Deframer()
    good = encode(PingReq(), 4)

    assert network.receive(good + b"\x30\xff\xff\xff\xff") == good
    with pytest.raises(MalformedPacket):
        network.receive(b"")
