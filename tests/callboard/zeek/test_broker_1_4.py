"""A peering of Broker 1.4: recorded ones, both sides of ours, and what is refused."""

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import protocol_errors as errors
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.header import HEADER
from callboard.basp.link import Closed, Transmit
from callboard.caf.wire.frame import CafFrames, CafOperation, caf_frame
from callboard.caf.wire.reader import (
    CafActor,
    CafNode,
    CafReader,
    message_bytes,
    sized,
    texts_bytes,
)
from callboard.model.encoding import data_to_cbor, python_to_cbor
from callboard.zeek import broker_1_4
from callboard.zeek.broker_1_4 import (
    Broker14Session,
    BrokerState,
    PeerKnown,
    PeerTopics,
    RoomAgain,
)
from callboard.zeek.caf_stream import StreamPair
from callboard.zeek.node_message import (
    CommandMessage,
    DataRun,
    data_message_bytes,
    read_messages,
)
from callboard.zeek.transcoder import broker_from_cbor
from callboard.zeek.value import value_to_bytes
from tests.callboard.model.strategies import DATA

RECORDED = Path(__file__).parent / "recorded"
LIMIT = 1 << 20
HOST = bytes(range(1, 21))
A, B = CafNode(1, HOST), CafNode(2, HOST)


def recorded(name):
    return (RECORDED / f"broker-1.4-{name}.bin").read_bytes()


def session(node=A, *, is_dialed=False):
    return Broker14Session(node, 0.0, is_dialed=is_dialed, limit=LIMIT)


class Wire:
    """Two sessions and what is on its way between them."""

    def __init__(self, dialing=("/d",), listening=("/l",)):
        self.sides = session(A, is_dialed=True), session(B)
        self.topics = dict(zip(self.sides, (dialing, listening), strict=True))
        self.arrived = {side: [] for side in self.sides}
        self.ended = {}
        self.waiting = deque()
        for side in self.sides:
            self.carry_out(side, side.start())

    def other(self, side):
        return self.sides[side is self.sides[0]]

    def carry_out(self, side, effects):
        for effect in effects:
            if isinstance(effect, Transmit):
                self.write(side, effect.data)
            elif isinstance(effect, Arrived):
                self.arrived[side] += effect.messages
                if isinstance(effect.messages[0], PeerKnown | PeerTopics):
                    self.write(side, side.introduce(self.topics[side]))
            elif isinstance(effect, Admitted):
                self.arrived[side].append(effect)
            elif isinstance(effect, Closed):
                self.ended[side] = effect

    def write(self, side, data):
        self.waiting.append((self.other(side), data))
        if len(self.waiting) == 1:  # what is written meanwhile is read when this was
            while self.waiting:
                other, data = self.waiting[0]
                _, effects = other.take(data, 0.0)
                self.carry_out(other, effects)
                self.waiting.popleft()

    def messages(self, side):
        found = [each for each in self.arrived[side] if isinstance(each, DataRun)]
        return [(topic, value, run.ttl) for run in found for topic, value in run.messages]


def message(topic, value, ttl=20):
    return data_message_bytes(topic, value_to_bytes(value), ttl)


@pytest.fixture
def wire():
    return Wire()


def test_both_sides_peer_and_know_the_filter_of_the_other(wire):
    dialing, listening = wire.sides

    assert [side.state for side in wire.sides] == [BrokerState.OPEN] * 2
    assert wire.arrived[dialing] == [PeerKnown(B), PeerTopics(("/l",)), Admitted(str(B))]
    assert wire.arrived[listening] == [PeerKnown(A), PeerTopics(("/d",)), Admitted(str(A))]


@given(st.lists(st.tuples(st.text(max_size=9), DATA, st.integers(0, 65535)), max_size=30))
def test_all_messages_arrive_in_order_with_their_ttl(messages):
    wire = Wire()
    for side in wire.sides:
        wire.write(side, side.send([message(*each) for each in messages]))

        expected = [(topic, data_to_cbor(value), ttl) for topic, value, ttl in messages]
        assert wire.messages(wire.other(side)) == expected


def test_what_there_is_no_credit_for_waits_until_there_is(wire):
    dialing, listening = wire.sides
    count = 3 * broker_1_4.CREDIT
    one = data_message_bytes("/l/x", b"\0", 20)
    data = dialing.send([one] * count)

    assert dialing.queued == count - broker_1_4.CREDIT
    wire.write(dialing, data)
    assert (len(wire.messages(listening)), dialing.queued, dialing.waiting) == (count, 0, 0)


