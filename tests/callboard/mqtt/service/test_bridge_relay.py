"""The relay of a bridge between a router and a broker that lose connections and restart."""

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import callboard.mqtt.wire.packet as packets
from callboard.mqtt.service.bridge_relay import BridgeRelay, BridgeTopics, RemoteLimits
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.packet import V4, V5, ConnAck, Publish
from callboard.mqtt.wire.properties import Properties

OUT = BridgeTopics("out/#", "out", 2)
IN = BridgeTopics("in/#", "in", 2)


class Sender:
    """One side's session as a sender: what is unacknowledged, in its order."""

    def __init__(self):
        self.queue, self.open, self.releasing = deque(), {}, set()
        self.acknowledged, self._last = set(), 0

    def put(self, topic, payload, qos):
        self.queue.append(Publish(topic, payload, qos))

    def due(self, room):
        """Return what is sent next."""
        sent = []
        while self.queue and len(self.open) + len(self.releasing) < room:
            while (packet_id := self._last % 6 + 1) in self.open or packet_id in self.releasing:
                self._last += 1
            self._last += 1
            packet = replace(self.queue.popleft(), packet_id=packet_id)
            self.open[packet_id] = packet
            sent.append(packet)
        return sent

    def again(self):
        """Return what is sent again on a new connection."""
        releases = [packets.PubRel(packet_id) for packet_id in sorted(self.releasing)]
        return [*releases, *(replace(each, dup=True) for each in self.open.values())]

    def take(self, packet):
        """Process an acknowledgement; return an answer, or None."""
        packet_id = packet.packet_id
        if isinstance(packet, packets.PubComp):
            self.releasing.discard(packet_id)
            return None
        sent = self.open.pop(packet_id, None)
        if sent is not None:
            assert (sent.qos == 1) == isinstance(packet, packets.PubAck)
            self.acknowledged.add(sent.payload)
        if isinstance(packet, packets.PubRec):
            if sent is not None:
                self.releasing.add(packet_id)
            if packet_id in self.releasing:
                return packets.PubRel(packet_id)
        return None


class Receiver:
    """One side's session as a receiver: duplicates of QoS 2 are recognized by identifier."""

    def __init__(self):
        self.got, self.received = [], set()

    def take(self, packet):
        """Process a packet of a sender; return its answer, or None."""
        if isinstance(packet, packets.PubRel):
            self.received.discard(packet.packet_id)
            return packets.PubComp(packet.packet_id)
        if packet.qos == 2:
            if packet.packet_id not in self.received:
                self.received.add(packet.packet_id)
                self.got.append(packet.payload)
            return packets.PubRec(packet.packet_id)
        self.got.append(packet.payload)
        return packets.PubAck(packet.packet_id) if packet.qos else None


class Side:
    """A broker with one session of the bridge."""

    def __init__(self):
        self.sender, self.receiver = Sender(), Receiver()

    def take(self, packet):
        """Process a packet of the relay; return the answers."""
        if isinstance(packet, Publish | packets.PubRel):
            answer = self.receiver.take(packet)
        elif isinstance(packet, packets.Subscribe):
            answer = packets.SubAck(packet.packet_id, tuple(2 for _ in packet.subscriptions))
        else:
            answer = self.sender.take(packet)
        return [] if answer is None else [answer]


class Stage:
    """A relay between two sides; each step moves one packet in one direction."""

    def __init__(self, version=V5, window=3):
        self.router, self.remote, self.version, self.window = Side(), Side(), version, window
        self.has_session = False
        self.restart()

    def restart(self):
        """Restart the router with the bridge; both sessions remain."""
        self.relay = BridgeRelay([OUT, IN], self.version)
        self.from_router = deque(self.router.sender.again())
        self.from_remote, self.to_remote, self.to_router = deque(), deque(), deque()

    def cut(self):
        """Break the connection with the remote broker."""
        self.relay.remote_closed()
        self.from_remote.clear()
        self.to_remote.clear()

    def connect(self):
        if self.relay.is_open:
            return
        limits = RemoteLimits(receive_maximum=self.window)
        self.relay.remote_opened(limits, session_present=self.has_session)
        if not self.has_session:
            self.relay.subscribe(1)
        self.has_session = True
        self.from_remote.extend(self.remote.sender.again())
        self.collect()

    def collect(self):
        """Take the relay's output."""
        self.to_router.extend(self.relay.to_router)
        self.relay.to_router.clear()
        self.to_remote.extend(decode_all(self.relay.take_remote(), self.version))

    def step(self, lane):
        """Move one packet; return whether there was one."""
        self.from_router.extend(self.router.sender.due(4))
        if self.relay.is_open:
            self.from_remote.extend(self.remote.sender.due(4))
        queue = (self.from_router, self.from_remote, self.to_router, self.to_remote)[lane]
        if not queue:
            return False
        packet = queue.popleft()
        if lane == 0:
            if not self.relay.pass_through(encode(packet, V5)):
                self.relay.from_router(packet)
        elif lane == 1:
            self.relay.from_remote(packet)
        elif lane == 2:
            self.from_router.extend(self.router.take(packet))
        else:
            self.from_remote.extend(self.remote.take(packet))
        self.collect()
        return True

    def settle(self):
        self.connect()
        while sum(self.step(lane) for lane in range(4)):
            pass


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.booleans(), st.integers(1, 2)),
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(0, 3)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("connect")),
    st.tuples(st.just("restart")),
)


