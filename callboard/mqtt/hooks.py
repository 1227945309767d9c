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

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from callboard.mqtt.client_access import Client, SubscribeHook
from callboard.mqtt.codec import decode, encode
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.local_link import Message
from callboard.mqtt.packet import V5, PacketType, PubAck, PubComp, Publish, PubRec
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import ReasonCode

if TYPE_CHECKING:
    from callboard.mqtt.remote_link import RemoteLink

_LOG: Final = logging.getLogger(__name__)


MessageHook = Callable[[Client, Message], Message | bool | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions of a router; None is none."""

    subscribe: SubscribeHook | None = None
    publish: MessageHook | None = None
    deliver: MessageHook | None = None


class HookScreen:
    """The hooks of one connection: the `Screen` of its link."""

    def __init__(self, hooks: Hooks, remote: "RemoteLink") -> None:
        self._hooks = hooks
        self._remote = remote
        #: Topics by the alias that a side gave them: hooks see names.
        self._aliases: dict[tuple[str, int], str] = {}

    def incoming(self, chunk: bytes) -> bytes:
        """Return what the router gets."""
        if self._hooks.publish is None:
            return chunk
        return b"".join(
            self._publish(packet) if packet[0] >> 4 == PacketType.PUBLISH else packet
            for packet in _packets(chunk)
        )

    def outgoing(self, chunk: bytes) -> bytes:
        """Return what the client gets."""
        if self._hooks.deliver is None:
            return chunk
        return b"".join(
            self._deliver(packet) if packet[0] >> 4 == PacketType.PUBLISH else packet
            for packet in _packets(chunk)
        )

    @property
    def _version(self) -> int:
        assert self._remote.link is not None
        return self._remote.link.connect.version

    def _client(self) -> Client:
        link = self._remote.link
        assert link is not None
        return Client(link.client_id, link.connect.username, self._remote.peer.address)

    def _publish(self, data: bytes) -> bytes:
        version = self._version
        packet = decode(data[0], data[body_start(data) :], version)
        assert isinstance(packet, Publish)
        assert self._hooks.publish is not None
        named = self._named(packet, "in")
        answer = self._ask(self._hooks.publish, named)
        if answer is None:
            return data
        if isinstance(answer, Message):
            return encode(_changed(named, answer, version), version)
        if packet.qos:
            refusal = ReasonCode.NOT_AUTHORIZED if version >= V5 else ReasonCode.SUCCESS
            kind = PubAck if packet.qos == 1 else PubRec
            self._remote.answer(encode(kind(packet.packet_id, refusal), version))
        return b""

    def _deliver(self, data: bytes) -> bytes:
        version = self._version
        packet = decode(data[0], data[body_start(data) :], version)
        assert isinstance(packet, Publish)
        assert self._hooks.deliver is not None
        named = self._named(packet, "out")
        answer = self._ask(self._hooks.deliver, named)
        if answer is None:
            return data
        if isinstance(answer, Message):
            return encode(_changed(named, answer, version), version)
        link = self._remote.link
        assert link is not None
        if packet.qos == 1:
            link.push(encode(PubAck(packet.packet_id), version))
        elif packet.qos == 2:
            # The router's PUBREL goes to the client, which answers that it knows no such id.
            received, complete = PubRec(packet.packet_id), PubComp(packet.packet_id)
            link.push(encode(received, version) + encode(complete, version))
        return b""

    def _ask(self, hook: MessageHook, packet: Publish) -> "Message | bool | None":
        message = Message(
            packet.topic, packet.payload, packet.qos, packet.retain, packet.properties
        )
        client = self._client()
        try:
            answer: Any = hook(client, message)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("a hook failed for a message of %r", client.client_id)
            return False
        if isinstance(answer, Message):
            return None if answer == message else answer
        return False if answer is False else None

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
    properties = message.properties if version >= V5 else None
    if properties is not None and properties.topic_alias is not None:
        properties = replace(properties, topic_alias=None)
    return replace(
        packet,
        topic=message.topic,
        payload=message.payload,
        retain=message.retain,
        properties=properties or (Properties() if version >= V5 else None),
    )


def _packets(chunk: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(chunk):
        end = packet_end(chunk, position)
        found.append(chunk[position:end])
        position = end
    return found
