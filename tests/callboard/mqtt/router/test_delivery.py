"""Delivery to subscribers: QoS 0, 1 and 2, both versions, one packet or many at a time."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import is_valid_topic
from tests.callboard.mqtt.stage import Stage

VERSIONS = pytest.mark.parametrize("versions", [(V4, V4), (V4, V5), (V5, V4), (V5, V5)])


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_run_of_publishes_arrives_whole_and_in_order(stage, versions, qos, granted) -> None:
    publisher = stage.client("p", version=versions[0])
    subscriber = stage.client("s", version=versions[1])
    subscriber.subscribe("a/b", qos=granted)
    sent = [bytes([65 + number % 26]) * (number % 300) for number in range(500)]

    for begin in range(0, 500, 100):
        publisher.send(
            *(publisher.message("a/b", each, qos) for each in sent[begin : begin + 100])
        )

    messages = subscriber.messages()
    assert [each.payload for each in messages] == sent
    assert {each.qos for each in messages} == {min(qos, granted)}
    assert {(each.topic, each.dup, each.retain) for each in messages} == {("a/b", False, False)}


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_equal_packets_in_one_chunk_are_processed_separately(stage, versions, qos) -> None:
    publisher = stage.client("p", version=versions[0])
    subscriber = stage.client("s", version=versions[1])
    subscriber.subscribe("#", qos=2)
    topics = ["t", "t", "t", "u", "t", "u", "u"]

    publisher.send(*(publisher.message(topic, b"same", qos) for topic in topics))

    assert [each.topic for each in subscriber.messages()] == topics


def test_all_readers_of_a_run_get_the_same_bytes(stage) -> None:
    publisher = stage.client("p")
    readers = [stage.client(f"s{number}", reads=False) for number in range(3)]
    for reader in readers:
        reader.push(encode_subscribe("t"))
    stage.run()
    for reader in readers:
        reader.link.take()

    publisher.publish("t", b"one body")

    first, second, third = (reader.link.take()[0] for reader in readers)
    assert first is second is third


def encode_subscribe(topic: str) -> bytes:
    body = b"\0\1\0" + len(topic).to_bytes(2, "big") + topic.encode() + b"\1"
    return bytes((0x82, len(body))) + body


@pytest.mark.parametrize("version", [V4, V5])
def test_device_data_publish_is_acknowledged_by_its_qos(stage, version) -> None:
    client = stage.client("p", version=version, answers=False)
    one = client.message("t", b"", 1, packet_id=7)
    two = client.message("t", b"", 2, packet_id=8)

    answers = client.send(client.message("t", b"", 0), one, two)
    released = client.send(PubRel(8))

    assert [(type(each), each.packet_id) for each in answers] == [(PubAck, 7), (PubRec, 8)]
    assert [(type(each), each.packet_id) for each in released] == [(PubComp, 8)]


def test_pubrel_ends_a_qos_2_publish_that_is_delivered_once(stage) -> None:
    publisher = stage.client("p", answers=False)
    subscriber = stage.client("s")
    subscriber.subscribe("t", qos=2)
    first = publisher.message("t", b"once", 2, packet_id=5)
    again = publisher.message("t", b"once", 2, packet_id=5, dup=True)

    publisher.send(first, first, again)
    publisher.send(again)

    assert subscriber.payloads() == [b"once"]
    publisher.send(PubRel(5), publisher.message("t", b"another", 2, packet_id=5))
    assert subscriber.payloads() == [b"another"]


@pytest.mark.parametrize("kind", [PubAck, PubRec])
def test_puback_and_pubrec_may_arrive_in_any_order(stage, kind) -> None:
    qos = 1 if kind is PubAck else 2
    publisher = stage.client("p")
    subscriber = stage.client("s", answers=False)
    subscriber.subscribe("t", qos=qos)
    publisher.send(*(publisher.message("t", bytes([n]), qos) for n in range(10)))
    ids = [each.packet_id for each in subscriber.messages()]

    subscriber.send(*(kind(each) for each in reversed(ids)))

    window = stage.machine.sessions.connections["s"].session.window
    assert not window.inflight
    assert list(window.releasing) == (ids[::-1] if qos == 2 else [])
    assert subscriber.end is None


def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(stage) -> None:
    publisher = stage.client("p")
    subscriber = stage.client("s", answers=False)
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"", 2)
    (message,) = subscriber.messages()

    subscriber.send(PubAck(message.packet_id))

    assert subscriber.end is not None
    assert subscriber.end.reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("version", [V4, V5])
def test_unknown_acknowledgements_are_counted_and_answered(stage, version) -> None:
    client = stage.client("c", version=version, answers=False)

    answers = client.send(PubAck(1), PubRec(2), PubComp(3), PubRel(4))

    not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == V5 else 0
    assert [(type(a), a.packet_id, a.reason_code) for a in answers] == [
        (PubRel, 2, not_found),
        (PubComp, 4, not_found),
    ]
    assert stage.machine.meters.unknown_acks == 3


def test_a_refused_qos_2_message_is_over(stage) -> None:
    publisher = stage.client("p")
    subscriber = stage.client("s", answers=False)
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"", 2)
    (message,) = subscriber.messages()

    answers = subscriber.send(
        PubRec(message.packet_id, ReasonCode.QUOTA_EXCEEDED, Properties())
    )

    window = stage.machine.sessions.connections["s"].session.window
    assert (answers, window.inflight, window.releasing) == ([], {}, {})
    assert stage.machine.meters.refused_by_clients == 1


@pytest.mark.parametrize("version", [V4, V5])
def test_inflight_holds_no_more_than_the_window(version) -> None:
    stage = Stage(Limits(inflight=10))
    publisher = stage.client("p")
    subscriber = stage.client("s", version=version, answers=False)
    subscriber.subscribe("t", qos=1)

    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(25)))

    first = subscriber.messages()
    assert [each.payload[0] for each in first] == list(range(10))
    more = subscriber.send(PubAck(first[3].packet_id), PubAck(first[0].packet_id))
    assert [each.payload[0] for each in more] == [10, 11]


def test_the_window_is_not_above_the_clients_receive_maximum(stage) -> None:
    publisher = stage.client("p")
    subscriber = stage.client("s", answers=False, receive_maximum=3)
    subscriber.subscribe("t", qos=2)

    publisher.send(*(publisher.message("t", bytes([n]), 2) for n in range(9)))
    first = subscriber.messages()
    released = subscriber.send(PubRec(first[0].packet_id))

    assert len(first) == 3
    assert [type(each) for each in released] == [PubRel]  # it holds its place until PUBCOMP
    assert [type(each) for each in subscriber.send(PubComp(first[0].packet_id))] == [Publish]


def test_inflight_packet_identifiers_wrap_and_skip_used_ones(stage) -> None:
    publisher = stage.client("p")
    subscriber = stage.client("s", answers=False)
    subscriber.subscribe("t", qos=1)
    publisher.publish("t", b"held", 1)
    (held,) = subscriber.messages()
    window = stage.machine.sessions.connections["s"].session.window
    window.following = 65_530

    publisher.send(*(publisher.message("t", bytes([n]), 1) for n in range(20)))

    ids = [each.packet_id for each in subscriber.messages()]
    assert held.packet_id == 1
    assert ids == [*range(65_530, 65_536), *range(2, 16)]


def test_pingreq_is_answered_with_pingresp(stage) -> None:
    assert stage.client("c").send(PingReq()) == [PingResp()]


def test_packets_after_a_disconnect_in_a_chunk_are_ignored(stage) -> None:
    subscriber = stage.client("s")
    subscriber.subscribe("t")
    client = stage.client("c", version=V4)

    client.send(client.message("t", b"before"), b"\xe0\x00", client.message("t", b"after"))

    assert subscriber.payloads() == [b"before"]


def test_device_data_before_a_bad_topic_in_the_batch_still_wakes_readers(stage) -> None:
    subscriber = stage.client("s")
    subscriber.subscribe("t")
    client = stage.client("c", version=V4)
    bad = b"\x30\x05\x00\x03a/+"

    client.send(client.message("t", b"before"), bad, client.message("t", b"after"))

    assert subscriber.payloads() == [b"before"]
    assert client.end is not None
    assert client.end.reason_code == ReasonCode.TOPIC_NAME_INVALID


@given(
    st.binary(max_size=6) | st.sampled_from([b"", b"a/+", b"#", b"/" * 200, b"$SYS/x"]),
    st.sampled_from((0, 1)),
    st.booleans(),
)
@example(b"", 0, False)
def test_a_topic_matches_the_same_on_the_fast_and_on_the_general_path(
    name, qos, retain
) -> None:
    client = Stage().client("c")
    body = len(name).to_bytes(2, "big") + name + b"\0\1" * qos + b"\0x"
    first = 0x30 | qos << 1
    try:
        packet = decode(first, body, V5)
        assert isinstance(packet, Publish)
        expected = None if is_valid_topic(packet.topic) else ReasonCode.TOPIC_NAME_INVALID
    except RemoteMqttError as error:
        expected = error.reason_code

    client.send(bytes((first | retain,)) + write_variable(len(body)) + body)

    assert (client.end and client.end.reason_code) == expected


@pytest.mark.parametrize(
    "bad", [b"a\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\0"]
)
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("retain", [0, 1])
@pytest.mark.parametrize("version", [V4, V5])
def test_a_topic_of_invalid_utf_8_is_a_malformed_packet(
    stage, bad, qos, retain, version
) -> None:
    client = stage.client("c", version=version)
    body = len(bad).to_bytes(2, "big") + bad + b"\0\1" * bool(qos) + b"\0" * (version == V5)

    heard = client.send(bytes((0x30 | qos << 1 | retain, len(body) + 1)) + body + b"x")

    assert client.end is not None
    assert client.end.reason_code == ReasonCode.MALFORMED_PACKET
    if version == V5:
        assert heard == [Disconnect(ReasonCode.MALFORMED_PACKET, Properties())]


@pytest.mark.parametrize(
    "bad",
    [
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x38\x03\x00\x01a",  # DUP with QoS 0
        b"\x32\x05\x00\x01a\x00\x00",  # identifier 0
        b"\x30\x02\x00\x09",  # the topic is longer than the packet
        b"\x30\x00",
        b"\x32\x03\x00\x01a",  # no identifier
        b"\x40\x02\x00\x00",
        b"\x60\x02\x00\x01",  # PUBREL without its flags
        b"\x10\x00",
        b"\xf0\x00",
        b"\x30\x04\x00\x02\xff\xfe",  # no UTF-8
    ],
)
def test_malformed_packets_end_only_their_connection(stage, bad) -> None:
    other = stage.client("other")
    client = stage.client("c", version=V4)

    client.send(bad)

    assert client.end is not None
    assert stage.machine.meters.violations == 1
    assert other.send(PingReq()) == [PingResp()]


def test_a_dup_flag_of_a_publisher_is_not_passed_on(stage) -> None:
    subscriber = stage.client("s")
    subscriber.subscribe("t", qos=1)
    client = stage.client("c")

    client.send(client.message("t", b"a", 1, dup=True), client.message("t", b"b", 1, dup=True))

    assert [(each.payload, each.dup) for each in subscriber.messages()] == [
        (b"a", False),
        (b"b", False),
    ]


@pytest.mark.parametrize("size", [0, 100, 127, 128, 16_383, 16_384, 70_000])
def test_payloads_of_every_length_of_the_length_field(stage, size) -> None:
    old = stage.client("old", version=V4)
    new = stage.client("new", version=V5)
    readers = [
        stage.client(f"{version}-{qos}", version=version)
        for version in (V4, V5)
        for qos in (0, 1)
    ]
    for index, reader in enumerate(readers):
        reader.subscribe("t", qos=index % 2)

    for client in (old, new):
        for qos in (0, 1):
            client.publish("t", bytes(size), qos)

    for reader in readers:
        assert [len(payload) for payload in reader.payloads()] == [size] * 4


def test_a_chunk_of_any_mix_means_the_same_as_its_packets_alone() -> None:
    def play(*, at_once: bool) -> list[tuple[str, bytes, int]]:
        stage = Stage()
        reader = stage.client("reader")
        reader.subscribe("#", qos=2)
        client = stage.client("c")
        packets = []
        for number in range(60):
            topic = "ab"[number % 7 == 0]
            packets.append(
                client.message(topic, bytes([number]), number % 3 if number > 30 else 1)
            )
        data = [encode(each, V5) for each in packets]
        if at_once:
            client.send(b"".join(data))
        else:
            for each in data:
                client.send(each)
        return [(each.topic, each.payload, each.qos) for each in reader.messages()]

    assert play(at_once=True) == play(at_once=False)


def test_packets_of_a_client_are_counted_on_every_path(stage) -> None:
    client = stage.client("c", answers=False)

    client.send(
        *(client.message("t", b"x", 1) for _ in range(10)),
        client.message("t", b"x", content_type="text"),
        PingReq(),
        *(PubAck(number) for number in range(1, 8)),
    )

    assert stage.machine.sessions.connections["c"].packets_in == 19


@pytest.mark.parametrize("version", [V4, V5])
def test_pubrel_flags_are_checked(stage, version) -> None:
    client = stage.client("c", version=version)

    client.send(b"\x60\x02\x00\x01")

    assert client.end is not None
    assert client.end.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("packet", [b"\x20\x02\0\0", b"\x90\x03\0\1\0", b"\xd0\0", b"\xf0\0"])
def test_packets_that_only_a_router_sends_end_the_connection(stage, packet) -> None:
    client = stage.client("c", version=V4)

    client.send(packet)

    assert client.end is not None
    assert "c" not in stage.machine.sessions.connections


def test_inflight_is_a_fifo_of_packet_id_filter_and_place(stage) -> None:
    publisher = stage.client("p")
    reader = stage.client("r", answers=False)
    reader.subscribe("a", "b", qos=1)
    for topic in ("a", "b", "a"):
        publisher.publish(topic, topic.encode(), 1)

    window = stage.machine.sessions.connections["r"].session.window
    held = [(key, sent.topic_filter, sent.start) for key, sent in window.inflight.items()]
    assert held == [(1, "a", 0), (2, "b", 0), (3, "a", 0)]
    assert [sent.run.number for sent in window.inflight.values()] == [0, 1, 2]


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_of_messages_without_payload_arrives_whole(stage, version, qos) -> None:
    publisher = stage.client("p", version=version)
    reader = stage.client("r", version=version, receive_maximum=2)
    reader.subscribe("t", qos=qos)

    publisher.send(*(publisher.message("t", b"", qos) for _ in range(5)))

    assert reader.payloads() == [b""] * 5
