"""The hub of a node: the core of its endpoint, run as an actor that threads may call.

    publish ──> inputs ──> core ──> hubs of other nodes     (serialized by the publisher)
    hubs of other nodes ──> core ──> receivers here         (decoded once)

A node has at most one hub, the actor with the number 1; `Hub.of(node)` creates it. Threads and
other packages call methods of the hub and its parts; these post their work to the actor, and
the core is used in the actor's turns. A run for another node goes to that node's hub as an
ordinary dispatch. Runs of other hubs arrive as byte strings, and events of the node as
messages.

A thread outside of the node that publishes while the core is idle calls the core itself, see
`TopicPublishing`. Therefore the core has a lock. Handlers hold the lock for their whole turn. A
publishing thread only tries to acquire it; if it cannot, the message waits for the next turn.
Messages of a thread stay in order, because a message is sent at once only while the input queue
is empty.

| part | subject |
|---|---|
| `inputs` | queue of published messages and orders, back-pressure |
| `publishing` | publishing from any thread |
| `transmitter` | runs for other nodes, buffers of slow peers |
| `waits` | threads that wait for orders and conditions |
| `peerings` | peerings requested by users |
| `refusals` | rights that other endpoints refuse |
"""

import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from callboard import locks
from callboard.bounded_queue import Overflow
from callboard.figures import Metric
from callboard.kernel import errors
from callboard.kernel.access import CORE_NAME
from callboard.kernel.actors import ActorRef, Down, handler
from callboard.kernel.context import CallBack, SystemActor
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
from callboard.kernel.topology import CORE_ACTOR
from callboard.model.errors import MalformedMessage
from callboard.node import Node
from callboard.support.aliases import former_method
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers
from callboard.topics.core_waits import CoreWaits
from callboard.topics.input_queue import InputQueue
from callboard.topics.interest import Interest, InterestListener
from callboard.topics.machine.catch_up import ANSWER_SECONDS
from callboard.topics.machine.core import DEFAULT_TTL, Core
from callboard.topics.machine.effect import (
    CoreEffect,
    DeliverItems,
    Egress,
    InterestChanged,
    PeerEvent,
    Receiver,
    RefusedHere,
    RefusedThere,
    RunReceiver,
    TransmitRun,
)
from callboard.topics.machine.peer_buffer import PEER_POLICIES, PeerBuffer
from callboard.topics.machine.run import PackedType
from callboard.topics.machine.status import EC, SC, foreign_id
from callboard.topics.machine.topic import checked_topic
from callboard.topics.peerings import Peerings
from callboard.topics.publishing import TopicPublishing
from callboard.topics.refusals import NAME_SHOWN, Refusals
from callboard.topics.remote_hubs import RemoteHubs
from callboard.topics.run_transmitter import RunTransmitter
from callboard.topics.topic_tables import TopicTables

_log: Final = logging.getLogger("callboard.topics")

#: Seconds between checks for unconfirmed filters and unanswered questions.
TICK_INTERVAL: Final = 1.0

