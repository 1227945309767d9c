"""A connection to a Zeek cluster with the ZeroMQ backend, as one of its nodes or as a guest.

    manager's XPUB ──> XSUB ──> ZeroMqNode ──> Hub.ingest_encoded
    Hub (local publications) ──> ZeroMqNode ──> XPUB ──> manager's XSUB

Both sockets run on the node's thread (`zeromq_socket`); `callboard.zeek.zeromq` encodes and
decodes the traffic. Zeek's manager does not drop messages, so a node that does not read slows
down the whole cluster. Hence this class always reads. Messages for which the hub has no room
wait in a queue, and a full queue drops new messages, as Zeek's does. The other direction works
alike.

One node of an overlay receives for all of them: see `DoorClaim`. Each node publishes over its
own connection. A message that another node of the overlay published is recognized by its
sender and ignored, because it has arrived through the overlay.
"""

import logging
import os
import re
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import zmq

from callboard.arguments import require
from callboard.bounded_queue import BoundedQueue
from callboard.closing import Closing
from callboard.figures import Figure, Metric, figures_of, metrics_of
from callboard.kernel.errors import CallboardError, NodeClosed, NodeUnreachable, ResultTimeout
from callboard.kernel.events import ForeignDialFailed, ForeignLinkDown, ForeignLinkUp
from callboard.kernel.ports import is_loopback
from callboard.kernel.reply import Future
from callboard.kernel.wire import ForeignPeer
from callboard.model.errors import EndpointError, InvalidOption
from callboard.support.redaction import redacted
from callboard.topics.door_claim import DoorClaim, DoorState
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Pair
from callboard.topics.machine.run import content_of
from callboard.topics.machine.topic import Topics, is_reserved, shortest, topic_texts
from callboard.zeek.doors.unwritten import UnwrittenMessages
from callboard.zeek.doors.zeromq_socket import (
    HIGH_WATER,
    LINGER_MS,
    Curve,
    SocketChange,
    ZeroMqSockets,
)
from callboard.zeek.zeromq import BINARY, PARTS, ZeroMqNode

_log: Final = logging.getLogger("callboard.zeek")

#: Queued messages in each direction; Zeek has the same limit.
QUEUE_LIMIT: Final = 10_000

#: Queued bytes in each direction.
WAITING_LIMIT: Final = 64 << 20

#: Messages that one turn of the hub takes from the queue.
BATCH: Final = 100

#: Batches that the hub may have pending; further messages are queued here.
UNDER_WAY: Final = 2

#: Seconds after a link comes up in which unwanted messages are kept: subscribers of the cluster
#: may need that long to subscribe again.
GRACE: Final = 2.0

#: Seconds without a returned subscription after which the two addresses are reported as
#: belonging to different managers.
PATIENCE: Final = 5.0

#: A manager's XPUB port; its XSUB has the next one.
DEFAULT_PORT: Final = 5555

_URL: Final = re.compile(r"zmq://(\[[^/\]]+\]|[^:/\[\]]+)(?::(\d{1,5}))?(?:/(\d{1,5}))?/?")
_ENDPOINT: Final = re.compile(rb"_N([0-9a-f]{32})")


class DoorPlace(Protocol):
    """The owner of an adapter: an `Endpoint`."""

    hub: Hub

    def hold_door(self, door: Closing) -> None:
        """Close the adapter together with the endpoint."""


