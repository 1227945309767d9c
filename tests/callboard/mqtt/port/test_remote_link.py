"""One connection, from CONNECT to its end, without any socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt.access.admission import Admission
from callboard.mqtt.port.remote_link import ClientState
from callboard.mqtt.router.link import UNSCHEDULE
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import V4, V5, ConnAck, PingReq, PingResp, Publish
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.edge import (
    ConnectEvent,
    DeviceData,
    DisconnectRequested,
    Edge,
    Ready,
    incoming,
)

PUBLISH = encode(Publish("a", b"x"), 4)


class SlowGate:
    """An admission that answers on request."""

    def admit(self, connect, peer, answer):
        self.answer = answer


class Refusing:
    def __init__(self, reason):
        self.reason = reason

    def admit(self, connect, peer, answer):
        return Admission(self.reason, "not today")


# --- CONNECT ---


def test_remotelink_does_the_connect_and_registers_with_the_router():
    edge = Edge().connect(client_id="sensor", keep_alive=30)

    assert edge.router.kinds() == [ConnectEvent]
    link = edge.router.events[0].link
    assert (link.connect.client_id, link.peer) == ("sensor", "192.0.2.1:7")
    assert edge.remote.state is ClientState.OPEN


def test_remotelink_processes_packets_sent_with_the_connect():
    edge = Edge()
    first = encode_connect()

    edge.remote.receive(first + PUBLISH + PUBLISH)

    assert edge.router.kinds() == [ConnectEvent, DeviceData]
    assert incoming(edge.remote.link) == [PUBLISH + PUBLISH]


def encode_connect(version=V4):
    from callboard.mqtt.wire.packet import Connect

    properties = Properties() if version == V5 else None
    return encode(Connect("c", version=version, properties=properties), version)


def test_the_first_packet_must_be_connect():
    edge = Edge()

    edge.remote.receive(PUBLISH)

    assert edge.wire.is_closed
    assert edge.wire.written == b""
    assert edge.connections.figures.refusals == {"protocol error": 1}


def test_connect_timeout_ends_a_silent_connection():
    edge = Edge(connect_timeout=10)
    edge.remote.receive(encode_connect()[:5])

    edge.pass_time(10)
    assert not edge.wire.is_aborted
    edge.pass_time(1)

    assert edge.wire.is_aborted
    assert edge.remote not in edge.connections.links
    assert edge.connections.figures.timeouts == 1


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        (V4, ConnAck(reason_code=5)),
        (
            V5,
            ConnAck(
                reason_code=ReasonCode.NOT_AUTHORIZED,
                properties=Properties(reason_string="not today"),
            ),
        ),
    ],
)
def test_a_refusal_has_the_reason_code_of_the_clients_version(version, answer):
    edge = Edge(gate=Refusing(ReasonCode.NOT_AUTHORIZED)).connect(version)

    assert edge.wire.written == encode(answer, version)
    assert edge.wire.is_closed
    assert edge.router.events == []


@pytest.mark.parametrize(("allowed", "answer"), [(True, ""), (False, "20020001")])
def test_clients_of_mqtt_3_1_are_admitted_if_an_option_allows_it(allowed, answer):
    edge = Edge(mqtt_3_1=allowed)
    body = bytes.fromhex("00064d514973647003 02 000a 0001 63")

    edge.remote.receive(bytes((0x10, len(body))) + body)

    assert edge.wire.written.hex() == answer
    assert (edge.remote.state is ClientState.OPEN) is allowed
    if allowed:
        connect = edge.router.events[0].link.connect
        assert (connect.version, connect.client_id, connect.keep_alive) == (3, "c", 10)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("00064d514973647003020000 0000", "20020001"),
        ("00044d51545406020000 0000", "2003008400"),
    ],
)
def test_another_version_of_mqtt_is_refused_as_that(body, answer):
    edge = Edge()
    data = bytes.fromhex(body)

    edge.remote.receive(b"\x10" + bytes((len(data),)) + data)

    assert edge.wire.written[:1] == b"\x20"
    assert edge.wire.written[2:4] == bytes.fromhex(answer)[2:4]
    assert edge.wire.is_closed


def test_a_malformed_connect_is_answered_with_its_reason_in_mqtt_5():
    wrong = encode_connect(V5).replace(b"\0\1c", b"\0\1\xff"), encode_connect()[:-1] + b"\xff"
    five, four, part = Edge(), Edge(), Edge()

    five.remote.receive(wrong[0])
    four.remote.receive(wrong[1])
    part.remote.receive(b"\x10\x03\x00\x04M")

    assert five.wire.written[:1] == b"\x20"
    assert five.wire.written[3] == ReasonCode.MALFORMED_PACKET
    assert (four.wire.written, part.wire.written) == (b"", b"")
    assert all(each.wire.is_closed for each in (five, four, part))


def test_packets_wait_unread_while_admission_is_pending():
    gate = SlowGate()
    edge = Edge(gate=gate)
    edge.remote.receive(encode_connect() + PUBLISH)
    edge.remote.receive(PUBLISH)
    assert edge.wire.is_paused
    assert edge.router.events == []

    gate.answer(Admission())

    assert edge.router.kinds() == [ConnectEvent, DeviceData]
    assert incoming(edge.remote.link) == [PUBLISH * 2]
    assert not edge.wire.is_paused


def test_an_admission_after_the_connection_was_lost_is_ignored():
    gate = SlowGate()
    edge = Edge(gate=gate).connect()
    edge.remote.lost()

    gate.answer(Admission())

    assert edge.router.events == []


def test_the_gate_may_give_another_client_id():
    edge = Edge(gate=Renaming()).connect(client_id="c")

    assert edge.remote.link.connect.client_id == "acme.c"


class Renaming:
    def admit(self, connect, peer, answer):
        return Admission(client_id=f"acme.{connect.client_id}")


def test_next_connection_above_the_rate_is_refused():
    edge = Edge(connection_rate=1).connect(V5)
    second = Edge(connection_rate=1)
    second.remote._connections = edge.connections

    second.connect(V5)

    assert second.wire.written[3] == ReasonCode.CONNECTION_RATE_EXCEEDED


# --- chunks and notifications ---


def test_remotelink_reads_in_batches_and_notifies_once_for_each():
    edge = Edge().opened()

    edge.remote.receive(PUBLISH * 50 + PUBLISH[:3])
    edge.remote.receive(PUBLISH[3:] + PUBLISH)

    assert edge.router.kinds() == [DeviceData, DeviceData]
    assert incoming(edge.remote.link) == [PUBLISH * 50, PUBLISH * 2]


def test_remotelink_writes_notifications_in_one_batch():
    edge = Edge().opened()

    edge.deliver(b"abc", b"def")

    assert edge.wire.written == b"abcdef"
    assert edge.connections.figures.bytes_out >= 6


def test_on_the_unschedule_marker_remotelink_sends_ready():
    edge = Edge().opened()

    edge.deliver(b"abc", UNSCHEDULE)

    assert edge.router.kinds() == [Ready]


def test_ready_waits_until_a_slow_client_reads():
    edge = Edge().opened()
    edge.wire.is_full = True

    edge.deliver(b"abc", UNSCHEDULE)
    assert edge.router.events == []
    edge.wire.is_full = False
    edge.remote.drained()
    edge.remote.drained()

    assert edge.router.kinds() == [Ready]


def test_a_long_batch_is_read_in_parts_between_other_clients():
    edge = Edge(packets_per_read=10).opened()

    edge.remote.receive(PUBLISH * 25)
    assert edge.wire.is_paused
    assert incoming(edge.remote.link) == [PUBLISH * 10]
    edge.wire.run_waiting()
    edge.wire.run_waiting()

    assert incoming(edge.remote.link) == [PUBLISH * 10, PUBLISH * 5]
    assert not edge.wire.is_paused


def test_a_client_above_its_rate_is_read_slower():
    edge = Edge(message_rate=10).opened()

    edge.remote.receive(PUBLISH * 30)

    assert edge.wire.is_paused
    ((seconds, _),) = edge.wire.waiting
    assert seconds == pytest.approx(2.1, abs=0.2)
    edge.pass_time(100)
    assert edge.router.kinds() == [DeviceData]
    edge.wire.run_waiting()
    assert not edge.wire.is_paused


def test_a_held_client_is_read_until_the_router_has_enough_of_it():
    edge = Edge().opened(keep_alive=10)
    link = edge.remote.link
    link.is_full = True
    edge.deliver(b"x")
    assert not edge.wire.is_paused

    edge.remote.receive(PUBLISH)
    assert edge.wire.is_paused
    edge.deliver(b"y")
    assert edge.wire.is_paused
    edge.pass_time(100)
    assert edge.router.kinds() == [DeviceData]  # its silence is ours
    link.is_full = False
    edge.deliver()

    assert not edge.wire.is_paused
    assert edge.wire.written == b"xy"


# --- the end ---


def test_a_lost_connection_publishes_its_will():
    edge = Edge().opened()

    edge.remote.lost()
    edge.remote.lost()

    (event,) = edge.router.events
    assert isinstance(event, DisconnectRequested)
    assert event.ending.has_will
    assert edge.connections.links == {}


def test_malformed_bytes_end_the_connection_through_the_router():
    edge = Edge().opened()

    edge.remote.receive(PUBLISH + b"\x30\xff\xff\xff\xff")
    edge.wire.run_waiting()

    first, second = edge.router.events
    assert isinstance(first, DeviceData)
    assert (second.ending.reason, second.ending.is_told) == (ReasonCode.MALFORMED_PACKET, True)
    edge.deliver(b"bye")
    edge.end(ReasonCode.MALFORMED_PACKET)
    assert edge.wire.written == b"bye"
    assert edge.wire.is_closed
    assert edge.connections.figures.ends == {"malformed packet": 1}


def test_keep_alive_one_and_a_half_times_ends_a_silent_connection():
    edge = Edge().opened(keep_alive=10)

    edge.pass_time(15)
    assert edge.router.events == []
    edge.pass_time(2)

    (event,) = edge.router.events
    assert event.ending.reason is ReasonCode.KEEP_ALIVE_TIMEOUT
    assert event.ending.has_will
    assert event.ending.is_told


def test_any_packet_keeps_a_connection_alive():
    edge = Edge().opened(keep_alive=10)

    for _ in range(10):
        edge.pass_time(9)
        edge.remote.receive(encode(PingReq(), 4))

    assert set(edge.router.kinds()) == {DeviceData}


def test_keep_alive_0_is_no_limit():
    edge = Edge().opened(keep_alive=0)

    edge.pass_time(100_000 // 50)

    assert edge.router.events == []


def test_server_keep_alive_applies_to_mqtt_5_only():
    for version, expected in ((V5, 1), (V4, 0)):
        edge = Edge(keep_alive=10).opened(version, keep_alive=1000)

        edge.pass_time(20)

        assert len(edge.router.events) == expected


@pytest.mark.parametrize("linger", [0, 3])
def test_a_client_that_does_not_read_its_last_bytes_is_disconnected(linger):
    edge = Edge(linger=linger).opened()
    edge.end()
    assert edge.wire.is_closed

    edge.pass_time(4)

    assert edge.wire.is_aborted
    assert edge.connections.links == {}


def test_packets_after_the_end_are_ignored():
    edge = Edge().opened()
    edge.end()
    edge.router.events.clear()

    edge.remote.receive(PUBLISH)
    edge.deliver(encode(PingResp(), 4))

    assert edge.router.events == []
    assert edge.wire.written == b""


reads = st.lists(st.binary(max_size=60) | st.sampled_from([PUBLISH, PUBLISH[:3]]))


@given(st.booleans(), reads)
def test_any_bytes_reach_the_router_whole_or_end_the_connection(is_open, reads):
    edge = Edge(packets_per_read=3)
    if is_open:
        edge.opened()

    for data in reads:
        edge.remote.receive(data)
        while edge.wire.waiting:
            edge.wire.run_waiting()

    if edge.remote.link is not None:
        pushed = b"".join(incoming(edge.remote.link))
        assert b"".join(reads).startswith(pushed) or not is_open
        assert find_frames(pushed, 1 << 20, minimal=False).end == len(pushed)