@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (7, 7), (500, 50)])
def test_batches_are_wanted_as_large_as_reads_are(wire, count, wanted):
    """A Broker keeps a batch for 5 ms that is smaller than is wanted."""
    dialing, listening = wire.sides
    one = data_message_bytes("/l/x", b"\0", 20)
    *_, ack = listening.take(dialing.send([one] * count), 0.0)[1]

    (frame,) = CafFrames(LIMIT).take(ack.data)
    assert frame.payload[-16:] == (count.to_bytes(4) + wanted.to_bytes(4) + (1).to_bytes(8))


def test_it_tells_when_little_waits_for_credit(wire):
    dialing, _ = wire.sides
    one = data_message_bytes("/l/x", b"\0", 20)
    data = dialing.send([one] * (broker_1_4.CREDIT + broker_1_4.QUEUE_LOW + 1))
    assert RoomAgain() not in wire.arrived[dialing]

    wire.write(dialing, data)

    assert RoomAgain() in wire.arrived[dialing]


def test_a_changed_filter_goes_whole_and_an_equal_one_does_not(wire):
    dialing, listening = wire.sides
    wire.write(dialing, dialing.update(("/new", "/ü")))

    assert wire.arrived[listening][-1] == PeerTopics(("/new", "/ü"))
    assert dialing.update(("/new", "/ü")) == b""


@pytest.mark.parametrize("which", [0, 1])
def test_the_other_side_ends_when_one_closes(wire, which):
    side = wire.sides[which]
    wire.carry_out(side, side.close("enough"))

    assert wire.ended[side].error is None
    assert wire.ended[wire.other(side)].reason == "the peer ended the peering (close)"


def test_a_silent_peer_is_asked_and_then_given_up(wire):
    dialing, listening = wire.sides
    assert dialing.next_tick_at == broker_1_4.PING_INTERVAL
    (asked,) = dialing.tick(broker_1_4.PING_INTERVAL)
    _, (answer,) = listening.take(asked.data, 10.0)
    assert dialing.take(answer.data, 11.0) == ([], [])
    assert dialing.tick(20.0) == []

    *_, closed = dialing.tick(11.0 + broker_1_4.SILENCE_LIMIT)
    assert isinstance(closed.error, errors.PeerSilent)


def test_a_peer_that_takes_nothing_is_given_up(wire):
    dialing, _ = wire.sides
    dialing.send([data_message_bytes("/l", b"\0", 1)] * (3 * broker_1_4.CREDIT))
    now = broker_1_4.STUCK_LIMIT
    heard = caf_frame(CafOperation.HEARTBEAT)
    dialing.take(heard, now)

    *_, closed = dialing.tick(now)
    assert isinstance(closed.error, errors.PeerSilent)
    assert "no credit arrived" in closed.reason


@pytest.mark.parametrize("name", ["topics-c2s", "topics-s2c", "store-c2s", "store-s2c"])
def test_batches_are_written_as_a_real_broker_wrote_them(name):
    node, other = own_of(recorded(name)), own_of(recorded(name[:-3] + other_way(name)))
    seen = 0
    for frame in CafFrames(LIMIT).take(recorded(name)):
        place = frame.payload.find(b"std::vector<broker::node_message>")
        if place < 0:
            continue
        seen += 1
        pair = StreamPair(CafActor(6, node), CafActor(6, other))
        pair.source = int.from_bytes(frame.payload[23:25])
        pair.their_sink = int.from_bytes(frame.payload[25:27])
        at = place + len(b"std::vector<broker::node_message>")
        messages = []
        for _ in range(frame.payload[at]):
            ((found,), end) = read_messages(frame.payload, at + 1, 1)
            messages.append(frame.payload[at + 1 : end])
            if isinstance(found, DataRun):
                ((topic, content),) = found.messages
                value = broker_from_cbor(content)
                assert data_message_bytes(topic, value, found.ttl) == messages[-1]
            at = end - 1
        written = pair.batch(messages, int.from_bytes(frame.payload[-8:]))
        assert written[32:] == frame.payload
    assert seen


def other_way(name):
    return "s2c" if name.endswith("c2s") else "c2s"


def own_of(stream):
    """Return the node that a recorded side was."""
    frame = next(CafFrames(LIMIT).take(stream))
    return CafReader(frame.payload).node()


