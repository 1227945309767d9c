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

What concerns other endpoints, and the seven callbacks of the guide, stands in `core_peers`.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from callboard.endpoint.core_effect import (
    CoreCounters,
    Deliver,
    Effect,
    Item,
    Pair,
    Transmit,
)
from callboard.endpoint.core_output import CoreOutput
from callboard.endpoint.core_peers import DEFAULT_TTL, CorePeers
from callboard.endpoint.errors import MalformedMessage
from callboard.endpoint.filter_exchange import read_update
from callboard.endpoint.message import MessageType, pack_runs
from callboard.endpoint.run_cbor import decode_run, encode_plain_pair

__all__ = ["Core"]

_topic_of: Final = itemgetter(0)
_pair_of: Final = itemgetter(1)


class Core(CorePeers):
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
        super().__init__(endpoint, path_of, ttl=ttl, forwards=forwards)
        self.counters = CoreCounters()
        self._data_outputs: CoreOutput | None = None
        self._command_outputs: CoreOutput | None = None
        #: How many local receivers want each topic: the local filter.
        self._wanted: dict[str, int] = {}

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

    def known_receivers(self, topic: str) -> tuple[bytes, ...] | None:
        """Return the nodes that want data of a topic; None if that has to be found out.

        None as well where a receiver here may want it too.
        """
        output = self._data_outputs
        if output is not None and output.sees_own:
            return None
        return self._receivers.get(topic)

    # --- from other endpoints ---

    def _take_update(self, node: bytes, items: list[Item], now: float) -> list[Effect]:
        update = read_update(items[0][1] if items else None)
        changes, answers = self.filters.receive(node, update, now)
        effects = self._apply(changes) + self._tell(answers)
        return effects + self._introduce(node)

    def _pong(self, node: bytes, items: list[Item]) -> list[Effect]:
        pairs = [encode_plain_pair(topic, content) for topic, content in items]
        return [
            Transmit(node, payload)
            for payload, _ in pack_runs(MessageType.PONG, self.ttl, pairs)
        ]
