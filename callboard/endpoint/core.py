"""The core: the hub of an endpoint, as a machine without sockets, threads or a clock.

Everything flows through one point, as the developer guide draws it (section 7.2.1):

    data_inputs ─────┐                    ┌──> peers (node messages, undecoded)
    command_inputs ──┼──> central_merge ──┼──> data_outputs (decoded, local subscribers)
    peers ───────────┘                    └──> command_outputs (decoded, local stores)

`data_inputs` and `command_inputs` take runs of messages that were serialized when they entered.
`central_merge` sends each message to every endpoint whose filter matches its topic: one
dispatch for each such node and run, which BASP carries over the shortest path, in order and
undecoded by the nodes between. `data_outputs` and `command_outputs` exist from the first local
subscriber on; only they decode.

Rare things (filters, peers, statuses) come in as calls that return effects. The runs are the
hot path: they return plain tuples, and touch each message once.

Peer events are reported by the seven callbacks of the guide, each of which gives a `PeerEvent`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from callboard.endpoint.core_effect import (
    CoreCounters,
    Deliver,
    Effect,
    Item,
    Pair,
    PeerEvent,
    PeerEventKind,
    Transmit,
)
from callboard.endpoint.core_output import CoreOutput
from callboard.endpoint.errors import MalformedMessage
from callboard.endpoint.filter_exchange import (
    FilterChange,
    FilterExchange,
    FilterUpdate,
    read_update,
)
from callboard.endpoint.message import MessageType, pack_runs
from callboard.endpoint.run_cbor import decode_run, encode_plain_pair
from callboard.endpoint.subscriptions import SubscriptionTable
from callboard.endpoint.topic import is_local

__all__ = ["Core"]

_topic_of: Final = itemgetter(0)
_pair_of: Final = itemgetter(1)

DEFAULT_TTL: Final = 16
"""Links that a message may cross: Broker's own limit since 2.0."""

CACHED_TOPICS: Final = 65_536
"""Topics whose receivers are remembered; the cache starts again when it is full."""


@dataclass(slots=True)
class _Place:
    """How another endpoint is connected: over any path, or as a peer."""

    is_known: bool = False
    is_peer: bool = False
    address: tuple[str, int] | None = None
    is_discovered: bool = False