#: Maximum number of seconds for which values are held for a receiver: see `CatchUp`.
SETTLE_LIMIT: Final = ANSWER_SECONDS + 2 * TICK_INTERVAL


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Options of a node's endpoint.

    Attributes:
        endpoint_id: 16 bytes; a random UUID by default.
        ttl: maximum number of links that messages cross.
        forwards: whether this node forwards messages between other endpoints.
        peer_buffer_size: maximum number of messages that wait for a peer that does not read.
        overflow_policy: policy above that: `disconnect`, `drop_newest` or `drop_oldest`.
    """

    endpoint_id: bytes | None = None
    ttl: int = DEFAULT_TTL
    forwards: bool = True
    peer_buffer_size: int = 2048
    overflow_policy: str = "disconnect"

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.overflow_policy not in PEER_POLICIES:
            choices = ", ".join(PEER_POLICIES)
            msg = f"overflow_policy={self.overflow_policy!r}: choose one of {choices}"
            raise errors.WrongValue(msg)


class Hub(SystemActor):
    """A node's access to topics: publishing, receivers, peers."""

    #: Slots, because each publish and each run reads these; see `Runtime`.
    __slots__ = (
        "_now", "core", "core_lock", "inputs", "publish", "publish_batch",
        "transmitter", "waits",
    )  # fmt: skip

    #: `TopicPublishing.publish` and `TopicPublishing.publish_batch`.
    publish: Callable[[str, Any], None]
    publish_batch: Callable[..., None]

    def __init__(self, options: HubOptions) -> None:
        """Create the hub of a node; other code calls `Hub.of` instead."""
        node: Node = self.node
        self.options = options
        self.endpoint_id = options.endpoint_id or self._new_id()
        #: Name in metrics and the status.
        self.name = node.name
        #: Open subscribers and publishers of this node, for metrics.
        self.subscribers: WeakSet[Any] = WeakSet()
        self.publishers: WeakSet[Any] = WeakSet()
        #: Sources of metrics of other parts of this node, such as stores; called from
        #: any thread.
        self.meters: list[Callable[[], list[Metric]]] = []
        #: Sources of metrics of other nodes, shown together with our own.
        self.metric_sources: list[Callable[[], list[Metric]]] = []
        #: Names that are in use on this node; guarded by `lock`.
        self.claims: set[str] = set()
        self.lock = locks.lock("publishing of a hub", 422)
        #: Subscriptions of actors with `@topic`, by the ref and the handler's message class.
        self.by_handler: dict[tuple[ActorRef, type], object] = {}
        #: Sessions with endpoints of foreign software, by their ids: one for each.
        self.foreign_sessions: dict[bytes, Any] = {}
        self._objects = itertools.count(1)
        self._now = self.runtime.now
        self.overlay = node.overlay
        self.core = self._make_core(options)
        self.counters = self.core.counters
        #: Held by the thread that uses the core.
        self.core_lock = locks.lock("core of a hub", 420, runs_users=True)
        flush, post = CallBack(self._process_inputs), self.context.post
        self.inputs = InputQueue(self.runtime, partial(post, flush))
        self.waits = CoreWaits(self, self.core)
        self._hubs = RemoteHubs(self, self._hub_found)
        make_buffer = partial(
            PeerBuffer, options.peer_buffer_size, Overflow(options.overflow_policy)
        )
        self.transmitter = RunTransmitter(
            self, self._hubs.refs, self.counters, make_buffer, self.inputs.set_congested
        )
        self.publishing = TopicPublishing(
            self, self.core, self.core_lock, self.inputs, self.transmitter
        )
        self.publish = self.publishing.publish
        self.publish_batch = self.publishing.publish_batch
        self.peerings = Peerings(self, self.waits, self._perform)
        self.refusals = Refusals()
        self._listeners: list[Callable[[PeerEvent], object]] = []
        self._interest = Interest(self.core, self._after)
        self._stop_listening = self.overlay.listen(self._on_event)
        node.register(CORE_NAME, self.me)
        TopicTables(self, self.core, self.transmitter.runs_for)
        self._add_present(node)
        self.after(TICK_INTERVAL, CallBack(self._tick))

    def _new_id(self) -> bytes:
        """Return a new id, which in a simulation comes from its seed."""
        return uuid.UUID(bytes=self.runtime.random.randbytes(16), version=4).bytes

    def _make_core(self, options: HubOptions) -> Core:
        """Create the core of the endpoint from its options."""
        return Core(
            self.endpoint_id,
            path_of=self.overlay.path,
            ttl=options.ttl,
            forwards=options.forwards,
            rights=self.overlay.leaves,
        )

    def _after(self, delay: float, function: Callable[[], object]) -> None:
        """Call a function in a turn of the hub, after a time in seconds."""
        self.after(delay, CallBack(function))

    def _add_present(self, node: Node) -> None:
        """Add the nodes and links that exist before this hub."""
        for other in node.overlay.nodes():
            self.core.node_reached(other, self._now())
            self._hubs.find_hub(other)
        for link in node.links():
            self._link_up(link.peer)

    @classmethod
    def of(cls, node: Node, options: HubOptions | None = None) -> "Hub":
        """Return the hub of a node; the first call creates it, with these options."""
        with _MAKING:
            hub = cls._present(node)
            if hub is None:
                node.context.start_actor(cls, (options or HubOptions(),), number=CORE_ACTOR)
                hub = cls._present(node)
                assert hub is not None
            return hub

    @classmethod
    def found(cls, node: Node) -> "Hub | None":
        """Return the hub of a node, if it has one; never creates one."""
        with _MAKING:
            return cls._present(node)

    @staticmethod
    def _present(node: Node) -> "Hub | None":
        context = node.context.contexts.get(CORE_ACTOR)
        hub: Hub | None = None if context is None else context.actor
        return hub

    # --- messages of adapters and queries, from any thread ---

    def offer(
        self,
        messages: Sequence[tuple[str, Any]],
        *,
        whole: bool = False,
        origins: frozenset[object] = frozenset(),
    ) -> list[int]:
        """Publish the messages that have a receiver; see `TopicPublishing.offer`."""
        return self.publishing.offer(messages, whole=whole, origins=origins)

    def ingest(self, messages: Sequence[tuple[str, Any]], origin: object) -> None:
        """Publish messages from outside; see `TopicPublishing.ingest`."""
        self.publishing.ingest(messages, origin)

    def has_room(self) -> bool:
        """Return whether a message can be published without waiting."""
        return self.inputs.has_room()

    def hold(self, receiver: object, sender: bytes, seconds: float) -> None:
        """Slow down publishers, because a receiver is too slow. Must run on the node's thread.

        Publishing threads of this node wait until `relax`. For a time, the link towards
        `sender` is not read, so that its data waits in TCP, and then the publishing threads on
        that node wait.

        Args:
            receiver: the slow receiver.
            sender: the node that sent the last run.
            seconds: the time; less than half a second, so that heartbeats are read in time.
        """
        self.inputs.set_congested(True, receiver)  # noqa: FBT003
        self.overlay.pause_reading(sender, seconds)

    def relax(self, receiver: object) -> None:
        """Stop slowing down publishers for a receiver. Can be called from any thread."""
        self.call_soon(self.inputs.set_congested, False, receiver)  # noqa: FBT003

    def watch_interest(self, origin: object, on_change: InterestListener) -> Callable[[], None]:
        """Notify an adapter of the topics to subscribe to outside, now and on every change.

        Args:
            origin: the adapter's receiver, whose own subscriptions are left out.
            on_change: called on the node's thread with the shortest prefixes, sorted (see
                `Core.interest`), when they differ from the last call's.

        Returns:
            A function that ends this.
        """
        self.call_soon(self._interest.begin, origin, on_change)
        return partial(self.call_soon, self._interest.end, origin)

    bring_in = former_method("bring_in", "ingest")
    bring_in_encoded = former_method("bring_in_encoded", "publishing.ingest_encoded")
    watch_wishes = former_method("watch_wishes", "watch_interest")

    def wants(self, topic: str) -> bool:
        """Return whether a local receiver is subscribed to a topic; on the node's thread."""
        return self.core.is_taken(topic)

    def new_object_id(self) -> int:
        """Return a number that no other object of this endpoint has."""
        return next(self._objects)

    # --- receivers, from any thread ---

    def add_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str],
        *,
        kind: PackedType = PackedType.DATA,
        sees_own: bool = False,
        publisher: object = None,
    ) -> Future[None]:
        """Subscribe a receiver to topics, in addition to its present ones.

        The future completes when the core has the subscription; at the same time it is sent to
        other nodes. With `sees_own`, the receiver also gets the messages that are published on
        this node. With a `publisher`, it gets those that other publishers on this node publish:
        see `TopicPublishing.publish_as`.
        """
        checked = tuple(map(checked_topic, topics))
        if not sees_own:
            self.publishing.listeners.add(receiver, publisher)
        add = partial(
            self.core.subscribe,
            *(receiver, checked),
            kind=kind,
            sees_own=sees_own,
            publisher=publisher,
        )

        def subscribe() -> None:
            self._perform(add(now=self._now()))
            # The new subscription may be that of a foreign peer, for which a thread waits.
            if self.waits.conditions:
                self.waits.check()

        return self.me.ask(CallBack(subscribe))

    def remove_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str] | None = None,
        *,
        kind: PackedType = PackedType.DATA,
    ) -> Future[None]:
        """Unsubscribe a receiver from topics, by default from all."""
        checked = None if topics is None else tuple(map(checked_topic, topics))
        if topics is None:
            self.publishing.listeners.remove(receiver)
        remove = partial(self.core.unsubscribe, receiver, checked, kind=kind)
        return self.me.ask(CallBack(lambda: self._perform(remove(now=self._now()))))

    def check_conditions(self) -> None:
        """Check conditions again, because the subscriptions beyond an egress have changed."""
        self.call_soon(self.waits.check)

    def add_egress(self, egress: Egress) -> Future[Any]:
        """Send an egress all messages published here; completes when the core has it."""
        return self.me.ask(CallBack(partial(self.core.egresses.setdefault, egress)))

    def remove_egress(self, egress: Egress) -> Future[Any]:
        """Remove an egress."""
        return self.me.ask(CallBack(partial(self.core.egresses.pop, egress, None)))

    def has_hub(self, node_id: bytes) -> bool:
        """Return whether another node is in reach and has a hub."""
        return node_id in self._hubs.refs

    def flushed(self, timeout: float) -> None:
        """Wait until the core has processed all messages published before."""
        if not self.runtime.is_runner_thread() and not self.runtime.is_closed:
            self.waits.until(self._has_sent_all, timeout).result()

    def _has_sent_all(self, core: Core) -> bool:
        """Return whether no published message waits here, except for slow peers."""
        return not self.inputs.entries and not core.catch_up.pending

    def receivers_of(self, topic: str) -> Future[tuple[bytes, ...]]:
        """Return the nodes that would get a message with this topic.

        Only nodes whose filter has arrived on this node count. The answer includes the effects
        of all messages and subscriptions before this call.
        """
        checked = checked_topic(topic)

        def find() -> tuple[bytes, ...] | None:
            while self.inputs.entries:
                self._process_inputs()
            if not self.core.catch_up.pending:
                return self.core.receivers_of(checked)
            promise, is_caught_up = self.promise(), Future[bool]()
            is_caught_up.add_done_callback(
                lambda _: self.call_soon(
                    lambda: promise.set_result(self.core.receivers_of(checked))
                )
            )
            self.waits.add(lambda core: not core.catch_up.pending, SETTLE_LIMIT, is_caught_up)
            return None

        return self.me.ask(CallBack(find))

    @property
    def buffered(self) -> int:
        """Number of messages that wait for the core's turn, or for a slow peer."""
        return len(self.inputs) + self.transmitter.waiting

    def on_peer_event(self, listener: Callable[[PeerEvent], object]) -> None:
        """Call `listener(event)` for each `PeerEvent`, on the node's thread."""
        self._listeners.append(listener)

    def off_peer_event(self, listener: Callable[[PeerEvent], object]) -> None:
        """Stop calling a listener."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    # --- the actor's turns ---

    def _process_inputs(self) -> None:
        """Process the queued messages and orders of one turn."""
        self.core.now = self._now()
        inputs = self.inputs
        for effects in self.core.process_inputs(inputs.pop_turn()):
            self._perform(effects)
        if inputs.entries:
            inputs.wake()
        elif self.waits.conditions:
            self.waits.check()
        inputs.release()

    @handler
    def receive(self, run: bytes) -> None:
        """Process a run of another hub; a malformed one is counted and dropped."""
        sender = self.context.sender
        if sender is None or not sender.node or sender.wants_reply:
            return  # only hubs of other nodes send runs, and they do not ask
        node = sender.node
        rights = self.overlay.rights(node)
        if rights is not None and not rights.has_topics:
            self.overlay.refused(node, "publish", "")
            return
        with self.core_lock:
            if node not in self._hubs.refs:
                self._hub_found(node)
            try:
                effects = self.core.receive(node, run, self._now())
            except MalformedMessage as error:
                if rights is None:
                    _log.warning("node %s sent a malformed message: %s", node.hex(), error)
                else:  # `refused` limits the number of log lines that a leaf can cause
                    self.overlay.refused(node, "publish", str(error))
                return
            self._perform(effects)
            # A confirmed filter may meet a condition, but has no effect.
            if self.waits.conditions:
                self.waits.check()

    @handler
    def call_back(self, order: CallBack) -> Any:
        """Call the function of a thread, a timer or a future, with the core's lock."""
        with self.core_lock:
            return order.function()

    @handler
    def hub_lost(self, down: Down) -> None:
        """Handle another hub that ended or is out of reach."""
        if self.has_sender:
            return  # a `Down` with a sender may be forged
        node = down.ref.node_id
        with self.core_lock:
            if self._hubs.refs.pop(node, None) is not None:
                text = down.detail or str(down.reason)
                self._perform(self.core.endpoint_lost(node, text))

    @handler
    def node_event(self, event: NodeUp | NodeDown | LinkUp | LinkDown | PathMoved) -> None:
        """Handle a change of links or nodes."""
        with self.core_lock:
            match event:
                case NodeUp():
                    self.core.node_reached(event.node_id, self._now())
                    self._hubs.find_hub(event.node_id)
                case NodeDown():
                    self.core.node_lost(event.node_id)
                case LinkUp():
                    self._link_up(event.peer)
                case LinkDown():
                    by_user = self.peerings.was_removed(event.peer)
                    self.transmitter.drop(event.peer)
                    lost = self.core.link_lost(event.peer, event.reason, by_user=by_user)
                    self._perform(lost)
                case PathMoved():
                    self.core.path_moved()
                    # For a node that had no path when this hub started, there is no later
                    # `NodeUp`.
                    self._hubs.find_hub(event.node_id)

    def _link_up(self, peer: bytes) -> None:
        """Handle a link to a node, which may have other rights than the last link."""
        self.refusals.clear()
        address = self.overlay.address(peer)
        self._perform(self.core.link_established(peer, address, self._now()))

    def _hub_found(self, node: bytes) -> None:
        """Handle another hub in reach."""
        ref = self._hubs.add(node)
        if ref is not None:
            self.monitor(ref)
            self._perform(self.core.endpoint_found(node, self._now()))

    def _on_event(self, event: object) -> None:
        """Post an event of the node to this actor. Runs on the thread of the event."""
        if isinstance(event, NodeUp | NodeDown | LinkUp | LinkDown | PathMoved):
            self.post_self(event)
        elif isinstance(event, ForeignLinkUp | ForeignLinkDown | ForeignDialFailed):
            self.call_soon(self._foreign_event, event)

    def _foreign_event(
        self, event: ForeignLinkUp | ForeignLinkDown | ForeignDialFailed
    ) -> None:
        """Report a change of a peer with a foreign protocol to status subscribers."""
        endpoint = None if isinstance(event, ForeignDialFailed) else event.endpoint
        peer: bytes | None = endpoint or foreign_id(event.wire, event.address)
        kind: SC | EC
        match event:
            case ForeignLinkUp():
                kind, text = SC.PeerAdded, f"handshake successful ({event.name})"
            case ForeignLinkDown():
                kind = SC.PeerRemoved if event.is_wanted else SC.PeerLost
                text = event.reason
            case _:
                kind, peer, text = EC.PeerUnavailable, None, event.reason
        events = [PeerEvent(kind, peer, event.address, text, wire=event.wire)]
        if endpoint is not None:  # like Broker, report the path to the endpoint as well
            is_up = kind is SC.PeerAdded
            path = SC.EndpointDiscovered if is_up else SC.EndpointUnreachable
            about = PeerEvent(path, endpoint, None, text, is_direct=True, wire=event.wire)
            events.insert(0 if is_up else 1, about)
        self._perform(events)

    def _tick(self) -> None:
        """Repeat unconfirmed filters and unanswered questions."""
        self._perform(self.core.tick(self._now()))
        if self.waits.conditions:
            self.waits.check()
        self._hubs.tick()
        self.after(TICK_INTERVAL, CallBack(self._tick))

    # --- effects ---

    def _perform(self, effects: Sequence[CoreEffect]) -> None:
        """Perform the effects of the core in their order."""
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
                self.transmitter.send(effect)
            elif isinstance(effect, RefusedHere):
                right = "stores" if effect.right in ("read", "write") else effect.right
                self.overlay.refused(effect.node, right, effect.name[:NAME_SHOWN])
            elif isinstance(effect, RefusedThere):
                self.refusals.record(effect)
            else:
                is_changed = True
                self._notify(effect)
        if is_changed:
            self.waits.check()

    def _notify(self, effect: CoreEffect) -> None:
        """Notify listeners of a change of peers, filters or interest."""
        if isinstance(effect, PeerEvent):
            for listener in self._listeners:
                listener(effect)
        elif isinstance(effect, InterestChanged):
            self._interest.changed()

    def refuse(self, node: bytes, level: str, store: str) -> None:
        """Refuse a leaf to read or write a store; on the node's thread."""
        self.inputs.order(partial(self.core.refuse, node, [(level, store)]))


_MAKING: Final = locks.lock("making of hubs", 400, runs_users=True)
