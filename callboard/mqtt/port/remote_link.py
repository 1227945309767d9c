"""Client connections over a network: the life of each from CONNECT to close, and shared limits.

`ClientState` lists the states of a connection. Chunks reach the router in the order of their
bytes, with one wake-up for each read. Notifications of the router are written in their order.
After the marker `Unschedule` the router gets `Ready` as soon as the wire accepts more, so a
slow client holds at most one buffer of the router and one of the wire. Pure except for the wire
and the clock.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from math import inf
from operator import attrgetter
from typing import Final, Protocol

from callboard.kernel.events import CertificatesRefused
from callboard.kernel.ports import source_of
from callboard.mqtt.access.admission import (
    NO_SUCH_METHOD,
    Admission,
    Admitter,
    OnAdmission,
    Peer,
)
from callboard.mqtt.access.authentication import Authentication, Candidate
from callboard.mqtt.port.limits import NetworkFigures, NetworkLimits
from callboard.mqtt.port.read_pause import ReadPause
from callboard.mqtt.router.link import (
    UNSCHEDULE,
    Disconnected,
    Notification,
    RouterLink,
    RouterMailbox,
)
from callboard.mqtt.wire.codec import decode_packet, encode_refusal
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.framing import (
    SHORT,
    Deframer,
    body_start,
    is_connect,
    packet_end,
)
from callboard.mqtt.wire.packet import V4, V5, Connect, PacketType
from callboard.mqtt.wire.reason_code import DISCONNECT_CODES, ReasonCode, reason_text
from callboard.support.dataclass import dataclass
from callboard.support.token_bucket import TokenBucket, TrafficLimit


class ClientState(enum.Enum):
    """States of a `RemoteLink`, which alone changes them, on one thread.

    WAITING: nothing has arrived yet; a CONNECT must arrive within `connect_timeout`.
    ADMITTING: the gate decides about the CONNECT, and reading is paused; or the client proves
    its identity (`authentication`).
    OPEN: the client has a link with the router; chunks go in, notifications come out.
    CLOSING: the last bytes are being sent; received bytes are ignored.
    CLOSED: the wire is closed.
    """

    WAITING = "waiting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class ClientWire(Protocol):
    """The transport of one connection; all calls come from one thread."""

    #: Whether more bytes were written than the other side has read.
    is_full: bool

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    def pause(self) -> None:
        """Pause reading until `resume`."""

    def resume(self) -> None:
        """Resume reading."""

    def read_arrived(self) -> None:
        """Pass on the bytes that have already arrived, without waiting for a poll."""

    def close(self) -> None:
        """Close after everything written was sent and the client has closed its side.

        A socket that is closed earlier resets the connection when more bytes arrive, and the
        client may see the reset before it has read the last packet.
        """

    def abort(self) -> None:
        """Close at once."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function once, after some seconds."""


class PacketFilter(Protocol):
    """A filter of one connection's packets: it may change or drop them."""

    def incoming(self, chunk: bytes) -> bytes:
        """Return the bytes that the router gets in place of a chunk."""

    def outgoing(self, chunk: bytes) -> bytes:
        """Return the bytes that the client gets in place of a chunk."""


class _Pause:
    """Reasons for a pause in reading; bits, because an enum costs each read 1 µs."""

    ADMISSION: Final = 1
    TURN: Final = 2
    RATE: Final = 4
    READERS: Final = 8
    END: Final = 16
    HELD: Final = 32


#: Module constants, because an attribute of an enum costs ten times as much as a global.
_WAITING: Final = ClientState.WAITING
_ADMITTING: Final = ClientState.ADMITTING
_OPEN: Final = ClientState.OPEN
_CLOSING: Final = ClientState.CLOSING
_CONNECT: Final = int(PacketType.CONNECT)
_PUBLISH: Final = int(PacketType.PUBLISH)

#: With one of these pauses the client is silent because we do not read; it must not time out.
_OURS: Final = _Pause.TURN | _Pause.RATE | _Pause.READERS | _Pause.HELD

#: States in which packets from the client are processed.
_READS: Final = frozenset((_ADMITTING, _OPEN))


#: The limits that `ClientConnections.is_full` checks: on all connections and on strangers, and
#: on both for one address. A stranger is a connection without a CONNECT.
_bounds_of = attrgetter(
    "open_connections", "strangers", "connections_per_address", "strangers_per_address"
)

