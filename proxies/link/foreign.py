"""Foreign wires of one node: ports, dials and links whose protocol is not BASP.

    socket ── stream ── machine of the wire ── adapter
                 (bytes)             (messages)

A link of a foreign wire uses the same kind of stream as a link between nodes, with its TLS,
back-pressure and throttles, and with one write per turn. Its machine belongs to the package of
the wire, and the adapter translates its messages for the hub. Each port limits unproven peers
as the ports of nodes do, and a connection that is not admitted in time is ended.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.actors.values import Event, Message
from callboard.backoff import Backoff
from callboard.basp.errors import AlreadyLinked, BaspError, LinkLost
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.proxies.address import Endpoint, is_path, place_text
from callboard.proxies.errors import LinkError, TlsError
from callboard.proxies.events import ForeignDialFailed, ForeignLinkDown, ForeignLinkUp
from callboard.proxies.link.acceptor import Acceptor
from callboard.proxies.link.attempt import Attempt, Obstacle
from callboard.proxies.link.connector import Connector
from callboard.proxies.link.limits import AcceptLimiter, Limits, Throttle
from callboard.proxies.link.network import Network
from callboard.proxies.link.ports import bind, refuse_unguarded
from callboard.proxies.link.stream import READ_SIZE, WAITING_LIMIT, Machine, Stream
from callboard.proxies.link.tls_socket import HANDSHAKE_LIMIT, TlsSocket
from callboard.support.aliases import former_method
from callboard.support.dataclass import dataclass
from callboard.tls.certificates import Certificates

_log = logging.getLogger("callboard.links")

#: Seconds of the first pause between attempts; each further one is twice as long.
FIRST_RETRY: Final = 0.1

#: Longest pause between attempts, in seconds, unless the dial sets another one.
LAST_RETRY: Final = 10.0

#: Seconds after which an established link counts as a success, so that pauses start anew.
STEADY: Final = 5.0


class Opening(NamedTuple):
    """Facts about a connection, which are passed to the constructor of its machine.

    Attributes:
        remote: the other end: the dialed address, or the source of the connection.
        is_dialed: whether this side dialed.
        certified: the names in the peer's certificate.
        now: monotonic seconds.
    """

    remote: Endpoint
    is_dialed: bool
    certified: tuple[str, ...]
    now: float


class ForeignPeer(NamedTuple):
    """A peer on a foreign wire, which may have several connections.

    Attributes:
        wire: name of the wire.
        address: the dialed address, or the source of the connection.
        name: the peer's own name; empty until it is admitted.
        is_dialed: whether this side dials.
        is_linked: whether it is admitted.
        retry: longest pause between attempts, in seconds.
        waiting: bytes that it has not received yet.
        endpoint: the id of its endpoint, if its wire has such ids and it is admitted.
    """

    wire: str
    address: Endpoint
    name: str
    is_dialed: bool
    is_linked: bool
    retry: float
    waiting: int
    endpoint: bytes | None = None


class ForeignSource(Protocol):
    """An adapter that manages its sockets itself, such as ZeroMQ's."""

    def peers(self) -> list[ForeignPeer]:
        """Return its peers. Can be called from any thread."""

    def end(self, reason: str) -> None:
        """Close it as the node closes. Must be called on the runner's thread."""


