"""Mount points: all topics of a listener's clients are below a prefix.

Clients do not see the prefix: it is added to the topics and filters that they send, and removed
from those that they receive. So clients of one listener reach only each other, and clients of
other listeners see their topics with the prefix. Topic rules apply to topics with the prefix.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from callboard.mqtt.port.remote_link import PacketFilter, RemoteLink
from callboard.mqtt.wire.codec import decode_packet, encode
from callboard.mqtt.wire.framing import split_packets
from callboard.mqtt.wire.packet import Packet, PacketType, Publish, Subscribe, Unsubscribe
from callboard.mqtt.wire.topic import mounted

_TO_ROUTER = frozenset((PacketType.PUBLISH, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))
_TO_CLIENT = frozenset((PacketType.PUBLISH,))


class MountFilter:
    """The mount point of one connection, as the `PacketFilter` of its link."""

    def __init__(self, prefix: str, remote: RemoteLink) -> None:
        """Add the prefix to topics in one direction, and remove it in the other."""
        self._prefix, self._remote = prefix, remote

    def incoming(self, chunk: bytes) -> bytes:
        """Return a chunk of the client in which topics have the prefix."""
        return self._rewrite(chunk, _TO_ROUTER, self._mount)

    def outgoing(self, chunk: bytes) -> bytes:
        """Return a chunk for the client in which topics lack the prefix."""
        return self._rewrite(chunk, _TO_CLIENT, self._unmount)

    def _rewrite(
        self, chunk: bytes, kinds: frozenset[PacketType], change: Callable[[Packet], Packet]
    ) -> bytes:
        """Return a chunk in which packets of some kinds are changed."""
        link = self._remote.link
        assert link is not None
        version = link.connect.version
        return b"".join(
            encode(change(decode_packet(data, version)), version)
            if data[0] >> 4 in kinds
            else data
            for data in split_packets(chunk)
        )

    def _mount(self, packet: Packet) -> Packet:
        """Return a packet of the client with mounted topics."""
        prefix = self._prefix
        match packet:
            case Publish(topic=topic) if topic:  # else it has an alias
                return replace(packet, topic=prefix + topic)
            case Subscribe(subscriptions=subscriptions):
                items = [
                    replace(item, topic_filter=mounted(item.topic_filter, prefix))
                    for item in subscriptions
                ]
                return replace(packet, subscriptions=tuple(items))
            case Unsubscribe(topic_filters=filters):
                names = tuple(mounted(name, prefix) for name in filters)
                return replace(packet, topic_filters=names)
        return packet

    def _unmount(self, packet: Packet) -> Packet:
        """Return a packet for the client without the prefix."""
        assert isinstance(packet, Publish)
        return replace(packet, topic=packet.topic.removeprefix(self._prefix))


class FilterChain:
    """Several packet filters of one connection, as one."""

    def __init__(self, filters: Sequence[PacketFilter]) -> None:
        """Pass packets of the client through the filters in their order."""
        self._filters = filters

    def incoming(self, chunk: bytes) -> bytes:
        """Return the bytes that the router gets in place of a chunk."""
        for packet_filter in self._filters:
            chunk = packet_filter.incoming(chunk) if chunk else chunk
        return chunk

    def outgoing(self, chunk: bytes) -> bytes:
        """Return the bytes that the client gets in place of a chunk."""
        for packet_filter in reversed(self._filters):
            chunk = packet_filter.outgoing(chunk) if chunk else chunk
        return chunk
