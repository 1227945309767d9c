"""A Zeek that is reached over WebSocket JSON, with as many connections as its filters need.

A filter goes once, when a connection begins. So topics that come to be wanted later need a
further connection; topics that are not wanted any more go with the next reconnect. A message
must not come twice, so the filters of two connections never overlap: a topic is asked for by
one of them, and where a wish is wider than a filter that went (`/zeek` after `/zeek/event`),
that connection ends before the wider filter goes. What a connection has brought before its end
is kept; what Zeek publishes in the milliseconds between the two is missed, as in any cut.

Zeek does not give a connection what was published through it. So a message goes out by the
connection whose filter has its topic: by any other one it would come back. For the same reason
a node that stands by hands what it publishes to the node that is the door.

`FilterPlan` decides; it is pure. `WebSocketPeer` follows it, on the node's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

import cbor2

from callboard.endpoint.door_claim import DoorClaim, DoorState
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item, Pair, RunReceiver
from callboard.endpoint.machine.run import PackedType, content_of
from callboard.endpoint.machine.topic import is_reserved, shortest
from callboard.kernel.errors import NodeUnreachable, ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.tls import Certificates, Tls
from callboard.kernel.topology import Endpoint
from callboard.kernel.twins import Closing
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.errors import EndpointError
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted
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

#: Connections to one Zeek; a wish that needs another one makes them one again.
CONNECTION_LIMIT: Final = 4

#: Seconds between two attempts to connect, at most.
RETRY: Final = 0.5

#: Bytes of a message.
MESSAGE_LIMIT: Final = 64 << 20

#: Seconds without a connection after which another node of the cluster, if it has one, is to
#: be the door.
PATIENCE: Final = 5.0

#: Messages, and their characters, that wait while no connection is there; the oldest are
#: dropped beyond either.
QUEUE_LIMIT: Final = 16_384
QUEUE_SIZE: Final = 64 << 20

#: Seconds without reading while publishers have to wait.
PAUSE: Final = 0.02


class PlanStep(NamedTuple):
    """What is to be done.

    Attributes:
        stop: connections that are not needed any more, or in the way.
        renew: the connection that begins anew, to ask for more; None for none.
        opens: whether a further one is opened.
    """

    stop: tuple[object, ...] = ()
    renew: object = None
    opens: bool = False


@dataclass(slots=True)
class FilterPlan:
    """Which connection asks for what.

    Attributes:
        wanted: the topics that are wanted, none of which covers another.
        held: the filters that went, by connection, in the order of these; None before.
    """

    wanted: tuple[str, ...] = ()
    held: dict[object, tuple[str, ...] | None] = field(default_factory=dict)

    def missing(self, beside: object = None) -> tuple[str, ...]:
        """Return what is wanted and no filter has; but for one connection's."""
        held = self._held(beside)
        return tuple(each for each in self.wanted if not each.startswith(held))

    def _held(self, beside: object = None) -> tuple[str, ...]:
        """Return all topics of the filters that went."""
        filters = [topics for key, topics in self.held.items() if key is not beside]
        return tuple(topic for topics in filters for topic in topics or ())

    def _in_the_way(self, beside: object = None) -> list[object]:
        """Return connections with a filter that is narrower than what is missing."""
        missing, found = self.missing(beside), []
        for key, topics in self.held.items():
            if key is not beside and any(topic.startswith(missing) for topic in topics or ()):
                found.append(key)
        return found

    def next_step(self) -> PlanStep:
        """Return what is to be done for the topics that are wanted."""
        if not self.held:
            return PlanStep(opens=True)
        if not self.missing() or None in self.held.values():
            return PlanStep()  # a connection that is being made takes all that is missing
        blocked = self._in_the_way()
        if blocked:
            return PlanStep(tuple(blocked[1:]), renew=blocked[0])
        if len(self.held) < CONNECTION_LIMIT:
            return PlanStep(opens=True)
        first, *others = self.held
        return PlanStep(tuple(others), renew=first)

    def ask(self, key: object) -> tuple[tuple[str, ...], tuple[object, ...]]:
        """Return the filter that a connection sends, and the connections that end before."""
        self.held[key] = None
        ended: list[object] = []
        while blocked := self._in_the_way(key):
            for each in blocked:
                del self.held[each]
            ended += blocked
        topics = self.held[key] = self.missing(key)
        return topics, tuple(ended)

    def is_spare(self, key: object) -> bool:
        """Return whether others hold all that is wanted, so that a connection is not needed."""
        return not self.held[key] and any(each is not key for each in self.held)

    def way_of(self, topic: str, ways: Sequence[object]) -> object:
        """Return by which connection a message goes out; None where it has to wait.

        It waits while a connection that has asked for its topic, or will, is being made.

        Args:
            topic: of the message.
            ways: the connections that stand.
        """
        for key, topics in self.held.items():
            if topics and topic.startswith(topics):
                return key if key in ways else None
        if not ways or (None in self.held.values() and topic.startswith(self.missing())):
            return None
        return ways[0]