@settings(max_examples=300)
@given(st.lists(OPERATIONS, max_size=120), st.integers(1, 5), st.sampled_from([V4, V5]))
def test_no_acknowledged_message_is_lost_and_none_of_qos_2_is_doubled(script, window, version):
    stage, sent = Stage(version, window), {}
    for operation, *values in script:
        if operation == "put":
            is_outward, qos = values
            payload = b"%d" % len(sent)
            sent[payload] = (is_outward, qos)
            side, topic = (stage.router, "out/x") if is_outward else (stage.remote, "in/x")
            side.sender.put(topic, payload, qos)
        elif operation == "step":
            stage.step(*values)
        else:
            getattr(stage, operation)()
        for near, far in ((stage.router, stage.remote), (stage.remote, stage.router)):
            assert near.sender.acknowledged <= set(far.receiver.got)

    stage.settle()

    for payload, (is_outward, qos) in sent.items():
        got = (stage.remote if is_outward else stage.router).receiver.got
        assert got.count(payload) == 1 if qos == 2 else payload in got
    for side in (stage.router, stage.remote):
        assert not side.sender.open
        assert not side.sender.releasing
        assert not side.receiver.received


PUBLISHES = st.builds(
    Publish,
    st.sampled_from(["out/a", "out/b/c", "both/a", "x"]),
    st.binary(max_size=200),
    st.integers(0, 2),
    st.booleans(),
    properties=st.sampled_from([None, Properties(content_type="text")]),
)
LIMITS = st.builds(
    RemoteLimits,
    st.integers(1, 8),
    st.integers(0, 2),
    st.booleans(),
    st.none() | st.integers(20, 200),
)


@given(
    st.lists(PUBLISHES, max_size=12), LIMITS, LIMITS, st.sampled_from([V4, V5]), st.booleans()
)
def test_a_message_that_is_not_decoded_is_sent_like_one_that_is(
    messages, limits, later, version, session_present
):
    routes = (
        BridgeTopics("out/#", "out", 1, "there/"),
        BridgeTopics("both/#", "out", 2),
        BridgeTopics("both/a", "out", 0, "again/"),
    )
    outputs = []
    for passes in (False, True):
        relay = BridgeRelay(routes, version)
        relay.remote_opened(limits, session_present=False)
        for packet_id, message in enumerate(messages, 1):
            packet = replace(message, packet_id=packet_id if message.qos else 0)
            if not (passes and relay.pass_through(encode(packet, V5))):
                relay.from_router(packet)
        before = relay.take_remote()
        relay.remote_closed()
        relay.remote_opened(later, session_present=session_present)
        outputs.append(
            (before, relay.take_remote(), relay.to_router, relay.notes, relay.figures)
        )

    assert outputs[0] == outputs[1]


def opened(topics=(OUT, IN), version=V5, session_present=False, **limits):
    relay = BridgeRelay(topics, version)
    relay.remote_opened(RemoteLimits(**limits), session_present=session_present)
    return relay


def sent(relay):
    return decode_all(relay.take_remote(), relay.version)


def test_a_message_is_acknowledged_to_the_router_only_after_the_remote_broker_did():
    relay = opened()
    relay.from_router(Publish("out/a", b"1", 1, packet_id=9))
    assert [each.packet_id for each in sent(relay)] == [9]
    assert relay.to_router == []

    relay.from_remote(packets.PubAck(9))
    assert relay.to_router == [packets.PubAck(9)]


def test_a_lower_receive_maximum_after_a_reconnect_is_obeyed():
    relay = opened(receive_maximum=20)
    for packet_id in range(1, 21):
        relay.from_router(Publish("out/a", b"", 1, packet_id=packet_id))
    assert len(sent(relay)) == 20
    relay.remote_closed()

    relay.remote_opened(RemoteLimits(receive_maximum=5), session_present=True)
    again = sent(relay)
    assert [each.packet_id for each in again] == [1, 2, 3, 4, 5]
    assert all(each.dup for each in again)
    relay.from_remote(packets.PubAck(1))
    assert [each.packet_id for each in sent(relay)] == [6]


def test_what_the_remote_broker_cannot_accept_is_dropped_and_counted():
    relay = opened(packet_size=100)
    for packet_id, size in enumerate((10, 500, 20), 1):
        relay.from_router(Publish("out/a", bytes(size), 1, packet_id=packet_id))

    assert [len(each.payload) for each in sent(relay)] == [10, 20]
    assert relay.to_router == [packets.PubAck(2)]
    assert relay.figures.dropped == 1
    assert relay.notes[0].startswith("dropped a message to out/a")