def with_our_slots(data):
    """Let recorded frames answer to our slots, as they would have answered to these."""
    out = b""
    for frame in CafFrames(LIMIT).take(data):
        payload = bytearray(frame.payload)
        for name, own in ((b"@upstream_msg", 1), (b"@downstream_msg", 2)):
            place = payload.find(name)
            if place == 8:
                payload[place + len(name) + 2 : place + len(name) + 4] = own.to_bytes(2)
        ids = {"data": frame.data, "source": frame.source, "target": frame.target}
        out += caf_frame(frame.operation, bytes(payload), flags=frame.flags, **ids)
    return out


def read(ours, data, pieces, topics):
    """Feed what a real Broker sent to a session of ours; returns what arrived."""
    arrived = []
    ours.start()
    for piece in pieces(data):
        ours._batches = 99  # the recorded acknowledgments are of what the other side had sent
        for effect in ours.take(piece, 0.0)[1]:
            if isinstance(effect, Arrived):
                arrived += effect.messages
                if isinstance(effect.messages[0], PeerKnown | PeerTopics):
                    ours.introduce(topics)
            elif isinstance(effect, Admitted | Closed):
                arrived.append(effect)
    return arrived


def frames_of(data):
    """Cut a stream into its frames."""
    for frame in CafFrames(LIMIT).take(data):
        ids = {"data": frame.data, "source": frame.source, "target": frame.target}
        yield caf_frame(frame.operation, frame.payload, flags=frame.flags, **ids)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_what_a_real_client_sent_is_understood(size):
    ours = session(own_of(recorded("topics-s2c")))
    arrived = read(
        ours,
        with_our_slots(recorded("topics-c2s")),
        lambda data: (data[at : at + size] for at in range(0, len(data), size)),
        ("/srv",),
    )

    known, topics, admitted, *runs, closed = arrived
    assert (known.node, topics) == (own_of(recorded("topics-c2s")), PeerTopics(("/cli",)))
    assert admitted.name == "BFFADF3AC9F1142F6446CA706C9BB0F69B114400#31761"
    assert closed.reason == "the peer ended the peering (close)"
    expected = [("/srv/x", python_to_cbor([number, "hi"])) for number in range(3)]
    expected.append(("/late/x", python_to_cbor("late")))
    assert [each for run in runs for each in run.messages] == expected
    assert {run.ttl for run in runs} == {20}


def test_what_a_real_server_sent_is_understood():
    ours = session(own_of(recorded("topics-c2s")), is_dialed=True)
    _, *arrived = read(ours, with_our_slots(recorded("topics-s2c")), frames_of, ("/cli",))

    count = b"\xd9\xbf\x18\x07"
    assert arrived == [
        PeerTopics(("/srv",)),
        Admitted("BFFADF3AC9F1142F6446CA706C9BB0F69B114400#31749"),
        DataRun(20, [("/cli/x", python_to_cbor([1, "hello"])), ("/cli/y", count)]),
        PeerTopics(("/late", "/srv")),
    ]


def test_commands_of_a_real_clone_are_passed_by():
    ours = session(own_of(recorded("store-s2c")))
    arrived = read(ours, with_our_slots(recorded("store-c2s")), frames_of, ())

    commands = [each for each in arrived if isinstance(each, CommandMessage)]
    assert {each.topic for each in commands} == {"st/<$>/data/master"}
    assert [each.content[0] for each in commands] == [7, 1, 2, 5, 6, 1, 3]


def test_it_says_that_it_has_no_store(wire):
    dialing, listening = wire.sides
    name = message_bytes("@atom+@atom+@atom+@str", bytes(24), sized(b"st"))
    asked = caf_frame(CafOperation.DIRECT, b"\0" + name, data=1 << 60, source=14, target=6)
    _, (answer,) = listening.take(asked, 0.0)

    (frame,) = CafFrames(LIMIT).take(answer.data)
    assert frame.target == 14
    recorded_answer = bytes.fromhex(
        "00 0000 0a 403c3e2b406572726f72 08 000000f9f7d30ab7 0000 03 403c3e"
    )
    assert frame.payload == recorded_answer


def direct(content, **ids):
    return caf_frame(CafOperation.DIRECT, b"\0" + content, **({"target": 6, "source": 6} | ids))


