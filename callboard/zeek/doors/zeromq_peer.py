"""A Zeek cluster that is reached over its ZeroMQ backend: a node of it, or one in the wings.

    manager's XPUB ──> XSUB ──> ZeroMqNode ──> Hub.bring_in_encoded
    Hub (what is published here) ──> ZeroMqNode ──> XPUB ──> manager's XSUB

Both sockets live on the node's thread (`zeromq_socket`); what is said on them is the machine's
(`callboard.zeek.zeromq`). A Zeek of today does not drop at the manager: a node that does not
read slows all others. So this one always reads, and what the node has no room for waits in a
queue that drops what is newer when it is full, as Zeek's own; the same in the other direction.

One node of an overlay brings in what all of them want: see `DoorClaim`. Each node publishes by
its own door, and what another node of the overlay published is known by its sender and not
brought in again: it came by the overlay already.
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

from callboard.endpoint.door_claim import DoorClaim, DoorState
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Pair
from callboard.endpoint.machine.run import content_of
from callboard.endpoint.machine.topic import Topics, is_reserved, shortest, topic_texts
from callboard.figures import Figure, Metric, figures_of, metrics_of
from callboard.kernel.checks import require
from callboard.kernel.errors import CallboardError, NodeClosed, NodeUnreachable, ResultTimeout
from callboard.kernel.events import ForeignDialFailed, ForeignLinkDown, ForeignLinkUp
from callboard.kernel.reply import Future
from callboard.kernel.tls import is_loopback
from callboard.kernel.twins import Closing
from callboard.kernel.wire import ForeignPeer
from callboard.model.errors import EndpointError, InvalidOption
from callboard.support.redaction import redacted
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

#: Messages that wait, in each direction: as many as Zeek lets wait.
QUEUE_LIMIT: Final = 10_000

#: Bytes that wait, in each direction.
WAITING_LIMIT: Final = 64 << 20

#: Messages that are brought in at once from the queue: one turn of the hub.
BATCH: Final = 100

#: Batches that the hub has and has not handed on; what comes then waits here.
UNDER_WAY: Final = 2

#: Seconds between looks whether the node has room again.
PAUSE: Final = 0.02

#: Seconds after a link is there in which others may subscribe again: what they want waits.
GRACE: Final = 2.0

#: Seconds after which a manager whose sockets do not belong together is told of.
PATIENCE: Final = 5.0

#: Where a manager has its XPUB; its XSUB is at the next port.
DEFAULT_PORT: Final = 5555

_URL: Final = re.compile(r"zmq://(\[[^/\]]+\]|[^:/\[\]]+)(?::(\d{1,5}))?(?:/(\d{1,5}))?/?")
_ENDPOINT: Final = re.compile(rb"_N([0-9a-f]{32})")


class DoorPlace(Protocol):
    """Where a door is opened: an `Endpoint`."""

    hub: Hub

    def hold_door(self, door: Closing) -> None:
        """Close a door with the endpoint."""


class _Backlog:
    """Messages that wait, up to a number and so many bytes."""

    def __init__(self, limit: int) -> None:
        self.messages: deque[Any] = deque()
        self.dropped = 0
        self._limit = limit
        # Each written by one thread: a sum of both would lose a change.
        self._came = self._went = 0

    def add(self, message: Any, size: int) -> None:
        """Let a message wait, or drop it."""
        if len(self.messages) >= self._limit or self.bytes + size > WAITING_LIMIT:
            self.dropped += 1
        else:
            self._came += size
            self.messages.append((message, size))

    def pop(self) -> Any:
        """Take the oldest."""
        message, size = self.messages.popleft()
        self._went += size
        return message

    @property
    def bytes(self) -> int:
        """How much waits."""
        return self._came - self._went


class ZeroMq(Closing):
    """A Zeek cluster's ZeroMQ backend, until this is closed; it connects at once.

    What is subscribed to here and on nodes in reach is subscribed to there; what this endpoint
    publishes goes there, as far as somebody there subscribes to it.

    Attributes:
        id: what messages of this node carry as their sender.
        brought: messages from the cluster.
        taken: messages to the cluster.
        unheard: messages to which nobody there subscribes.
        unwritten: messages for which the format has no value.
        reason: why there is no link, as far as that is known.
    """

    #: What peers of this wire are called.
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
        """Begin to connect; see `await_subscribed`.

        Args:
            endpoint: whose topics these are; closes the door with itself.
            subscribe_at: the manager's XPUB: `Cluster::Backend::ZeroMQ::listen_xpub_endpoint`.
            publish_at: its XSUB: `listen_xsub_endpoint`.
            subscribe: the only topics that are subscribed to there; by default those that are
                subscribed to here, as they change.
            publish: beginnings of the topics that go there; by default all.
            member: the name of a node of the cluster to be seen as; by default this only
                publishes and subscribes, and nobody sees it.
            form: how values go out: `broker-bin-v1` or `broker-json-v1`; both come in.
            curve: CURVE keys of the cluster.
            queue: messages that may wait, in each direction; newer ones are dropped.
            high_water: ZeroMQ's own limit of messages in each direction.

        Raises:
            InvalidOption: an address, a key, a name or the format is none.
            DoorTaken: this node has a door to that manager already.
            NodeClosed: the endpoint was shut down.
            WrongArgument: something else is given for the endpoint, the keys or the name.
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
        self._incoming, self._outgoing = _Backlog(queue), _Backlog(queue)
        #: What nobody subscribed to when a link came, and until when it waits for that.
        self._held: deque[Any] = deque()
        self._grace = 0.0
        self._is_flushing = self._is_draining = self._is_linked = self._is_closed = False
        self._links = self._under_way = 0
        self._settled: list[Future[None]] = []
        self._wanted: tuple[str, ...] = self._fixed or ()
        self._claim: DoorClaim | None = None
        self._sockets = ZeroMqSockets(self._runner, curve)
        water: dict[int, int] = {zmq.SNDHWM: high_water, zmq.RCVHWM: high_water}
        shared: dict[str, Any] = {"told": self._changed, "frames": PARTS, "begins": False}
        self._sub = self._sockets.connect(
            zmq.XSUB, subscribe_at, self._bring, options=water, **shared
        )
        nodrop: dict[int, int] = {zmq.XPUB_NODROP: 1, zmq.XPUB_VERBOSE: 1}
        self._pub = self._sockets.connect(
            zmq.XPUB, publish_at, self._hear, options=water | nodrop, **shared
        )
        self._begin(endpoint, subscribe_at)

    def _begin(self, endpoint: DoorPlace, address: str) -> None:
        """Join the hub."""
        hub = self._hub
        self._unwatch = _nothing
        try:
            endpoint.hold_door(self)
            if self._fixed is None:
                key = peer_key(address)
                self._claim = DoorClaim(
                    hub, key, kept=self._follow, lost=lambda _: self._follow()
                )
        except CallboardError:
            self._is_closed = True
            self._runner.post(self._sockets.close, 0)
            raise
        if self._claim is not None:
            self._unwatch = hub.watch_wishes(self, lambda _: self._follow())
        hub.overlay.foreign.sources.append(self)
        hub.on_peer_event(self._forget_senders)
        hub.meters.append(self._metrics)
        hub.add_way_out(self)
        hub.call_soon(self._follow)
        for each in (self._sub, self._pub):
            each.begin()

    # --- for users, from any thread ---

    @property
    def is_connected(self) -> bool:
        """Whether both sockets are connected, and subscriptions come back."""
        return self._is_linked

    @property
    def own(self) -> int:
        """Messages that came back, of this node or another one of its overlay."""
        return self._node.own

    @property
    def unreadable(self) -> int:
        """Messages and subscriptions that were none."""
        return self._node.unreadable

    @property
    def last_error(self) -> str:
        """Why the last of them was none."""
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
        """Return the names of the cluster's nodes that are up, by their ids; for a member."""
        return dict(self._node.nodes)

    def subscriptions(self) -> tuple[str, ...]:
        """Return what is subscribed to there."""
        return self._wanted

    def peer_topics(self) -> tuple[str, ...]:
        """Return what other nodes of the cluster subscribe to."""
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
        """Return a future that is done when the manager has all subscriptions."""
        future: Future[None] = Future()
        # Behind what the same thread has subscribed to before.
        self._hub.call_soon(self._await, future)
        return self._runtime.shutdown.guard(future)

    def close(self) -> None:
        """Leave the cluster; what was published has half a second to go out. Idempotent."""
        if not self._is_closed and not self._runtime.is_closed:
            # Behind what the same thread has published before.
            self._hub.call_soon(self._runner.post, self.end, "the user closed it")

    # --- what is wanted; in turns of the hub ---

    def _follow(self) -> None:
        """Subscribe to what is wanted."""
        if self._claim is not None:
            if self._claim.state is DoorState.CLAIMING:
                return  # it is not decided whether anything is wanted by this node
            held = self._claim.state is DoorState.HELD
            self._wanted = self._hub.core.wishes(self) if held else ()
        self._runner.post(self._want, self._wanted)

    def _await(self, future: Future[None]) -> None:
        """Wake this one when the manager has heard of everything."""
        self._follow()
        self._runner.post(self._add_settled, future)

    def takes(self, topic: str) -> bool:
        """Return whether a message with a topic goes out."""
        is_ours = topic.startswith(self._publish) and not is_reserved(topic)
        return is_ours and (not self._is_linked or self._node.is_wanted(topic))

    def take_own(self, run: Sequence[Pair]) -> None:
        """Let what was published here go out."""
        for pair in run:
            if pair[0].startswith(self._publish) and not is_reserved(pair[0]):
                self._outgoing.add(pair, len(pair[1]))
        if not self._is_flushing:
            self._is_flushing = True
            self._runner.post(self._flush)

    def _forget_senders(self, _event: object) -> None:
        """Other nodes are in reach."""
        self._runner.post(self._node.forget_senders)

    def _is_ours(self, sender: bytes) -> bool:
        """Return whether a sender is the door of another node in reach."""
        found = _ENDPOINT.search(sender)
        if found is None:
            return False
        endpoint = bytes.fromhex(found[1].decode())
        core = self._hub.core
        return endpoint == self._hub.endpoint_id or core.node_of(endpoint) is not None

    # --- the sockets; on the runner ---

    def _want(self, topics: tuple[str, ...]) -> None:
        """Ask for topics, and for a sign that the manager has heard."""
        if self._is_closed:
            return
        frames = self._node.want(topics)
        if frames:
            self._ask([*frames, *self._node.mark()])
        self._look()

    def _ask(self, frames: list[bytes]) -> None:
        """Send subscriptions."""
        for frame in frames:
            self._sub.send([frame])

    def _add_settled(self, future: Future[None]) -> None:
        """Remember who waits."""
        if self._is_closed:
            future.set_exception(NodeUnreachable("the door is closed"))
        else:
            self._settled.append(future)
            self._look()

    def _changed(self, change: SocketChange) -> None:
        """A socket is connected, or is not any more."""
        if self._is_closed:
            return
        if not change.is_up:
            self._node.lost()
            self.reason = f"no zeromq link with {self._name}: {change.reason}"
            if not self._is_linked:
                self._tell_failure()
        elif self._sub.connections and self._pub.connections:
            self._links += 1
            self._ask(self._node.mark())
            self._runner.call_later(PATIENCE, self._look_for_mark, self._links)
        self._look()

    def _look_for_mark(self, number: int) -> None:
        """Tell of sockets that do not belong together."""
        is_waiting = self._sub.connections and self._pub.connections and not self._node.linked
        if is_waiting and number == self._links and not self._is_closed:
            self.reason = (
                f"subscriptions at {self._name} do not come back at {self._pub.address}; "
                "see that these are the XPUB and the XSUB of one manager"
            )
            self._tell_failure()

    def _tell_failure(self) -> None:
        """Tell status subscribers, and the log once, why there is no link."""
        _log.info("%s; it is tried again", self.reason)
        self._runtime.report(ForeignDialFailed(self.kind, self._address, self.reason))

    def _look(self) -> None:
        """Look what has become of the link, and do what follows."""
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
        self._tell_members()
        is_decided = self._claim is None or self._claim.state is not DoorState.CLAIMING
        if is_decided and self._node.settled and self._settled:
            settled, self._settled = self._settled, []
            for future in settled:
                future.set_result(None)
        self._flush()

    def _tell_members(self) -> None:
        """Greet members, and tell of those that came and went."""
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

    # --- in ---

    def _hear(self, frames: list[list[bytes]]) -> None:
        """Take subscriptions of all; or there is room to send again."""
        if self._is_closed:
            return
        if frames:
            self._node.take_subscriptions(frames)
            self._outgoing.messages.extendleft(reversed(self._held))
            self._held.clear()
            self._hub.note_change()
        self._look()

    def _bring(self, messages: list[list[bytes]]) -> None:
        """Publish what the cluster sent, or let it wait."""
        if not messages or self._is_closed:
            return
        if not self._incoming.messages and self._has_room():
            self._publish_here(messages)
            return
        for parts in messages:
            self._incoming.add(parts, sum(map(len, parts)))
        if not self._is_draining and not self._under_way:
            self._is_draining = True
            self._runner.call_later(PAUSE, self._drain)

    def _has_room(self) -> bool:
        """Return whether the hub takes more at once."""
        return self._under_way < UNDER_WAY and self._hub.has_room()

    def _arrived(self) -> None:
        """Take note that the hub has handed on a batch; in a turn of the hub."""
        self._runner.post(self._go_on)

    def _go_on(self) -> None:
        """Bring in what has waited for that."""
        self._under_way -= 1
        if self._incoming.messages and not self._is_draining:
            self._drain()

    def _drain(self) -> None:
        """Bring in what waited, while there is room."""
        self._is_draining = False
        waiting = self._incoming
        if self._is_closed or not waiting.messages:
            return
        while waiting.messages and self._has_room():
            count = min(BATCH, len(waiting.messages))
            self._publish_here([waiting.pop() for _ in range(count)])
        if waiting.messages and not self._under_way:  # else the end of that goes on
            self._is_draining = True
            self._runner.call_later(PAUSE, self._drain)

    def _publish_here(self, messages: list[list[bytes]]) -> None:
        """Publish messages in the overlay."""
        brought = self._node.take(messages)
        if self._node.answers or self._node.changes:
            self._tell_members()
        is_standing_by = self._claim is not None and self._claim.state is not DoorState.HELD
        if brought and not is_standing_by:
            self.brought += len(brought)
            self._under_way += 1
            self._hub.bring_in_encoded(brought, self)
            self._hub.call_soon(self._arrived)

    # --- out ---

    def _flush(self) -> None:
        """Send what somebody subscribes to, as far as there is room."""
        self._is_flushing = False
        if not self._is_linked or self._is_closed:
            return
        node, waiting, send = self._node, self._outgoing, self._pub.send
        while waiting.messages:
            (topic, pair), _size = waiting.messages[0]
            if not node.is_wanted(topic):
                self._hold(waiting)
                continue
            try:
                parts = node.pack(topic, content_of((topic, pair)))
            except EndpointError as error:
                self._unwritten.add("Zeek", topic, error)
            else:
                if not send(parts):
                    return  # `_hear` goes on when there is room
                self.taken += 1
            waiting.pop()

    def _hold(self, waiting: _Backlog) -> None:
        """Let what nobody subscribes to wait for others that come back, for a moment."""
        if self._runner.now() < self._grace:
            self._held.append(waiting.messages.popleft())
        else:
            self.unheard += 1
            waiting.pop()

    def _end_grace(self) -> None:
        """Drop what nobody subscribed to."""
        if self._held and self._runner.now() >= self._grace:
            self._outgoing.messages.extendleft(reversed(self._held))
            self._held.clear()
            self._flush()

    # --- what is seen of it ---

    @property
    def _name(self) -> str:
        """What the cluster is called."""
        return self._sub.address.removeprefix("tcp://")

    def peers(self) -> list[ForeignPeer]:
        """Return the manager, and the other members; from any thread."""
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
        """Messages for which the format has no value."""
        return self._unwritten.count

    def _metrics(self) -> list[Metric]:
        """Return the figures of this door."""
        labels = (("endpoint", self._hub.name), ("address", self._name))
        return metrics_of(_FIGURES, self, labels)

    # --- the end ---

    def end(self, reason: str) -> None:
        """Leave the cluster, on the runner. Idempotent."""
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
            hub.remove_way_out(self)
        if self._is_linked:
            facts = self.kind, self._name, self._address, reason
            self._is_linked = False
            self._runtime.report(ForeignLinkDown(*facts, is_wanted=True))
        self._sockets.close(LINGER_MS)
        for future in self._settled:
            future.set_exception(NodeUnreachable(f"the door to {self._name} was closed"))
        self._settled.clear()


