"""The hub of a node: the core of its endpoint, as an actor that threads may call.

    publish ──> inputs ──> core ──> hubs of other nodes     (serialized by the publisher)
    hubs of other nodes ──> core ──> receivers here         (decoded once)

A node has at most one hub, the actor with the number 1; `Hub.of(node)` makes it on first use.
Threads and other rooms call its methods, which post what concerns the core; the core itself is
used in the actor's turns. Values that are published meanwhile wait in `inputs` and go as one
run. Runs for another node go to that node's hub, as ordinary dispatches; runs of other hubs
arrive as byte strings, and events of the node as messages.

A thread outside of the node that publishes while the core is idle need not wait for a turn: it
does the core's work itself. So the core has a lock. Handlers hold it for their whole turn; such
a thread only tries to get it, and leaves the message to the next turn if it cannot. What a
thread publishes stays in order: it goes at once only when nothing waits.
"""

import asyncio
import itertools
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import cbor2

from callboard import locks
from callboard.endpoint.events import Undelivered
from callboard.endpoint.interest import Interest, WishListener
from callboard.endpoint.machine.catch_up import ANSWER_SECONDS
from callboard.endpoint.machine.core import DEFAULT_TTL, Core
from callboard.endpoint.machine.effect import (
    CommandPairs,
    CoreEffect,
    CoreOrder,
    DeliverItems,
    Egress,
    Ingested,
    Pair,
    PeerEvent,
    Receiver,
    RefusedHere,
    RefusedThere,
    RunReceiver,
    TransmitRun,
    WishesChanged,
)
from callboard.endpoint.machine.peer_buffer import LINK_ROOM, OverflowPolicy, PeerBuffer
from callboard.endpoint.machine.run import PackedType, encode_pair, pair_of
from callboard.endpoint.machine.status import EC, SC, foreign_id
from callboard.endpoint.machine.topic import checked_topic
from callboard.figures import Metric
from callboard.kernel.access import CORE_NAME, Rights
from callboard.kernel.activation import Proxy, RemoteTeller
from callboard.kernel.actors import ActorRef, Down, handler
from callboard.kernel.checks import seconds
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import (
    ActorDown,
    LinkError,
    NotPermitted,
    ResultTimeout,
    WouldBlock,
    WouldDeadlock,
)
from callboard.kernel.events import (
    ForeignDialFailed,
    ForeignLinkDown,
    ForeignLinkUp,
    LinkDown,
    LinkUp,
    NodeDown,
    NodeUp,
    PathMoved,
)
from callboard.kernel.reply import Future
from callboard.kernel.topology import CORE_ACTOR, DIRECTORY, Dial, Lookup
from callboard.model.errors import MalformedMessage
from callboard.node import Node
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.inspection_tables import Row
from callboard.support.seconds import check_numbers

_LOG: Final = logging.getLogger("callboard.endpoint")

#: Messages that wait for the core's turn: a thread that publishes more waits.
INPUT_LIMIT: Final = 16_384

#: Seconds that such a thread waits at most; a node stuck that long has other problems.
WAIT_FOR_TURN: Final = 5.0

#: Seconds without a message after which one goes at once.
CALM: Final = 20e-6

#: Published messages that one turn takes: the node's other actors have their turns too.
TURN_LENGTH: Final = 8192

#: Messages of doors after which a turn takes no more reads: they are decoded in it, and in two
#: milliseconds the watcher takes the node's role from a thread that is in one turn.
BROUGHT_IN_TURN: Final = 100

#: Seconds for which published messages are counted by topic after a look.
SCAN_LIMIT: Final = 10.0

#: Seconds between looks for filters that were not confirmed.
TICK_INTERVAL: Final = 1.0

#: Seconds that a directory may take to say whether its node has a hub.
ANSWER_LIMIT: Final = 5.0

#: Seconds between looks at a link that is full.
DRAIN_INTERVAL: Final = 0.005

#: Seconds that the endpoint behind an established link may take to tell its filter.
INTRODUCTION_LIMIT: Final = 10.0

#: Seconds for which values may wait for answers about a receiver: see `CatchUp`.
SETTLE_LIMIT: Final = ANSWER_SECONDS + 2 * TICK_INTERVAL

#: Refusals of other nodes that are remembered; each of these is logged once.
REFUSALS_KEPT: Final = 256

#: Characters of a topic or store that was refused, in events and logs.
NAME_SHOWN: Final = 200

