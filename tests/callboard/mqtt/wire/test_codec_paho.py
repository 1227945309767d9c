"""The codec compared with paho-mqtt, for 3.1.1 and 5: each decodes the other's packets.

paho has its packets inside of its client, so a client talks to our codec over a pair of
sockets: what it writes is read and written again byte for byte, and its callbacks tell what it
read.
"""

import socket

import paho.mqtt.client as paho
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.framing import body_start, find_frames, packet_end
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.packets import blob, name, qos, text, versions


class Client(paho.Client):
    """A paho client on one end of a pair of sockets; the other end is ours."""

    def __init__(self, version, client_id="c"):
        super().__init__(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version
        )
        self.version = version
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(5)
        self.heard = []
        self.on_connect = lambda *said: self.heard.append(("connect", said[3].value))
        self.on_message = lambda _c, _u, message: self.heard.append(
            (message.topic, message.payload, message.qos, message.retain)
        )
        self.on_subscribe = lambda _c, _u, mid, codes, _p: self.heard.append(
            (mid, [code.value for code in codes])
        )
        self.on_unsubscribe = lambda _c, _u, mid, _codes, _p: self.heard.append((mid,))
        self.on_publish = lambda _c, _u, mid, _code, _p: self.heard.append(("published", mid))

    def _create_socket_connection(self):
        return self.theirs

    def read(self):
        """Return the packets that it wrote; each is written again to the same bytes."""
        self.loop_write()
        data = self.ours.recv(1 << 20)
        assert find_frames(data, 1 << 20).end == len(data)
        packets, position = [], 0
        while position < len(data):
            end = packet_end(data, position)
            body = data[body_start(data, position) : end]
            packet = decode(data[position], body, self.version)
            assert same(encode(packet, self.version), data[position:end])
            packets.append(packet)
            position = end
        return packets

    def tell(self, packet):
        """Feed it one of our packets."""
        self.ours.sendall(encode(packet, self.version))
        self.loop_read()

    def __enter__(self):
        self.connect("nowhere.invalid")
        return self

    def __exit__(self, *_):
        self.ours.close()
        self.theirs.close()


def same(ours, theirs):
    """Whether two packets are the same; paho writes what an end of MQTT 5 may leave out."""
    return ours == theirs or (ours[0] == theirs[0] and theirs[2:].startswith(ours[2:]))


def empty(version):
    return Properties() if version == V5 else None


@given(
    versions,
    text,
    text | st.none(),
    blob,
    st.none() | st.tuples(name, blob, qos, st.booleans()),
)
def test_connect(version, client_id, username, password, will):
    client = Client(version, client_id or "x")
    if username is not None:
        client.username_pw_set(username, password.hex())
    if will is not None:
        client.will_set(*will)

    with client:
        (packet,) = client.read()
        client.tell(ConnAck(properties=empty(version)))

    assert isinstance(packet, Connect)
    assert (packet.client_id, packet.version, packet.keep_alive) == (
        client_id or "x",
        version,
        60,
    )
    assert packet.username == username
    if will is not None:
        assert packet.will == Will(*will, empty(version))
    assert client.heard == [("connect", 0)]


@given(versions, name, blob, qos, st.booleans())
def test_publish_and_its_answers(version, topic, payload, level, retain):
    with Client(version) as client:
        client.read()
        client.tell(ConnAck(properties=empty(version)))
        sent = client.publish(topic, payload, level, retain)
        mid = sent.mid if level else 0
        assert client.read() == [
            Publish(topic, payload, level, retain, packet_id=mid, properties=empty(version))
        ]
        if level == 1:
            client.tell(PubAck(mid, properties=empty(version)))
        elif level == 2:
            client.tell(PubRec(mid, properties=empty(version)))
            assert client.read() == [PubRel(mid, properties=empty(version))]
            client.tell(PubComp(mid, properties=empty(version)))

        assert ("published", sent.mid) in client.heard


@given(versions, name, blob, qos, st.booleans(), st.integers(1, 65_535))
def test_deliveries_and_their_answers(version, topic, payload, level, retain, packet_id):
    given_id = packet_id if level else 0
    with Client(version) as client:
        client.read()
        client.tell(ConnAck(properties=empty(version)))
        client.tell(
            Publish(
                topic, payload, level, retain, packet_id=given_id, properties=empty(version)
            )
        )
        if level == 1:
            assert client.read() == [PubAck(packet_id, properties=empty(version))]
        elif level == 2:
            assert client.read() == [PubRec(packet_id, properties=empty(version))]
            client.tell(PubRel(packet_id, properties=empty(version)))
            assert client.read() == [PubComp(packet_id, properties=empty(version))]

        assert client.heard[1:] == [(topic, payload, level, retain)]


@pytest.mark.parametrize("version", [V4, V5])
def test_subscribe_unsubscribe_ping_and_disconnect(version):
    with Client(version) as client:
        client.read()
        client.tell(ConnAck(properties=empty(version)))
        _, mid = client.subscribe([("a/+", 1), ("b/#", 2)])
        wanted = (Subscription("a/+", 1), Subscription("b/#", 2))
        assert client.read() == [Subscribe(mid, wanted, empty(version))]
        client.tell(SubAck(mid, (1, 0x80), empty(version)))
        _, gone = client.unsubscribe("a/+")
        assert client.read() == [Unsubscribe(gone, ("a/+",), empty(version))]
        client.tell(UnsubAck(gone, (0,) if version == V5 else (), empty(version)))
        assert client.heard[1:] == [(mid, [1, 0x80]), (gone,)]
        client._send_pingreq()
        assert client.read() == [PingReq()]
        client.tell(PingResp())
        client.disconnect()
        assert client.read() == [Disconnect(properties=empty(version))]