class Core:
    """One endpoint's hub."""

    def __init__(
        self,
        endpoint: bytes,
        path_of: Callable[[bytes], Sequence[bytes]],
        *,
        ttl: int = DEFAULT_TTL,
        forwards: bool = True,
    ) -> None:
        """Make a core.

        Args:
            endpoint: the endpoint's id, 16 bytes.
            path_of: returns the nodes on the way to a node, itself last; empty for none.
            ttl: links that the messages of this endpoint may cross.
            forwards: whether messages for others may pass through this endpoint's node.
        """
        self.endpoint = endpoint
        self.ttl = ttl
        self._path_of = path_of
        self.counters = CoreCounters()
        self.filters = FilterExchange(endpoint, forwards=forwards)
        self._data_outputs: CoreOutput | None = None
        self._command_outputs: CoreOutput | None = None
        #: How many local receivers want each topic: the local filter.
        self._wanted: dict[str, int] = {}
        self._remote_index: SubscriptionTable[bytes] = SubscriptionTable()
        self._places: dict[bytes, _Place] = {}
        #: Topic → nodes to send it to; forgotten with every change of a filter or a path.
        self._receivers: dict[str, tuple[bytes, ...]] = {}

    # --- in ---

    def data_inputs(self, run: Sequence[Pair]) -> list[Effect]:
        """Take data messages that were published here."""
        self.counters.data_published += len(run)
        return self.central_merge(MessageType.DATA, run)

    def command_inputs(self, run: Sequence[Pair]) -> list[Effect]:
        """Take command messages of the stores here."""
        self.counters.commands_published += len(run)
        return self.central_merge(MessageType.COMMAND, run)

    def central_merge(self, kind: MessageType, run: Sequence[Pair]) -> list[Effect]:
        """Send each message to the nodes that want it, and to receivers of own messages."""
        effects: list[Effect] = [*self._to_others(kind, run)]
        output = self._data_outputs if kind is MessageType.DATA else self._command_outputs
        if output is not None and output.sees_own:
            effects += output.deliver_own(run)
        return effects

    def bring_in(self, run: Sequence[Pair], bringer: object) -> list[Effect]:
        """Take data messages that a door brought: as if they had come from another node.

        Whoever brought them does not get them, whatever it subscribed to.
        """
        effects: list[Effect] = [*self.data_for_others(run)]
        effects += [
            effect
            for effect in self.deliver_here(MessageType.DATA, run)
            if not (isinstance(effect, Deliver) and effect.subscriber is bringer)
        ]
        return effects

    def data_for_others(self, run: Sequence[Pair]) -> list[Transmit]:
        """Take data messages that nobody here wants: see `known_receivers`."""
        self.counters.data_published += len(run)
        return self._to_others(MessageType.DATA, run)

    def _to_others(self, kind: MessageType, run: Sequence[Pair]) -> list[Transmit]:
        """Sort a run by the nodes that want its messages.

        The hot path of publishing: a dictionary look-up and an append for each message.
        """
        counters = self.counters
        counters.serialized += len(run)
        counters.processed[kind] += len(run)
        known = self._receivers
        topics = {*map(_topic_of, run)}
        if len(topics) == 1:  # nearly always: nothing to sort
            (topic,) = topics
            nodes = known.get(topic)
            if nodes is None:
                nodes = self._find_receivers(topic)
            counters.transmitted += len(nodes) * len(run)
            packed = list(pack_runs(kind, self.ttl, [*map(_pair_of, run)])) if nodes else ()
            return [Transmit(node, *one) for node in nodes for one in packed]
        bundles: dict[bytes, list[bytes]] = {}
        lists: list[list[bytes]] = []
        last: tuple[bytes, ...] | None = None
        for topic, pair in run:
            nodes = known.get(topic)
            if nodes is None:
                nodes = self._find_receivers(topic)
            if nodes is not last:
                last = nodes
                lists = [bundles.setdefault(node, []) for node in nodes]
            for bundle in lists:
                bundle.append(pair)
        runs: list[Transmit] = []
        for node, pairs in bundles.items():
            counters.transmitted += len(pairs)
            for payload, count in pack_runs(kind, self.ttl, pairs):
                runs.append(Transmit(node, payload, count))  # noqa: PERF401  # nearly always one
        return runs

    def send_to(self, node: bytes, kind: MessageType, run: Sequence[Pair]) -> list[Effect]:
        """Send messages to one endpoint, whatever its filter says: the directed form."""
        self.counters.serialized += len(run)
        self.counters.transmitted += len(run)
        pairs = [pair for _, pair in run]
        return [
            Transmit(node, payload, count)
            for payload, count in pack_runs(kind, self.ttl, pairs)
        ]

    def commands_for(self, endpoint: bytes, run: Sequence[Pair]) -> list[Effect]:
        """Send commands to one endpoint; to all that want their topic, if it is not known."""
        if endpoint == self.endpoint:
            return self.deliver_here(MessageType.COMMAND, run)
        node = self.node_of(endpoint)
        if node is None:
            return self.central_merge(MessageType.COMMAND, run)
        return self.send_to(node, MessageType.COMMAND, run)

    def deliver_here(self, kind: MessageType, run: Sequence[Pair]) -> list[Effect]:
        """Hand messages that are directed at this endpoint to its own receivers."""
        self.counters.serialized += len(run)
        effects: list[Effect] = []
        for payload, _ in pack_runs(kind, 0, [pair for _, pair in run]):
            effects += self._take_items(*decode_run(payload), b"", len(payload))
        return effects

    def receive(self, node: bytes, payload: bytes, now: float) -> list[Effect]:
        """Take what the core of another node sent.

        Raises:
            MalformedMessage: the payload is none of ours. Nothing of it was taken.
        """
        try:
            kind, items = decode_run(payload)
            self.counters.processed[kind] += len(items)
            match kind:
                case MessageType.DATA | MessageType.COMMAND:
                    return self._take_items(kind, items, node, len(payload))
                case MessageType.ROUTING_UPDATE:
                    return self._take_update(node, items, now)
                case MessageType.PING:
                    return self._pong(node, items)
                case _:
                    return []
        except MalformedMessage:
            self.counters.malformed += 1
            raise

    # --- out ---

    def _take_items(
        self, kind: MessageType, items: list[Item], sender: bytes, size: int
    ) -> list[Effect]:
        self.counters.received += len(items)
        output = self._data_outputs if kind is MessageType.DATA else self._command_outputs
        if output is None:
            self.counters.unwanted += len(items)
            return []
        return list(output.deliver(items, sender, size))

    # --- local receivers ---

    def subscribe(
        self,
        receiver: object,
        topics: Sequence[str],
        now: float,
        *,
        kind: MessageType = MessageType.DATA,
        sees_own: bool = False,
    ) -> list[Effect]:
        """Let a local receiver take messages of more topics."""
        output = self._output(kind)
        if sees_own:
            output.sees_own.add(receiver)
        added = set()
        for topic in topics:
            if output.index.add(topic, receiver):
                count = self._wanted.get(topic, 0)
                self._wanted[topic] = count + 1
                if not count:
                    added.add(topic)
        return self._tell(self.filters.change(added, set(), now))

    def unsubscribe(
        self,
        receiver: object,
        topics: Sequence[str],
        now: float,
        *,
        kind: MessageType = MessageType.DATA,
    ) -> list[Effect]:
        """Take topics from a local receiver."""
        output = self._output(kind)
        removed = set()
        for topic in topics:
            if output.index.remove(topic, receiver):
                self._wanted[topic] -= 1
                if not self._wanted[topic]:
                    del self._wanted[topic]
                    removed.add(topic)
        return self._tell(self.filters.change(set(), removed, now))

    def topics_of(self, receiver: object, kind: MessageType) -> tuple[str, ...]:
        """Return the topics of a local receiver."""
        return self._output(kind).index.prefixes(receiver)

    def is_taken(self, topic: str) -> bool:
        """Return whether a local receiver takes data of a topic."""
        output = self._data_outputs
        return output is not None and bool(output.index.match(topic))

    def retire(self, receiver: object, *, kind: MessageType = MessageType.DATA) -> None:
        """Forget a receiver whose topics were taken from it."""
        self._output(kind).sees_own.discard(receiver)

    def _output(self, kind: MessageType) -> CoreOutput:
        """Return the output of a kind; made when the first receiver appears."""
        if kind is MessageType.DATA:
            self._data_outputs = self._data_outputs or CoreOutput(kind, self.counters)
            return self._data_outputs
        self._command_outputs = self._command_outputs or CoreOutput(kind, self.counters)
        return self._command_outputs

    # --- other endpoints ---

    def endpoint_found(self, node: bytes, now: float) -> list[Effect]:
        """A node that has an endpoint came into reach: tell it what is wanted here."""
        self._places.setdefault(node, _Place()).is_known = True
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
        place = self._places.setdefault(node, _Place())
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
        for node, place in self._places.items():
            if place.is_discovered and self.endpoint_of(node) == endpoint:
                return node
        return None

    def _take_update(self, node: bytes, items: list[Item], now: float) -> list[Effect]:
        update = read_update(items[0][1] if items else None)
        changes, answers = self.filters.receive(node, update, now)
        effects = self._apply(changes) + self._tell(answers)
        return effects + self._introduce(node)

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

    def _pong(self, node: bytes, items: list[Item]) -> list[Effect]:
        pairs = [encode_plain_pair(topic, content) for topic, content in items]
        return [
            Transmit(node, payload)
            for payload, _ in pack_runs(MessageType.PONG, self.ttl, pairs)
        ]

    def receivers_of(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes to which a message with this topic would be sent."""
        known = self._receivers.get(topic)
        return self._find_receivers(topic) if known is None else known

    def known_receivers(self, topic: str) -> tuple[bytes, ...] | None:
        """Return the nodes that want data of a topic; None if that has to be found out.

        None as well where a receiver here may want it too.
        """
        output = self._data_outputs
        if output is not None and output.sees_own:
            return None
        return self._receivers.get(topic)

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

    def peer_unreachable(self, node: bytes, place: _Place, text: str) -> list[Effect]:
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
