"""What a core knows of other endpoints: paths, filters, peers.

Whoever is found, connected, lost or removed is told by the seven callbacks of the guide, each
of which gives a `PeerEvent`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from callboard.endpoint.core_effect import Effect, PeerEvent, PeerEventKind, Transmit
from callboard.endpoint.filter_exchange import FilterChange, FilterExchange, FilterUpdate
from callboard.endpoint.message import MessageType, pack_runs
from callboard.endpoint.run_cbor import encode_plain_pair
from callboard.endpoint.subscriptions import SubscriptionTable
from callboard.endpoint.topic import is_local

__all__ = ["DEFAULT_TTL", "CorePeers"]

DEFAULT_TTL: Final = 16
"""Links that a message may cross: Broker's own limit since 2.0."""

CACHED_TOPICS: Final = 65_536
"""Topics whose receivers are remembered; the cache starts again when it is full."""


@dataclass(slots=True)
class Place:
    """How another endpoint is connected: over any path, or as a peer."""

    is_known: bool = False
    is_peer: bool = False
    address: tuple[str, int] | None = None
    is_discovered: bool = False


class CorePeers:
    """The part of a core that knows other endpoints."""

    def __init__(
        self,
        endpoint: bytes,
        path_of: Callable[[bytes], Sequence[bytes]],
        *,
        ttl: int,
        forwards: bool,
    ) -> None:
        """See `Core`."""
        self.endpoint = endpoint
        self.ttl = ttl
        self.filters = FilterExchange(endpoint, forwards=forwards)
        self._path_of = path_of
        self._remote_index: SubscriptionTable[bytes] = SubscriptionTable()
        self._places: dict[bytes, Place] = {}
        #: Topic → nodes to send it to; forgotten with every change of a filter or a path.
        self._receivers: dict[str, tuple[bytes, ...]] = {}

    def endpoint_found(self, node: bytes, now: float) -> list[Effect]:
        """A node that has an endpoint came into reach: tell it what is wanted here."""
        self._places.setdefault(node, Place()).is_known = True
        self._receivers.clear()
        effects = self._tell(self.filters.greet(node, now))
        return effects + self._introduce(node)

    def path_moved(self) -> None:
        """Another path leads to some node."""
        self._receivers.clear()

    def link_established(
        self, node: bytes, address: tuple[str, int] | None = None
    ) -> list[Effect]:
        """There is a link to a node: its endpoint is a peer."""
        place = self._places.setdefault(node, Place())
        place.address = address or place.address
        if place.is_peer:
            return []
        place.is_peer = True
        return self.peer_connected(node) if place.is_discovered else []

    def link_lost(self, node: bytes, text: str, *, by_user: bool = False) -> list[Effect]:
        """The link to a peer ended."""
        place = self._places.get(node)
        if place is None or not place.is_peer:
            return []
        place.is_peer = False
        if not place.is_discovered:
            return []
        if by_user:
            return self.peer_removed(node, text)
        return self.peer_disconnected(node, text)

    def endpoint_lost(self, node: bytes, text: str) -> list[Effect]:
        """An endpoint ended, or no path leads to it."""
        effects: list[Effect] = self.link_lost(node, text)
        place = self._places.pop(node, None)
        if place is not None and place.is_discovered:
            effects += self.peer_unreachable(node, place, text)
        return effects + self._apply(self.filters.forget(node))

    def tick(self, now: float) -> list[Effect]:
        """Repeat what was not confirmed."""
        return self._tell(self.filters.tick(now))

    def endpoint_of(self, node: bytes) -> bytes | None:
        """Return the id of the endpoint on a node, None before it said so."""
        remote = self.filters.remotes.get(node)
        return remote.endpoint if remote is not None and remote.endpoint else None

    def is_introduced(self, node: bytes) -> bool:
        """Return whether the endpoint of a neighbour is a peer, and both know both filters."""
        place = self._places.get(node)
        return (
            place is not None
            and place.is_peer
            and place.is_discovered
            and (self.filters.is_confirmed(node))
        )

    def peers(self) -> list[tuple[bytes, bytes | None, tuple[str, int] | None, bool]]:
        """Return node, endpoint, address of each peer, and whether its filter is known."""
        return [
            (node, self.endpoint_of(node), place.address, place.is_discovered)
            for node, place in list(self._places.items())
            if place.is_peer and (place.is_known or self.endpoint_of(node) is not None)
        ]

    def peer_topics(self) -> list[str]:
        """Return the topics that some other endpoint takes, sorted."""
        remotes = list(self.filters.remotes.values())
        return sorted({topic for remote in remotes for topic in tuple(remote.topics)})

    def node_of(self, endpoint: bytes) -> bytes | None:
        """Return the node of an endpoint that is in reach and whose filter is known."""
        for node, place in list(self._places.items()):  # from any thread
            if place.is_discovered and self.endpoint_of(node) == endpoint:
                return node
        return None

    def _introduce(self, node: bytes) -> list[Effect]:
        """Tell of an endpoint once its path and its filter are both known."""
        place = self._places.get(node)
        if place is None or not place.is_known or place.is_discovered:
            return []
        if self.endpoint_of(node) is None:
            return []
        place.is_discovered = True
        effects = self.peer_discovered(node)
        if place.is_peer:
            effects += self.peer_connected(node)
        return effects

    def _apply(self, changes: list[FilterChange]) -> list[Effect]:
        for change in changes:
            for topic in change.removed:
                self._remote_index.remove(topic, change.node)
            for topic in change.added:
                self._remote_index.add(topic, change.node)
        if changes:
            self._receivers.clear()
        return list(changes)

    def _tell(self, updates: list[tuple[bytes, FilterUpdate]]) -> list[Effect]:
        effects: list[Effect] = []
        for node, update in updates:
            pair = encode_plain_pair("", update.as_plain())
            effects += [
                Transmit(node, payload)
                for payload, _ in pack_runs(MessageType.ROUTING_UPDATE, self.ttl, [pair])
            ]
        return effects

    def receivers_of(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes to which a message with this topic would be sent."""
        known = self._receivers.get(topic)
        return self._find_receivers(topic) if known is None else known

    def _find_receivers(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes that want a topic and may be reached; remembered by topic."""
        nodes: tuple[bytes, ...] = ()
        if not is_local(topic):
            nodes = tuple(filter(self._may_reach, self._remote_index.match(topic)))
        if len(self._receivers) >= CACHED_TOPICS:
            self._receivers.clear()
        self._receivers[topic] = nodes
        return nodes

    def _may_reach(self, node: bytes) -> bool:
        """Return whether the TTL suffices and nobody on the way refuses to forward."""
        path = self._path_of(node)
        if not path or len(path) > self.ttl:
            return False
        remotes = self.filters.remotes
        return all(passed not in remotes or remotes[passed].forwards for passed in path[:-1])

    # --- the callbacks of the guide ---

    def peer_discovered(self, node: bytes) -> list[Effect]:
        """An endpoint came into reach, over any number of hops."""
        return [self._event(PeerEventKind.PEER_DISCOVERED, node, "found a new endpoint")]

    def peer_connected(self, node: bytes) -> list[Effect]:
        """A link to an endpoint is established."""
        return [self._event(PeerEventKind.PEER_CONNECTED, node, "handshake successful")]

    def peer_disconnected(self, node: bytes, text: str) -> list[Effect]:
        """The link to an endpoint was lost."""
        return [self._event(PeerEventKind.PEER_DISCONNECTED, node, text)]

    def peer_removed(self, node: bytes, text: str) -> list[Effect]:
        """The user removed a peer."""
        return [self._event(PeerEventKind.PEER_REMOVED, node, text)]

    def peer_unreachable(self, node: bytes, place: Place, text: str) -> list[Effect]:
        """No path leads to an endpoint any more, or it ended."""
        endpoint = self.endpoint_of(node)
        return [PeerEvent(PeerEventKind.PEER_UNREACHABLE, endpoint, place.address, text)]

    def cannot_remove_peer(self, address: tuple[str, int]) -> list[Effect]:
        """The user wants to remove a peer that there is not."""
        text = f"no peer at {address[0]}:{address[1]}"
        return [PeerEvent(PeerEventKind.CANNOT_REMOVE_PEER, None, address, text)]

    def peer_unavailable(self, address: tuple[str, int], text: str) -> list[Effect]:
        """Nobody answers at an address, for now."""
        return [PeerEvent(PeerEventKind.PEER_UNAVAILABLE, None, address, text)]

    def _event(self, kind: PeerEventKind, node: bytes, text: str) -> PeerEvent:
        place = self._places.get(node)
        address = None if place is None else place.address
        return PeerEvent(kind, self.endpoint_of(node), address, text)