class ZeroMq(Closing):
    """A link to a Zeek cluster with the ZeroMQ backend; it connects when it is created.

    It subscribes in the cluster to the topics of this node and of all reachable nodes. Messages
    that this endpoint publishes are sent if a node of the cluster subscribes to their topic.

    Attributes:
        id: sender of this node's messages.
        brought: messages received from the cluster.
        taken: messages sent to the cluster.
        unheard: messages without a subscriber in the cluster.
        unwritten: messages that the format cannot express.
        reason: why there is no link, if that is known.
    """

    #: Name of this wire in events and figures.
    kind: Final = "zeromq"

    def __init__(
        self,
        endpoint: DoorPlace,
        subscribe_at: str = "tcp://127.0.0.1:5555",
        publish_at: str = "tcp://127.0.0.1:5556",
        *,
        subscribe: Topics | None = None,
        publish: Topics = "",
        member: str = "",
        form: str = BINARY,
        curve: Curve | None = None,
        queue: int = QUEUE_LIMIT,
        high_water: int = HIGH_WATER,
    ) -> None:
        """Start connecting; `await_subscribed` waits for the result.

        Args:
            endpoint: whose topics are connected; it closes this link when it is closed.
            subscribe_at: the manager's XPUB: `Cluster::Backend::ZeroMQ::listen_xpub_endpoint`.
            publish_at: the manager's XSUB: `listen_xsub_endpoint`.
            subscribe: the only topics to subscribe to in the cluster; by default the current
                subscriptions of the overlay.
            publish: prefixes of the topics that are sent to the cluster; by default all.
            member: name of a cluster node under which to appear; by default the cluster does
                not see this node.
            form: format of sent values, `broker-bin-v1` or `broker-json-v1`; both are read.
            curve: CURVE keys of the cluster.
            queue: messages queued in each direction; new ones are dropped when it is full.
            high_water: ZeroMQ's own limit of messages in each direction.

        Raises:
            InvalidOption: an address, a key, a name or the format is invalid.
            DoorTaken: this node is connected to that manager already.
            NodeClosed: the endpoint was shut down.
            WrongArgument: the endpoint, the keys or the name have a wrong type.
        """
        _check(endpoint, curve, member, queue, high_water)
        hub = endpoint.hub
        self._hub, self._runtime = hub, hub.runtime
        self._runner = hub.node.runner
        self.brought = self.taken = self.unheard = 0
        self._unwritten = UnwrittenMessages(hub, _log)
        self.reason = ""
        self.id = _id_of(hub, member)
        self._fixed = None if subscribe is None else shortest(topic_texts(subscribe))
        self._publish = topic_texts(publish)
        self._node = ZeroMqNode(self.id, self._is_ours, member=member, form=form)
        self._address = address_of(subscribe_at)
        self._incoming = BoundedQueue[list[bytes]](queue, WAITING_LIMIT)
        self._outgoing = BoundedQueue[Pair](queue, WAITING_LIMIT)
        #: Messages without a subscriber, kept until `_grace` ends.
        self._unclaimed: deque[Any] = deque()
        self._grace = 0.0
        self._is_flushing = self._is_draining = self._is_linked = self._is_closed = False
        self._links = self._pending_batches = 0
        self._settled: list[Future[None]] = []
        self._wanted: tuple[str, ...] = self._fixed or ()
        self._claim: DoorClaim | None = None
        self._sockets = ZeroMqSockets(self._runner, curve)
        water: dict[int, int] = {zmq.SNDHWM: high_water, zmq.RCVHWM: high_water}
        shared: dict[str, Any] = {"on_change": self._changed, "frames": PARTS, "begins": False}
        self._sub = self._sockets.connect(
            zmq.XSUB, subscribe_at, self._on_messages, options=water, **shared
        )
        nodrop: dict[int, int] = {zmq.XPUB_NODROP: 1, zmq.XPUB_VERBOSE: 1}
        self._pub = self._sockets.connect(
            zmq.XPUB, publish_at, self._on_subscriptions, options=water | nodrop, **shared
        )
        self._begin(endpoint, subscribe_at)

    def _begin(self, endpoint: DoorPlace, address: str) -> None:
        """Register with the hub and start the sockets."""
        hub = self._hub
        self._unwatch = _nothing
        try:
            endpoint.hold_door(self)
            if self._fixed is None:
                key = peer_key(address)
                self._claim = DoorClaim(
                    hub, key, on_held=self._follow, on_lost=lambda _: self._follow()
                )
        except CallboardError:
            self._is_closed = True
            self._runner.post(self._sockets.close, 0)
            raise
        if self._claim is not None:
            self._unwatch = hub.watch_interest(self, lambda _: self._follow())
        hub.overlay.foreign.sources.append(self)
        hub.on_peer_event(self._forget_senders)
        hub.meters.append(self._metrics)
        hub.add_egress(self)
        hub.call_soon(self._follow)
        for loop_socket in (self._sub, self._pub):
            loop_socket.begin()

    # --- for users, from any thread ---

    @property
    def is_connected(self) -> bool:
        """Whether both sockets are connected and subscriptions come back."""
        return self._is_linked

    @property
    def own(self) -> int:
        """Messages of this node or its overlay that the cluster sent back."""
        return self._node.own

    @property
    def unreadable(self) -> int:
        """Messages and subscriptions that could not be decoded."""
        return self._node.unreadable

    @property
    def last_error(self) -> str:
        """Reason why the last of them could not be decoded."""
        return self._node.why

    @property
    def dropped_in(self) -> int:
        """Messages from the cluster that found no room."""
        return self._incoming.dropped

    @property
    def dropped_out(self) -> int:
        """Messages to the cluster that found no room."""
        return self._outgoing.dropped

    def nodes(self) -> dict[str, str]:
        """Return the names of the cluster's active nodes by id; empty unless a member."""
        return dict(self._node.nodes)

    def subscriptions(self) -> tuple[str, ...]:
        """Return the topics subscribed to in the cluster."""
        return self._wanted

    def peer_topics(self) -> tuple[str, ...]:
        """Return the subscriptions of the cluster's other nodes."""
        return self._node.peer_topics()

    def await_subscribed(self, timeout: float = 10.0) -> bool:
        """Wait until the manager has all subscriptions; False after `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        try:
            self.settled().result(timeout)
        except (ResultTimeout, NodeUnreachable):
            return False
        return True

    def settled(self) -> Future[None]:
        """Return a future that resolves when the manager has all subscriptions."""
        future: Future[None] = Future()
        # Queued after the subscriptions that this thread has made, so it waits for them too.
        self._hub.call_soon(self._await, future)
        return self._runtime.shutdown.guard(future)

    def close(self) -> None:
        """Leave the cluster; queued messages have 0.5 s to be sent. Idempotent."""
        if not self._is_closed and not self._runtime.is_closed:
            # Queued after the messages that this thread has published, so they are sent.
            self._hub.call_soon(self._runner.post, self.end, "the user closed it")

    # --- subscriptions; in turns of the hub ---

    def _follow(self) -> None:
        """Update the subscriptions in the cluster after a change in the overlay."""
        if self._claim is not None:
            if self._claim.state is DoorState.CLAIMING:
                return  # another node may receive for the overlay
            is_holder = self._claim.state is DoorState.HELD
            self._wanted = self._hub.core.interest(self) if is_holder else ()
        self._runner.post(self._want, self._wanted)

    def _await(self, future: Future[None]) -> None:
        """Resolve a future once the manager has all subscriptions."""
        self._follow()
        self._runner.post(self._add_settled, future)

    def takes(self, topic: str) -> bool:
        """Return whether messages on a topic are sent to the cluster."""
        is_ours = topic.startswith(self._publish) and not is_reserved(topic)
        return is_ours and (not self._is_linked or self._node.is_wanted(topic))

    def take_own(self, run: Sequence[Pair]) -> None:
        """Queue messages that this endpoint published."""
        for pair in run:
            if pair[0].startswith(self._publish) and not is_reserved(pair[0]):
                self._outgoing.try_append(pair, len(pair[1]))
        if not self._is_flushing:
            self._is_flushing = True
            self._runner.post(self._flush)

    def _forget_senders(self, _event: object) -> None:
        """Forget which senders belong to the overlay: its nodes have changed."""
        self._runner.post(self._node.forget_senders)

    def _is_ours(self, sender: bytes) -> bool:
        """Return whether a sender is a node of this overlay."""
        match = _ENDPOINT.search(sender)
        if match is None:
            return False
        endpoint = bytes.fromhex(match[1].decode())
        core = self._hub.core
        return endpoint == self._hub.endpoint_id or core.node_of(endpoint) is not None

    # --- sockets; on the runner ---

    def _want(self, topics: tuple[str, ...]) -> None:
        """Subscribe to topics, and request a mark that comes back after them."""
        if self._is_closed:
            return
        frames = self._node.want(topics)
        if frames:
            self._ask([*frames, *self._node.mark()])
        self._update()

    def _ask(self, frames: list[bytes]) -> None:
        """Send subscription frames."""
        for frame in frames:
            self._sub.send([frame])

    def _add_settled(self, future: Future[None]) -> None:
        """Register a future of `settled`."""
        if self._is_closed:
            future.set_exception(NodeUnreachable("the ZeroMQ connection is closed"))
        else:
            self._settled.append(future)
            self._update()

    def _changed(self, change: SocketChange) -> None:
        """Handle a connection that was established or ended."""
        if self._is_closed:
            return
        if not change.is_up:
            self._node.lost()
            self.reason = f"no zeromq link with {self._name}: {change.reason}"
            if not self._is_linked:
                self._report_failure()
        elif self._sub.connections and self._pub.connections:
            self._links += 1
            self._ask(self._node.mark())
            self._runner.call_later(PATIENCE, self._check_mark, self._links)
        self._update()

    def _check_mark(self, number: int) -> None:
        """Report addresses that belong to different managers."""
        is_waiting = self._sub.connections and self._pub.connections and not self._node.linked
        if is_waiting and number == self._links and not self._is_closed:
            self.reason = (
                f"subscriptions at {self._name} do not come back at {self._pub.address}; "
                "pass the XPUB and the XSUB of one manager"
            )
            self._report_failure()

    def _report_failure(self) -> None:
        """Report and log why there is no link."""
        _log.info("%s; trying again", self.reason)
        self._runtime.report(ForeignDialFailed(self.kind, self._address, self.reason))

    def _update(self) -> None:
        """Report a change of the link, resolve futures, and send queued messages."""
        if self._node.linked != self._is_linked:
            self._is_linked = self._node.linked
            if self._is_linked:
                self.reason = ""
                self._grace = self._runner.now() + GRACE
                self._runner.call_later(GRACE, self._end_grace)
                self._runtime.report(ForeignLinkUp(self.kind, self._name, self._address))
            else:
                facts = self.kind, self._name, self._address, self.reason
                self._runtime.report(ForeignLinkDown(*facts))
        self._report_members()
        is_decided = self._claim is None or self._claim.state is not DoorState.CLAIMING
        if is_decided and self._node.settled and self._settled:
            settled, self._settled = self._settled, []
            for future in settled:
                future.set_result(None)
        self._flush()

    def _report_members(self) -> None:
        """Greet members, and report members that joined or left."""
        answers, self._node.answers = self._node.answers, []
        for topic, content in answers:
            self._pub.send(self._node.pack(topic, content))
        changes, self._node.changes = self._node.changes, []
        for change in changes:
            facts = self.kind, change.name, (change.id, 0)
            if change.is_up:
                self._runtime.report(ForeignLinkUp(*facts))
            else:
                self._runtime.report(ForeignLinkDown(*facts, "it left the cluster"))

    # --- receiving ---

    def _on_subscriptions(self, frames: list[list[bytes]]) -> None:
        """Handle subscriptions of the cluster; without frames: the socket has room again."""
        if self._is_closed:
            return
        if frames:
            self._node.take_subscriptions(frames)
            self._outgoing.items.extendleft(reversed(self._unclaimed))
            self._unclaimed.clear()
            self._hub.check_conditions()
        self._update()

    def _on_messages(self, messages: list[list[bytes]]) -> None:
        """Publish messages of the cluster, or queue them."""
        if not messages or self._is_closed:
            return
        if not self._incoming.items and self._has_room():
            self._publish_here(messages)
            return
        for parts in messages:
            self._incoming.try_append(parts, sum(map(len, parts)))
        if not self._is_draining and not self._pending_batches:
            self._drain_with_room()

    def _has_room(self) -> bool:
        """Return whether the hub can accept another batch now."""
        return self._pending_batches < UNDER_WAY and self._hub.has_room()

    def _on_batch_done(self) -> None:
        """Continue after a batch; called in a turn of the hub."""
        self._runner.post(self._next_batch)

    def _next_batch(self) -> None:
        """Continue with queued messages after a batch."""
        self._pending_batches -= 1
        if self._incoming.items and not self._is_draining:
            self._drain()

    def _drain(self) -> None:
        """Publish queued messages while there is room."""
        self._is_draining = False
        waiting = self._incoming
        if self._is_closed or not waiting.items:
            return
        while waiting.items and self._has_room():
            count = min(BATCH, len(waiting.items))
            self._publish_here([waiting.popleft() for _ in range(count)])
        if waiting.items and not self._pending_batches:  # else `_next_batch` continues
            self._drain_with_room()

    def _drain_with_room(self) -> None:
        """Publish queued messages as soon as the hub has room."""
        self._is_draining = True
        self._hub.inputs.room().add_done_callback(self._on_room)

    def _on_room(self, room: Future[None]) -> None:
        """Continue to publish, unless the node is closing; from any thread."""
        if room.exception() is None:
            self._runner.post(self._drain)

    def _publish_here(self, messages: list[list[bytes]]) -> None:
        """Publish messages in the overlay."""
        brought = self._node.take(messages)
        if self._node.answers or self._node.changes:
            self._report_members()
        is_standing_by = self._claim is not None and self._claim.state is not DoorState.HELD
        if brought and not is_standing_by:
            self.brought += len(brought)
            self._pending_batches += 1
            self._hub.publishing.ingest_encoded(brought, self)
            self._hub.call_soon(self._on_batch_done)

    # --- sending ---

    def _flush(self) -> None:
        """Send queued messages that have a subscriber, while there is room."""
        self._is_flushing = False
        if not self._is_linked or self._is_closed:
            return
        node, waiting, send = self._node, self._outgoing, self._pub.send
        while waiting.items:
            topic, pair = waiting.first
            if not node.is_wanted(topic):
                self._keep_unclaimed(waiting)
                continue
            try:
                parts = node.pack(topic, content_of((topic, pair)))
            except EndpointError as error:
                self._unwritten.add("Zeek", topic, error)
            else:
                if not send(parts):
                    return  # `_on_subscriptions` continues when there is room
                self.taken += 1
            waiting.popleft()

    def _keep_unclaimed(self, waiting: BoundedQueue[Pair]) -> None:
        """Keep a message without a subscriber while subscribers may come back."""
        if self._runner.now() < self._grace:
            self._unclaimed.append(waiting.items.popleft())
        else:
            self.unheard += 1
            waiting.popleft()

    def _end_grace(self) -> None:
        """Drop messages that are still without a subscriber."""
        if self._unclaimed and self._runner.now() >= self._grace:
            self._outgoing.items.extendleft(reversed(self._unclaimed))
            self._unclaimed.clear()
            self._flush()

    # --- inspection ---

    @property
    def _name(self) -> str:
        """Display name of the cluster."""
        return self._sub.address.removeprefix("tcp://")

    def peers(self) -> list[ForeignPeer]:
        """Return the manager and the other members. Can be called from any thread."""
        waiting, linked = self._outgoing.bytes, self._is_linked
        manager = ForeignPeer(
            self.kind, self._address, self._name, is_dialed=True, is_linked=linked,
            retry=0.5, waiting=waiting,
        )  # fmt: skip
        return [manager] + [
            ForeignPeer(
                self.kind,
                (node, 0),
                name,
                is_dialed=False,
                is_linked=True,
                retry=0.0,
                waiting=0,
            )
            for node, name in list(self._node.nodes.items())
        ]

    @property
    def unwritten(self) -> int:
        """Messages that the format cannot express."""
        return self._unwritten.count

    def _metrics(self) -> list[Metric]:
        """Return the figures of this link."""
        labels = (("endpoint", self._hub.name), ("address", self._name))
        return metrics_of(_FIGURES, self, labels)

    # --- the end ---

    def end(self, reason: str) -> None:
        """Leave the cluster.

        Must be called on the runner's thread; further calls do nothing.
        """
        if self._is_closed:
            return
        self._flush()
        self._is_closed = True
        hub = self._hub
        if self in hub.overlay.foreign.sources:
            hub.overlay.foreign.sources.remove(self)
        if self._metrics in hub.meters:
            hub.meters.remove(self._metrics)
        if self._claim is not None:
            self._claim.release()
        if not self._runtime.is_closed:
            self._unwatch()
            hub.off_peer_event(self._forget_senders)
            hub.remove_egress(self)
        if self._is_linked:
            facts = self.kind, self._name, self._address, reason
            self._is_linked = False
            self._runtime.report(ForeignLinkDown(*facts, is_wanted=True))
        self._sockets.close(LINGER_MS)
        for future in self._settled:
            error = NodeUnreachable(f"the connection to {self._name} was closed")
            future.set_exception(error)
        self._settled.clear()


_FIGURES: Final[tuple[Figure["ZeroMq"], ...]] = figures_of(
    "callboard_zeromq_",
    (
        ("connected", "Whether there is a link with the cluster.", "is_connected"),
        ("brought_total", "Messages from the cluster.", "brought"),
        ("taken_total", "Messages to the cluster.", "taken"),
        ("dropped_in_total", "Messages from the cluster that found no room.", "dropped_in"),
        ("dropped_out_total", "Messages to the cluster that found no room.", "dropped_out"),
        ("unheard_total", "Messages without a subscriber in the cluster.", "unheard"),
        ("unreadable_total", "Messages and subscriptions not decoded.", "unreadable"),
    ),
)


def _check(endpoint: Any, curve: Any, member: Any, queue: Any, high_water: Any) -> None:
    """Raise for arguments of a wrong type or size."""
    hub: Any = getattr(endpoint, "hub", None)
    require(
        isinstance(hub, Hub),
        "ZeroMq() takes an Endpoint, and the manager's addresses",
        endpoint,
    )
    require(isinstance(curve, Curve | None), "curve takes Curve(server, secret)", curve)
    require(isinstance(member, str), "member takes the name of a node", member)
    for name, number in (("queue", queue), ("high_water", high_water)):
        if type(number) is not int or not 0 < number < 1 << 31:
            msg = f"{name} must be a number of messages above 0, not {number!r}"
            raise InvalidOption(msg)
    if hub.runtime.is_closed:
        msg = "the endpoint was shut down; create a new one"
        raise NodeClosed(msg)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of a TCP address; for others the whole text and 0."""
    try:
        parts = urlsplit(text)
        return (parts.hostname or text, parts.port or 0)
    except (ValueError, AttributeError):
        return (str(text), 0)


