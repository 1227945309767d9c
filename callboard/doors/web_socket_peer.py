"""A Zeek that is reached over WebSocket JSON, with as many connections as its filters need.

A filter goes once, when a connection begins. So topics that come to be wanted later need a
further connection; topics that are not wanted any more go with the next reconnect. A message
must not come twice, so the filters of two connections never overlap: a topic is asked for by
one of them, and where a wish is wider than a filter that went (`/zeek` after `/zeek/event`),
that connection ends before the wider filter goes. What a connection has brought before its end
is kept; what Zeek publishes in the milliseconds between the two is missed, as in any cut.

Zeek does not give a connection what was published through it. So a message goes out by the
connection whose filter has its topic: by any other one it would come back.

`FilterPlan` decides; it is pure. `WebSocketPeer` follows it, on the node's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

from callboard.actors.closing import Closing
from callboard.actors.errors import NodeUnreachable, ResultTimeout
from callboard.actors.future import Future
from callboard.dataclass import dataclass
from callboard.endpoint.door_claim import DoorClaim, DoorState
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Pair
from callboard.endpoint.machine.run import content_of
from callboard.endpoint.machine.topic import is_reserved, shortest
from callboard.model.errors import EndpointError
from callboard.proxies.address import Endpoint
from callboard.proxies.link.certificates import Certificates
from callboard.proxies.link.foreign import ForeignDial, ForeignLink, Opening
from callboard.proxies.link.tls import Tls
from callboard.zeek.json_message import content_to_json
from callboard.zeek.web_socket import (
    ErrorFrame,
    Message,
    SessionState,
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

#: Messages that wait while no connection is there; the oldest are dropped beyond it.
QUEUE_LIMIT: Final = 16_384

#: Bytes that may wait for a Zeek that does not read; the connection is ended then.
WAITING_LIMIT: Final = 64 << 20

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

    def way_of(self, topic: str, ways: Iterable[object]) -> object:
        """Return by which of these connections a message goes out; None if there is none."""
        first = None
        for key in ways:
            if topic.startswith(self.held.get(key) or ()):
                return key
            first = key if first is None else first
        return first


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


class WebSocketPeer(Closing):
    """A Zeek, until it is closed; see `Endpoint.connect_web_socket`.

    Attributes:
        url: where it is.
        endpoint: what it calls this connection, as its last ack said.
        version: its version, as its last ack said.
        brought: messages from Zeek.
        taken: messages to Zeek.
        unreadable: messages of Zeek that were none.
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
        self.brought = self.taken = self.unreadable = self.unwritten = self.dropped = 0
        self.errors = self.connects = 0
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
        self._waiting: deque[tuple[str, str]] = deque()
        self._is_closed = False
        self._settled: list[Future[None]] = []
        self._runtime = hub.node.runtime
        self._certificates = None
        if self._uri.secure:
            self._certificates = Certificates(tls or Tls(), self._runtime.report)
            self._certificates.dialing()  # its files are of use
        self._foreign = hub.node.overlay.foreign
        self._unwatch = _nothing
        #: Which node of the cluster brings in what all of them want; None where the user says.
        self._claim: DoorClaim | None = None
        if self._fixed is None:
            self._claim = DoorClaim(hub, url, kept=self._follow, lost=self._yield)
            self._unwatch = hub.watch_wishes(self, lambda _: self._follow())
        hub.call_soon(self._follow)
        hub.add_way_out(self)

    # --- for users, from any thread ---

    @property
    def is_connected(self) -> bool:
        """Whether Zeek has acknowledged a filter, and the connection stands."""
        return any(each.link is not None for each in self._connections())

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
        return future

    def close(self) -> None:
        """End all connections. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if not self._runtime.is_closed:
                self._unwatch()
                self._hub.remove_way_out(self)
                self._hub.call_soon(self._end)

    def _end(self) -> None:
        """Stop all connections; nobody waits any more."""
        if self._claim is not None:
            self._claim.release()
        for each in self._connections():
            self._stop(each)
        for future in self._settled:
            future.set_exception(NodeUnreachable(f"the connection to {self.url} was closed"))
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
        waiting, self._waiting = self._waiting, deque()
        self._send(waiting)
        self._follow()

    def disconnected(self, connection: ZeekConnection, reason: str) -> None:
        """A connection ended, or could not be made."""
        self.reason = reason
        if connection in self._plan.held:
            self._plan.held[connection] = None

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
        for message in messages:
            if isinstance(message, ErrorFrame):
                self._refused(message)
            else:
                brought.append(message)
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
        self.on_error(frame)

    def _log_error(self, frame: ErrorFrame) -> None:
        """Tell the log of an error frame."""
        _log.warning("%s: %s: %s", self.url, frame.code, frame.context)

    def takes(self, topic: str) -> bool:
        """Return whether messages with a topic go to Zeek."""
        return topic.startswith(self._publish) and not is_reserved(topic)

    def take_own(self, run: Sequence[Pair]) -> None:
        """Send what was published here."""
        texts = []
        for topic, pair in run:
            if self.takes(topic):
                try:
                    texts.append((topic, content_to_json(topic, content_of((topic, pair)))))
                except EndpointError as error:
                    self.unwritten += 1
                    _log.warning("a message on %s is not sent: %s", topic[:80], error)
        self._send(texts)

    def _send(self, texts: Iterable[tuple[str, str]]) -> None:
        """Send texts, or let them wait for a connection."""
        ways = [each for each in self._connections() if each.link is not None]
        frames: dict[ZeekConnection, list[bytes]] = {}
        for topic, text in texts:
            way = ways[0] if len(ways) == 1 else self._plan.way_of(topic, ways)
            session = way.session if isinstance(way, ZeekConnection) else None
            if session is None or session.state is not SessionState.OPEN:
                if len(self._waiting) >= QUEUE_LIMIT:
                    self._waiting.popleft()
                    self.dropped += 1
                self._waiting.append((topic, text))
                continue
            assert isinstance(way, ZeekConnection)
            frames.setdefault(way, []).append(session.send(text))
        for way, parts in frames.items():
            link = way.link
            if link is not None:
                self.taken += len(parts)
                link.write(b"".join(parts))
                if link.waiting > WAITING_LIMIT:
                    link.end(f"{link.waiting:,} B wait and it does not read")


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