Address = tuple[str, int]
Condition = Callable[[Core], bool]


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a node takes part in topics.

    Attributes:
        endpoint_id: 16 bytes; a random UUID by default.
        ttl: links that messages may cross.
        forwards: whether messages for others may pass through this node.
        peer_buffer_size: messages that may wait for a peer which does not read.
        overflow_policy: what happens then: `disconnect`, `drop_newest` or `drop_oldest`.
    """

    endpoint_id: bytes | None = None
    ttl: int = DEFAULT_TTL
    forwards: bool = True
    peer_buffer_size: int = 2048
    overflow_policy: str = "disconnect"

    def __post_init__(self) -> None:
        check_numbers(self)


class Hub(SystemActor):
    """A node's way into topics: publishing, receivers, peers."""

    #: Used by each publish and each run; why slots: see `Runtime`.
    __slots__ = (
        "_awaited", "_flush", "_hubs", "_now", "_post", "idle_since", "core", "core_lock",
        "_brought", "_down", "_orders", "_room_lock",
        "foreign_sessions", "inputs", "is_congested", "wake_pending",
    )  # fmt: skip

    def __init__(self, options: HubOptions) -> None:
        """Use `Hub.of`."""
        node: Node = self.node
        self.options = options
        self.endpoint_id = options.endpoint_id or self._drawn_id()
        #: What metrics and the status call it.
        self.name = node.name
        #: Subscribers and publishers of this node that are not closed, to be counted.
        self.subscribers: WeakSet[Any] = WeakSet()
        self.publishers: WeakSet[Any] = WeakSet()
        #: What else uses this hub and has metrics, as stores do; called from any thread.
        self.meters: list[Callable[[], list[Metric]]] = []
        #: What gives metrics of others, to be shown with those of this node.
        self.metric_sources: list[Callable[[], list[Metric]]] = []
        #: What is being made on this node just now, by name: there may be one of each.
        self.claims: set[str] = set()
        #: Subscriptions of actors by handlers of theirs, by the ref and what marks the handler.
        self.by_door: dict[tuple[ActorRef[Any], type], object] = {}
        self.lock = locks.lock("publishing of a hub", 422)
        self._objects = itertools.count(1)
        # What was published, and who waits until there is room for more.
        self.inputs: deque[Pair | CoreOrder] = deque()
        self.wake_pending = False
        after_fork.own_wake(self)
        self._flush = CallBack(self._take_inputs)
        self.is_congested = False
        #: What slows publishers: slow peers (None), receivers that are behind.
        self._congested_by: set[object] = set()
        #: Called with whether there is room, when that changes; on the node's thread.
        self.room_listeners: list[Callable[[bool], None]] = []
        self._room_awaited: deque[Future[None]] = deque()
        self._post = self.context.post
        self._now = self.runtime.now
        #: When a message that is published goes at once: not soon after others.
        self.idle_since = self._now()
        self.overlay = node.overlay
        self.core = self._make_core(options)
        self.counters = self.core.counters
        #: Held by the thread that works with the core.
        self.core_lock = locks.lock("core of a hub", 420, runs_users=True)
        self._listeners: list[Callable[[PeerEvent], object]] = []
        #: Told what another endpoint refuses this one: its node, the right, and for what.
        self.refusal_listeners: list[Callable[[RefusedThere], object]] = []
        #: What other endpoints refused since the last link: right and for what.
        self.refusals: dict[tuple[str, str], RefusedThere] = {}
        #: The hubs of other nodes.
        self._hubs: dict[bytes, ActorRef[Any]] = {}
        #: What waits for peers that read more slowly than is written.
        self._buffers: dict[bytes, PeerBuffer] = {}
        self._overflow_policy = OverflowPolicy(options.overflow_policy)
        self._is_draining = False
        #: Neighbors whose link the user ended: their loss is not a surprise.
        self._removed: set[bytes] = set()
        #: Conditions that are waited for, and what is True when they are.
        self._awaited: list[tuple[Condition, Future[bool]]] = []
        #: What threads wait for, and the end of this actor once something is.
        self._orders: set[Future[bool]] = set()
        self._down: Future[Down] | None = None
        #: Nodes whose directory did not answer.
        self._unanswered: list[bytes] = []
        self._wishes = Interest(self.core, lambda pause, act: self.after(pause, CallBack(act)))
        self._stop_listening = self.overlay.listen(self._note_event)
        node.register(CORE_NAME, self.me)
        self._take_stock(node)
        self.after(TICK_INTERVAL, CallBack(self._tick))

    def _drawn_id(self) -> bytes:
        """Return a new id, which in a simulation comes from its seed."""
        return uuid.UUID(bytes=self.runtime.random.randbytes(16), version=4).bytes

    def _make_core(self, options: HubOptions) -> Core:
        return Core(
            self.endpoint_id,
            path_of=self.overlay.path,
            ttl=options.ttl,
            forwards=options.forwards,
            rights=self.overlay.leaves,
        )

    def _take_stock(self, node: Node) -> None:
        """Take the nodes and links that were there before this hub."""
        #: Messages of doors among the inputs, with what guards their number.
        self._brought, self._room_lock = 0, locks.lock("room of a hub", 430)
        #: Sessions with endpoints of foreign software, by their ids: one for each.
        self.foreign_sessions: dict[bytes, Any] = {}
        #: What is published by topic, and until when that is counted: see `topic_rows`.
        self._traffic, self._counted_until = Counter[str](), 0.0
        self.overlay.add_table("topics", self.topic_rows)
        self.overlay.add_table("peers", self.peer_rows)
        for other in node.overlay.nodes():
            self.core.node_reached(other, self._now())
            self._look_for_hub(other)
        for link in node.links():
            self._link_up(link.peer)

    def _link_up(self, peer: bytes) -> None:
        """There is a link to a node, perhaps with other rights than before."""
        self.refusals.clear()
        address = self.overlay.address(peer)
        self._carry_out(self.core.link_established(peer, address, self._now()))

    @classmethod
    def of(cls, node: Node, options: HubOptions | None = None) -> "Hub":
        """Return the hub of a node; the first call makes it, with these options."""
        with _MAKING:
            hub = cls._made(node)
            if hub is None:
                node.context.start_actor(cls, (options or HubOptions(),), number=CORE_ACTOR)
                hub = cls._made(node)
                assert hub is not None
            return hub

    @classmethod
    def found(cls, node: Node) -> "Hub | None":
        """Return the hub of a node if it has one: nothing is made."""
        with _MAKING:
            return cls._made(node)

    @staticmethod
    def _made(node: Node) -> "Hub | None":
        """Return the hub that is there."""
        context = node.context.contexts.get(CORE_ACTOR)
        hub: Hub | None = None if context is None else context.actor
        return hub

    # --- publishing, from any thread ---

    def publish(self, topic: str, value: Any) -> None:
        """Publish a value; from any thread. It is serialized before this returns.

        A thread outside of the node waits while too much waits for the core.

        Raises:
            InvalidTopic: the topic is not text, or too long.
            EndpointError: the data model has no such value.
            WouldBlock: it had to wait for room, on the thread of a running event loop.
        """
        if type(topic) is not str:
            topic = checked_topic(topic)
        pair = (topic, encode_pair(topic, value))
        if self.is_congested or len(self.inputs) >= INPUT_LIMIT:
            self._wait_for_room()
        if not self.wake_pending and self._sent_at_once((pair,)):
            return
        self.inputs.append(pair)
        if not self.wake_pending:
            self.wake()

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value in this order, all or none of them."""
        pairs = self._entering(batch)
        if not self.wake_pending and self._sent_at_once(pairs):
            return
        self.inputs.extend(pairs)
        self.wake()

    def offer(self, messages: Sequence[tuple[str, Any]], *, whole: bool = False) -> list[int]:
        """Publish the messages that a receiver takes; returns the numbers of the others.

        Who takes what is looked at in the turn in which they go, so that none is counted
        wrongly. Blocks until then.

        Args:
            messages: pairs of topic and value; their order is kept.
            whole: whether none goes unless all are taken.

        Raises:
            EndpointError: the data model has no such value; nothing was published.
            ResultTimeout: the node was closed.
        """
        pairs, done = self._entering(messages), Future[list[int]]()

        def look() -> Sequence[CoreEffect]:
            taken = {topic: self.core.is_wanted(topic) for topic, _ in pairs}
            rest = [number for number, (topic, _) in enumerate(pairs) if not taken[topic]]
            going = [] if rest and whole else [pair for pair in pairs if taken[pair[0]]]
            done.set_result(rest)
            return self.core.data_inputs(going) if going else ()

        self._order(look)
        while True:
            try:
                return done.result(ANSWER_LIMIT)
            except ResultTimeout:
                if self.runtime.is_closed:
                    raise

    def _entering(self, messages: Sequence[tuple[str, Any]]) -> list[Pair]:
        """Encode messages, all or none of them, and wait for room."""
        checked = [(t if type(t) is str else checked_topic(t), value) for t, value in messages]
        pairs = [(topic, encode_pair(topic, value)) for topic, value in checked]
        if self.is_congested or len(self.inputs) >= INPUT_LIMIT:
            self._wait_for_room()
        return pairs

    def _sent_at_once(self, pairs: Sequence[Pair]) -> bool:
        """Send data on this thread; not on the node's, and not many messages in a row.

        Writing each of these to the socket costs more than a change of threads for all. A
        round trip between two programs takes half the time when no thread has to be woken.
        """
        now, is_sent = self._now(), False
        if now >= self.idle_since:
            lock = self.core_lock
            if not self.runtime.is_runner_thread() and locks.take_if_free(lock):
                self.core.now = now
                try:
                    is_sent = self._try_to_send(pairs)
                finally:
                    lock.release()
            now = self._now()
        self.idle_since = now + CALM
        return is_sent

    def _try_to_send(self, pairs: Sequence[Pair]) -> bool:
        """Send data if all its receivers are known, elsewhere, and ready for more."""
        context = self.context
        # What this thread asked for before, such as a receiver, comes before the message.
        if context.scheduled or context.depth or self.inputs:
            return False
        known, is_free = self.core.known_receivers(), self._is_free
        last: tuple[bytes, ...] | None = ()
        for topic, _ in pairs:
            nodes = known.get(topic)
            if nodes is not last and (nodes is None or not all(map(is_free, nodes))):
                return False
            last = nodes
        for run in self.core.data_for_others(pairs):
            hub = self._hubs.get(run.node)
            if hub is not None and isinstance(hub.target, Proxy):
                hub.target.post_at_once(run.payload, context)
        return True

    def command(
        self, topic: str, contents: Sequence[bytes], endpoint: bytes | None = None
    ) -> None:
        """Publish commands of stores, which are plain CBOR; never waits.

        Args:
            topic: of a store's masters or clones.
            contents: the commands.
            endpoint: the only endpoint that they are for, if its node is known here.
        """
        start = cbor2.dumps(topic)
        pairs = [(topic, start + content) for content in contents]
        if endpoint is None:
            self._order(CommandPairs(pairs))
        else:
            self._order(partial(self.core.commands_for, endpoint, pairs))

    def send_to(
        self,
        node_id: bytes,
        messages: Sequence[tuple[str, Any]],
        kind: PackedType = PackedType.DATA,
    ) -> None:
        """Send values to the receivers of one node, and no other; in order with all others."""
        pairs = self._entering(messages)
        if node_id == self.runtime.node_id:
            self._order(partial(self.core.deliver_here, kind, pairs))
        else:
            self._order(partial(self.core.send_to, node_id, kind, pairs))

    def has_hub(self, node_id: bytes) -> bool:
        """Return whether another node is in reach and takes part in topics."""
        return node_id in self._hubs

    def hand_to(self, node_id: bytes, topic: str, contents: Sequence[bytes]) -> None:
        """Send contents, which are plain CBOR, to the receivers of commands of one node."""
        start = cbor2.dumps(topic)
        pairs = [(topic, start + content) for content in contents]
        self._order(partial(self.core.send_to, node_id, PackedType.COMMAND, pairs))

    def deliver_here(self, topic: str, value: Any) -> None:
        """Hand a value to the receivers of this endpoint, and to nobody else."""
        pair = (topic, encode_pair(topic, value))
        self._order(partial(self.core.deliver_here, PackedType.DATA, (pair,)))

    def ingest(self, messages: Sequence[tuple[str, Any]], bringer: object) -> None:
        """Publish what a door brings from outside, in this order; see `publish_batch`.

        Receivers of this node get it as well, as they get what other nodes publish: all but
        `bringer`.
        """
        self._bring(Ingested(self._entering(messages), bringer))

    def ingest_encoded(
        self, messages: Sequence[tuple[str, bytes]], bringer: object, ttl: int | None = None
    ) -> None:
        """Publish what a door brings whose values are CBOR of the model already.

        From any thread, and without waiting for room: see `has_room` and `room_listeners`.

        Args:
            messages: topics, and values as `data_to_cbor` or a transcoder of a door gives them.
            bringer: the door's receiver, which does not get them.
            ttl: links that they may still cross, where their wire says so.

        Raises:
            InvalidTopic: a topic is too long, or has no UTF-8 form; nothing was published.
        """
        pairs = [pair_of(topic, content) for topic, content in messages]
        self._bring(Ingested(pairs, bringer, ttl))

    def _bring(self, brought: Ingested) -> None:
        """Let messages of a door wait for the core."""
        with self._room_lock:
            self._brought += len(brought.pairs)
        self._order(brought)

    def watch_wishes(self, bringer: object, told: WishListener) -> Callable[[], None]:
        """Tell a door what to bring in, now and whenever that changes; returns how to stop.

        Args:
            bringer: the door's receiver, whose own subscriptions are no wishes.
            told: gets the shortest prefixes, sorted (see `Core.wishes`); on the node's thread,
                and only when they differ from the last ones.
        """
        self.call_soon(self._wishes.begin, bringer, told)
        return partial(self.call_soon, self._wishes.end, bringer)

    def _order(self, order: CoreOrder) -> None:
        """Let an order wait for the core among the data that was published."""
        self.inputs.append(order)
        self.wake()

    def wake(self) -> None:
        """Let the core take what waits, in its next turn."""
        if not self.wake_pending:
            self.wake_pending = True
            self._post(self._flush)

    def wants(self, topic: str) -> bool:
        """Return whether a local receiver takes data of a topic; on the node's thread."""
        return self.core.is_taken(topic)

    def make_object(self) -> int:
        """Return a number that no other object of this endpoint has."""
        return next(self._objects)

    # --- looked at ---

    def topic_rows(self, _which: str, permits: Rights | None) -> list[Row]:
        """Tell of the topics that are subscribed to or published here; on the node's thread.

        What is published is counted by topic from the first look on, until nobody looks.
        """
        now, subscribed = self._now(), self.core.subscriptions()
        if self._counted_until < now:
            self._traffic.clear()
            self.core.count_topics(self._traffic)
            self.runtime.call_later(SCAN_LIMIT, self._stop_counting)
        self._counted_until = now + SCAN_LIMIT
        return [
            {
                "topic": topic,
                "subscribers": subscribed.get(topic, 0),
                "elsewhere": self.core.wanting(topic),
                "published": self._traffic.get(topic, 0),
            }
            for topic in {**subscribed, **self._traffic}
            if permits is None or permits.permit_topic("subscribe", topic)
        ]

    def _stop_counting(self) -> None:
        left = self._counted_until - self._now()
        if left > 0.0:
            self.runtime.call_later(left, self._stop_counting)
        else:
            self._counted_until = 0.0
            self.core.count_topics(None)

    def peer_rows(self, _which: str, permits: Rights | None) -> list[Row]:
        """Tell of the other endpoints and what waits for them; on the node's thread."""
        waiting = {link.peer: link.waiting for link in self.overlay.links()}
        return [
            {
                "peer": "" if endpoint is None else str(uuid.UUID(bytes=endpoint)),
                "wire": "native",
                "node_id": node.hex(),
                "address": "" if address is None else f"{address[0]}:{address[1]}",
                "status": "peered" if is_introduced else "connected",
                "buffered": len(self._buffers[node]) if node in self._buffers else 0,
                "waiting_bytes": waiting.get(node, 0),
            }
            for node, endpoint, address, is_introduced in self.core.peers()
            if permits is None
        ] + [
            {
                "peer": each.name,
                "wire": each.wire,
                "node_id": "",
                "address": f"{each.address[0]}:{each.address[1]}",
                "status": "peered" if each.is_linked else "connecting",
                "buffered": 0,
                "waiting_bytes": each.waiting,
            }
            for each in self.overlay.foreign.peers()
            if permits is None
        ]

    # --- back-pressure ---

    def _wait_for_room(self) -> None:
        """Let a thread outside of the node wait until there is room."""
        if self.runtime.is_runner_thread() or self.runtime.is_closed:
            return  # a handler never waits; its node goes on when it returns
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = (
                f"{len(self.inputs):,} messages wait to be sent, and publish() would block "
                "the event loop; await apublish(…) instead"
            )
            raise WouldBlock(msg)
        with suppress(ResultTimeout, WouldDeadlock):  # inside a call it goes on, as a handler
            self.room().result(WAIT_FOR_TURN)

    def has_room(self) -> bool:
        """Return whether a message that is published goes on without waiting."""
        return not self.is_congested and len(self.inputs) + self._brought < INPUT_LIMIT

    def room(self) -> Future[None]:
        """Return a future that is done when there is room; at once, if there is."""
        future: Future[None] = Future()
        self._room_awaited.append(future)
        if self.has_room():
            self._release_waiters()
        return self.runtime.shutdown.guard(future)

    def _release_waiters(self) -> None:
        """Wake everyone waiting for room."""
        with suppress(IndexError):  # another thread may wake them at the same time
            while True:
                self._room_awaited.popleft().set_result(None)

    def set_congested(self, is_congested: bool, by: object = None) -> None:  # noqa: FBT001
        """Let threads that publish wait, or go on; on the node's thread.

        Args:
            is_congested: whether they have to wait.
            by: for whom: a receiver that is behind, or (None) peers that read more slowly
                than threads here write.
        """
        (self._congested_by.add if is_congested else self._congested_by.discard)(by)
        is_congested = bool(self._congested_by)
        if self.is_congested != is_congested:
            self.is_congested = is_congested
            if not is_congested:
                self._release_waiters()
            for listener in self.room_listeners:
                listener(not is_congested)

    def hold(self, receiver: object, sender: bytes, seconds: float) -> None:
        """Slow publishers: a receiver is behind. On the node's thread.

        Threads of this node that publish wait until `relax`. From other nodes nothing is
        read for a while on the link towards the sender, so what comes waits in TCP, and then
        makes the threads that publish there wait.

        Args:
            receiver: who is behind.
            sender: the node that sent what came last.
            seconds: below half a second, so that heartbeats are heard in time.
        """
        self.set_congested(is_congested=True, by=receiver)
        self.overlay.pause_reading(sender, seconds)

    def relax(self, receiver: object) -> None:
        """Let threads that publish go on: a receiver caught up. From any thread."""
        self.call_soon(self.set_congested, False, receiver)  # noqa: FBT003

    # --- receivers, peers and what they say, from any thread ---

    def add_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str],
        *,
        kind: PackedType = PackedType.DATA,
        sees_own: bool = False,
    ) -> Future[None]:
        """Let a receiver take messages of these topics (more of them, when it is there).

        The future is done when the core knows; other nodes are told in the same moment.
        `sees_own`: also what this node itself publishes.
        """
        checked = tuple(map(checked_topic, topics))
        add = partial(self.core.subscribe, receiver, checked, kind=kind, sees_own=sees_own)

        def begin() -> None:
            self._carry_out(add(now=self._now()))
            if self._awaited:  # a door's receiver has the filter of a peer
                self._look_for_awaited()

        return self.me.ask(CallBack(begin))

    def remove_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str] | None = None,
        *,
        kind: PackedType = PackedType.DATA,
    ) -> Future[None]:
        """Take topics from a receiver, or (None) all of them."""
        checked = None if topics is None else tuple(map(checked_topic, topics))

        remove = partial(self.core.unsubscribe, receiver, checked, kind=kind)
        return self.me.ask(CallBack(lambda: self._carry_out(remove(now=self._now()))))

    def note_change(self) -> None:
        """Look again at what is waited for: a way out has heard what is wanted there."""
        self.call_soon(self._look_for_awaited)

    def add_way_out(self, way_out: Egress) -> Future[Any]:
        """Let a way out take what is published here; done when the core knows."""
        return self.me.ask(CallBack(partial(self.core.ways_out.setdefault, way_out)))

    def remove_way_out(self, way_out: Egress) -> Future[Any]:
        """Give it nothing any more."""
        return self.me.ask(CallBack(partial(self.core.ways_out.pop, way_out, None)))

    def peer(self, address: Address, retry: float) -> Future[bool]:
        """Peer with the node that listens at an address.

        The future gets True when both endpoints have the filter of the other; False when the
        one attempt failed (`retry` 0) or the peer was removed meanwhile.

        Args:
            address: host and port.
            retry: seconds between attempts at most; 0 tries once, and not again when lost.
        """
        return self._begin(self._dial, address, retry)

    def unpeer(self, address: Address) -> Future[bool]:
        """Dial an address no more and end its link; done when peer events told of it."""
        return self._begin(self._unlink, address)

    def until(self, condition: Condition, timeout: float) -> Future[bool]:
        """Return a future that is True when a condition is, False after `timeout` seconds.

        The condition is looked at on the node's thread, whenever peers or filters change.
        """
        return self._begin(self._await, condition, seconds(timeout))

    def _begin(self, order: Callable[..., object], *args: Any) -> Future[bool]:
        """Let the hub carry out an order in a turn, which gets the future of its outcome."""
        done: Future[bool] = Future()
        self._orders.add(done)
        done.on_done(lambda _: self._orders.discard(done))
        self.call_soon(order, *args, done)
        if self._down is None:  # once for all: those that are told of an end are not forgotten
            self._down = self.node.monitor(self.me)
            self._down.on_done(self._fail_orders)
        elif self._down.done():
            self._fail_orders(self._down)
        return self.runtime.shutdown.guard(done)

    def _fail_orders(self, ended: Future[Down]) -> None:
        """Fail the orders that an actor which has ended will never carry out."""
        if ended.exception() is not None:
            return  # the node was closed, which all of them are told
        reason = str(ended.result().reason)
        for done in list(self._orders):
            done.set_exception(ActorDown(f"the topics of {self.name} have ended", reason))

    def flushed(self, timeout: float) -> None:
        """Wait until the core has taken everything that was published before."""
        if not self.runtime.is_runner_thread() and not self.runtime.is_closed:
            self.until(self._has_sent_all, timeout).result()

    def _has_sent_all(self, core: Core) -> bool:
        """Return whether nothing that was published waits here, but for slow peers."""
        return not self.inputs and not core.catch_up.pending

    def receivers_of(self, topic: str) -> Future[tuple[bytes, ...]]:
        """Return the nodes to which a message with this topic would be sent.

        Their filters are known here. The answer comes behind all that was published before.
        """
        checked = checked_topic(topic)

        def find() -> tuple[bytes, ...] | None:
            while self.inputs:
                self._take_inputs()
            if not self.core.catch_up.pending:
                return self.core.receivers_of(checked)
            promise, is_sent = self.promise(), Future[bool]()
            is_sent.add_done_callback(
                lambda _: self.call_soon(
                    lambda: promise.set_result(self.core.receivers_of(checked))
                )
            )
            self._await(lambda core: not core.catch_up.pending, SETTLE_LIMIT, is_sent)
            return None

        return self.me.ask(CallBack(find))

    @property
    def buffered(self) -> int:
        """Messages of users that wait for the core's turn, or for a peer that reads slowly."""
        return len(self.inputs) + self.waiting_for_peers

    @property
    def waiting_for_peers(self) -> int:
        """Messages that wait because a peer reads too slowly."""
        return sum(buffer.waiting for buffer in list(self._buffers.values()))

    def on_peer_event(self, listener: Callable[[PeerEvent], object]) -> None:
        """Call `listener(event)` for each `PeerEvent`, on the node's thread."""
        self._listeners.append(listener)

    def off_peer_event(self, listener: Callable[[PeerEvent], object]) -> None:
        """Stop calling it."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    # --- the actor's turns ---

    def _take_inputs(self) -> None:
        """Take what waits, as runs of one kind."""
        self.wake_pending = False
        self.core.now = self._now()
        inputs = self.inputs
        count = min(len(inputs), TURN_LENGTH)
        take = inputs.popleft
        is_brought = self._brought > 0
        taken = self._take_share(count) if is_brought else [take() for _ in range(count)]
        for effects in self.core.take_inputs(taken):
            self._carry_out(effects)
        if inputs:
            self.wake()
        elif self._awaited:
            self._look_for_awaited()
        if (count == TURN_LENGTH or is_brought) and self.has_room():
            self._release_waiters()

    def _take_share(self, count: int) -> list[Pair | CoreOrder]:
        """Take what one turn has time for, where doors bring messages in."""
        take, brought = self.inputs.popleft, 0
        taken: list[Pair | CoreOrder] = []
        while len(taken) < count and brought < BROUGHT_IN_TURN:
            entry = take()
            taken.append(entry)
            if isinstance(entry, Ingested):
                brought += len(entry.pairs)
        with self._room_lock:
            self._brought -= brought
        return taken

    @handler
    def receive(self, run: bytes) -> None:
        """Take a run of another hub; one that cannot be read is counted and dropped."""
        teller = self.context.sender
        if not isinstance(teller, RemoteTeller):
            return
        node = teller.node
        rights = self.overlay.rights(node)
        if rights is not None and not rights.has_topics:
            self.overlay.refused(node, "publish", "")
            return
        with self.core_lock:
            if node not in self._hubs:
                self._hub_found(node)
            try:
                effects = self.core.receive(node, run, self._now())
            except MalformedMessage as error:
                if rights is None:
                    _LOG.warning("node %s sent what is not a message: %s", node.hex(), error)
                else:  # which bounds how often that is told
                    self.overlay.refused(node, "publish", str(error))
                return
            self._carry_out(effects)
            if self._awaited:  # a confirmation of our filter has no own effect
                self._look_for_awaited()

    @handler
    def call_back(self, order: CallBack) -> Any:
        """Do what a thread, a timer or a future wants done with the core."""
        with self.core_lock:
            return order.function()

    @handler
    def hub_lost(self, down: Down) -> None:
        """Another hub ended, or no path leads to it."""
        if self.has_sender:
            return
        node = down.ref.node_id
        with self.core_lock:
            if self._hubs.pop(node, None) is not None:
                text = down.detail or str(down.reason)
                self._carry_out(self.core.endpoint_lost(node, text))

    @handler
    def node_event(self, event: NodeUp | NodeDown | LinkUp | LinkDown | PathMoved) -> None:
        """Something changed about links or nodes."""
        with self.core_lock:
            match event:
                case NodeUp():
                    self.core.node_reached(event.node_id, self._now())
                    self._look_for_hub(event.node_id)
                case NodeDown():
                    self.core.node_lost(event.node_id)
                case LinkUp():
                    self._link_up(event.peer)
                case LinkDown():
                    by_user = event.peer in self._removed
                    self._removed.discard(event.peer)
                    self._drop_buffer(event.peer)
                    lost = self.core.link_lost(event.peer, event.reason, by_user=by_user)
                    self._carry_out(lost)
                case PathMoved():
                    self.core.path_moved()
                    # It may have had no path when this core began: it is not told to be up.
                    self._look_for_hub(event.node_id)

    def _note_event(self, event: object) -> None:
        """Hear of events of the node, on the thread where they happen."""
        if isinstance(event, NodeUp | NodeDown | LinkUp | LinkDown | PathMoved):
            self._post(event)
        elif isinstance(event, ForeignLinkUp | ForeignLinkDown | ForeignDialFailed):
            self.call_soon(self._foreign_event, event)

    def _foreign_event(
        self, event: ForeignLinkUp | ForeignLinkDown | ForeignDialFailed
    ) -> None:
        """Tell status subscribers of a peer on a foreign wire."""
        peered = None if isinstance(event, ForeignDialFailed) else event.endpoint
        known: bytes | None = peered or foreign_id(event.wire, event.address)
        kind: SC | EC
        match event:
            case ForeignLinkUp():
                kind, text = SC.PeerAdded, f"handshake successful ({event.name})"
            case ForeignLinkDown():
                kind = SC.PeerRemoved if event.is_wanted else SC.PeerLost
                text = event.reason
            case _:
                kind, known, text = EC.PeerUnavailable, None, event.reason
        events = [PeerEvent(kind, known, event.address, text, wire=event.wire)]
        if peered is not None:  # an endpoint: Broker tells of paths to these as well
            is_up = kind is SC.PeerAdded
            path = SC.EndpointDiscovered if is_up else SC.EndpointUnreachable
            about = PeerEvent(path, peered, None, text, is_direct=True, wire=event.wire)
            events.insert(0 if is_up else 1, about)
        self._carry_out(events)

    def _tick(self) -> None:
        """Repeat what was not confirmed, and ask again where nobody answered."""
        self._carry_out(self.core.tick(self._now()))
        if self._awaited:
            self._look_for_awaited()
        unanswered = sorted({*self._unanswered})
        self._unanswered.clear()
        for node in unanswered:
            self._look_for_hub(node)
        self.after(TICK_INTERVAL, CallBack(self._tick))

    # --- hubs of other nodes ---

    def _look_for_hub(self, node: bytes) -> None:
        """Ask a node's directory whether it has a hub: most nodes need not have one."""
        rights = self.overlay.rights(node)
        if node in self._hubs or not self.overlay.path(node):
            return
        if rights is not None and not rights.has_topics:
            return

        def answered(future: Future[Any]) -> None:
            if isinstance(future.exception(), NotPermitted):
                return  # a leaf of this node or of another, and topics are not for it
            if future.exception() is not None:  # lost with a path that broke
                self.call_soon(self._unanswered.append, node)
            elif isinstance(future.result(), ActorRef):
                self.call_soon(self._hub_found, future.result().node_id)

        directory = self.runtime.ref_of(node, DIRECTORY)
        directory.ask(Lookup(CORE_NAME), timeout=ANSWER_LIMIT).add_done_callback(answered)

    def _hub_found(self, node: bytes) -> None:
        """Take another hub into the endpoints that are in reach."""
        if node not in self._hubs:
            self._hubs[node] = self.runtime.ref_of(node, CORE_ACTOR)
            self.monitor(self._hubs[node])
            self._carry_out(self.core.endpoint_found(node, self._now()))

    # --- wishes about peers: dials are the node's, here stands what became of them ---

    def _dial(self, address: Address, retry: float, done: Future[bool]) -> None:
        """Let the node dial an address."""
        failed = partial(self.call_soon, self._dial_failed, address)

        def ended(dial: Future[Dial]) -> None:
            error = dial.exception()
            if isinstance(error, LinkError) and not retry:
                _LOG.warning("%s", error)  # dials that go on tell of it themselves
            peer = None if error is not None else dial.result().peer
            self.call_soon(self._dial_ended, peer, done)

        self.overlay.dial(address, retry=retry, on_failure=failed).add_done_callback(ended)

    def _dial_failed(self, address: Address, reason: str) -> None:
        """Tell status subscribers that an attempt failed."""
        self._carry_out([PeerEvent(EC.PeerUnavailable, None, address, reason)])

    def _dial_ended(self, peer: bytes | None, done: Future[bool]) -> None:
        """There is a link to the node `peer`, or (None) nobody dials any more."""
        if peer is None:
            done.set_result(False)
        else:
            self._await(lambda core: core.is_introduced(peer), INTRODUCTION_LIMIT, done)

    def _unlink(self, address: Address, done: Future[bool]) -> None:
        """Dial an address no more, end its link; `done` when status subscribers were told."""
        try:
            peer = self.overlay.unlink(address)
        except LookupError:
            text = f"no peer at {address[0]}:{address[1]}"
            self._carry_out([PeerEvent(EC.PeerInvalid, None, address, text)])
        else:
            if peer is not None:
                self._removed.add(peer)
        # The end of the link is in the mailbox already, if there is one: this comes behind it.
        self.call_soon(done.set_result, True)  # noqa: FBT003

    def _await(self, condition: Condition, timeout: float, done: Future[bool]) -> None:
        """Wait until something is true of the core; `done` gets False after `timeout`."""
        if condition(self.core):
            done.set_result(True)
        elif timeout <= 0.0:
            done.set_result(False)
        else:
            self._awaited.append((condition, done))
            self.runtime.call_later(timeout, done.set_result, False)  # noqa: FBT003

    def _look_for_awaited(self) -> None:
        """Look at all conditions again: something changed."""
        awaited, self._awaited = self._awaited, []
        for condition, done in awaited:
            if condition(self.core):
                done.set_result(True)
            elif not done.done():
                self._awaited.append((condition, done))

    # --- effects ---

    def _carry_out(self, effects: Sequence[CoreEffect]) -> None:
        """Do what the core wants done, in its order."""
        is_changed = False
        for effect in effects:
            if isinstance(effect, DeliverItems):
                receiver = effect.receiver
                if isinstance(receiver, RunReceiver):
                    sender = effect.sender or self.runtime.node_id
                    receiver.take_from(sender, effect.items, effect.size)
                else:
                    receiver.take(effect.items)  # type: ignore[attr-defined]
            elif isinstance(effect, TransmitRun):
                self._transmit(effect)
            elif isinstance(effect, RefusedHere):
                right = "stores" if effect.right in ("read", "write") else effect.right
                self.overlay.refused(effect.node, right, effect.name[:NAME_SHOWN])
            elif isinstance(effect, RefusedThere):
                self._note_refusal(effect)
            else:
                is_changed = True
                self._note(effect)
        if is_changed:
            self._look_for_awaited()

    def _note(self, effect: CoreEffect) -> None:
        """Tell of a change among peers, filters or wishes."""
        if isinstance(effect, PeerEvent):
            for listener in self._listeners:
                listener(effect)
        elif isinstance(effect, WishesChanged):
            self._wishes.changed()

    def refuse(self, node: bytes, level: str, store: str) -> None:
        """Tell a leaf that it may not read or write a store; on the node's thread."""
        self._order(partial(self.core.refuse, node, [(level, store)]))

    def _note_refusal(self, refusal: RefusedThere) -> None:
        """Tell whoever waits for it, and once the log, what another node does not let us do."""
        known, told = self.refusals, (refusal.right, refusal.name)
        if told not in known and len(known) < REFUSALS_KEPT:
            known[told] = refusal
            text = "node %s refuses this one the right %s for %r"
            _LOG.warning(text, refusal.node.hex(), refusal.right, refusal.name[:NAME_SHOWN])
        for listener in list(self.refusal_listeners):
            listener(refusal)

    # --- runs for other nodes: sent, or kept until a peer that reads slowly has room ---

    def _is_free(self, node: bytes) -> bool:
        """Return whether a link leads to a node and nothing has to wait for it."""
        return not self._buffers and self.overlay.takes_at_once(node, LINK_ROOM)

    def _transmit(self, run: TransmitRun) -> None:
        """Send a run with the next write of its link, or let it wait until there is room."""
        hub = self._hubs.get(run.node)
        if hub is None:
            return
        link = self.overlay.link_towards(run.node)
        if link is not None and (link.waiting >= LINK_ROOM or link.peer in self._buffers):
            self._keep(link.peer, run)
        else:
            hub.target.post(run.payload, self.context)

    def _keep(self, peer: bytes, run: TransmitRun) -> None:
        """Let a run wait until its link has room."""
        now = self._now()
        buffer = self._buffers.get(peer)
        if buffer is None:
            buffer = PeerBuffer(self.options.peer_buffer_size, self._overflow_policy)
            self._buffers[peer] = buffer
        dropped = buffer.dropped
        if not buffer.offer(run, now):
            self.overlay.cut(peer, "too much waits for it, and it does not read")
        self._note_dropped(peer, buffer.dropped - dropped)
        if not buffer.is_stuck(now):
            self.set_congested(is_congested=True)
        if not self._is_draining:
            self._is_draining = True
            self.after(DRAIN_INTERVAL, CallBack(self._drain))

    def _drain(self) -> None:
        """Send on what waited, as far as links have room; look again while they have not."""
        now = self._now()
        links = {link.peer: link for link in self.overlay.links()}
        is_congested = False
        for peer, buffer in list(self._buffers.items()):
            link = links.get(peer)
            if link is None:
                self._drop_buffer(peer)
                continue
            for run in buffer.take(link.waiting, link.bytes_sent, now):
                hub = self._hubs.get(run.node)
                if hub is not None:
                    hub.target.post(run.payload, self.context)
            if not len(buffer):
                del self._buffers[peer]
            elif not buffer.is_stuck(now):
                is_congested = True
        self._is_draining = bool(self._buffers)
        if self._is_draining:
            self.after(DRAIN_INTERVAL, CallBack(self._drain))
        self.set_congested(is_congested)

    def _drop_buffer(self, peer: bytes) -> None:
        """Drop what waits for a link that ended."""
        buffer = self._buffers.pop(peer, None)
        if buffer is not None:
            self._note_dropped(peer, buffer.drop_all())

    def _note_dropped(self, peer: bytes, count: int) -> None:
        """Count messages that were dropped, and tell of them."""
        if count:
            self.counters.dropped += count
            self.runtime.report(Undelivered(peer, count, str(self._overflow_policy)))


_MAKING: Final = locks.lock("making of hubs", 400, runs_users=True)