#: Seconds of linger if none is set: a client that never closes must not occupy its place.
LEAST_LINGER: Final = 1.0


#: Pending calls of `ClientWire.write`, each with its bytes.
Writes = list[tuple[Callable[[bytes], None], bytes]]


def _refuse(*_: object) -> Admission:
    """Refuse every authentication method; the default of a router without methods."""
    return NO_SUCH_METHOD


@dataclass(slots=True, eq=False)
class ByteSource:
    """Counts for one address: its connections, and how many are without a CONNECT."""

    name: str
    connections: int = 0
    strangers: int = 0


@dataclass(eq=False)
class ClientConnections:
    """The client connections of a router: admission, shared limits, figures.

    Attributes:
        mailbox: the router's.
        clock: monotonic seconds.
        limits: the limits of each connection; see `set_limits`.
        gate: may be replaced while connections are open.
        figures: totals over all connections.
        links: all connections, admitted or not, the oldest first.
        make_screen: makes the packet filter of a connection, if there are hooks.
        authenticate: starts the authentication method that a CONNECT names, or refuses it.
        writes: writes of the connections that were flushed in this turn. The driver of the
            router empties it, so that one turn decides for all clients before it writes to any.
        emptied: called when the last connection has closed.
        report: receives events.
        is_unguarded: whether every client of a listener may do everything, without a setting
            that allows it.
        mounts: the prefix of all topics of a listener's clients, by address.
        maximum_qos: the highest QoS of a listener's clients, by address, if it is below 2.
    """

    mailbox: RouterMailbox
    clock: Callable[[], float]
    limits: NetworkLimits
    gate: Admitter
    figures: NetworkFigures = field(default_factory=NetworkFigures)
    links: "dict[RemoteLink, None]" = field(default_factory=dict)
    make_screen: "Callable[[RemoteLink], PacketFilter] | None" = None
    authenticate: Callable[[Connect, Peer, Candidate], Authentication | Admission] = _refuse
    writes: Writes = field(default_factory=list)
    emptied: Callable[[], object] = bool
    report: Callable[[object], object] = bool
    is_unguarded: Callable[[str], bool] = lambda _listener: False
    mounts: Mapping[str, str] = field(default_factory=dict)
    maximum_qos: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._count = 0
        #: By address; only addresses with connections.
        self._sources: dict[str, ByteSource] = {}
        #: Connections that have not sent their CONNECT.
        self._strangers: dict[object, ByteSource] = {}
        self.backpressure = ReadPause(self.limits.reader_patience, self.clock)
        self._connections = TokenBucket(self.limits.connection_rate)
        self.set_limits(self.limits)

    def set_limits(self, limits: NetworkLimits) -> None:
        """Apply other limits to connections that begin from now on."""
        if limits.connection_rate != self.limits.connection_rate:
            self._connections = TokenBucket(limits.connection_rate)
        self.limits = limits
        rates = limits.message_rate, limits.byte_rate
        #: Packets and bytes per second of each connection; None without a limit.
        self.rates = rates if any(rates) else None
        #: The limits that `is_full` checks.
        self._most = tuple(most or inf for most in _bounds_of(limits))
        #: With fewer connections than this, no limit can be reached.
        self._least = min(self._most)
        self.backpressure.patience = limits.reader_patience

    def report_certificates(self, event: object) -> None:
        """Count and report that TLS files were reloaded, or that new ones were refused."""
        name = "refused" if isinstance(event, CertificatesRefused) else "replaced"
        name = f"certificates_{name}"
        setattr(self.figures, name, getattr(self.figures, name) + 1)
        self.report(event)

    def is_full(self, host: str) -> bool:
        """Return whether one more connection exceeds a limit; count the refusal then."""
        if self._count < self._least:
            return False
        most, most_strangers, most_of_one, most_strangers_of_one = self._most
        is_full = self._count >= most or len(self._strangers) >= most_strangers
        source = self._sources.get(source_of(host)) if host else None
        if source is not None and not is_full:
            is_full = source.connections >= most_of_one
            is_full = is_full or source.strangers >= most_strangers_of_one
        if is_full:
            self.figures.count_refusal(ReasonCode.SERVER_BUSY)
        return is_full

    def arrive(self, connection: object, host: str) -> None:
        """Count a new connection of an address."""
        name = source_of(host)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = ByteSource(name)
        self._strangers[connection] = source
        source.connections += 1
        source.strangers += 1
        self._count += 1

    def register(self, connection: object) -> None:
        """Record that a connection has sent its CONNECT, so it is no longer a stranger."""
        source = self._strangers.pop(connection, None)
        if source is not None:
            source.strangers -= 1

    def depart(self, connection: object, host: str) -> None:
        """Remove a closed connection from the counts."""
        self.register(connection)
        self._count -= 1
        source = self._sources[source_of(host)]
        source.connections -= 1
        if not source.connections:
            del self._sources[source.name]

    def leave(self, remote: "RemoteLink") -> None:
        """Remove an ended connection and its state."""
        if remote in self.links:
            del self.links[remote]
            self.depart(remote, remote.peer.host)
        self.backpressure.forget(remote)
        if not self.links:
            self.emptied()

    def keep_alive(self, connect: Connect) -> int:
        """Return a client's keep-alive in seconds; 0 is none.

        A client of MQTT 5 gets a shorter one in its CONNACK; 3.1.1 has no field for that.
        """
        requested, limit = connect.keep_alive, self.limits.keep_alive
        if connect.version >= V5 and limit and (not requested or requested > limit):
            return limit
        return requested

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Ask the gate about a client, within the rate of connections; see `Admitter.admit`."""
        self.figures.accepted += 1
        rate = self.limits.connection_rate
        if rate and not self._connections.allows(self.clock()):
            text = f"more than {rate:g} connections a second"
            return Admission(ReasonCode.CONNECTION_RATE_EXCEEDED, text)
        return self.gate.admit(connect, peer, answer)

    def write_all(self) -> None:
        """Write the pending bytes of the connections that were flushed."""
        writes = self.writes
        if writes:
            for write, data in writes:
                write(data)
            writes.clear()

    def check(self) -> None:
        """Check all connections for timeouts; called about once a second."""
        now = self.clock()
        for remote in list(self.links):
            remote.check(now)


@dataclass(slots=True, eq=False)
class RemoteLink:
    """One client that is connected over a network.

    Attributes:
        peer: the address and certificate of the client.
        state: changed by the link alone.
        link: its link with the router, once it is admitted.
        proof: the authentication of the client; None if its CONNECT names no method.
        tracer: called with all bytes, by direction; nearly always None.
        screen: sees and may change the packets of both directions; nearly always None.
    """

    _connections: ClientConnections
    _wire: ClientWire
    peer: Peer
    state: ClientState = _WAITING
    link: RouterLink | None = None
    proof: Authentication | None = None
    tracer: Callable[[str, bytes], None] | None = None
    screen: PacketFilter | None = field(init=False)
    _deframer: Deframer = field(init=False)
    _limiter: TrafficLimit | None = field(init=False)
    _silent_since: float = field(init=False)
    _patience: float = field(init=False)
    #: The CONNECT, until the gate has decided.
    _connect: Connect | None = None
    _early: bytes = b""
    _owes_ready: bool = False
    _is_active: bool = False
    _pauses: int = 0

    def __post_init__(self) -> None:
        connections, limits = self._connections, self._connections.limits
        self.screen = None if connections.make_screen is None else connections.make_screen(self)
        self._deframer = Deframer(limits.packet_size, limits.packets_per_read)
        rates = connections.rates
        self._limiter = None if rates is None else TrafficLimit(*rates)
        self._silent_since = connections.clock()
        connections.figures.opened += 1
        self._patience = limits.connect_timeout
        connections.links[self] = None
        connections.arrive(self, self.peer.host)

    @property
    def client_id(self) -> str:
        """The id of the session; empty until it is known."""
        return self.link.client_id if self.link is not None else ""

    # --- calls of the wire ---

    def receive(self, data: bytes) -> None:
        """Process the bytes of one read."""
        if self._pauses & _Pause.END:
            return  # after a malformed packet the packet boundaries are unknown
        self._is_active = True
        figures, deframer, size = self._connections.figures, self._deframer, len(data)
        figures.bytes_in += size
        if (
            1 < size < SHORT
            and size == data[1] + 2 <= deframer.packet_size
            and not deframer.rest
        ):
            # One short packet per read is the most frequent case by far.
            chunk, packets, is_full = data, 1, False
        else:
            try:
                chunk = deframer.receive(data)
            except RemoteMqttError as error:
                self._refuse_bytes(error)
                return
            if not chunk:
                self._check_start()
                return
            packets, is_full = deframer.packets, deframer.is_full
        figures.packets_in += packets
        if self.state is _OPEN:
            self._push(chunk)
        elif self.state is _WAITING:
            self._open(chunk)
        elif self.state is _ADMITTING:
            self._handle_early(chunk)
        if is_full and self.state in _READS:
            self._pause(_Pause.TURN)
            self._wire.later(0, self._read_on)
        if self._limiter is not None:
            self._slow_down(packets, size)

    def drained(self) -> None:
        """Report to the router that the wire accepts more."""
        if self._owes_ready and self.link is not None:
            self._owes_ready = False
            self._connections.backpressure.end(self)
            self.link.ready()

    def hang_up(self) -> None:
        """Handle the client's end of the stream; queued bytes are still sent."""
        if self.state is _OPEN and self.link is not None:
            self.link.disconnect()
        self._close()

    def lost(self) -> None:
        """Handle the loss of the wire."""
        if self.state is ClientState.CLOSED:
            return
        was_open = self.state is _OPEN
        self.state = ClientState.CLOSED
        self._connections.leave(self)
        self.proof = None
        if self.link is not None:
            if was_open:
                self.link.disconnect()
            self.link.let_go()

    def catch_up(self) -> None:
        """Read all that has arrived: another connection claims the session. Keeps pauses."""
        self._wire.resume()
        self._wire.read_arrived()
        while self._pauses & _Pause.TURN and self.state is _OPEN:
            self._pauses &= ~_Pause.TURN
            self.receive(b"")
        if self._pauses and self.state is _OPEN:
            self._wire.pause()

    def check(self, now: float) -> None:
        """End the connection if its client was silent too long; a shared timer calls it."""
        if (self._is_active and self.state is _OPEN) or (self._pauses and self._pauses & _OURS):
            self._is_active = False
            self._silent_since = now
        elif self._patience and now - self._silent_since > self._patience:
            self._run_out()

    # --- calls of the router and its services ---

    def flush(self) -> None:
        """Queue the router's packets for this client, to be written at the end of the turn."""
        link = self.link
        if link is None:
            return
        notifications, link.outgoing = link.outgoing, []
        link.is_woken = False
        if self.state is not _OPEN:
            return
        if self._pauses and not link.is_full:
            self._resume(_Pause.HELD)
        if not notifications:
            return
        last = notifications[-1]
        if type(last) is bytes and self.screen is None and self.tracer is None:
            data = last if len(notifications) == 1 else b"".join(notifications)  # type: ignore[arg-type]
            connections = self._connections
            connections.figures.bytes_out += len(data)
            connections.writes.append((self._wire.write, data))
        else:
            self._write_rare(notifications)

    def _write_rare(self, notifications: list[Notification]) -> None:
        """Write a batch that ends with a marker, or that hooks or a trace must see."""
        packets = [item for item in notifications if isinstance(item, bytes)]
        if packets:
            self._write(b"".join(packets))
        last = notifications[-1]
        if last is UNSCHEDULE:
            if self._wire.is_full:
                self._owes_ready = True
                self._connections.backpressure.begin(self, self._wire.later)
            elif self.link is not None:
                self.link.ready()
        elif isinstance(last, Disconnected):
            self._connections.figures.ends[reason_text(last.reason_code)] += 1
            self._close()

    def end(self, reason: ReasonCode, *, has_will: bool = True) -> None:
        """End the connection for a reason given by this router."""
        if self.state is _OPEN and self.link is not None:
            self.link.disconnect(reason, is_told=True, has_will=has_will)
        elif self.state in {_WAITING, _ADMITTING}:
            self._close()

    def cut(self) -> None:
        """Close at once, and notify the router."""
        self._wire.abort()
        self.lost()

    # --- the CONNECT ---

    def _open(self, chunk: bytes) -> None:
        """Handle the first chunk: a CONNECT, perhaps with packets after it."""
        size = packet_end(chunk)
        try:
            if chunk[0] >> 4 != _CONNECT:
                self._refuse_stranger()
                return
            connect = decode_packet(chunk[:size], V5)
        except RemoteMqttError as error:
            self._refuse_bytes(error, chunk)
            return
        assert isinstance(connect, Connect)
        if connect.version < V4 and not self._connections.limits.mqtt_3_1:
            self.refuse(V4, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
            return
        self._connections.register(self)
        self.state = _ADMITTING
        self._deframer.minimal = connect.version >= V5
        if connect.properties is None or connect.properties.authentication_method is None:
            self._early = chunk[size:]
            self.admit(connect)
        elif size < len(chunk):
            self.refuse(V5, ReasonCode.PROTOCOL_ERROR, "more than a CONNECT with a method")
        else:
            self._authenticate(connect)

    def admit(self, connect: Connect) -> None:
        """Ask the gate about a client that has proved its identity, or does not have to."""
        self._connect = connect
        admission = self._connections.admit(connect, self.peer, self._admitted)
        if admission is None:
            self._pause(_Pause.ADMISSION)
        else:
            self._admitted(admission)

    def _admitted(self, admission: Admission) -> None:
        """Open the link of an admitted client, or refuse it."""
        connect, self._connect = self._connect, None
        if self.state is not _ADMITTING or connect is None:
            return
        if admission.reason_code:
            self.refuse(connect.version, admission.reason_code, admission.text)
            return
        if admission.client_id is not None:
            connect = replace(connect, client_id=admission.client_id)
        prefix = self._connections.mounts.get(self.peer.listener)
        if prefix and connect.will is not None:
            will = replace(connect.will, topic=prefix + connect.will.topic)
            connect = replace(connect, will=will)
        properties = connect.properties
        if connect.password is not None or (
            properties is not None and properties.user_properties
        ):
            # The connection may last long, and nothing reads these two after the admission.
            properties = properties and replace(properties, user_properties=())
            connect = replace(connect, password=None, properties=properties)
        self.link = link = RouterLink(
            self._connections.mailbox,
            connect,
            self.flush,
            access=admission.access,
            peer=self.peer.address,
            user=admission.user,
            listed=admission.listed,
            maximum_qos=self._connections.maximum_qos.get(self.peer.listener, 2),
        )
        link.catch_up = self.catch_up
        self.state = _OPEN
        self._patience = 1.5 * self._connections.keep_alive(connect)
        self._silent_since = self._connections.clock()
        if self.proof is not None:
            link.authenticate = self.proof.take
        link.begin()
        early, self._early = self._early, b""
        if early:
            self._push(early)
        if self._pauses:
            self._resume(_Pause.ADMISSION)

    def _check_start(self) -> None:
        """Close a connection whose incomplete first packet cannot become a CONNECT."""
        if self.state is _WAITING and not is_connect(self._deframer.rest or b""):
            self._refuse_stranger()

    def _refuse_stranger(self) -> None:
        """Close at once: the client does not begin with a CONNECT; it may speak HTTP."""
        self._connections.figures.count_refusal(ReasonCode.PROTOCOL_ERROR)
        self._close()

    def refuse(self, version: int, reason: ReasonCode, text: str = "") -> None:
        """Answer the CONNECT with a refusal, and close."""
        self._connections.figures.count_refusal(reason)
        self._write(encode_refusal(version, reason, text))
        self._close()

    def _refuse_bytes(self, error: RemoteMqttError, chunk: bytes = b"") -> None:
        """End a connection that sent malformed bytes; answer if its state allows it."""
        if self.state is _OPEN and self.link is not None:
            self._pause(_Pause.END)
            self.link.disconnect(error.reason_code, is_told=True)
        elif error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self.refuse(V5 if _level_of(chunk) > V5 else V4, error.reason_code, str(error))
        elif self.state is _WAITING and _level_of(chunk) == V5:
            self.refuse(V5, error.reason_code, str(error))
        elif self.state in {_WAITING, _ADMITTING}:
            self._connections.figures.count_refusal(error.reason_code)
            self._close()

    # --- authentication methods ---

    def _authenticate(self, connect: Connect) -> None:
        """Start the authentication method that a CONNECT names."""
        started = self._connections.authenticate(connect, self.peer, self)
        if isinstance(started, Admission):
            self.refuse(V5, started.reason_code, started.text)
        else:
            assert connect.properties is not None
            self._connect = connect
            self.proof = started
            started.start(connect.properties.authentication_data)

    def _handle_early(self, chunk: bytes) -> None:
        """Handle packets that arrive before the client is admitted."""
        if self.proof is None:
            self._early += chunk
            return
        try:
            self.proof.receive(chunk)
        except RemoteMqttError as error:
            self.refuse(V5, error.reason_code, str(error))

    def await_step(self) -> None:
        """Pause reading while a step of the authentication is computed."""
        self._pause(_Pause.ADMISSION)

    # --- bytes ---

    def _push(self, chunk: bytes) -> None:
        """Pass a chunk to the router."""
        link = self.link
        assert link is not None
        if self.tracer is not None:
            self.tracer("in", chunk)
        if self.screen is not None:
            try:
                chunk = self.screen.incoming(chunk)
            except RemoteMqttError as error:
                self._refuse_bytes(error)
                return
            if not chunk:
                return
        link.push(chunk)
        if self._connections.backpressure.full and chunk[0] >> 4 == _PUBLISH:
            self._connections.backpressure.wait(self)
        if link.is_full:
            self._pause(_Pause.HELD)

    def _write(self, data: bytes) -> None:
        """Write packets at once, through the packet filter and the trace."""
        if self.screen is not None:
            data = self.screen.outgoing(data)
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Write packets unchanged; the trace sees them."""
        if self.tracer is not None:
            self.tracer("out", data)
        self._connections.figures.bytes_out += len(data)
        self._wire.write(data)

    def answer(self, data: bytes) -> None:
        """Write a packet that does not come from the router."""
        if self.state in _READS:
            self._send(data)
            self._resume(_Pause.ADMISSION)

    def proved(self, user: str, data: bytes | None) -> None:
        """Admit a client that has proved its identity; see `Candidate`."""
        connect = self._connect
        if self.state is _ADMITTING and connect is not None:
            self.peer = self.peer._replace(user=user)
            # The last data of the method is sent in the CONNACK, with the method's name.
            assert connect.properties is not None
            properties = replace(connect.properties, authentication_data=data)
            self.admit(replace(connect, properties=properties))

    def fail(self, reason: ReasonCode, text: str) -> None:
        """Refuse a client, or end its connection; see `Candidate`."""
        if self.state is _ADMITTING:
            self.refuse(V5, reason, text)
        elif self.link is not None:
            code = reason if reason in DISCONNECT_CODES else ReasonCode.NOT_AUTHORIZED
            self.link.disconnect(code, is_told=True)

    # --- pauses ---

    def hold(self) -> None:
        """Pause reading, because subscribers do not keep up with this client's messages."""
        self._connections.figures.held += 1
        self._pause(_Pause.READERS)

    def release(self) -> None:
        """Resume reading."""
        self._resume(_Pause.READERS)

    def _pause(self, reason: int) -> None:
        """Pause reading for a reason."""
        if not self._pauses:
            self._wire.pause()
        self._pauses |= reason

    def _resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading when none is left."""
        if self._pauses and self._pauses & reason:
            self._pauses &= ~reason
            if not self._pauses and self.state in _READS:
                self._wire.resume()

    def _read_on(self) -> None:
        """Process the packets that the last read held beyond the limit of one turn."""
        self._resume(_Pause.TURN)
        if self.state in _READS:
            self.receive(b"")

    def _slow_down(self, packets: int, size: int) -> None:
        """Pause reading for as long as the rate limits require."""
        assert self._limiter is not None
        pause = self._limiter.spend(packets, size, self._connections.clock())
        if pause > 0 and self.state is _OPEN:
            self._connections.figures.slowed += 1
            self._pause(_Pause.RATE)
            self._wire.later(pause, lambda: self._resume(_Pause.RATE))

    # --- ends ---

    def _run_out(self) -> None:
        """End a connection whose client was silent for too long."""
        if self.state is _OPEN and self.link is not None:
            self._patience = self._connections.limits.linger or LEAST_LINGER
            self._silent_since = self._connections.clock()
            self._connections.figures.timeouts += 1
            self.link.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, is_told=True)
        else:
            if self.state is not _CLOSING:
                self._connections.figures.timeouts += 1
            self.cut()

    def _close(self) -> None:
        """Close after the last bytes were sent."""
        self.state = _CLOSING
        self._early = b""
        self._is_active = False
        self._pauses = 0
        self._connections.backpressure.forget(self)
        self._silent_since = self._connections.clock()
        self._patience = self._connections.limits.linger or LEAST_LINGER
        self._wire.close()

    def __repr__(self) -> str:
        return (
            f"<RemoteLink {self.client_id or '?'} from {self.peer.address} {self.state.value}>"
        )


def _level_of(connect: bytes) -> int:
    """Return the protocol level of a refused CONNECT; 0 if it is cut off before that field."""
    start = body_start(connect) if connect else 0
    level = start + 2 + int.from_bytes(connect[start : start + 2], "big")
    return connect[level] if level < len(connect) else 0
