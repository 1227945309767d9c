"""A link to a Zeek over WebSocket JSON, with one connection for each filter.

A connection sends its filter once, at the start. A topic that is subscribed to later needs a
further connection; a topic that is no longer subscribed to is dropped at the next reconnect.
No message may arrive twice, so the filters of two connections never overlap. If a new topic is
wider than a filter in use (`/zeek` after `/zeek/event`), that connection ends before the wider
filter is sent. Messages that it has delivered are kept; what Zeek publishes in the milliseconds
between the two connections is lost, as when any connection is cut.

Zeek does not return a message over the connection on which it was published. So a message is
sent over the connection whose filter matches its topic: over any other it would come back. For
the same reason a node that stands by passes its messages to the node that holds the claim.

`FilterPlan` decides, without I/O. `WebSocketPeer` carries its steps out on the node's thread.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

import cbor2

from callboard.bounded_queue import BoundedQueue
from callboard.closing import Closing
from callboard.kernel.errors import NodeUnreachable, ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.errors import EndpointError
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted
from callboard.tls.certificates import Certificates
from callboard.tls.contexts import Tls
from callboard.topics.door_claim import DoorClaim, DoorState
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, Pair, RunReceiver
from callboard.topics.machine.run import PackedType, content_of
from callboard.topics.machine.topic import is_reserved, shortest
from callboard.zeek.doors.unwritten import UnwrittenMessages
from callboard.zeek.json_message import content_to_json
from callboard.zeek.web_socket import (
    ErrorFrame,
    Message,
    ZeekClientSession,
    checked_name,
    parse_address,
)

_log: Final = logging.getLogger("callboard.zeek")

#: Connections to one Zeek; when a topic would need one more, all are merged into one.
CONNECTION_LIMIT: Final = 4

#: Longest pause between two attempts to connect, in seconds.
RETRY: Final = 0.5

#: Largest message in bytes.
MESSAGE_LIMIT: Final = 64 << 20

#: Seconds without a connection after which another node that has one takes the claim over.
PATIENCE: Final = 5.0

#: Messages queued without a connection, and their total size; above either, the oldest are
#: dropped.
QUEUE_LIMIT: Final = 16_384
QUEUE_SIZE: Final = 64 << 20

#: Seconds for which reading pauses while the hub is full.
PAUSE: Final = 0.02


class PlanStep(NamedTuple):
    """The next changes to the connections.

    Attributes:
        stop: connections to close.
        renew: the connection to reconnect with a larger filter; None if none has to reconnect.
        opens: whether to open another connection.
    """

    stop: tuple[object, ...] = ()
    renew: object = None
    opens: bool = False


@dataclass(slots=True)
class FilterPlan:
    """Assignment of topics to connections.

    Attributes:
        wanted: the subscribed topics; none covers another.
        held: the filter of each connection, oldest first; None until it is sent.
    """

    wanted: tuple[str, ...] = ()
    held: dict[object, tuple[str, ...] | None] = field(default_factory=dict)

    def missing(self, beside: object = None) -> tuple[str, ...]:
        """Return wanted topics in no filter; that of connection `beside` is ignored."""
        covered = self._filter_topics(beside)
        return tuple(topic for topic in self.wanted if not topic.startswith(covered))

    def _filter_topics(self, beside: object = None) -> tuple[str, ...]:
        """Return the topics of all filters except that of connection `beside`."""
        filters = [topics for key, topics in self.held.items() if key is not beside]
        return tuple(topic for topics in filters for topic in topics or ())

    def _in_the_way(self, beside: object = None) -> list[object]:
        """Return the connections whose filter is narrower than a missing topic."""
        missing, connections = self.missing(beside), []
        for key, topics in self.held.items():
            if key is not beside and any(topic.startswith(missing) for topic in topics or ()):
                connections.append(key)
        return connections

    def next_step(self) -> PlanStep:
        """Return the next changes that the wanted topics need."""
        if not self.held:
            return PlanStep(opens=True)
        if not self.missing() or None in self.held.values():
            return PlanStep()  # a connection in progress will ask for all missing topics
        blocked = self._in_the_way()
        if blocked:
            return PlanStep(tuple(blocked[1:]), renew=blocked[0])
        if len(self.held) < CONNECTION_LIMIT:
            return PlanStep(opens=True)
        first, *rest = self.held
        return PlanStep(tuple(rest), renew=first)

    def ask(self, key: object) -> tuple[tuple[str, ...], tuple[object, ...]]:
        """Return the filter for a connection, and the connections to close first."""
        self.held[key] = None
        ended: list[object] = []
        while blocked := self._in_the_way(key):
            for other in blocked:
                del self.held[other]
            ended += blocked
        topics = self.held[key] = self.missing(key)
        return topics, tuple(ended)

    def is_spare(self, key: object) -> bool:
        """Return whether other connections cover all topics."""
        return not self.held[key] and any(other is not key for other in self.held)

    def way_of(self, topic: str, ways: Sequence[object]) -> object:
        """Return the connection on which to send a message; None to wait.

        A message waits while the connection that has its topic, or will have it, is being made.

        Args:
            topic: the topic of the message.
            ways: the connections that are open.
        """
        for key, topics in self.held.items():
            if topics and topic.startswith(topics):
                return key if key in ways else None
        if not ways or (None in self.held.values() and topic.startswith(self.missing())):
            return None
        return ways[0]


class ZeekConnection:
    """One connection to Zeek; the callbacks of its link."""

    kind: Final = "websocket"

    def __init__(self, peer: "WebSocketPeer") -> None:
        self._peer = peer
        self.dial: ForeignDial | None = None
        self.link: ForeignLink | None = None
        self.session: ZeekClientSession | None = None

    def make_machine(self, opening: Opening) -> ZeekClientSession:
        """Return the protocol machine of a new connection."""
        self.session = self._peer.session(self, opening)
        return self.session

    def link_up(self, link: ForeignLink, _name: str) -> None:
        """Handle Zeek's acknowledgment of the filter."""
        self.link = link
        self._peer.connected(self)

    def link_down(self, _link: ForeignLink, reason: str) -> None:
        """Handle the end of the connection."""
        self.link = None
        self._peer.disconnected(self, reason)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Handle messages of Zeek."""
        self._peer.bring(self, link, messages)

    def not_linked(self, _remote: Endpoint, reason: str) -> None:
        """Handle a failed attempt to connect."""
        self._peer.disconnected(self, reason)


class WebSocketPeer(RunReceiver, Closing):
    """A link to a Zeek, until it is closed; see `Endpoint.connect_web_socket`.

    Attributes:
        url: Zeek's address.
        endpoint: Zeek's name for this connection, from its last ack.
        version: the version of Zeek from its last ack.
        brought: messages received.
        taken: messages sent.
        unreadable: messages of Zeek that could not be decoded.
        unasked: messages on topics outside the filter; they are ignored.
        unwritten: messages that JSON cannot express.
        dropped: messages dropped from the full queue while there was no connection.
        errors: messages that Zeek refused; `last_error` is the last error frame.
        connects: acks so far.
        reason: why it is not connected, if that is known.
    """

    def __init__(
        self,
        hub: Hub,
        url: str,
        *,
        subscribe: Sequence[str] | None = None,
        publish: Sequence[str] = ("",),
        name: str = "",
        token: str = "",
        tls: Tls | None = None,
        retry: float = RETRY,
        message_limit: int = MESSAGE_LIMIT,
    ) -> None:
        """Start connecting; the arguments are as for `Endpoint.connect_web_socket`."""
        self.url = url
        self.endpoint = self.version = self.reason = ""
        self.brought = self.taken = self.unreadable = self.dropped = 0
        self._unwritten = UnwrittenMessages(hub, _log)
        self.errors = self.connects = self.unasked = 0
        self.last_error: ErrorFrame | None = None
        #: Called with each error frame from Zeek; on the node's thread.
        self.on_error: Callable[[ErrorFrame], object] = self._log_error
        self._hub = hub
        self._uri = parse_address(url)
        self._fixed = None if subscribe is None else shortest(subscribe)
        self._publish = tuple(publish)
        self._headers = _headers(name, token)
        self._retry = retry
        self._message_limit = message_limit
        self._plan = FilterPlan()
        self._waiting = BoundedQueue[Message](QUEUE_LIMIT, QUEUE_SIZE)
        self._is_closed = False
        self._settled: list[Future[None]] = []
        self._runtime = hub.node.context
        self._seen_at = self._runtime.now()
        self._certificates = None
        if self._uri.secure:
            self._certificates = Certificates(tls or Tls(), self._runtime.report)
            self._certificates.dialing()  # raises if a file is unusable
        self._foreign = hub.node.overlay.foreign
        self._unwatch = _nothing
        #: Decides which node of the overlay receives for all; None with fixed topics.
        self._claim: DoorClaim | None = None
        if self._fixed is None:
            self._claim = DoorClaim(
                hub, url, on_held=self._follow, on_lost=self._yield, reaches=self._reaches
            )
            self._unwatch = hub.watch_interest(self, lambda _: self._follow())
            hub.add_receiver(self, (self._claim.topic,), kind=PackedType.COMMAND)
        hub.call_soon(self._follow)
        hub.add_egress(self)

    # --- for users, from any thread ---

    @property
    def is_connected(self) -> bool:
        """Whether an open connection has an acknowledged filter."""
        return any(connection.link is not None for connection in self._connections())

    @property
    def is_door(self) -> bool:
        """Whether this node receives messages; one node of the overlay does."""
        return self._claim is None or self._claim.state is DoorState.HELD

    def subscriptions(self) -> tuple[str, ...]:
        """Return the topics in the filters of open connections."""
        return tuple(
            topic
            for connection in self._connections()
            if connection.link is not None
            for topic in self._plan.held.get(connection) or ()
        )

    def await_subscribed(self, timeout: float = 10.0) -> bool:
        """Wait until Zeek has acknowledged all topics; False after `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        try:
            self.settled().result(timeout)
        except ResultTimeout:
            return False
        return True

    def settled(self) -> Future[None]:
        """Return a future that resolves when Zeek has acknowledged all topics."""
        future: Future[None] = Future()
        # Queued after the subscriptions that this thread has made, so it waits for them too.
        self._hub.call_soon(self._await, future)
        self._runtime.shutdown.guard(future)
        return future

    def close(self) -> None:
        """End all connections. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if not self._runtime.is_closed:
                self._unwatch()
                self._hub.remove_egress(self)
                if self._claim is not None:
                    self._hub.remove_receiver(self, kind=PackedType.COMMAND)
                self._hub.call_soon(self._end)

    def _end(self) -> None:
        """Close all connections, and fail the futures of `settled`."""
        if self._claim is not None:
            self._claim.release()
        for connection in self._connections():
            self._stop(connection)
        for future in self._settled:
            future.set_exception(
                NodeUnreachable(f"the connection to {redacted(self.url)} was closed")
            )
        self._settled.clear()

    # --- connections ---

    def _connections(self) -> list[ZeekConnection]:
        """Return the connections of the plan."""
        return list(self._plan.held)  # type: ignore[arg-type]

    def _follow(self) -> None:
        """Carry out the next step of the plan."""
        if self._is_closed or self._runtime.is_closed:
            return
        if self._claim is not None and self._claim.state is DoorState.CLAIMING:
            return  # another node may receive for the overlay
        self._plan.wanted = self._wanted()
        step = self._plan.next_step()
        for stopped in step.stop:
            self._stop(stopped)
        if isinstance(step.renew, ZeekConnection) and step.renew.dial is not None:
            self._plan.held[step.renew] = None
            self._foreign.redial(step.renew.dial, "more topics are wanted")
        if step.opens:
            connection = ZeekConnection(self)
            self._plan.held[connection] = None
            connection.dial = self._foreign.dial(
                connection,
                (self._uri.host, self._uri.port),
                retry=self._retry,
                tls=self._certificates,
            )
        self._check_settled()
        self._flush()

    def _reaches(self) -> bool:
        """Return whether Zeek is connected, or was within `PATIENCE` seconds."""
        if self.is_connected:
            self._seen_at = self._runtime.now()
        is_patient: bool = self._runtime.now() - self._seen_at < PATIENCE
        return is_patient

    def _yield(self, _holder: bytes) -> None:
        """Drop all topics: another node receives them."""
        for connection in self._connections():
            if connection.dial is not None and self._plan.held[connection]:
                self._plan.held[connection] = None
                self._foreign.redial(
                    connection.dial, "another node of the overlay receives the messages"
                )
        self._follow()

    def _wanted(self) -> tuple[str, ...]:
        """Return the topics to receive; none while another node receives them."""
        if self._claim is not None and self._claim.state is not DoorState.HELD:
            return ()
        return self._hub.core.interest(self) if self._fixed is None else self._fixed

    def _stop(self, connection: object) -> None:
        """Close a connection for good."""
        self._plan.held.pop(connection, None)
        if isinstance(connection, ZeekConnection) and connection.dial is not None:
            self._foreign.stop(connection.dial)

    def session(self, connection: ZeekConnection, opening: Opening) -> ZeekClientSession:
        """Return the protocol machine of a new connection."""

        def topics() -> tuple[str, ...]:
            if connection not in self._plan.held:
                return ()
            self._plan.wanted = self._wanted()
            filter_topics, ended = self._plan.ask(connection)
            for other in ended:
                self._stop(other)
            return filter_topics

        return ZeekClientSession(
            self._uri,
            topics,
            opening.now,
            limit=self._message_limit,
            headers=self._headers,
        )

    def connected(self, connection: ZeekConnection) -> None:
        """Handle a connection whose filter was acknowledged."""
        if connection not in self._plan.held:
            return
        session = connection.session
        assert session is not None
        self.endpoint, self.version, self.reason = session.endpoint, session.version, ""
        self.connects += 1
        if self._plan.is_spare(connection):
            self._stop(connection)
        self._follow()

    def disconnected(self, connection: ZeekConnection, reason: str) -> None:
        """Handle a connection that ended or could not be made."""
        self.reason = reason
        if connection in self._plan.held:
            self._plan.held[connection] = None
            self._flush()

    def _await(self, future: Future[None]) -> None:
        """Resolve a future once Zeek has acknowledged all topics."""
        self._settled.append(future)
        self._follow()

    def _check_settled(self) -> None:
        """Resolve the futures of `settled` once all topics are acknowledged."""
        is_asked = self._plan.held and None not in self._plan.held.values()
        is_acknowledged = all(connection.link is not None for connection in self._connections())
        if is_asked and is_acknowledged and not self._plan.missing():
            settled, self._settled = self._settled, []
            for future in settled:
                future.set_result(None)

    # --- messages; on the node's thread ---

    def bring(self, connection: ZeekConnection, link: ForeignLink, messages: list[Any]) -> None:
        """Publish messages of Zeek."""
        if connection not in self._plan.held:
            return  # another connection has its topics now
        received: list[Message] = []
        filter_topics = self._plan.held[connection] or ()
        for message in messages:
            if isinstance(message, ErrorFrame):
                self._on_error_frame(message)
            elif message[0].startswith(filter_topics):
                received.append(message)
            else:
                self.unasked += 1
        self.brought += len(received)
        if received:
            self._hub.publishing.ingest_encoded(received, self)
        if not self._hub.has_room():
            link.pause_reading(PAUSE)

    def _on_error_frame(self, frame: ErrorFrame) -> None:
        """Count an error frame, and pass it to the user's callback."""
        if frame.code == "unreadable":
            self.unreadable += 1
        else:
            self.errors += 1
            self.last_error = frame
        try:
            self.on_error(frame)
        except Exception:  # noqa: BLE001  # of user code; the following messages must not be lost
            _log.exception("on_error of %s failed", self.url)

    def _log_error(self, frame: ErrorFrame) -> None:
        """Log error frames 1, 2, 4, 8 and so on, so that many cannot fill the log."""
        count = self.errors + self.unreadable
        if not count & (count - 1):  # 1, 2, 4, 8 …
            _log.warning("%s: error %d: %s: %s", self.url, count, frame.code, frame.context)

    def takes(self, topic: str) -> bool:
        """Return whether messages on a topic are sent to Zeek."""
        return topic.startswith(self._publish) and not is_reserved(topic)

    def peer_topics(self) -> tuple[str, ...]:
        """Return nothing: Zeek does not send its subscriptions."""
        return ()

    def take_own(self, run: Sequence[Pair]) -> None:
        """Send messages that this endpoint published."""
        self._carry_out([(pair[0], content_of(pair)) for pair in run if self.takes(pair[0])])

    def take_from(self, _sender: bytes, items: list[Item], _size: int) -> None:
        """Send messages that a node on standby has passed to this one."""
        handed = [value for _, value in items if type(value) is tuple]
        self._carry_out([pair for pair in handed if [*map(type, pair)] == [str, bytes]])

    def _carry_out(self, messages: Sequence[Message]) -> None:
        """Queue messages, and send those that can be sent."""
        for message in messages:
            self._waiting.append(message, len(message[1]))
        self._flush()

    def _flush(self) -> None:
        """Send queued messages if possible, and keep the queue within its limits."""
        claim = self._claim
        if claim is None or claim.state is DoorState.HELD:
            self._send()
        elif claim.state is DoorState.STANDBY and claim.holder is not None:
            self._hand_on(claim.topic, claim.holder)
        self.dropped += self._waiting.trim()

    def _hand_on(self, topic: str, holder: bytes) -> None:
        """Pass the queue to the node that holds the claim, if it is reachable."""
        if self._waiting and self._hub.has_hub(holder):
            commands = [cbor2.dumps(message) for message in self._waiting.clear()]
            self._hub.publishing.command_node(holder, topic, commands)

    @property
    def unwritten(self) -> int:
        """Messages that JSON cannot express."""
        return self._unwritten.count

    def _send(self) -> None:
        """Send queued messages up to the first that must wait."""
        ways = [connection for connection in self._connections() if connection.link is not None]
        frames: dict[ZeekConnection, list[bytes]] = {}
        while self._waiting:
            topic, content = self._waiting.first
            is_only = len(ways) == len(self._plan.held) == 1
            way = ways[0] if is_only else self._plan.way_of(topic, ways)
            if not isinstance(way, ZeekConnection) or way.session is None:
                break
            self._waiting.popleft()
            try:
                text = content_to_json(topic, content)
            except EndpointError as error:
                self._unwritten.add(self.url, topic, error)
            else:
                frames.setdefault(way, []).append(way.session.send(text))
        for way, parts in frames.items():
            if way.link is not None:
                self.taken += len(parts)
                way.link.say(b"".join(parts))


def _headers(name: str, token: str) -> Mapping[str, str]:
    """Return the HTTP headers of the request."""
    headers = {}
    if name:
        headers["X-Application-Name"] = checked_name(name)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _nothing() -> None:
    """Do nothing: no wishes are watched."""
