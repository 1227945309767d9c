"""The codec of MQTT: framing and every packet of both versions."""

import random

from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_LIMIT = 1 << 20


class Mqtt:
    """Feeds damaged packets in reads of any size."""

    name = "mqtt"

    def make(self, seed: int) -> Case:
        """Return a version and packets, some of them damaged."""
        rng = random.Random(seed)
        version = rng.choice((4, 5))
        corpus = [encode(_packet(rng, version), version) for _ in range(8)]
        packets = [
            mutate_bytes(rng, data, corpus) if rng.random() < 0.6 else data
            for data in rng.choices(corpus, k=rng.randrange(1, 60))
        ]
        return {"version": version, "packets": packets}

    def run(self, case: Case) -> int:
        """Read each alone, and all of them as one stream; only typed errors come out."""
        version: int = case["version"]
        for data in case["packets"]:
            _read_all(data, version)
        _read_all(b"".join(case["packets"]), version)
        return len(case["packets"])


def _read_all(data: bytes, version: int) -> None:
    try:
        frames = find_frames(data, _LIMIT, minimal=version >= V5)
        require(frames.end <= len(data), "more than there is")
        position = count = 0
        while position < frames.end:
            position = _read_one(data, position, version)
            count += 1
    except RemoteMqttError as error:
        require(error.reason_code >= 0x80, "a failure that says success")
        return
    require((position, count) == frames[:2], "the packets are not those that framing saw")


def _read_one(data: bytes, start: int, version: int) -> int:
    body = next(index for index in range(start + 1, start + 5) if data[index] < 0x80) + 1
    length = sum(
        (data[index] & 0x7F) << 7 * (index - start - 1) for index in range(start + 1, body)
    )
    packet = decode(data[start], data[body : body + length], version)
    level = packet.version if isinstance(packet, Connect) else version
    written = encode(packet, level)
    head = next(index for index in range(1, 5) if written[index] < 0x80) + 1
    require(decode(written[0], written[head:], level) == packet, "a packet changed on its way")
    return body + length


def _packet(rng: random.Random, version: int) -> Packet:
    some = Properties(user_properties=(("k", "v"),)) if version >= V5 else None
    return rng.choice(
        (
            Connect("c", True, 60, "u", b"p", Will("w", b"x", 1, False, some), version, some),
            ConnAck(False, 0, some),
            Publish("a/b", rng.randbytes(rng.choice((0, 3, 200))), 0, properties=some),
            Publish("a/b", b"x", 2, packet_id=rng.randint(1, 65_535), properties=some),
            PubAck(rng.randint(1, 65_535), 0, some),
            PubRel(rng.randint(1, 65_535), 0, some),
            Subscribe(1, (Subscription("a/#", 1), Subscription("+/b", 0)), some),
            SubAck(1, (0, 1, 0x80), some),
            Unsubscribe(1, ("a/#", "$share/g/b"), some),
            UnsubAck(1, () if version < V5 else (0, 0x11), some),
            Disconnect(0, some),
        )
    )
