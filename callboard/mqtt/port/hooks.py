"""Functions of the application that see a connection's packets.

| hook | called with | result |
|---|---|---|
| connect | `Credentials` | see the authenticator of `auth` |
| subscribe | `Client`, filter, QoS | the QoS to grant, a reason code, None to grant it |
| publish | `Client`, its `Message` | a `Message` instead, False to drop it, None to keep it |
| deliver | `Client`, a `Message` to it | like `publish` |

They run on the router's thread, so they must be quick; use rules or actors for longer work. A
message that `publish` drops is answered with *not authorized* (MQTT 5) or acknowledged (3.1.1).
One that `deliver` drops is acknowledged on behalf of the client. If a hook raises, the message
is dropped, and the exception is logged.

Without the hooks `publish` and `deliver` no packet is decoded here.
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
    """The hook functions of a router; None means no hook."""

    subscribe: SubscribeHook | None = None
    publish: MessageHook | None = None
    deliver: MessageHook | None = None


class HookScreen:
    """The hooks of one connection, as the `PacketFilter` of its link."""

    def __init__(self, hooks: Hooks, remote: RemoteLink) -> None:
        self._hooks = hooks
        self._remote = remote
        #: Topics by the alias that a side defined: hooks see topic names.
        self._aliases: dict[tuple[str, int], str] = {}

    def incoming(self, chunk: bytes) -> bytes:
        """Return the bytes for the router."""
        return self._pass(chunk, self._hooks.publish, "in")

    def outgoing(self, chunk: bytes) -> bytes:
        """Return the bytes for the client."""
        return self._pass(chunk, self._hooks.deliver, "out")

    def _pass(self, chunk: bytes, hook: MessageHook | None, side: str) -> bytes:
        """Return a chunk in which a hook has replaced or dropped PUBLISH packets."""
        if hook is None:
            return chunk
        return b"".join(
            self._ask(packet, hook, side) if packet[0] >> 4 == PacketType.PUBLISH else packet
            for packet in split_packets(chunk)
        )

    def _ask(self, data: bytes, hook: MessageHook, side: str) -> bytes:
        """Call a hook for a PUBLISH; return its replacement, or nothing if it is dropped."""
        link = self._remote.link
        assert link is not None
        version = link.connect.version
        packet = decode_packet(data, version)
        assert isinstance(packet, Publish)
        publish = self._named(packet, side)
        message = Message.of(publish)
        client = Client(link.client_id, link.connect.username, self._remote.peer.address)
        label = f"a hook for a message of {client.client_id!r}"
        answer: Any = call_function(label, hook, client, message)
        if isinstance(answer, Message) and answer != message:
            return encode(_changed(publish, answer, version), version)
        if answer is not False and answer is not ReasonCode.UNSPECIFIED_ERROR:
            return data
        if packet.qos and side == "in":
            refusal = ReasonCode.NOT_AUTHORIZED if version >= V5 else ReasonCode.SUCCESS
            kind = PubAck if packet.qos == 1 else PubRec
            self._remote.answer(encode(kind(packet.packet_id, refusal), version))
        elif packet.qos == 1:
            link.push(encode(PubAck(packet.packet_id), version))
        elif packet.qos == 2:
            # The router's PUBREL goes to the client, which answers that the id is unknown.
            received, complete = PubRec(packet.packet_id), PubComp(packet.packet_id)
            link.push(encode(received, version) + encode(complete, version))
        return b""

    def _named(self, packet: Publish, side: str) -> Publish:
        """Return a packet with its topic, even if it has only an alias."""
        alias = packet.properties.topic_alias if packet.properties else None
        if alias is None:
            return packet
        if packet.topic:
            self._aliases[side, alias] = packet.topic
            return packet
        return replace(packet, topic=self._aliases.get((side, alias), ""))


def _changed(packet: Publish, message: Message, version: int) -> Publish:
    """Return a packet with the message that a hook returned."""
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