class ZeekConnection:
    """One connection: what its link is handed to."""

    kind: Final = "websocket"

    def __init__(self, peer: "WebSocketPeer") -> None:
        self._peer = peer
        self.dial: ForeignDial | None = None
        self.link: ForeignLink | None = None
        self.session: ZeekClientSession | None = None

    def make_machine(self, opening: Opening) -> ZeekClientSession:
        """Return the machine of a new connection."""
        self.session = self._peer.session(self, opening)
        return self.session

    def link_up(self, link: ForeignLink, _name: str) -> None:
        """Take note that Zeek has acknowledged the filter."""
        self.link = link
        self._peer.connected(self)

    def link_down(self, _link: ForeignLink, reason: str) -> None:
        """Take note that the connection ended."""
        self.link = None
        self._peer.disconnected(self, reason)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Take what Zeek sent."""
        self._peer.bring(self, link, messages)

    def not_linked(self, _remote: Endpoint, reason: str) -> None:
        """Take note that an attempt came to nothing."""
        self._peer.disconnected(self, reason)


class WebSocketPeer(RunReceiver, Closing):
    """A Zeek, until it is closed; see `Endpoint.connect_web_socket`.

    Attributes:
        url: where it is.
        endpoint: what it calls this connection, as its last ack said.
        version: its version, as its last ack said.
        brought: messages from Zeek.
        taken: messages to Zeek.
        unreadable: messages of Zeek that were none.
        unasked: messages of Zeek on topics that it was not asked for; they go nowhere.
        unwritten: messages that JSON has no form for.
        dropped: messages that found no room while no connection was there.
        errors: messages that Zeek refused; the last of its error frames is `last_error`.
        connects: acks so far.
        reason: why there is no connection, as far as that is known.
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
        """Begin to connect; the arguments are those of `Endpoint.connect_web_socket`."""
        self.url = url
        self.endpoint = self.version = self.reason = ""
        self.brought = self.taken = self.unreadable = self.dropped = 0
        self._unwritten = UnwrittenMessages(hub, _log)
        self.errors = self.connects = self.unasked = 0
        self.last_error: ErrorFrame | None = None
        #: Called with each error frame of Zeek, on the node's thread.
        self.on_error: Callable[[ErrorFrame], object] = self._log_error
        self._hub = hub
        self._uri = parse_address(url)
        self._fixed = None if subscribe is None else shortest(subscribe)
        self._publish = tuple(publish)
        self._headers = _headers(name, token)
        self._retry = retry
        self._message_limit = message_limit
        self._plan = FilterPlan()
        self._waiting: deque[Message] = deque()
        self._waiting_size = 0
        self._is_closed = False
        self._settled: list[Future[None]] = []
        self._runtime = hub.node.context
        self._seen_at = self._runtime.now()
        self._certificates = None
        if self._uri.secure:
            self._certificates = Certificates(tls or Tls(), self._runtime.report)
            self._certificates.dialing()  # its files are of use
        self._foreign = hub.node.overlay.foreign
        self._unwatch = _nothing
        #: Which node of the cluster brings in what all of them want; None where the user says.
        self._claim: DoorClaim | None = None
        if self._fixed is None:
            self._claim = DoorClaim(
                hub, url, kept=self._follow, lost=self._yield, reaches=self._reaches
            )
            self._unwatch = hub.watch_wishes(self, lambda _: self._follow())
            hub.add_receiver(self, (self._claim.topic,), kind=PackedType.COMMAND)
        hub.call_soon(self._follow)
        hub.add_way_out(self)

    # --- for users, from any thread ---

    @property
    def is_connected(self) -> bool:
        """Whether Zeek has acknowledged a filter, and the connection stands."""
        return any(each.link is not None for each in self._connections())

    @property
    def is_door(self) -> bool:
        """Whether this node brings messages in; of a cluster's nodes one does."""
        return self._claim is None or self._claim.state is DoorState.HELD

    def subscriptions(self) -> tuple[str, ...]:
        """Return what Zeek was asked for, by the connections that stand."""
        return tuple(
            topic
            for each in self._connections()
            if each.link is not None
            for topic in self._plan.held.get(each) or ()
        )

    def await_subscribed(self, timeout: float = 10.0) -> bool:
        """Wait until Zeek has acknowledged all that is wanted; False after `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        try:
            self.settled().result(timeout)
        except ResultTimeout:
            return False
        return True

    def settled(self) -> Future[None]:
        """Return a future that is done when Zeek has acknowledged all that is wanted."""
        future: Future[None] = Future()
        # Behind what the same thread has subscribed to before.
        self._hub.call_soon(self._await, future)
        self._runtime.shutdown.guard(future)
        return future

    def close(self) -> None:
        """End all connections. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if not self._runtime.is_closed:
                self._unwatch()
                self._hub.remove_way_out(self)
                if self._claim is not None:
                    self._hub.remove_receiver(self, kind=PackedType.COMMAND)
                self._hub.call_soon(self._end)

    def _end(self) -> None:
        """Stop all connections; nobody waits any more."""
        if self._claim is not None:
            self._claim.release()
        for each in self._connections():
            self._stop(each)
        for future in self._settled:
            future.set_exception(
                NodeUnreachable(f"the connection to {redacted(self.url)} was closed")
            )
        self._settled.clear()

    # --- the plan ---

    def _connections(self) -> list[ZeekConnection]:
        """Return the connections of the plan."""
        return list(self._plan.held)  # type: ignore[arg-type]

    def _follow(self) -> None:
        """Do what the plan says."""
        if self._is_closed or self._runtime.is_closed:
            return
        if self._claim is not None and self._claim.state is DoorState.CLAIMING:
            return  # it is not decided whether anything is wanted by this node
        self._plan.wanted = self._wanted()
        step = self._plan.next_step()
        for each in step.stop:
            self._stop(each)
        if isinstance(step.renew, ZeekConnection) and step.renew.dial is not None:
            self._plan.held[step.renew] = None
            self._foreign.redial(step.renew.dial, "more topics are wanted")
        if step.opens:
            made = ZeekConnection(self)
            self._plan.held[made] = None
            made.dial = self._foreign.dial(
                made,
                (self._uri.host, self._uri.port),
                retry=self._retry,
                tls=self._certificates,
            )
        self._look_for_settled()
        self._flush()

    def _reaches(self) -> bool:
        """Return whether Zeek is there, or was a short while ago."""
        if self.is_connected:
            self._seen_at = self._runtime.now()
        is_patient: bool = self._runtime.now() - self._seen_at < PATIENCE
        return is_patient

    def _yield(self, _holder: bytes) -> None:
        """Ask for nothing any more: another node brings in what is wanted."""
        for each in self._connections():
            if each.dial is not None and self._plan.held[each]:
                self._plan.held[each] = None
                self._foreign.redial(
                    each.dial, "another node of the cluster brings messages in"
                )
        self._follow()

    def _wanted(self) -> tuple[str, ...]:
        """Return the topics that are wanted: none where another node brings them in."""
        if self._claim is not None and self._claim.state is not DoorState.HELD:
            return ()
        return self._hub.core.wishes(self) if self._fixed is None else self._fixed

    def _stop(self, connection: object) -> None:
        """End a connection for good."""
        self._plan.held.pop(connection, None)
        if isinstance(connection, ZeekConnection) and connection.dial is not None:
            self._foreign.stop(connection.dial)

    def session(self, connection: ZeekConnection, opening: Opening) -> ZeekClientSession:
        """Return the machine of a connection that was made."""

        def topics() -> tuple[str, ...]:
            if connection not in self._plan.held:
                return ()
            self._plan.wanted = self._wanted()
            asked, ended = self._plan.ask(connection)
            for each in ended:
                self._stop(each)
            return asked

        return ZeekClientSession(
            self._uri,
            topics,
            opening.now,
            limit=self._message_limit,
            headers=self._headers,
        )

    def connected(self, connection: ZeekConnection) -> None:
        """A connection stands."""
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
        """A connection ended, or could not be made."""
        self.reason = reason
        if connection in self._plan.held:
            self._plan.held[connection] = None
            self._flush()

    def _await(self, future: Future[None]) -> None:
        """Wake this one when all is acknowledged."""
        self._settled.append(future)
        self._follow()

    def _look_for_settled(self) -> None:
        """Wake those who wait until all wishes were acknowledged."""
        is_asked = self._plan.held and None not in self._plan.held.values()
        is_acknowledged = all(each.link is not None for each in self._connections())
        if is_asked and is_acknowledged and not self._plan.missing():
            settled, self._settled = self._settled, []
            for future in settled:
                future.set_result(None)

    # --- messages; on the node's thread ---

    def bring(self, connection: ZeekConnection, link: ForeignLink, messages: list[Any]) -> None:
        """Publish what Zeek sent."""
        if connection not in self._plan.held:
            return  # another one brings its topics since
        brought: list[Message] = []
        asked = self._plan.held[connection] or ()
        for message in messages:
            if isinstance(message, ErrorFrame):
                self._refused(message)
            elif message[0].startswith(asked):
                brought.append(message)
            else:
                self.unasked += 1
        self.brought += len(brought)
        if brought:
            self._hub.bring_in_encoded(brought, self)
        if not self._hub.has_room():
            link.put_off(PAUSE)

    def _refused(self, frame: ErrorFrame) -> None:
        """Take note of an error frame."""
        if frame.code == "unreadable":
            self.unreadable += 1
        else:
            self.errors += 1
            self.last_error = frame
        try:
            self.on_error(frame)
        except Exception:  # noqa: BLE001  # the user's: messages behind it are not lost for that
            _log.exception("on_error of %s failed", self.url)

    def _log_error(self, frame: ErrorFrame) -> None:
        """Tell the log of an error frame: each, while they are few."""
        count = self.errors + self.unreadable
        if not count & (count - 1):  # 1, 2, 4, 8 …
            _log.warning("%s: error %d: %s: %s", self.url, count, frame.code, frame.context)

    def takes(self, topic: str) -> bool:
        """Return whether messages with a topic go to Zeek."""
        return topic.startswith(self._publish) and not is_reserved(topic)

    def peer_topics(self) -> tuple[str, ...]:
        """Return nothing: a Zeek does not tell what it wants."""
        return ()

    def take_own(self, run: Sequence[Pair]) -> None:
        """Send what was published here."""
        self._carry_out([(each[0], content_of(each)) for each in run if self.takes(each[0])])

    def take_from(self, _sender: bytes, items: list[Item], _size: int) -> None:
        """Send what a node that stands by hands to this one."""
        handed = [each for _, each in items if type(each) is tuple]
        self._carry_out([each for each in handed if [*map(type, each)] == [str, bytes]])

    def _carry_out(self, messages: Sequence[Message]) -> None:
        """Send messages behind all that wait."""
        self._waiting.extend(messages)
        self._waiting_size += sum(len(content) for _, content in messages)
        self._flush()

    def _flush(self) -> None:
        """Send what waits, as far as that is possible, and keep the rest in bounds."""
        claim = self._claim
        if claim is None or claim.state is DoorState.HELD:
            self._send()
        elif claim.state is DoorState.STANDBY and claim.holder is not None:
            self._hand_on(claim.topic, claim.holder)
        while len(self._waiting) > QUEUE_LIMIT or self._waiting_size > QUEUE_SIZE:
            self._next_waiting()
            self.dropped += 1

    def _next_waiting(self) -> Message:
        """Take the oldest message that waits."""
        message = self._waiting.popleft()
        self._waiting_size -= len(message[1])
        return message

    def _hand_on(self, topic: str, holder: bytes) -> None:
        """Hand all that waits to the node that is the door, if it is in reach."""
        if self._waiting and self._hub.has_hub(holder):
            waiting, self._waiting, self._waiting_size = self._waiting, deque(), 0
            self._hub.hand_to(holder, topic, [cbor2.dumps(each) for each in waiting])

    @property
    def unwritten(self) -> int:
        """Messages that JSON has no form for."""
        return self._unwritten.count

    def _send(self) -> None:
        """Send messages until one has to wait."""
        ways = [each for each in self._connections() if each.link is not None]
        frames: dict[ZeekConnection, list[bytes]] = {}
        while self._waiting:
            topic, content = self._waiting[0]
            is_only = len(ways) == len(self._plan.held) == 1
            way = ways[0] if is_only else self._plan.way_of(topic, ways)
            if not isinstance(way, ZeekConnection) or way.session is None:
                break
            self._next_waiting()
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
    """Return the headers of a request."""
    headers = {}
    if name:
        headers["X-Application-Name"] = checked_name(name)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _nothing() -> None:
    """Stand where no wishes are watched."""
