"""The core: the state machine of an endpoint, without sockets, threads or a clock.

All messages pass one point, as in the drawing of Broker's developer guide (section 7.2.1):

    data_inputs ─────┐                    ┌──> peers (node messages, undecoded)
    command_inputs ──┼──> central_merge ──┼──> data_outputs (decoded, local subscribers)
    peers ───────────┘                    └──> command_outputs (decoded, local stores)

`data_inputs` and `command_inputs` accept runs of messages, which were serialized when they
entered. `central_merge` sends each message to every endpoint whose filter matches its topic.
For each run, such a node gets one frame, which BASP forwards on the shortest path, in order;
the nodes in between do not decode it. `data_outputs` and `command_outputs` are created for the
first local subscriber. Only they decode messages.

Rare inputs (filters, peers, statuses) are calls that return effects. Runs are the hot path:
they return plain tuples and handle each message once.

A `PeerEvent` reports an endpoint that is found, connected, lost or removed. Its kinds are the
seven callbacks of the guide.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from callboard.model.errors import MalformedMessage
from callboard.support.dataclass import dataclass
from callboard.topics.machine.catch_up import (
    REACH_AGE,
    SUBSCRIPTION_AGE,
    CatchUp,
    Pending,
)
from callboard.topics.machine.effect import (
    CommandPairs,
    CoreCounters,
    CoreEffect,
    CoreOrder,
    DeliverItems,
    DoorReceiver,
    Egress,
    Ingested,
    InterestChanged,
    Item,
    NearDoor,
    OwnPair,
    Pair,
    PeerEvent,
    RefusedHere,
    RefusedThere,
    TransmitRun,
)
from callboard.topics.machine.filter_exchange import (
    FilterChange,
    FilterExchange,
    FilterUpdate,
    read_update,
)
from callboard.topics.machine.leaf import (
    LEAF_FILTER_LIMIT,
    REFUSALS_SENT,
    Leaves,
    Refusal,
    TopicRights,
)
from callboard.topics.machine.output import CoreOutput
from callboard.topics.machine.run import (
    PackedType,
    decode_run,
    encode_plain_pair,
    pack_runs,
    ttl_of,
)
from callboard.topics.machine.status import SC
from callboard.topics.machine.subscriptions import SubscriptionTable
from callboard.topics.machine.topic import is_local, is_reserved, shortest

#: Maximum number of links that a message crosses, as in Broker since 2.0.
DEFAULT_TTL: Final = 16

#: Maximum number of topics whose receivers are cached; a full cache is cleared.
CACHED_TOPICS: Final = 65_536

#: Maximum number of topics that are counted by name, and the label of all further ones.
COUNTED_TOPICS: Final = 2_000
OTHER_TOPICS: Final = "(all others)"

#: A global, because reading an attribute of an enum takes ten times as long.
_DATA: Final = PackedType.DATA

#: The source in the path from this endpoint to a receiver.
_SOURCE: Final = b""

_topic_of: Final = itemgetter(0)
_pair_of: Final = itemgetter(1)
_PAIRS: Final = {tuple}


@dataclass(slots=True)
class PeerPlace:
    """Connection to another endpoint: over any path, or as a peer.

    Attributes:
        is_known: whether its node is known to have an endpoint.
        is_peer: whether there is a link to its node.
        address: host and port of the link.
        is_discovered: whether `EndpointDiscovered` was reported.
        was_peer_then: whether it was a peer when `EndpointDiscovered` was reported.
    """

    is_known: bool = False
    is_peer: bool = False
    address: tuple[str, int] | None = None
    is_discovered: bool = False
    was_peer_then: bool = False


@dataclass(eq=False, repr=False)
class Core:
    """State of one endpoint.

    Attributes:
        endpoint: the endpoint's id, 16 bytes.
        path_of: returns the nodes on the path to a node, with that node as the last; empty
            without a path.
        ttl: maximum number of links that messages of this endpoint cross.
        forwards: whether this endpoint's node forwards messages between other endpoints.
        rights: rights of the present leaves, by node; a live view that the owner updates.
        now: time of the messages that are published next; set by the driver.
    """

    endpoint: bytes
    path_of: Callable[[bytes], Sequence[bytes]]
    _: KW_ONLY
    ttl: int = DEFAULT_TTL
    forwards: bool = True
    rights: Mapping[bytes, TopicRights] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.leaves = Leaves(self.endpoint, self.rights)
        self.filters = FilterExchange(self.endpoint, forwards=self.forwards)
        self._remote_index: SubscriptionTable[bytes] = SubscriptionTable()
        self._places: dict[bytes, PeerPlace] = {}
        #: Receiving nodes by topic: a cache that each change of a filter or path clears.
        self._receivers: dict[str, tuple[bytes, ...]] = {}
        self.counters = CoreCounters()
        #: `data_outputs` and `command_outputs`, each created for its first receiver.
        self._outputs: dict[PackedType, CoreOutput] = {}
        #: The local filter: the number of local receivers by topic.
        self._subscribed: dict[str, int] = {}
        #: Since when each topic is in the local filter.
        self._subscribed_at: dict[str, float] = {}
        #: Recently published values, for receivers whose filter arrives later.
        self.catch_up = CatchUp()
        #: By node: the time since which it is in reach.
        self._reached: dict[bytes, float] = {}
        #: Number of links. Without a link, no receiver is in reach.
        self._links = 0
        #: Whether there has been a receiver of an adapter.
        self._has_doors = False
        #: Whether an adapter follows the interest, so that changes have an effect.
        self.reports_interest = False
        #: Egresses, in order. Each gets the messages that are published on this node.
        self.egresses: dict[Egress, None] = {}

    # --- inspection ---

    def subscriptions(self) -> dict[str, int]:
        """Return the number of local receivers by topic. Can be called from any thread."""
        return dict(self._subscribed)

    def interest(self, origin: object) -> tuple[str, ...]:
        """Return the topics that an adapter subscribes to outside for this network.

        These are the shortest prefixes, sorted. The adapter's own subscriptions for its peer
        are left out, and so are reserved topics.
        """
        output = self._outputs.get(_DATA)
        local = () if output is None else output.index.taken_by_others(origin)
        remote_topics = chain.from_iterable(
            remote.topics for remote in self.filters.remotes.values()
        )
        return shortest(
            topic for topic in chain(local, remote_topics) if not is_reserved(topic)
        )

    def wanting(self, topic: str) -> int:
        """Return the number of other endpoints with exactly this topic in their filter."""
        return sum(topic in remote.topics for remote in list(self.filters.remotes.values()))

    def count_topics(self, counts: Counter[str] | None) -> None:
        """Start counting published messages by topic; None stops it.

        While messages are counted, a method of this object that counts replaces the method of
        the class. So publishing has no additional cost at other times.
        """
        if counts is None:
            self.__dict__.pop("_to_others", None)
            return

        def counting(kind: PackedType, run: Sequence[Pair]) -> list[TransmitRun]:
            if kind is _DATA:
                for topic, _ in run:
                    has_room = topic in counts or len(counts) < COUNTED_TOPICS
                    counts[topic if has_room else OTHER_TOPICS] += 1
            return Core._to_others(self, kind, run)

        self._to_others = counting  # type: ignore[method-assign]

    # --- published messages ---

    def process_inputs(
        self, inputs: Sequence[Pair | CoreOrder]
    ) -> Iterator[Sequence[CoreEffect]]:
        """Process data and orders in their order, in as few runs as the order allows.

        Data are plain pairs. Yields the effects of each run before the next run is processed.
        """
        if {*map(type, inputs)} <= _PAIRS:
            if inputs:
                yield self.data_inputs(inputs)  # type: ignore[arg-type]  # types checked above
            return
        data: list[Pair] = []
        commands: list[Pair] = []
        origins: frozenset[object] | None = None
        for entry in inputs:
            if isinstance(entry, OwnPair):
                if entry.origins != origins:
                    yield self._merged(data, commands, origins)
                    data, commands, origins = [], [], entry.origins
                data.append(entry.pair)
            elif isinstance(entry, tuple):
                if origins is not None:
                    yield self._merged(data, commands, origins)
                    data, commands, origins = [], [], None
                data.append(entry)
            elif isinstance(entry, CommandPairs):
                commands.extend(entry.pairs)
            else:
                # Publish the previous messages before the order.
                yield self._merged(data, commands, origins)
                data, commands, origins = [], [], None
                if isinstance(entry, Ingested):
                    yield self.ingest(entry.pairs, entry.origin, entry.ttl)
                else:
                    yield entry()
        yield self._merged(data, commands, origins)

    def _merged(
        self, data: list[Pair], commands: list[Pair], origins: frozenset[object] | None
    ) -> list[CoreEffect]:
        """Publish the data of the same origins, and commands, between two orders."""
        effects = self.publish_as(data, origins) if data else []
        return effects + self.command_inputs(commands) if commands else effects

    def data_inputs(self, run: Sequence[Pair]) -> list[CoreEffect]:
        """Publish data messages of this endpoint."""
        self.counters.data_published += len(run)
        for egress in self.egresses:
            egress.take_own(run)
        return self.central_merge(_DATA, run)

    def publish_as(
        self, run: Sequence[Pair], origins: frozenset[object] | None
    ) -> list[CoreEffect]:
        """Publish data messages of some publishers on this node.

        In addition to the receivers of `data_inputs`, receivers that belong to another
        publisher get the messages, unless `origins` is None.

        Args:
            run: the messages.
            origins: the publisher, and the adapters through which the messages arrived.
        """
        output = self._outputs.get(_DATA)
        if origins is None or output is None or not output.publishers:
            return self.data_inputs(run)
        self.counters.data_published += len(run)
        for egress in self.egresses:
            egress.take_own(run)
        effects: list[CoreEffect] = [*self._to_others(_DATA, run)]
        return effects + output.deliver_own(run, output.hearers_of(origins))

    def command_inputs(self, run: Sequence[Pair]) -> list[CoreEffect]:
        """Publish command messages of the local stores."""
        self.counters.commands_published += len(run)
        return self.central_merge(PackedType.COMMAND, run)

    def central_merge(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send each message to the matching nodes, and to local receivers with `sees_own`."""
        effects: list[CoreEffect] = [*self._to_others(kind, run)]
        output = self._outputs.get(kind)
        if output is not None and output.sees_own:
            effects += output.deliver_own(run)
        return effects

    def ingest(
        self, run: Sequence[Pair], origin: object, ttl: int | None = None
    ) -> list[CoreEffect]:
        """Process data messages from an adapter like messages from another node.

        The origin does not get them, even if it subscribes to them, and neither does another
        receiver of the same foreign peer.

        Args:
            run: the messages.
            origin: the adapter's receiver.
            ttl: maximum number of links that they still cross, if their protocol has one.
        """
        if ttl is None or ttl >= self.ttl:
            runs = self.data_for_others(run)
        else:
            runs = self._to_near(run, ttl)
        left = self.ttl if ttl is None else min(ttl, self.ttl)
        deliveries = [
            effect
            for effect in self._deliver_decoded(_DATA, run)
            if not (isinstance(effect, DeliverItems) and _leads_back(effect.receiver, origin))
        ]
        return [*runs, *_within(left, deliveries)]

    def _to_near(self, run: Sequence[Pair], ttl: int) -> list[TransmitRun]:
        """Send data messages to the matching nodes that are at most `ttl` links away."""
        self.counters.data_published += len(run)
        bundles: dict[bytes, list[bytes]] = {}
        for topic, pair in run:
            for node in self.receivers_of(topic):
                if len(self.path_of(node)) <= ttl:
                    bundles.setdefault(node, []).append(pair)
        self.counters.serialized += len(run)
        self.counters.processed[_DATA] += len(run)
        self.counters.transmitted += sum(map(len, bundles.values()))
        if self._links:
            size = sum(len(pair) for _, pair in run)
            self.catch_up.keep(self.now, None, run, len(run), size, ttl)
        return self._hold_pending(
            [
                TransmitRun(node, payload, count)
                for node, pairs in bundles.items()
                for payload, count in pack_runs(_DATA, ttl, pairs)
            ]
        )

    def data_for_others(self, run: Sequence[Pair]) -> list[TransmitRun]:
        """Publish data messages without local receivers: see `known_receivers`."""
        self.counters.data_published += len(run)
        return self._to_others(_DATA, run)

    def _to_others(self, kind: PackedType, run: Sequence[Pair]) -> list[TransmitRun]:
        """Return the runs for other nodes.

        The hot path of publishing: a dictionary look-up and an append for each message.
        """
        counters = self.counters
        counters.serialized += len(run)
        counters.processed[kind] += len(run)
        cache = self._receivers
        topics = {*map(_topic_of, run)}
        if len(topics) == 1:
            (topic,) = topics
            nodes = cache.get(topic)
            if nodes is None:
                nodes = self._find_receivers(topic)
            counters.transmitted += len(nodes) * len(run)
            pairs = [*map(_pair_of, run)]
            packed = [*pack_runs(kind, self.ttl, pairs)] if nodes else ()
            if self._links and kind is _DATA:
                self._keep(topic, pairs, packed)
            runs = [TransmitRun(node, *run_of) for node in nodes for run_of in packed]
            return self._hold_pending(runs) if self.catch_up.pending and kind is _DATA else runs
        bundles: dict[bytes, list[bytes]] = {}
        lists: list[list[bytes]] = []
        last: tuple[bytes, ...] | None = None
        for topic, pair in run:
            nodes = cache.get(topic)
            if nodes is None:
                nodes = self._find_receivers(topic)
            if nodes is not last:
                last = nodes
                lists = [bundles.setdefault(node, []) for node in nodes]
            for bundle in lists:
                bundle.append(pair)
        runs = []
        for node, pairs in bundles.items():
            counters.transmitted += len(pairs)
            runs += self._runs((node,), kind, pairs)
        if self._links and kind is _DATA:
            size = sum(map(len, map(_pair_of, run)))
            self.catch_up.keep(self.now, None, run, len(run), size, self.ttl)
        return runs

    def _keep(
        self, topic: str, pairs: list[bytes], packed: Sequence[tuple[bytes, int]]
    ) -> None:
        """Store a run of one topic for catch-up, in packed form if it was packed for a node."""
        if len(packed) == 1:  # a single bytes object needs the least memory
            content: bytes | Sequence[Any] = packed[0][0]
            size = len(content)
        else:
            content, size = packed or pairs, sum(map(len, pairs))
        self.catch_up.keep(self.now, topic, content, len(pairs), size, self.ttl)

    def _hold_pending(self, runs: list[TransmitRun]) -> list[TransmitRun]:
        """Return the runs to send now, without the data held for receivers: see `CatchUp`."""
        if not self.catch_up.pending:
            return runs
        ready, full = self.catch_up.hold(runs)
        for pending in full:
            ready += self._stop_holding(pending)
        return ready

    def _stop_holding(self, pending: Pending) -> list[TransmitRun]:
        """Return the recent runs for a receiver, and after them the held ones."""
        node = pending.node
        hops = len(self.path_of(node)) if self._may_reach(node) else 0
        runs = self.catch_up.stop_holding(pending, hops, partial(self._wants, node))
        self.counters.transmitted += sum(
            run.messages for run in runs[: len(runs) - len(pending.held_runs)]
        )
        return runs

    def _wants(self, node: bytes, topic: str) -> bool:
        """Return whether the filter of a node matches a topic that the node may receive."""
        return (
            not is_local(topic)
            and node in self._remote_index.match(topic)
            and self.leaves.may_have(node, topic)
        )

    def _runs(
        self, nodes: Sequence[bytes], kind: PackedType, pairs: list[bytes]
    ) -> list[TransmitRun]:
        """Return encoded messages as runs for nodes."""
        packed = list(pack_runs(kind, self.ttl, pairs)) if nodes else ()
        runs = [TransmitRun(node, *run_of) for node in nodes for run_of in packed]
        return self._hold_pending(runs) if self.catch_up.pending and kind is _DATA else runs

    def _own_run(self, node: bytes, kind: PackedType, pair: bytes) -> TransmitRun:
        """Return a run with a message of the endpoint itself; it counts no message of users."""
        return self._runs((node,), kind, [pair])[0]._replace(messages=0)

    def send_to(self, node: bytes, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send messages to one endpoint, whether or not its filter matches them."""
        if node in self.rights:
            run = [pair for pair in run if self.leaves.may_have(node, pair[0])]
        self.counters.serialized += len(run)
        self.counters.transmitted += len(run)
        return [*self._runs((node,), kind, [*map(_pair_of, run)])]

    def commands_for(self, endpoint: bytes, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send commands to one endpoint; to all matching ones if its node is not known."""
        if endpoint == self.endpoint:
            return self.deliver_here(PackedType.COMMAND, run)
        node = self.node_of(endpoint)
        if node is None:
            return self.central_merge(PackedType.COMMAND, run)
        return self.send_to(node, PackedType.COMMAND, run)

    def deliver_here(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Deliver messages for this endpoint only to its receivers."""
        return _within(0, self._deliver_decoded(kind, run))

    def _deliver_decoded(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Decode messages of this node and deliver them to local receivers."""
        self.counters.serialized += len(run)
        effects: list[CoreEffect] = []
        for payload, _ in pack_runs(kind, 0, [*map(_pair_of, run)]):
            effects += self._deliver_items(*decode_run(payload), b"", len(payload))
        return effects

    def receive(self, node: bytes, payload: bytes, now: float) -> list[CoreEffect]:
        """Process a run from the core of another node.

        Raises:
            MalformedMessage: the payload is not a valid run; nothing of it was processed.
        """
        try:
            kind, items = decode_run(payload)
            self.counters.processed[kind] += len(items)
            rights = self.rights.get(node) if self.rights else None
            if rights is not None:
                return self._receive_from_leaf(node, rights, kind, items, payload, now)
            match kind:
                case PackedType.DATA | PackedType.COMMAND:
                    effects = self._deliver_items(kind, items, node, len(payload))
                    return self._within(node, payload, effects) if self._has_doors else effects
                case PackedType.ROUTING_UPDATE:
                    update = _update_of(items)
                    self.leaves.record_member(update.endpoint)
                    return self._apply_update(node, update, now)
                case PackedType.PING:
                    return self._pong(node, items, now)
                case PackedType.PONG:
                    return self._apply_answers(node, items, now)
                case PackedType.REFUSED:
                    return _remote_refusals(node, items)
        except MalformedMessage:
            self.counters.malformed += 1
            raise

    def _receive_from_leaf(
        self,
        node: bytes,
        rights: TopicRights,
        kind: PackedType,
        items: list[Item],
        payload: bytes,
        now: float,
    ) -> list[CoreEffect]:
        """Process the permitted messages of a run from a leaf, and answer with the refusals."""
        effects: list[CoreEffect] = []
        refusals: list[Refusal] = []
        if kind in (PackedType.DATA, PackedType.COMMAND):
            items, refusals = self.leaves.permitted_items(rights, kind, items)
            effects = self._deliver_items(kind, items, node, len(payload)) if items else []
            effects = self._within(node, payload, effects)
        elif kind is PackedType.ROUTING_UPDATE:
            update, refusals = self.leaves.permitted_filter(rights, _update_of(items))
            remote = self.filters.remotes.get(node)
            has_another = remote is not None and remote.endpoint not in (b"", update.endpoint)
            if has_another or self.leaves.is_false(node, update.endpoint):
                refusals.append(("endpoint", update.endpoint.hex()))
            else:
                effects = self._apply_update(node, update, now, LEAF_FILTER_LIMIT)
        elif kind is PackedType.PING:
            effects = self._pong(node, items, now)
        elif kind is PackedType.PONG:
            effects = self._apply_answers(node, items, now)
        return effects + self.refuse(node, refusals)

    def refuse(self, node: bytes, refusals: Sequence[Refusal]) -> list[CoreEffect]:
        """Return the effects of refusals: events on this node, and an answer to the leaf."""
        if not refusals:
            return []
        self.counters.refused += len(refusals)
        unique = [*dict.fromkeys(refusals)][:REFUSALS_SENT]
        answer = self._own_run(node, PackedType.REFUSED, encode_plain_pair("", unique))
        return [*(RefusedHere(node, right, name) for right, name in unique), answer]

    # --- received messages ---

    def _deliver_items(
        self, kind: PackedType, items: list[Item], sender: bytes, size: int
    ) -> list[CoreEffect]:
        """Deliver decoded messages through the output of their type."""
        self.counters.received += len(items)
        output = self._outputs.get(kind)
        if output is None:
            self.counters.unwanted += len(items)
            return []
        return list(output.deliver(items, sender, size))

    def _within(
        self, node: bytes, payload: bytes, effects: Sequence[CoreEffect]
    ) -> list[CoreEffect]:
        """Add the number of links that a run may still cross to the effects for adapters."""
        crossed = max(1, len(self.path_of(node)))
        return _within(min(ttl_of(payload), self.ttl) - crossed, effects)

    # --- local receivers ---

    def subscribe(
        self,
        receiver: object,
        topics: Sequence[str],
        now: float,
        *,
        kind: PackedType = PackedType.DATA,
        sees_own: bool = False,
        publisher: object = None,
    ) -> list[CoreEffect]:
        """Subscribe a local receiver to further topics.

        Args:
            receiver: the receiver.
            topics: prefixes.
            now: the time.
            kind: the type of its messages.
            sees_own: whether it gets all messages of this endpoint.
            publisher: the publisher to which the subscription belongs, if any. The receiver
                gets the messages of other publishers on this node.
        """
        output = self._output(kind)
        if publisher is not None:
            output.publishers[receiver] = publisher
        if isinstance(receiver, DoorReceiver):
            self._has_doors = True
            if receiver.takes_pairs and sees_own:
                output.encoded.add(receiver)
        if sees_own:
            output.sees_own.add(receiver)
        added, is_changed = set(), False
        for topic in topics:
            if output.index.add(topic, receiver):
                is_changed = True
                count = self._subscribed.get(topic, 0)
                self._subscribed[topic] = count + 1
                if not count and not is_local(topic):
                    added.add(topic)
                    self._subscribed_at[topic] = now
        updates = self._send_updates(self.filters.change(added, set(), now))
        return updates + self._interest_changed(is_changed=is_changed)

    def unsubscribe(
        self,
        receiver: object,
        topics: Sequence[str] | None,
        now: float,
        *,
        kind: PackedType = PackedType.DATA,
    ) -> list[CoreEffect]:
        """Unsubscribe a local receiver from topics; None removes the receiver."""
        output = self._output(kind)
        if topics is None:
            topics = output.index.prefixes(receiver)
            output.sees_own.discard(receiver)
            output.encoded.discard(receiver)
            output.publishers.pop(receiver, None)
        removed, is_changed = set(), False
        for topic in topics:
            if output.index.remove(topic, receiver):
                is_changed = True
                self._subscribed[topic] -= 1
                if not self._subscribed[topic]:
                    del self._subscribed[topic]
                    self._subscribed_at.pop(topic, None)
                    removed.add(topic)
        updates = self._send_updates(self.filters.change(set(), removed, now))
        return updates + self._interest_changed(is_changed=is_changed)

    def _interest_changed(self, *, is_changed: bool) -> list[CoreEffect]:
        """Return the effect of changed interest, if an adapter follows it."""
        return [InterestChanged()] if is_changed and self.reports_interest else []

    def is_taken(self, topic: str) -> bool:
        """Return whether a local receiver is subscribed to data of a topic."""
        output = self._outputs.get(_DATA)
        return output is not None and bool(output.index.match(topic))

    def _output(self, kind: PackedType) -> CoreOutput:
        """Return the output of a type, created for its first receiver."""
        if kind not in self._outputs:
            self._outputs[kind] = CoreOutput(kind, self.counters)
        return self._outputs[kind]

    def known_receivers(self) -> Mapping[str, tuple[bytes, ...]]:
        """Return the cached nodes by topic, if no local receiver may need the same data.

        The result is empty if local receivers get messages of this node, because these
        receivers may be called only in a turn.
        """
        output = self._outputs.get(_DATA)
        sees_own = output is not None and output.sees_own
        return {} if sees_own or self.egresses else self._receivers

    # --- other endpoints: paths, filters, peers ---

    def endpoint_found(self, node: bytes, now: float) -> list[CoreEffect]:
        """Handle a node with an endpoint that became reachable: send it our filter."""
        self._places.setdefault(node, PeerPlace()).is_known = True
        self._receivers.clear()
        return self._send_updates(self.filters.greet(node, now)) + self._introduce(node)

    def node_reached(self, node: bytes, now: float) -> None:
        """Handle a node that became reachable, with or without an endpoint."""
        self._reached.setdefault(node, now)

    def node_lost(self, node: bytes) -> None:
        """Handle the loss of the last path to a node."""
        self._reached.pop(node, None)

    def path_moved(self) -> None:
        """Handle a change of the path to any node."""
        self._receivers.clear()

    def link_established(
        self, node: bytes, address: tuple[str, int] | None = None, now: float = 0.0
    ) -> list[CoreEffect]:
        """Handle a link to a node: its endpoint becomes a peer."""
        self.node_reached(node, now)
        self._receivers.clear()  # a new link may have other rights
        place = self._places.setdefault(node, PeerPlace())
        place.address = address or place.address
        if place.is_peer:
            return []
        place.is_peer = True
        self._links += 1
        return self._connected(node) if place.is_discovered else []

    def link_lost(self, node: bytes, text: str, *, by_user: bool = False) -> list[CoreEffect]:
        """Handle the end of the link to a peer."""
        place = self._places.get(node)
        if place is None or not place.is_peer:
            return []
        place.is_peer = False
        self._links -= 1
        if not self._links:
            self.catch_up.clear()
        if not place.is_known:  # `endpoint_lost` is not called for a node without an endpoint
            del self._places[node]
        if not place.is_discovered:
            return []
        return [self._event(SC.PeerRemoved if by_user else SC.PeerLost, node, text)]

    def endpoint_lost(self, node: bytes, text: str) -> list[CoreEffect]:
        """Handle an endpoint that ended or is out of reach."""
        effects: list[CoreEffect] = self.link_lost(node, text)
        self.counters.dropped += self.catch_up.forget(node)
        place = self._places.pop(node, None)
        if place is not None and place.is_discovered:
            endpoint = self.endpoint_of(node)
            fields = SC.EndpointUnreachable, endpoint, place.address, text
            effects.append(PeerEvent(*fields, is_direct=place.was_peer_then))
        return effects + self._apply(self.filters.forget(node))

    def tick(self, now: float) -> list[CoreEffect]:
        """Repeat unconfirmed filters; stop holding runs for receivers that answer too late."""
        effects: list[CoreEffect] = self._send_updates(self.filters.tick(now))
        for pending in self.catch_up.tick(now):
            effects += self._stop_holding(pending)
        return effects

    def endpoint_of(self, node: bytes) -> bytes | None:
        """Return the id of the endpoint on a node; None before its first filter update."""
        remote = self.filters.remotes.get(node)
        if remote is None or not remote.endpoint or self.leaves.is_false(node, remote.endpoint):
            return None
        return remote.endpoint

    def is_introduced(self, node: bytes) -> bool:
        """Return whether a neighbor's endpoint is a peer, and both filters are exchanged."""
        place = self._places.get(node)
        is_peer = place is not None and place.is_peer and place.is_discovered
        return is_peer and self.filters.is_confirmed(node)

    def peers(self) -> list[tuple[bytes, bytes | None, tuple[str, int] | None, bool]]:
        """Return node, endpoint, address of each peer, and whether its filter is known."""
        return [
            (node, self.endpoint_of(node), place.address, place.is_discovered)
            for node, place in list(self._places.items())
            if place.is_peer and (place.is_known or self.endpoint_of(node) is not None)
        ]

    def peer_topics(self) -> list[str]:
        """Return the topics in filters of other endpoints and foreign peers, sorted."""
        remotes = list(self.filters.remotes.values())
        output = self._outputs.get(_DATA)
        foreign = () if output is None else output.index.taken_by(DoorReceiver)
        native = {topic for remote in remotes for topic in tuple(remote.topics)}
        beyond = (topic for way in list(self.egresses) for topic in way.peer_topics())
        return sorted({*native, *foreign, *beyond})

    def node_of(self, endpoint: bytes) -> bytes | None:
        """Return the node of an endpoint that is in reach and whose filter is known."""
        for node, place in list(self._places.items()):  # from any thread
            if place.is_discovered and self.endpoint_of(node) == endpoint:
                return node
        return None

    def _introduce(self, node: bytes) -> list[CoreEffect]:
        """Report an endpoint as discovered when both its path and its filter are known."""
        place = self._places.get(node)
        if place is None or not place.is_known or place.is_discovered:
            return []
        if self.endpoint_of(node) is None:
            return []
        place.is_discovered, place.was_peer_then = True, place.is_peer
        event = self._event(SC.EndpointDiscovered, node, "found a new endpoint")
        event = replace(event, is_direct=place.is_peer)
        return [event, *(self._connected(node) if place.is_peer else ())]

    def _apply(self, changes: list[FilterChange]) -> list[CoreEffect]:
        """Apply changed filters to the table of remote subscriptions."""
        for change in changes:
            for topic in change.removed:
                self._remote_index.remove(topic, change.node)
            for topic in change.added:
                self._remote_index.add(topic, change.node)
        if changes:
            self._receivers.clear()
        return [*changes, *self._interest_changed(is_changed=bool(changes))]

    def _send_updates(self, updates: list[tuple[bytes, FilterUpdate]]) -> list[CoreEffect]:
        """Return filter updates as runs to transmit."""
        kind, visible = PackedType.ROUTING_UPDATE, self.leaves.visible_filter
        return [
            self._own_run(node, kind, encode_plain_pair("", tuple(visible(node, update))))
            for node, update in updates
        ]

    def receivers_of(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes that would get a message with this topic."""
        nodes = self._receivers.get(topic)
        return self._find_receivers(topic) if nodes is None else nodes

    def is_wanted(self, topic: str, origins: frozenset[object] | None = None) -> bool:
        """Return whether a message of this endpoint with this topic has a receiver."""
        output = self._outputs.get(_DATA)
        takes_own = output is not None and output.takes_own(topic, origins)
        leads_out = any(egress.takes(topic) for egress in self.egresses)
        return takes_own or leads_out or bool(self.receivers_of(topic))

    def _find_receivers(self, topic: str) -> tuple[bytes, ...]:
        """Return the matching nodes that can be reached, and cache them."""
        nodes: tuple[bytes, ...] = ()
        if not is_local(topic):
            may_have = self.leaves.may_have
            matches = self._remote_index.match(topic)
            nodes = tuple(
                node for node in matches if may_have(node, topic) and self._may_reach(node)
            )
        if len(self._receivers) >= CACHED_TOPICS:
            self._receivers.clear()
        self._receivers[topic] = nodes
        return nodes

    def _may_reach(self, node: bytes) -> bool:
        """Return whether the TTL suffices and all endpoints on the path forward."""
        path = self.path_of(node)
        if not path or len(path) > self.ttl:
            return False
        remotes = self.filters.remotes
        return all(hop not in remotes or remotes[hop].forwards for hop in path[:-1])

    def _apply_update(
        self, node: bytes, update: FilterUpdate, now: float, limit: int | None = None
    ) -> list[CoreEffect]:
        """Apply a filter update of another endpoint."""
        old = self.filters.remotes.get(node)
        was_known, was_empty = bool(old and old.endpoint), not (old and old.topics)
        changes, answers = self.filters.receive(node, update, now, limit)
        effects = self._apply(changes) + self._send_updates(answers) + self._introduce(node)
        remote = self.filters.remotes[node]
        if was_empty and remote.topics:
            self._begin_catch_up(node, now)
        elif not was_empty and not remote.topics:
            self.catch_up.served(node)
        if self.catch_up.pending and (not was_known or node in self.catch_up.pending):
            effects += self._ask(node, now)
        return effects

    # --- catch-up of receivers whose filter arrives late: see `CatchUp` ---

    def _begin_catch_up(self, node: bytes, now: float) -> None:
        """Hold runs for a node if recently published values match its new filter."""
        path = self.path_of(node)
        if path:
            self.catch_up.begin(
                *(node, (_SOURCE, *path), self._reached, now), partial(self._wants, node)
            )

    def _ask(self, arrived: bytes, now: float) -> list[CoreEffect]:
        """Return the pings whose answers show which recent values a receiver gets.

        Args:
            arrived: the node whose filter has just arrived.
            now: the time.
        """
        pending = self.catch_up.pending.get(arrived)
        nodes = (arrived,) if pending is None else pending.path
        return [
            run._replace(messages=0)
            for node in nodes
            if self.endpoint_of(node) is not None
            for question in self.catch_up.questions_to(node, now)
            for run in self._runs(
                (question.node,),
                PackedType.PING,
                [encode_plain_pair(*pair) for pair in question.pairs],
            )
        ]

    def _apply_answers(self, node: bytes, items: list[Item], now: float) -> list[CoreEffect]:
        """Apply the answers from a node to a ping."""
        effects: list[CoreEffect] = []
        if self.catch_up.pending:
            for pending in self.catch_up.apply_answers(node, items, now):
                effects += self._stop_holding(pending)
        return effects

    def _pong(self, node: bytes, items: list[Item], now: float) -> list[CoreEffect]:
        """Answer a ping with its content, and the requested age."""
        pairs = [
            encode_plain_pair(topic, self._answer(node, topic, content, now))
            for topic, content in items
        ]
        return [run._replace(messages=0) for run in self._runs((node,), PackedType.PONG, pairs)]

    def _answer(self, asker: bytes, topic: str, content: Any, now: float) -> Any:
        """Return the content of a pong."""
        since: float | None = None
        match content:
            case (int(), bytes() as other) if topic == REACH_AGE:
                since = self._reached.get(other or asker)
            case (int(), str() as subject) if topic == SUBSCRIPTION_AGE:
                rights = self.rights.get(asker)
                if rights is None or rights.permit_topic("publish", subject):
                    since = self._subscribed_since(subject)
        return content if since is None else (*content, max(0.0, now - since), now)

    def _subscribed_since(self, topic: str) -> float | None:
        """Return the time since which this endpoint has a receiver of a topic."""
        output = self._outputs.get(_DATA)
        prefixes = () if output is None else output.index.prefixes_of(topic)
        times = [self._subscribed_at.get(prefix) for prefix in prefixes]
        return min((time for time in times if time is not None), default=None)

    # --- peer events ---

    def _connected(self, node: bytes) -> list[CoreEffect]:
        """Return the event of a link to an endpoint."""
        return [self._event(SC.PeerAdded, node, "handshake successful")]

    def _event(self, kind: SC, node: bytes, text: str) -> PeerEvent:
        """Return an event of the endpoint on a node."""
        place = self._places.get(node)
        address = None if place is None else place.address
        return PeerEvent(kind, self.endpoint_of(node), address, text)


def _within(ttl: int, effects: Sequence[CoreEffect]) -> list[CoreEffect]:
    """Add the number of links that a run may still cross to the effects for adapters."""
    return [
        effect._replace(receiver=NearDoor(effect.receiver, ttl))
        if isinstance(effect, DeliverItems) and isinstance(effect.receiver, DoorReceiver)
        else effect
        for effect in effects
    ]


def _leads_back(receiver: object, origin: object) -> bool:
    """Return whether a receiver is the origin, or another adapter to the same foreign peer."""
    return receiver is origin or (isinstance(receiver, DoorReceiver) and receiver.is_of(origin))


def _update_of(items: list[Item]) -> FilterUpdate:
    """Return the filter update in a run."""
    return read_update(items[0][1] if items else None)


def _remote_refusals(node: bytes, items: list[Item]) -> list[CoreEffect]:
    """Return the refusals of another endpoint.

    Raises:
        MalformedMessage: the items are not refusals.
    """
    effects: list[CoreEffect] = []
    for _, refusals in items:
        for refusal in refusals if type(refusals) is tuple else (None,):
            match refusal:
                case (str() as right, str() as name):
                    effects.append(RefusedThere(node, right, name))
                case _:
                    msg = "a refusal must be a list of pairs of a right and a name"
                    raise MalformedMessage(msg)
    return effects
