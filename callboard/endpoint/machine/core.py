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

An endpoint that is found, connected, lost or removed is told by a `PeerEvent`, whose kinds are
the seven callbacks of the guide.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from callboard.endpoint.machine.catch_up import (
    REACH_AGE,
    SUBSCRIPTION_AGE,
    CatchUp,
    Pending,
)
from callboard.endpoint.machine.effect import (
    CommandPairs,
    CoreCounters,
    CoreEffect,
    CoreOrder,
    DeliverItems,
    DoorReceiver,
    Egress,
    Ingested,
    Item,
    NearDoor,
    Pair,
    PeerEvent,
    RefusedHere,
    RefusedThere,
    TransmitRun,
    WishesChanged,
)
from callboard.endpoint.machine.filter_exchange import (
    FilterChange,
    FilterExchange,
    FilterUpdate,
    read_update,
)
from callboard.endpoint.machine.leaf import (
    LEAF_FILTER_LIMIT,
    REFUSALS_TOLD,
    Leaves,
    Refusal,
    TopicRights,
)
from callboard.endpoint.machine.output import CoreOutput
from callboard.endpoint.machine.run import (
    PackedType,
    decode_run,
    encode_plain_pair,
    pack_runs,
    ttl_of,
)
from callboard.endpoint.machine.status import SC
from callboard.endpoint.machine.subscriptions import SubscriptionTable
from callboard.endpoint.machine.topic import is_local, is_reserved, shortest
from callboard.model.errors import MalformedMessage
from callboard.support.dataclass import dataclass

#: Links that a message may cross: Broker's own limit since 2.0.
DEFAULT_TTL: Final = 16

#: Topics whose receivers are remembered; the cache starts again when it is full.
CACHED_TOPICS: Final = 65_536

#: Topics that are counted by name while somebody looks, and what all others count as.
COUNTED_TOPICS: Final = 2_000
OTHER_TOPICS: Final = "(all others)"

#: An attribute of an enum costs ten times a global.
_DATA: Final = PackedType.DATA


#: What stands for the source on the way from it to a receiver.
_SOURCE: Final = b""

_topic_of: Final = itemgetter(0)
_pair_of: Final = itemgetter(1)
_PAIRS: Final = {tuple}


@dataclass(slots=True)
class PeerPlace:
    """How another endpoint is connected: over any path, or as a peer."""

    is_known: bool = False
    is_peer: bool = False
    address: tuple[str, int] | None = None
    is_discovered: bool = False
    was_peer_then: bool = False