_FIGURES: Final[tuple[Figure["ZeroMq"], ...]] = figures_of(
    "callboard_zeromq_",
    (
        ("connected", "Whether there is a link with the cluster.", "is_connected"),
        ("brought_total", "Messages from the cluster.", "brought"),
        ("taken_total", "Messages to the cluster.", "taken"),
        ("dropped_in_total", "Messages from the cluster that found no room.", "dropped_in"),
        ("dropped_out_total", "Messages to the cluster that found no room.", "dropped_out"),
        ("unheard_total", "Messages to which nobody there subscribes.", "unheard"),
        ("unreadable_total", "Messages and subscriptions that were none.", "unreadable"),
    ),
)


def _check(endpoint: Any, curve: Any, member: Any, queue: Any, high_water: Any) -> None:
    """Refuse arguments that are something else."""
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
            msg = f"{name} is a number of messages above 0, not {number!r}"
            raise InvalidOption(msg)
    if hub.runtime.is_closed:
        msg = "the endpoint was shut down; make another one"
        raise NodeClosed(msg)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of an address of ZeroMQ's; the text and 0 of others."""
    try:
        parts = urlsplit(text)
        return (parts.hostname or text, parts.port or 0)
    except (ValueError, AttributeError):
        return (str(text), 0)


def addresses_of(url: str) -> tuple[str, str]:
    """Return the addresses of XPUB and XSUB that a URL names.

    >>> addresses_of("zmq://manager:5555")
    ('tcp://manager:5555', 'tcp://manager:5556')

    Raises:
        InvalidOption: it names none.
    """
    found = _URL.fullmatch(url)
    if found is None:
        msg = f"{redacted(url)!r} is no zmq://HOST:PORT or zmq://HOST:PORT/PORT"
        raise InvalidOption(msg)
    host, xpub, xsub = found.groups()
    first = int(xpub or DEFAULT_PORT)
    return f"tcp://{host}:{first}", f"tcp://{host}:{xsub or first + 1}"


def peer_key(address: str) -> str:
    """Return what tells a manager from others: on each machine 127.0.0.1 is another one."""
    host, _ = address_of(address)
    is_here = not address.startswith("tcp:") or is_loopback(host)
    return f"{address}@{socket.gethostname()}" if is_here else address


def _id_of(hub: Hub, member: str) -> str:
    """Return an id in Zeek's manner, by which nodes of the overlay know each other's."""
    unique = f"N{hub.endpoint_id.hex()}{hub.make_object()}"
    return f"zeromq_{member or 'callboard'}_{socket.gethostname()}_{os.getpid()}_{unique}"


def _nothing() -> None:
    """Stand where no wishes are watched."""