def addresses_of(url: str) -> tuple[str, str]:
    """Return the XPUB and XSUB addresses of a URL.

    >>> addresses_of("zmq://manager:5555")
    ('tcp://manager:5555', 'tcp://manager:5556')

    Raises:
        InvalidOption: the URL does not have the form of a manager's.
    """
    match = _URL.fullmatch(url)
    if match is None:
        msg = f"{redacted(url)!r} is not zmq://HOST:PORT or zmq://HOST:PORT/PORT"
        raise InvalidOption(msg)
    host, xpub, xsub = match.groups()
    first = int(xpub or DEFAULT_PORT)
    return f"tcp://{host}:{first}", f"tcp://{host}:{xsub or first + 1}"


def peer_key(address: str) -> str:
    """Return the key that identifies a manager in the overlay.

    A loopback address gets the host name, because 127.0.0.1 is another manager on each machine.
    """
    host, _ = address_of(address)
    is_local = not address.startswith("tcp:") or is_loopback(host)
    return f"{address}@{socket.gethostname()}" if is_local else address


def _id_of(hub: Hub, member: str) -> str:
    """Return an id of Zeek's form by which the overlay's nodes recognize each other."""
    unique = f"N{hub.endpoint_id.hex()}{hub.new_object_id()}"
    return f"zeromq_{member or 'callboard'}_{socket.gethostname()}_{os.getpid()}_{unique}"


def _nothing() -> None:
    """Do nothing: no wishes are watched."""