@dataclass(eq=False, repr=False)
class Core:
    """One endpoint's hub.

    Attributes:
        endpoint: the endpoint's id, 16 bytes.
        path_of: returns the nodes on the way to a node, itself last; empty for none.
        ttl: links that the messages of this endpoint may cross.
        forwards: whether messages for others may pass through this endpoint's node.
        rights: what leaves may do, by node; whoever knows them keeps it up to date.
        now: the time at which messages are published, which the driver sets before.
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
        #: Topic → nodes to send it to; forgotten with every change of a filter or a path.
        self._receivers: dict[str, tuple[bytes, ...]] = {}
        self.counters = CoreCounters()
        #: `data_outputs` and `command_outputs`, each from its first receiver on.
        self._outputs: dict[PackedType, CoreOutput] = {}
        #: How many local receivers want each topic: the local filter.
        self._wanted: dict[str, int] = {}
        #: Since when each topic is in the local filter.
        self._wanted_since: dict[str, float] = {}
        #: What was published of late, for receivers of which this endpoint learns later.
        self.catch_up = CatchUp()
        #: Since when nodes are in reach.
        self._reached: dict[bytes, float] = {}
        #: Links there are: without any, no receiver is in reach.
        self._links = 0
        #: Whether there has been a receiver of a door.
        self._has_doors = False
        #: Whether to tell that what is wanted has changed: there is a door.
        self.tells_wishes = False
        #: Ways out of the network of nodes; each takes what is published here.
        self.ways_out: dict[Egress, None] = {}

    # --- looked at ---

    def subscriptions(self) -> dict[str, int]:
        """Return the topics that are subscribed to here, and by how many; from any thread."""
        return dict(self._wanted)

    def wishes(self, bringer: object) -> tuple[str, ...]:
        """Return what a door is to bring in: data that others here, or elsewhere, want.

        These are the shortest prefixes, sorted, so that none takes another. What the door
        itself subscribes to for its peer is not among them, and no topic of the endpoints.
        """
        output = self._outputs.get(_DATA)
        here = () if output is None else output.index.taken_by_others(bringer)
        elsewhere = chain.from_iterable(each.topics for each in self.filters.remotes.values())
        return shortest(topic for topic in chain(here, elsewhere) if not is_reserved(topic))

    def wanting(self, topic: str) -> int:
        """Return how many other endpoints subscribe to just that topic."""
        return sum(topic in remote.topics for remote in list(self.filters.remotes.values()))

    def count_topics(self, counts: Counter[str] | None) -> None:
        """Count what is published here by topic from here on; None ends it.

        While nobody looks, publishing is the method of the class and pays nothing.
        """
        if counts is None:
            self.__dict__.pop("_to_others", None)
            return

        def counting(kind: PackedType, run: Sequence[Pair]) -> list[TransmitRun]:
            if kind is _DATA:
                for topic, _ in run:
                    known = topic in counts or len(counts) < COUNTED_TOPICS
                    counts[topic if known else OTHER_TOPICS] += 1
            return Core._to_others(self, kind, run)

        self._to_others = counting  # type: ignore[method-assign]

    # --- in ---

    def take_inputs(self, inputs: Sequence[Pair | CoreOrder]) -> Iterator[Sequence[CoreEffect]]:
        """Take data and orders in the order in which they came, in as few runs as that allows.

        Data come as plain pairs. Yields the effects of each run before it takes the next.
        """
        if {*map(type, inputs)} <= _PAIRS:  # nearly always
            if inputs:
                yield self.data_inputs(inputs)  # type: ignore[arg-type]  # the types were looked at
            return
        data: list[Pair] = []
        commands: list[Pair] = []
        for entry in inputs:
            if isinstance(entry, tuple):
                data.append(entry)
            elif isinstance(entry, CommandPairs):
                commands.extend(entry.pairs)
            else:
                yield self._merged(data, commands)  # ordered behind what was before
                data, commands = [], []
                if isinstance(entry, Ingested):
                    yield self.ingest(entry.pairs, entry.bringer, entry.ttl)
                else:
                    yield entry()
        yield self._merged(data, commands)

    def _merged(self, data: list[Pair], commands: list[Pair]) -> list[CoreEffect]:
        """Send data and commands that no order stands between."""
        effects = self.data_inputs(data) if data else []
        return effects + self.command_inputs(commands) if commands else effects

    def data_inputs(self, run: Sequence[Pair]) -> list[CoreEffect]:
        """Take data messages that were published here."""
        self.counters.data_published += len(run)
        for way_out in self.ways_out:
            way_out.take_own(run)
        return self.central_merge(_DATA, run)

    def command_inputs(self, run: Sequence[Pair]) -> list[CoreEffect]:
        """Take command messages of the stores here."""
        self.counters.commands_published += len(run)
        return self.central_merge(PackedType.COMMAND, run)

    def central_merge(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send each message to the nodes that want it, and to receivers of own messages."""
        effects: list[CoreEffect] = [*self._to_others(kind, run)]
        output = self._outputs.get(kind)
        if output is not None and output.sees_own:
            effects += output.deliver_own(run)
        return effects

    def ingest(
        self, run: Sequence[Pair], bringer: object, ttl: int | None = None
    ) -> list[CoreEffect]:
        """Take data messages that a door brought: as if they had come from another node.

        Whoever brought them does not get them, whatever it subscribed to, and no receiver of
        the same foreign peer.

        Args:
            run: the messages.
            bringer: the door's receiver.
            ttl: links that they may still cross, where their wire says so.
        """
        if ttl is None or ttl >= self.ttl:
            others = self.data_for_others(run)
        else:
            others = self._to_near(run, ttl)
        left = self.ttl if ttl is None else min(ttl, self.ttl)
        here = [
            effect
            for effect in self._decoded_here(_DATA, run)
            if not (isinstance(effect, DeliverItems) and _leads_back(effect.receiver, bringer))
        ]
        return [*others, *_within(left, here)]

    def _to_near(self, run: Sequence[Pair], ttl: int) -> list[TransmitRun]:
        """Send data messages to those who want them and are no more links away than `ttl`."""
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
        return self._held(
            [
                TransmitRun(node, *one)
                for node, pairs in bundles.items()
                for one in pack_runs(_DATA, ttl, pairs)
            ]
        )

    def data_for_others(self, run: Sequence[Pair]) -> list[TransmitRun]:
        """Take data messages that nobody here wants: see `known_receivers`."""
        self.counters.data_published += len(run)
        return self._to_others(_DATA, run)

    def _to_others(self, kind: PackedType, run: Sequence[Pair]) -> list[TransmitRun]:
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
            pairs = [*map(_pair_of, run)]
            packed = [*pack_runs(kind, self.ttl, pairs)] if nodes else ()
            if self._links and kind is _DATA:
                self._keep(topic, pairs, packed)
            runs = [TransmitRun(node, *one) for node in nodes for one in packed]
            return self._held(runs) if self.catch_up.pending and kind is _DATA else runs
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
        """Keep a run of one topic for late receivers: packed, where somebody gets it now."""
        if len(packed) == 1:  # nearly always; one object for each run is kept
            content: bytes | Sequence[Any] = packed[0][0]
            size = len(content)
        else:
            content, size = packed or pairs, sum(map(len, pairs))
        self.catch_up.keep(self.now, topic, content, len(pairs), size, self.ttl)

    def _held(self, runs: list[TransmitRun]) -> list[TransmitRun]:
        """Return the runs that go now: data for some receivers wait, see `CatchUp`."""
        if not self.catch_up.pending:
            return runs
        going, full = self.catch_up.hold(runs)
        for pending in full:
            going += self._settle(pending)
        return going

    def _settle(self, pending: Pending) -> list[TransmitRun]:
        """Send to a receiver what it gets late, and what waited behind it."""
        node = pending.node
        hops = len(self.path_of(node)) if self._may_reach(node) else 0
        runs = self.catch_up.settle(pending, hops, partial(self._wants, node))
        self.counters.transmitted += sum(
            run.messages for run in runs[: len(runs) - len(pending.held)]
        )
        return runs

    def _wants(self, node: bytes, topic: str) -> bool:
        """Return whether the filter of a node has a topic which it may get."""
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
        runs = [TransmitRun(node, *one) for node in nodes for one in packed]
        return self._held(runs) if self.catch_up.pending and kind is _DATA else runs

    def _own_run(self, node: bytes, kind: PackedType, pair: bytes) -> TransmitRun:
        """Return a message of the endpoints themselves as a run: users published none of it."""
        return self._runs((node,), kind, [pair])[0]._replace(messages=0)

    def send_to(self, node: bytes, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send messages to one endpoint, whatever its filter says: the directed form."""
        if node in self.rights:
            run = [pair for pair in run if self.leaves.may_have(node, pair[0])]
        self.counters.serialized += len(run)
        self.counters.transmitted += len(run)
        return [*self._runs((node,), kind, [*map(_pair_of, run)])]

    def commands_for(self, endpoint: bytes, run: Sequence[Pair]) -> list[CoreEffect]:
        """Send commands to one endpoint; to all that want their topic, if it is not known."""
        if endpoint == self.endpoint:
            return self.deliver_here(PackedType.COMMAND, run)
        node = self.node_of(endpoint)
        if node is None:
            return self.central_merge(PackedType.COMMAND, run)
        return self.send_to(node, PackedType.COMMAND, run)

    def deliver_here(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Hand messages that are directed at this endpoint to its own receivers."""
        return _within(0, self._decoded_here(kind, run))

    def _decoded_here(self, kind: PackedType, run: Sequence[Pair]) -> list[CoreEffect]:
        """Decode messages that are here already, for receivers here."""
        self.counters.serialized += len(run)
        effects: list[CoreEffect] = []
        for payload, _ in pack_runs(kind, 0, [*map(_pair_of, run)]):
            effects += self._take_items(*decode_run(payload), b"", len(payload))
        return effects

    def receive(self, node: bytes, payload: bytes, now: float) -> list[CoreEffect]:
        """Take what the core of another node sent.

        Raises:
            MalformedMessage: the payload is none of ours. Nothing of it was taken.
        """
        try:
            kind, items = decode_run(payload)
            self.counters.processed[kind] += len(items)
            rights = self.rights.get(node) if self.rights else None
            if rights is not None:
                return self._receive_from_leaf(node, rights, kind, items, payload, now)
            match kind:
                case PackedType.DATA | PackedType.COMMAND:
                    effects = self._take_items(kind, items, node, len(payload))
                    return self._within(node, payload, effects) if self._has_doors else effects
                case PackedType.ROUTING_UPDATE:
                    update = _update_of(items)
                    self.leaves.note_member(update.endpoint)
                    return self._take_update(node, update, now)
                case PackedType.PING:
                    return self._pong(node, items, now)
                case PackedType.PONG:
                    return self._take_answers(node, items, now)
                case PackedType.REFUSED:
                    return _refused_there(node, items)
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
        """Take what the rights of a leaf include of what it sent, and tell it of the rest."""
        effects: list[CoreEffect] = []
        refusals: list[Refusal] = []
        if kind in (PackedType.DATA, PackedType.COMMAND):
            items, refusals = self.leaves.taken(rights, kind, items)
            effects = self._take_items(kind, items, node, len(payload)) if items else []
            effects = self._within(node, payload, effects)
        elif kind is PackedType.ROUTING_UPDATE:
            update, refusals = self.leaves.heard(rights, _update_of(items))
            known = self.filters.remotes.get(node)
            has_another = known is not None and known.endpoint not in (b"", update.endpoint)
            if has_another or self.leaves.is_false(node, update.endpoint):
                refusals.append(("endpoint", update.endpoint.hex()))
            else:
                effects = self._take_update(node, update, now, LEAF_FILTER_LIMIT)
        elif kind is PackedType.PING:
            effects = self._pong(node, items, now)
        elif kind is PackedType.PONG:
            effects = self._take_answers(node, items, now)
        return effects + self.refuse(node, refusals)

    def refuse(self, node: bytes, refusals: Sequence[Refusal]) -> list[CoreEffect]:
        """Tell a leaf, and whoever counts it here, what it has no right to."""
        if not refusals:
            return []
        self.counters.refused += len(refusals)
        named = [*dict.fromkeys(refusals)][:REFUSALS_TOLD]
        answer = self._own_run(node, PackedType.REFUSED, encode_plain_pair("", named))
        return [*(RefusedHere(node, *one) for one in named), answer]

    # --- out ---

    def _take_items(
        self, kind: PackedType, items: list[Item], sender: bytes, size: int
    ) -> list[CoreEffect]:
        """Hand decoded messages to the output of their kind."""
        self.counters.received += len(items)
        output = self._outputs.get(kind)
        if output is None:
            self.counters.unwanted += len(items)
            return []
        return list(output.deliver(items, sender, size))

    def _within(
        self, node: bytes, payload: bytes, effects: Sequence[CoreEffect]
    ) -> list[CoreEffect]:
        """Tell doors how many links a run of another node may still cross."""
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
    ) -> list[CoreEffect]:
        """Let a local receiver take messages of more topics."""
        output = self._output(kind)
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
                count = self._wanted.get(topic, 0)
                self._wanted[topic] = count + 1
                if not count and not is_local(topic):
                    added.add(topic)
                    self._wanted_since[topic] = now
        told = self._tell(self.filters.change(added, set(), now))
        return told + self._wishes_changed(is_changed=is_changed)

    def unsubscribe(
        self,
        receiver: object,
        topics: Sequence[str] | None,
        now: float,
        *,
        kind: PackedType = PackedType.DATA,
    ) -> list[CoreEffect]:
        """Take topics from a local receiver; with None all of them, and it is forgotten."""
        output = self._output(kind)
        if topics is None:
            topics = output.index.prefixes(receiver)
            output.sees_own.discard(receiver)
            output.encoded.discard(receiver)
        removed, is_changed = set(), False
        for topic in topics:
            if output.index.remove(topic, receiver):
                is_changed = True
                self._wanted[topic] -= 1
                if not self._wanted[topic]:
                    del self._wanted[topic]
                    self._wanted_since.pop(topic, None)
                    removed.add(topic)
        told = self._tell(self.filters.change(set(), removed, now))
        return told + self._wishes_changed(is_changed=is_changed)

    def _wishes_changed(self, *, is_changed: bool) -> list[CoreEffect]:
        """Return that doors may have to bring in something else."""
        return [WishesChanged()] if is_changed and self.tells_wishes else []

    def is_taken(self, topic: str) -> bool:
        """Return whether a local receiver takes data of a topic."""
        output = self._outputs.get(_DATA)
        return output is not None and bool(output.index.match(topic))

    def _output(self, kind: PackedType) -> CoreOutput:
        """Return the output of a kind; made when the first receiver appears."""
        if kind not in self._outputs:
            self._outputs[kind] = CoreOutput(kind, self.counters)
        return self._outputs[kind]

    def known_receivers(self) -> Mapping[str, tuple[bytes, ...]]:
        """Return the nodes that want data, by the topics of which that is known.

        There are none where a receiver here may want data too.
        """
        output = self._outputs.get(_DATA)
        sees_own = output is not None and output.sees_own
        return {} if sees_own or self.ways_out else self._receivers

    # --- other endpoints: paths, filters, peers ---

    def endpoint_found(self, node: bytes, now: float) -> list[CoreEffect]:
        """A node that has an endpoint came into reach: tell it what is wanted here."""
        self._places.setdefault(node, PeerPlace()).is_known = True
        self._receivers.clear()
        return self._tell(self.filters.greet(node, now)) + self._introduce(node)

    def node_reached(self, node: bytes, now: float) -> None:
        """A node came into reach, with or without an endpoint."""
        self._reached.setdefault(node, now)

    def node_lost(self, node: bytes) -> None:
        """No path leads to a node any more."""
        self._reached.pop(node, None)

    def path_moved(self) -> None:
        """Another path leads to some node."""
        self._receivers.clear()

    def link_established(
        self, node: bytes, address: tuple[str, int] | None = None, now: float = 0.0
    ) -> list[CoreEffect]:
        """There is a link to a node: its endpoint is a peer."""
        self.node_reached(node, now)
        self._receivers.clear()  # it may have other rights than before
        place = self._places.setdefault(node, PeerPlace())
        place.address = address or place.address
        if place.is_peer:
            return []
        place.is_peer = True
        self._links += 1
        return self._connected(node) if place.is_discovered else []

    def link_lost(self, node: bytes, text: str, *, by_user: bool = False) -> list[CoreEffect]:
        """The link to a peer ended."""
        place = self._places.get(node)
        if place is None or not place.is_peer:
            return []
        place.is_peer = False
        self._links -= 1
        if not self._links:
            self.catch_up.clear()
        if not place.is_known:  # a node without an endpoint, of which no end will be told
            del self._places[node]
        if not place.is_discovered:
            return []
        return [self._event(SC.PeerRemoved if by_user else SC.PeerLost, node, text)]

    def endpoint_lost(self, node: bytes, text: str) -> list[CoreEffect]:
        """An endpoint ended, or no path leads to it."""
        effects: list[CoreEffect] = self.link_lost(node, text)
        self.counters.dropped += self.catch_up.forget(node)
        place = self._places.pop(node, None)
        if place is not None and place.is_discovered:
            endpoint = self.endpoint_of(node)
            gone = SC.EndpointUnreachable, endpoint, place.address, text
            effects.append(PeerEvent(*gone, is_direct=place.was_peer_then))
        return effects + self._apply(self.filters.forget(node))

    def tick(self, now: float) -> list[CoreEffect]:
        """Repeat what was not confirmed, and end what waits for answers that do not come."""
        effects: list[CoreEffect] = self._tell(self.filters.tick(now))
        for pending in self.catch_up.tick(now):
            effects += self._settle(pending)
        return effects

    def endpoint_of(self, node: bytes) -> bytes | None:
        """Return the id of the endpoint on a node, None before it said so."""
        remote = self.filters.remotes.get(node)
        if remote is None or not remote.endpoint or self.leaves.is_false(node, remote.endpoint):
            return None
        return remote.endpoint

    def is_introduced(self, node: bytes) -> bool:
        """Return whether the endpoint of a neighbor is a peer, and both know both filters."""
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
        """Return the topics that some other endpoint, or a foreign peer, takes; sorted."""
        remotes = list(self.filters.remotes.values())
        output = self._outputs.get(_DATA)
        foreign = () if output is None else output.index.taken_by(DoorReceiver)
        found = {topic for remote in remotes for topic in tuple(remote.topics)}
        beyond = (topic for way in list(self.ways_out) for topic in way.peer_topics())
        return sorted({*found, *foreign, *beyond})

    def node_of(self, endpoint: bytes) -> bytes | None:
        """Return the node of an endpoint that is in reach and whose filter is known."""
        for node, place in list(self._places.items()):  # from any thread
            if place.is_discovered and self.endpoint_of(node) == endpoint:
                return node
        return None

    def _introduce(self, node: bytes) -> list[CoreEffect]:
        """Tell of an endpoint once its path and its filter are both known."""
        place = self._places.get(node)
        if place is None or not place.is_known or place.is_discovered:
            return []
        if self.endpoint_of(node) is None:
            return []
        place.is_discovered, place.was_peer_then = True, place.is_peer
        found = self._event(SC.EndpointDiscovered, node, "found a new endpoint")
        found = replace(found, is_direct=place.is_peer)
        return [found, *(self._connected(node) if place.is_peer else ())]

    def _apply(self, changes: list[FilterChange]) -> list[CoreEffect]:
        """Bring the table of remote subscriptions up to date with changed filters."""
        for change in changes:
            for topic in change.removed:
                self._remote_index.remove(topic, change.node)
            for topic in change.added:
                self._remote_index.add(topic, change.node)
        if changes:
            self._receivers.clear()
        return [*changes, *self._wishes_changed(is_changed=bool(changes))]

    def _tell(self, updates: list[tuple[bytes, FilterUpdate]]) -> list[CoreEffect]:
        """Return filter updates as runs to transmit."""
        kind, told = PackedType.ROUTING_UPDATE, self.leaves.told
        return [
            self._own_run(node, kind, encode_plain_pair("", tuple(told(node, update))))
            for node, update in updates
        ]

    def receivers_of(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes to which a message with this topic would be sent."""
        known = self._receivers.get(topic)
        return self._find_receivers(topic) if known is None else known

    def is_wanted(self, topic: str) -> bool:
        """Return whether somebody gets what this endpoint publishes with a topic."""
        output = self._outputs.get(_DATA)
        takes_own = output is not None and output.takes_own(topic)
        leads_out = any(way_out.takes(topic) for way_out in self.ways_out)
        return takes_own or leads_out or bool(self.receivers_of(topic))

    def _find_receivers(self, topic: str) -> tuple[bytes, ...]:
        """Return the nodes that want a topic and may be reached; remembered by topic."""
        nodes: tuple[bytes, ...] = ()
        if not is_local(topic):
            may_have = self.leaves.may_have
            wanting = [
                each for each in self._remote_index.match(topic) if may_have(each, topic)
            ]
            nodes = tuple(filter(self._may_reach, wanting))
        if len(self._receivers) >= CACHED_TOPICS:
            self._receivers.clear()
        self._receivers[topic] = nodes
        return nodes

    def _may_reach(self, node: bytes) -> bool:
        """Return whether the TTL suffices and nobody on the way refuses to forward."""
        path = self.path_of(node)
        if not path or len(path) > self.ttl:
            return False
        remotes = self.filters.remotes
        return all(passed not in remotes or remotes[passed].forwards for passed in path[:-1])

    def _take_update(
        self, node: bytes, update: FilterUpdate, now: float, limit: int | None = None
    ) -> list[CoreEffect]:
        """Take the filter of another endpoint, or a part of it."""
        before = self.filters.remotes.get(node)
        was_known, was_empty = bool(before and before.endpoint), not (before and before.topics)
        changes, answers = self.filters.receive(node, update, now, limit)
        effects = self._apply(changes) + self._tell(answers) + self._introduce(node)
        remote = self.filters.remotes[node]
        if was_empty and remote.topics:
            self._begin_catch_up(node, now)
        elif not was_empty and not remote.topics:
            self.catch_up.served(node)
        if self.catch_up.pending and (not was_known or node in self.catch_up.pending):
            effects += self._ask(node, now)
        return effects

    # --- receivers that this endpoint learns of late: see `CatchUp` ---

    def _begin_catch_up(self, node: bytes, now: float) -> None:
        """Look for what a node wants of the values that were published before it was known."""
        path = self.path_of(node)
        if path:
            self.catch_up.begin(
                *(node, (_SOURCE, *path), self._reached, now), partial(self._wants, node)
            )

    def _ask(self, arrived: bytes, now: float) -> list[CoreEffect]:
        """Ask those who know whether late values are for a receiver, as far as they are known.

        Args:
            arrived: the node whose filter has just arrived.
            now: the time.
        """
        pending = self.catch_up.pending.get(arrived)
        asked = (arrived,) if pending is None else pending.path
        return [
            run._replace(messages=0)
            for node in asked
            if self.endpoint_of(node) is not None
            for question in self.catch_up.questions_to(node, now)
            for run in self._runs(
                (question.node,),
                PackedType.PING,
                [encode_plain_pair(*pair) for pair in question.pairs],
            )
        ]

    def _take_answers(self, node: bytes, items: list[Item], now: float) -> list[CoreEffect]:
        """Take what a node answered to a ping."""
        effects: list[CoreEffect] = []
        if self.catch_up.pending:
            for pending in self.catch_up.take_answers(node, items, now):
                effects += self._settle(pending)
        return effects

    def _pong(self, node: bytes, items: list[Item], now: float) -> list[CoreEffect]:
        """Answer a ping with its own content, and with the age that it asks for."""
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
            case (int(), str() as wanted) if topic == SUBSCRIPTION_AGE:
                rights = self.rights.get(asker)
                if rights is None or rights.permit_topic("publish", wanted):
                    since = self._subscribed_since(wanted)
        return content if since is None else (*content, max(0.0, now - since), now)

    def _subscribed_since(self, topic: str) -> float | None:
        """Return since when this endpoint wants a topic."""
        output = self._outputs.get(_DATA)
        prefixes = () if output is None else output.index.prefixes_of(topic)
        times = [self._wanted_since.get(prefix) for prefix in prefixes]
        return min((time for time in times if time is not None), default=None)

    # --- peer events ---

    def _connected(self, node: bytes) -> list[CoreEffect]:
        """A link to an endpoint is established."""
        return [self._event(SC.PeerAdded, node, "handshake successful")]

    def _event(self, kind: SC, node: bytes, text: str) -> PeerEvent:
        """Return an event about the endpoint of a node."""
        place = self._places.get(node)
        address = None if place is None else place.address
        return PeerEvent(kind, self.endpoint_of(node), address, text)


def _within(ttl: int, effects: Sequence[CoreEffect]) -> list[CoreEffect]:
    """Return effects by which doors learn how many links a run may still cross."""
    return [
        effect._replace(receiver=NearDoor(effect.receiver, ttl))
        if isinstance(effect, DeliverItems) and isinstance(effect.receiver, DoorReceiver)
        else effect
        for effect in effects
    ]


def _leads_back(receiver: object, bringer: object) -> bool:
    """Return whether a receiver is the bringer, or another door to the same foreign peer."""
    return receiver is bringer or (
        isinstance(receiver, DoorReceiver) and receiver.is_of(bringer)
    )


def _update_of(items: list[Item]) -> FilterUpdate:
    """Return the filter update that a run holds."""
    return read_update(items[0][1] if items else None)


def _refused_there(node: bytes, items: list[Item]) -> list[CoreEffect]:
    """Return what another endpoint says that this one has no right to.

    Raises:
        MalformedMessage: it says something else.
    """
    effects: list[CoreEffect] = []
    for _, named in items:
        for one in named if type(named) is tuple else (None,):
            match one:
                case (str() as right, str() as name):
                    effects.append(RefusedThere(node, right, name))
                case _:
                    msg = "a refusal names rights and what they are for"
                    raise MalformedMessage(msg)
    return effects
