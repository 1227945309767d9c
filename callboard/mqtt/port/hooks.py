"""Functions of yours on the way of a connection's packets.

| hook | called with | may answer |
|---|---|---|
| connect | `Credentials` | see `auth`, whose authenticator it is |
| subscribe | `Client`, filter, QoS | the QoS to grant, a reason code, None to grant it |
| publish | `Client`, `Message` from it | a `Message` instead, False to drop, None to keep it |
| deliver | `Client`, `Message` to it | the same |

They run on the router's thread, so they must be quick; work belongs into rules or actors. A
message that `publish` drops is answered with *not authorized* (MQTT 5) or acknowledged (3.1.1);
one that `deliver` drops is acknowledged in the client's place. A hook that raises drops what it
was called with, and is logged.

Connections without hooks never come here: without `publish` and `deliver` no packet is decoded.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from callboard.mqtt.access.acl import Client, SubscribeHook
from callboard.mqtt.access.admission import call_function
from callboard.mqtt.port.remote_link import RemoteLink
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.codec import decode_packet, encode
from callboard.mqtt.wire.framing import split_packets
from callboard.mqtt.wire.packet import V5, PacketType, PubAck, PubComp, Publish, PubRec
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

MessageHook = Callable[[Client, Message], Message | bool | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions of a router; None is none."""

    subscribe: SubscribeHook | None = None
    publish: MessageHook | None = None
    deliver: MessageHook | None = None


class HookScreen:
    """The hooks of one connection: the `Screen` of its link."""

    def __init__(self, hooks: Hooks, remote: RemoteLink) -> None:
        self._hooks = hooks
        self._remote = remote
        #: Topics by the alias that a side gave them: hooks see names.
        self._aliases: dict[tuple[str, int], str] = {}

    def incoming(self, chunk: bytes) -> bytes:
        """Return what the router gets."""
        return self._pass(chunk, self._hooks.publish, "in")

    def outgoing(self, chunk: bytes) -> bytes:
        """Return what the client gets."""
        return self._pass(chunk, self._hooks.deliver, "out")

    def _pass(self, chunk: bytes, hook: MessageHook | None, way: str) -> bytes:
        """Return a chunk with what a hook makes of each PUBLISH in it."""
        if hook is None:
            return chunk
        return b"".join(
            self._ask(packet, hook, way) if packet[0] >> 4 == PacketType.PUBLISH else packet
            for packet in split_packets(chunk)
        )

    def _ask(self, data: bytes, hook: MessageHook, way: str) -> bytes:
        """Return what a hook makes of a PUBLISH; nothing if it drops it, or raises."""
        link = self._remote.link
        assert link is not None
        version = link.connect.version
        packet = decode_packet(data, version)
        assert isinstance(packet, Publish)
        named = self._named(packet, way)
        message = Message.of(named)
        client = Client(link.client_id, link.connect.username, self._remote.peer.address)
        what = f"a hook for a message of {client.client_id!r}"
        answer: Any = call_function(what, hook, client, message)
        if isinstance(answer, Message) and answer != message:
            return encode(_changed(named, answer, version), version)
        if answer is not False and answer is not ReasonCode.UNSPECIFIED_ERROR:
            return data
        if packet.qos and way == "in":
            refusal = ReasonCode.NOT_AUTHORIZED if version >= V5 else ReasonCode.SUCCESS
            kind = PubAck if packet.qos == 1 else PubRec
            self._remote.answer(encode(kind(packet.packet_id, refusal), version))
        elif packet.qos == 1:
            link.push(encode(PubAck(packet.packet_id), version))
        elif packet.qos == 2:
            # The router's PUBREL goes to the client, which answers that it knows no such id.
            received, complete = PubRec(packet.packet_id), PubComp(packet.packet_id)
            link.push(encode(received, version) + encode(complete, version))
        return b""

    def _named(self, packet: Publish, way: str) -> Publish:
        """Return a packet with its topic where it has only the alias of one."""
        alias = packet.properties.topic_alias if packet.properties else None
        if alias is None:
            return packet
        if packet.topic:
            self._aliases[way, alias] = packet.topic
            return packet
        return replace(packet, topic=self._aliases.get((way, alias), ""))


def _changed(packet: Publish, message: Message, version: int) -> Publish:
    """Return a packet with what a hook put in place of its message."""
    properties = None
    if version >= V5:
        properties = replace(message.properties or NO_PROPERTIES, topic_alias=None)
    return replace(
        packet,
        topic=message.topic,
        payload=message.payload,
        retain=message.retain,
        properties=properties,
    )
