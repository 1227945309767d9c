"""The client's side of the protocol, packet by packet."""

import pytest

from callboard.mqtt.wire.client import ClientProtocol, Message, Settled
from callboard.mqtt.wire.codec import decode_all
from callboard.mqtt.wire.errors import LinkClosed
from callboard.mqtt.wire.packet import (
    V5,
    ConnAck,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
)
from callboard.mqtt.wire.reason_code import ReasonCode


def said(client):
    return [
        (type(packet), packet.packet_id) for packet in decode_all(client.take_answers(), V5)
    ]


def test_a_packet_is_in_flight_until_its_acknowledgement_arrives():
    client = ClientProtocol()
    first, second = client.expect("a"), client.expect("b")

    assert client.take(PubAck(second)) == Settled("b", (0,))
    assert client.inflight == {first: "a"}
    assert client.take(PubAck(second)) is None


def test_a_repeated_qos_2_message_is_acknowledged_and_delivered_once():
    client = ClientProtocol()
    packet = Publish("t", b"x", 2, packet_id=7)

    assert client.take(packet) is packet
    client.acknowledge(packet)
    assert client.take(packet) is None
    assert said(client) == [(PubRec, 7), (PubRec, 7)]
    assert client.take(PubRel(7)) is None
    assert said(client) == [(PubComp, 7)]
    assert client.take(packet) is packet


def test_qos_2_of_ours_is_released_then_settled():
    client = ClientProtocol()
    number = client.expect("token")

    assert client.take(PubRec(number)) is None
    assert said(client) == [(PubRel, number)]
    assert client.released == {number}
    assert client.take(PubComp(number)) == Settled("token", (0,))
    assert not client.released


def test_a_refusal_settles_at_once():
    client = ClientProtocol()
    number = client.expect("token")

    settled = client.take(PubRec(number, ReasonCode.QUOTA_EXCEEDED))

    assert settled.refusal == ReasonCode.QUOTA_EXCEEDED
    assert client.take(SubAck(client.expect("s"), (1,))).refusal == 0


def test_without_a_session_at_the_broker_only_unreceived_messages_stay_in_flight():
    client = ClientProtocol()
    arrived, lost = client.expect("arrived"), client.expect("lost")
    client.take(PubRec(arrived))
    client.take(Publish("t", b"", 2, packet_id=1))

    client.begin_anew()

    assert client.inflight == {lost: "lost"}
    assert client.take(Publish("t", b"", 2, packet_id=1)) is not None


def test_other_packets_are_for_the_owner():
    packet = ConnAck()

    assert ClientProtocol().take(packet) is packet


def test_all_identifiers_may_be_in_flight_and_no_more():
    client = ClientProtocol()
    client.inflight = dict.fromkeys(range(1, 65_536), "token")

    with pytest.raises(LinkClosed, match="wait for some"):
        client.expect("one more")


def test_a_message_becomes_a_packet_and_back():
    message = Message("t", b"x", 1, retain=True)

    assert Message.of(message.packet(5)) == message