def test_qos_and_retain_are_lowered_to_what_the_remote_broker_has():
    relay = opened(qos=1, retains=False)
    relay.from_router(Publish("out/a", b"", 2, retain=True, packet_id=7))
    (packet,) = sent(relay)
    assert (packet.qos, packet.retain) == (1, False)

    relay.from_remote(packets.PubAck(7))
    assert relay.to_router == [packets.PubRec(7)]
    relay.from_router(packets.PubRel(7))
    assert relay.to_router[1:] == [packets.PubComp(7)]
    assert sent(relay) == []


def test_two_matching_filters_send_a_message_with_both_prefixes():
    filters = (BridgeTopics("a/#", "out", 1, "one/"), BridgeTopics("#", "out", 1, "two/"))
    relay = opened(filters)
    relay.from_router(Publish("a/x", b"", 1, packet_id=3))
    first, second = sent(relay)
    assert (first.topic, second.topic) == ("one/a/x", "two/a/x")

    relay.from_remote(packets.PubAck(first.packet_id))
    assert relay.to_router == []
    relay.from_remote(packets.PubAck(second.packet_id))
    assert relay.to_router == [packets.PubAck(3)]


def test_prefixes_of_both_sides_replace_each_other():
    both = BridgeTopics("x/#", "both", 1, local_prefix="here/", remote_prefix="there/")
    relay = opened((both,))
    relay.subscribe(1)
    (subscription,) = sent(relay)[0].subscriptions
    assert subscription.topic_filter == "there/x/#"

    relay.from_router(Publish("here/x/1", b"", 1, packet_id=1))
    assert [each.topic for each in sent(relay)] == ["there/x/1"]
    relay.from_remote(Publish("there/x/2", b"", 1, packet_id=1))
    assert [each.topic for each in relay.to_router] == ["here/x/2"]


def test_the_flag_retain_and_the_size_can_be_limited_by_the_settings():
    relay = BridgeRelay([OUT], retains=False, packet_size=50)
    relay.remote_opened(RemoteLimits(packet_size=1_000), session_present=False)
    for size in (10, 100):
        relay.from_router(Publish("out/a", bytes(size), 1, retain=True, packet_id=size))
    (packet,) = sent(relay)

    assert (len(packet.payload), packet.retain) == (10, False)
    assert relay.figures.dropped == 1


def test_a_refused_message_is_counted_and_not_sent_again():
    relay = opened()
    relay.from_router(Publish("out/a", b"", 1, packet_id=1))
    sent(relay)
    relay.from_remote(packets.PubAck(1, 0x87))

    assert relay.to_router == [packets.PubAck(1)]
    assert relay.figures.refused == 1
    assert relay.notes == ["it refused a message to out/a: not authorized"]


def test_the_wrong_acknowledgement_of_a_remote_broker_completes_nothing():
    relay = opened()
    relay.from_router(Publish("out/a", b"1", 1, packet_id=1))
    sent(relay)
    relay.from_remote(packets.PubRec(1))
    assert relay.to_router == []

    relay.remote_closed()
    relay.remote_opened(RemoteLimits(), session_present=True)
    assert [each.dup for each in sent(relay)] == [True]


def test_a_refused_filter_is_noted():
    relay = opened()
    relay.subscribe(1)
    relay.from_remote(packets.SubAck(1, (0x87,)))

    assert relay.notes == ["it refused the filter in/#: not authorized"]


def test_an_identifier_that_a_remote_broker_without_a_session_uses_again_is_a_new_message():
    relay, router = opened(), Receiver()
    for session_present, payload in ((False, b"old"), (False, b"new")):
        relay.remote_closed()
        relay.remote_opened(RemoteLimits(), session_present=session_present)
        relay.from_remote(Publish("in/x", payload, 2, packet_id=4))
        for packet in relay.to_router:
            answer = router.take(packet)
            relay.from_router(answer)
        relay.to_router.clear()

    assert router.got == [b"old", b"new"]
    assert [type(each) for each in sent(relay)] == [packets.PubRec]


def test_a_lost_session_of_the_remote_broker_means_that_open_messages_are_sent_as_new_ones():
    relay = opened()
    relay.from_router(Publish("out/a", b"1", 1, packet_id=1))
    relay.from_router(Publish("out/a", b"2", 2, packet_id=2))
    relay.from_remote(packets.PubRec(2))
    relay.remote_closed()

    relay.remote_opened(RemoteLimits(), session_present=False)
    assert [(each.payload, each.dup) for each in sent(relay)] == [(b"1", False)]
    relay.from_router(packets.PubRel(2))
    assert relay.to_router == [packets.PubRec(2), packets.PubComp(2)]


@pytest.mark.parametrize(
    ("given_properties", "expected"),
    [
        (None, RemoteLimits()),
        (Properties(receive_maximum=5), RemoteLimits(receive_maximum=5)),
        (Properties(maximum_qos=1, retain_available=0), RemoteLimits(qos=1, retains=False)),
        (Properties(maximum_packet_size=9), RemoteLimits(packet_size=9)),
        (Properties(wildcard_subscription_available=0), RemoteLimits(wildcards=False)),
    ],
)
def test_limits_come_from_the_connack(given_properties, expected):
    assert RemoteLimits.of(ConnAck(properties=given_properties)) == expected