REFUSED = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: example.org\r\n", errors.UnknownOperation),
    "TLS": (b"\x16\x03\x01" + bytes(40), errors.SpeaksTls),
    "our own wire": (
        HEADER.pack(0, 80, 0x43420001, bytes(18), bytes(18), 0, 0),
        errors.UnknownOperation,
    ),
    "Broker 2.x's wire": (b"\0\0\0\5\7ZEEK" + bytes(40), errors.PayloadTooLarge),
    "a frame that is too large": (
        caf_frame(CafOperation.CLIENT_HANDSHAKE)[:4] + b"\xff" * 4 + bytes(24),
        errors.PayloadTooLarge,
    ),
    "a field too many": (
        caf_frame(CafOperation.CLIENT_HANDSHAKE, B.to_bytes(), source=1),
        errors.MalformedFrame,
    ),
    "a server's handshake": (
        caf_frame(CafOperation.SERVER_HANDSHAKE, B.to_bytes(), data=3),
        errors.MalformedHandshake,
    ),
    "no node": (
        caf_frame(CafOperation.CLIENT_HANDSHAKE, bytes(7) + b"\x0f"),
        errors.MalformedHandshake,
    ),
    "our own node": (
        caf_frame(CafOperation.CLIENT_HANDSHAKE, A.to_bytes()),
        errors.ConnectedToItself,
    ),
    "two nodes": (
        caf_frame(CafOperation.CLIENT_HANDSHAKE, B.to_bytes())
        + caf_frame(CafOperation.CLIENT_HANDSHAKE, CafNode(3, HOST).to_bytes()),
        errors.MalformedHandshake,
    ),
    "a batch before a stream": (
        direct(message_bytes("@downstream_msg", bytes(60))),
        errors.MalformedHandshake,
    ),
    "a stream that nobody asked for": (
        direct(message_bytes("@open_stream_msg", bytes(60))),
        errors.MalformedPayload,
    ),
    "no message": (direct(b"\1\2"), errors.MalformedPayload),
    "a payload that does not end": (direct(b"\0\0\x7f"), errors.MalformedPayload),
}


@pytest.mark.parametrize(("data", "error"), REFUSED.values(), ids=REFUSED)
def test_what_is_none_of_it_ends_the_connection(data, error):
    ours = session()
    ours.start()
    *_, closed = ours.take(data, 0.0)[1]

    assert type(closed.error) is error
    assert ours.is_over()
    assert ours.take(data, 0.0) == ([], [])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("another protocol", "HTTP or WebSocket"),
        ("TLS", "TLS; encrypt both sides"),
        ("our own wire", "BASP"),
        ("Broker 2.x's wire", "Zeek Broker 2.x"),
    ],
)
def test_another_wire_is_named(name, what):
    ours = session()
    ours.start()
    *_, closed = ours.take(REFUSED[name][0], 0.0)[1]

    assert f"the peer speaks {what}" in closed.reason


def test_a_generic_actor_system_is_not_taken_for_a_broker():
    ours = session(is_dialed=True)
    said = B.to_bytes() + texts_bytes(("generic-caf-app",)) + bytes(9)
    (closed,) = ours.take(caf_frame(CafOperation.SERVER_HANDSHAKE, said, data=3), 0.0)[1]

    assert isinstance(closed.error, errors.IncompatibleApplication)
    assert closed.reason == "the peer is not Broker 1.4, but 'generic-caf-app'"


@given(st.data())
def test_a_damaged_batch_ends_the_connection_or_means_something(draws):
    wire = Wire()
    dialing, listening = wire.sides
    one = bytearray(dialing.send([message("/l/x", draws.draw(DATA))]))
    one[draws.draw(st.integers(32, len(one) - 1))] ^= draws.draw(st.integers(1, 255))
    effects = listening.take(bytes(one), 0.0)[1]

    for effect in effects:
        if isinstance(effect, Closed):
            assert effect.error is None or isinstance(effect.error, errors.RemoteProtocolError)


@pytest.mark.parametrize(
    ("node", "source", "is_over"),
    [(B, "core", True), (A, "core", False), (B, "another actor", False)],
)
def test_a_peering_ends_with_the_core_of_the_peer_and_with_nothing_else(
    wire, node, source, is_over
):
    dialing = wire.sides[0]
    number = dialing._peer_core() + (source != "core")

    dialing.take(caf_frame(CafOperation.DOWN, node.to_bytes(), source=number), 0.0)

    assert dialing.is_over() is is_over