class ForeignDoor(Protocol):
    """Receives the links of a foreign wire. Its methods are called on the node's thread."""

    #: Name of the wire, such as `websocket`: for people, peers and metrics.
    kind: str

    def make_machine(self, opening: Opening) -> Machine[Any, Any]:
        """Return the machine of a new connection."""

    def link_up(self, link: "ForeignLink", name: str) -> None:
        """Handle the admission of a peer."""

    def link_down(self, link: "ForeignLink", reason: str) -> None:
        """Handle the end of a link whose peer was admitted."""

    def deliver(self, link: "ForeignLink", messages: list[Message]) -> None:
        """Handle messages from a peer, in order, even before its admission."""

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Handle a failed attempt to connect, or a failed handshake."""


class ForeignLink(Stream[Any, Any]):
    """One connection of a foreign wire.

    Attributes:
        remote: the other end: the dialed address, or the source of the connection.
        dial: its dial; None if the peer dialed.
        peer: name of the admitted peer; None until then.
        endpoint: the id of its endpoint, if its wire has such ids.
    """

    def __init__(
        self,
        wires: "ForeignWires",
        adapter: ForeignDoor,
        sock: "socket.socket | TlsSocket",
        remote: Endpoint,
        dial: "ForeignDial | None",
        limits: Limits,
    ) -> None:
        """Take over a connected socket."""
        runner, throttle = wires.turns.runner, None
        if limits.messages_per_second or limits.bytes_per_second:
            allowed = limits.messages_per_second, limits.bytes_per_second
            throttle = Throttle(*allowed, now=runner.now(), read_size=READ_SIZE)
        certified = sock.names() if isinstance(sock, TlsSocket) else ()
        opening = Opening(remote, dial is not None, certified, runner.now())
        machine = adapter.make_machine(opening)
        carry_out = partial(wires.carry_out, self)
        super().__init__(wires.turns, sock, machine, self._arrived, carry_out, throttle)
        self.adapter = adapter
        self.remote = remote
        self.dial = dial
        self.peer: str | None = None
        #: Bytes that may wait to be sent to the peer; if more wait, the link is ended.
        self.waiting_limit = WAITING_LIMIT
        self.endpoint: bytes | None = None
        #: The timer that ends the connection if the peer is not admitted in time.
        self.patience: Timer | None = None
        self.since = runner.now()

    @property
    def kind(self) -> str:
        """Name of the wire."""
        return self.adapter.kind

    def is_with(self, other: "ForeignLink") -> bool:
        """Return whether another connection leads to the same peer."""
        return (self.kind, self.remote) == (other.kind, other.remote)

    @property
    def name(self) -> str:
        """The peer at the other end, for people."""
        return f"{self.kind} peer {self.peer or place_text(self.remote)}"

    def say(self, data: bytes) -> None:
        """Write bytes, or end the link if too many bytes wait because the peer does not read.

        Without this limit, a peer that sends requests and reads no answers could fill the
        memory.
        """
        if self.waiting > self.waiting_limit:
            self.end(f"{self.waiting:,} B wait because the peer does not read")
        else:
            self.write(data)

    put_off = former_method("put_off", "pause_reading")

    def _arrived(self, messages: list[Message]) -> None:
        """Pass messages that arrived without other effects to the adapter."""
        self.adapter.deliver(self, messages)


class ForeignPort:
    """A port of a foreign wire."""

    def __init__(self, endpoint: Endpoint, acceptor: Acceptor[ForeignDoor]) -> None:
        self.endpoint = endpoint
        self.acceptor = acceptor
        #: The connections accepted on this port.
        self.links: set[ForeignLink] = set()

    @property
    def port(self) -> int:
        """The TCP port; 0 of a Unix socket."""
        return self.endpoint[1]


class ForeignDial:
    """A request to be linked to the peer at an address on a foreign wire.

    Attributes:
        linked: a future that is done when the peer is admitted for the first time. It fails
            when the dial is stopped, or, if `retry` is 0, when the first attempt fails.
        link: the connection, established or in its handshake; None between two attempts.
        logged_text: the last logged reason of having no link.
    """

    def __init__(
        self,
        adapter: ForeignDoor,
        endpoint: Endpoint,
        retry: float,
        tls: Certificates | None,
        server_name: str | None,
    ) -> None:
        self.adapter = adapter
        self.endpoint = endpoint
        self.retry = retry
        self.tls = tls
        self.server_name = server_name
        self.backoff = Backoff(min(FIRST_RETRY, retry or FIRST_RETRY), retry or LAST_RETRY)
        self.linked: Future[ForeignLink] = Future()
        self.link: ForeignLink | None = None
        self.attempt: Attempt | None = None
        self.timer: Timer | None = None
        self.logged_text = ""
        self.is_stopped = False

    @property
    def is_linked(self) -> bool:
        """Whether an admitted peer is at the other end."""
        return self.link is not None and self.link.peer is not None


@dataclass(eq=False, repr=False)
class ForeignWires:
    """The foreign ports, dials and links of one node.

    `listen`, `close_port`, `dial` and `stop` may be called from any thread; everything else on
    the runner with its role.
    """

    _connector: Connector
    _network: Network
    _emit: Callable[[Event], None]
    ports: list[ForeignPort] = field(default_factory=list)
    dials: list[ForeignDial] = field(default_factory=list)
    #: All connections, in order of creation.
    links: dict[ForeignLink, ForeignPort | None] = field(default_factory=dict)
    #: Adapters that manage their sockets themselves.
    sources: list[ForeignSource] = field(default_factory=list)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.turns = self._connector.turns
        self._runner: Runner = self.turns.runner
        self._part_with = self._connector.part_with
        self._watch = self._connector.watch

    @property
    def limits(self) -> Limits:
        """The node's limits for its peers; the ports of nodes have the same."""
        return self._connector.options.limits

    # --- ports ---

    def listen(
        self,
        adapter: ForeignDoor,
        address: str,
        port: int = 0,
        *,
        tls: Certificates | None = None,
        is_guarded: bool = False,
        insecure: bool = False,
        limits: Limits = Limits(),  # noqa: B008  # the default is a frozen object
        patience: float = HANDSHAKE_LIMIT,
        waiting: int = WAITING_LIMIT,
    ) -> ForeignPort:
        """Accept links of a foreign wire on a port.

        Args:
            adapter: receives the links, and makes their machines.
            address: local address, or the path of a Unix socket.
            port: the port number; 0 picks a free one.
            tls: encryption of the connections.
            is_guarded: whether the wire itself authenticates peers, for instance by a token.
            insecure: allow an address that other machines can reach without any authentication.
            limits: limits for unproven connections and peers; `links`, `handshakes` and so on
                count for this port alone.
            patience: seconds until a peer must be admitted.
            waiting: bytes that may wait for a peer that does not read.

        Raises:
            PublicAddress: other machines can reach the address, and peers are not
                authenticated.
            TlsError: a file of `tls` is missing or invalid.
            PortUnavailable: the address is not on this machine, or the port is taken.
        """
        if tls is not None:
            tls.listening()  # checks its files
        if not insecure:
            refuse_unguarded(address, is_guarded=is_guarded or tls is not None)
        sock = bind(self._network, address, port)
        endpoint = (address, 0) if is_path(address) else sock.getsockname()[:2]
        gate = AcceptLimiter(limits)

        def opened(accepted: Any, adapter: ForeignDoor, remote: Endpoint) -> ForeignLink:
            link = ForeignLink(self, adapter, accepted, remote, None, limits)
            link.waiting_limit = waiting
            foreign_port.links.add(link)
            self._begin(link, accepted, foreign_port, patience)
            return link

        acceptor = Acceptor[ForeignDoor](
            self._runner,
            gate,
            self._emit,
            opened,
            partial(self._part_at, gate),
            lambda: len(foreign_port.links),
        )
        foreign_port = ForeignPort(endpoint, acceptor)
        self._runner.post(self._open_port, foreign_port, sock, adapter, tls)
        return foreign_port

    def _open_port(
        self, port: ForeignPort, sock: Any, adapter: ForeignDoor, tls: Certificates | None
    ) -> None:
        """Start accepting connections, unless the node has closed."""
        if self._closed:
            sock.close()
            return
        self.ports.append(port)
        port.acceptor.listen(sock, adapter, tls)
        if tls is not None:
            self._watch(tls)

    def close_port(self, port: ForeignPort, reason: str, *, keep_links: bool = False) -> None:
        """Close a port and end its links, unless they are kept."""
        self._runner.post(partial(self._close_port, port, reason, keep_links=keep_links))

    def _close_port(self, port: ForeignPort, reason: str, *, keep_links: bool = False) -> None:
        """Close a port. Must be called on the runner's thread."""
        port.acceptor.close()
        if port in self.ports:
            self.ports.remove(port)
        for link in [] if keep_links else list(port.links):
            link.end(reason)

    def _part_at(self, gate: AcceptLimiter, connection: object, sock: Any) -> None:
        """Close a connection of a port; it counts for its limits until the peer closes too."""
        self._part_with(connection, sock, gate)

    # --- dials ---

    def dial(
        self,
        adapter: ForeignDoor,
        endpoint: Endpoint,
        *,
        retry: float = LAST_RETRY,
        tls: Certificates | None = None,
        server_name: str | None = None,
    ) -> ForeignDial:
        """Link with the peer at an address, until `stop`; see `ForeignDial.linked`.

        Args:
            adapter: receives the links, and makes their machines.
            endpoint: host and port.
            retry: longest pause between two attempts, in seconds, without jitter; the first
                pauses are shorter. 0 for a single attempt; a lost link is not dialed again
                either.
            tls: encryption of the connection.
            server_name: the name that a certificate must show, if it is not the host.
        """
        dial = ForeignDial(adapter, endpoint, retry, tls, server_name)
        self._runner.post(self._first, dial)
        return dial

    def _first(self, dial: ForeignDial) -> None:
        """Start a dial."""
        if self._closed:
            dial.linked.set_exception(NodeClosed("the node is closed"))
        elif not dial.is_stopped:
            self.dials.append(dial)
            if dial.tls is not None:
                self._watch(dial.tls)
            self._attempt(dial)

    def stop(self, dial: ForeignDial, reason: str = "the user removed it") -> None:
        """Stop a dial and end its link."""
        self._runner.post(self._stop, dial, reason)

    def _stop(self, dial: ForeignDial, reason: str) -> None:
        """Stop a dial. Must be called on the runner's thread."""
        dial.is_stopped = True
        if dial in self.dials:
            self.dials.remove(dial)
        if dial.timer is not None:
            dial.timer.cancel()
        if dial.attempt is not None:
            dial.attempt.abandon()
        if not dial.linked.done():
            dial.linked.set_exception(NodeUnreachable(reason))
        if dial.link is not None:
            dial.link.end(reason)

    def redial(self, dial: ForeignDial, reason: str) -> None:
        """End the link of a dial, because its state is outdated, and connect again at once."""
        dial.backoff.reset()
        if dial.link is not None:
            dial.link.end(reason)
        elif dial.timer is not None and dial.attempt is None and not dial.is_stopped:
            dial.timer.cancel()
            self._attempt(dial)

    def _attempt(self, dial: ForeignDial) -> None:
        """Start an attempt."""
        dial.timer = None
        dial.attempt = Attempt(
            self._runner,
            self._network,
            dial.endpoint,
            opened=partial(self._connected, dial),
            failed=partial(self._hindered, dial),
            tls=dial.tls,
            server_name=dial.server_name,
        )
        dial.attempt.begin()

    def _connected(self, dial: ForeignDial, sock: "socket.socket | TlsSocket") -> None:
        """Start a link on a new connection."""
        dial.attempt = None
        link = ForeignLink(self, dial.adapter, sock, dial.endpoint, dial, Limits())
        dial.link = link
        if isinstance(sock, TlsSocket) and dial.tls is not None:
            sock.follow(dial.tls, link)
        self._begin(link, sock, None, HANDSHAKE_LIMIT)

    def _hindered(self, dial: ForeignDial, obstacle: Obstacle) -> None:
        """End an attempt that failed before a link was started."""
        dial.attempt = None
        remote, secured = place_text(dial.endpoint), obstacle.secured
        text = f"no {dial.adapter.kind} link with {remote}: {obstacle.reason}"
        cause: Exception | None = None
        if secured is not None:
            cause = TlsError(obstacle.reason) if secured.is_unfit else None
            self._part_with(secured, secured, None)
        elif obstacle.stage == "connect":
            text = f"nothing answers at {remote} ({obstacle.reason}); see that it is running"
        self._failed(dial, text, cause)

    def _failed(self, dial: ForeignDial, text: str, cause: Exception | None) -> None:
        """Report why the dial failed, and schedule the next attempt."""
        dial.adapter.not_linked(dial.endpoint, text)
        self._emit(ForeignDialFailed(dial.adapter.kind, dial.endpoint, text))
        if text != dial.logged_text and not dial.is_stopped and not self._closed:
            dial.logged_text = text
            level = logging.INFO if cause is None else logging.WARNING
            _log.log(level, "%s", text + ("; it is tried again" if dial.retry else ""))
        self._plan_next(dial, text, cause)

    def _check_link_later(self, dial: ForeignDial, link: ForeignLink) -> None:
        """Check later whether to dial a peer that is linked by another connection now."""
        if not dial.linked.done():
            dial.linked.set_result(link)
        if dial.is_stopped or self._closed:
            return
        if dial.retry:
            dial.timer = self._runner.call_later(dial.retry, self._attempt, dial)
        else:
            self.dials.remove(dial)
            dial.is_stopped = True

    def _plan_next(self, dial: ForeignDial, text: str, cause: Exception | None = None) -> None:
        """Schedule the next attempt, or end a dial with a single attempt."""
        if dial.is_stopped or self._closed:
            return
        if dial.retry:
            pause = dial.backoff.next_pause(self._runner.random)
            dial.timer = self._runner.call_later(pause, self._attempt, dial)
            return
        self.dials.remove(dial)
        dial.is_stopped = True
        if not dial.linked.done():
            error = NodeUnreachable(text) if cause is None else LinkError(text)
            error.__cause__ = cause
            dial.linked.set_exception(error)

    # --- links ---

    def _begin(
        self, link: ForeignLink, sock: Any, port: ForeignPort | None, patience: float
    ) -> None:
        """Start a connection, with a deadline for its admission."""
        self.links[link] = port
        gate = None if port is None else port.acceptor.gate
        link.let_go = lambda sock: self._part_with(link, sock, gate)
        text = f"the peer's handshake took longer than {patience:g} s"
        link.patience = self._runner.call_later(patience, link.end, text)
        link.start()
        if isinstance(sock, TlsSocket):  # its handshake may have read bytes of the link
            self._runner.post(link.catch_up)

    def carry_out(self, link: ForeignLink, effects: list[Any]) -> None:
        """Carry out the effects of a machine, in order."""
        for effect in effects:
            if isinstance(effect, Transmit):
                link.say(effect.data)
            elif isinstance(effect, Arrived):
                link.frames_received += len(effect.messages)
                link.adapter.deliver(link, effect.messages)
            elif isinstance(effect, Admitted):
                link.endpoint = effect.endpoint
                self._admitted(link, effect.name)
            elif isinstance(effect, Closed):
                self._ended(link, effect.reason, effect.error)

    def _admitted(self, link: ForeignLink, name: str) -> None:
        """Handle the admission of a peer that has proven its identity."""
        link.peer = name
        if link.patience is not None:
            link.patience.cancel()
        port, dial = self.links.get(link), link.dial
        if port is not None:
            port.acceptor.gate.proven(link)
        if dial is not None:
            dial.logged_text = ""
        if self._is_only(link):
            self._emit(ForeignLinkUp(link.kind, name, link.remote, link.endpoint))
        link.adapter.link_up(link, name)
        if dial is not None and not dial.linked.done():
            dial.linked.set_result(link)

    def _is_only(self, link: ForeignLink) -> bool:
        """Return whether no other connection with the same peer is admitted."""
        links = [other for other in self.links if other is not link and other.is_with(link)]
        return all(other.peer is None for other in links)

    def peers(self) -> list["ForeignPeer"]:
        """Return the peers of foreign wires, and the dialed addresses without a peer."""
        peers: dict[tuple[str, Endpoint], ForeignPeer] = {}
        for link in list(self.links):
            key = link.kind, link.remote
            former = peers.get(key)
            waiting = link.waiting + (0 if former is None else former.waiting)
            name = link.peer or ("" if former is None else former.name)
            retry = 0.0 if link.dial is None else link.dial.retry
            is_dialed = link.dial is not None
            is_up = link.peer is not None or (former is not None and former.is_linked)
            endpoint = link.endpoint
            peers[key] = ForeignPeer(*key, name, is_dialed, is_up, retry, waiting, endpoint)
        for dial in list(self.dials):
            key = dial.adapter.kind, dial.endpoint
            peers.setdefault(key, ForeignPeer(*key, "", True, False, dial.retry, 0))  # noqa: FBT003
        more = [peer for source in list(self.sources) for peer in source.peers()]
        return [*peers.values(), *more]

    def _ended(self, link: ForeignLink, reason: str, error: BaspError | None) -> None:
        """Handle the end of a connection: notify the adapter, and dial again if wanted."""
        if link not in self.links:
            return
        if link.patience is not None:
            link.patience.cancel()
        port = self.links.pop(link)
        link.shut()
        if port is not None:
            port.links.discard(link)
        if link.peer is not None:
            if self._is_only(link):
                is_wanted = link.dial is not None and link.dial.is_stopped
                facts = link.kind, link.peer, link.remote, reason
                self._emit(ForeignLinkDown(*facts, is_wanted, link.endpoint))
            link.adapter.link_down(link, reason)
        elif port is not None:
            _log.debug("%s link from %s ended: %s", link.kind, link.remote[0], reason)
            link.adapter.not_linked(link.remote, reason)
        if link.dial is not None:
            self._dial_ended(link.dial, link, reason, error)

    def _dial_ended(
        self, dial: ForeignDial, link: ForeignLink, reason: str, error: BaspError | None
    ) -> None:
        """Dial again after the end of a connection, if wanted."""
        dial.link = None
        if link.peer is not None:
            if self._runner.now() - link.since >= STEADY:
                dial.backoff.reset()
            self._plan_next(dial, reason)
            return
        if isinstance(error, AlreadyLinked):
            self._check_link_later(dial, link)
            return
        text = f"no {link.kind} link with {place_text(dial.endpoint)}: {reason}"
        self._failed(dial, text, None if isinstance(error, LinkLost) else error)

    def close(self, reason: str) -> None:
        """End all ports, dials and links, because the node closes."""
        self._closed = True
        for source in list(self.sources):
            source.end(reason)
        for port in list(self.ports):
            self._close_port(port, reason)
        for dial in list(self.dials):
            self._stop(dial, reason)
        for link in list(self.links):
            link.end(reason)
            if link in self.links:  # it still waits for an answer, but the node cannot wait
                self.carry_out(link, link.machine.lost(reason))
