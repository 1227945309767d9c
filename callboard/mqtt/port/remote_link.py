"""The connections of clients: the life of each from its CONNECT to its end, and what all share.

`ClientState` has the states of a connection. Chunks reach the router in the order of their
bytes, with one wake-up for each read; what the router gives is written in its order. After the
marker `Unschedule` the router gets `Ready` as soon as the wire takes more, so a slow client
holds one buffer of the router and one of the wire at most. Pure but for the wire and the clock.
"""

import enum
from collections.abc import Callable
from dataclasses import field, replace
from math import inf
from operator import attrgetter
from typing import Final, Protocol

from callboard.kernel.events import CertificatesRefused
from callboard.kernel.queue import TokenBucket, TrafficLimit
from callboard.kernel.tls import source_of
from callboard.mqtt.access.admission import (
    NO_SUCH_METHOD,
    Admission,
    Admitter,
    OnAdmission,
    Peer,
)
from callboard.mqtt.access.authentication import Authentication, Candidate
from callboard.mqtt.port.backpressure import Backpressure
from callboard.mqtt.port.limits import NetworkFigures, NetworkLimits
from callboard.mqtt.router.link import (
    UNSCHEDULE,
    Disconnected,
    Link,
    Mailbox,
    Notification,
)
from callboard.mqtt.wire.codec import decode_packet, encode_refusal
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.framing import SHORT, Deframer, body_start, packet_end
from callboard.mqtt.wire.packet import V4, V5, Connect, PacketType
from callboard.mqtt.wire.reason_code import DISCONNECT_CODES, ReasonCode, reason_text
from callboard.support.dataclass import dataclass


class ClientState(enum.Enum):
    """States of a `RemoteLink`, which alone changes them, on one thread.

    WAITING: nothing has come yet; a CONNECT has to, in time.
    ADMITTING: the gate thinks about the CONNECT, and reading is paused; or the client proves
    its identity (`authentication`).
    OPEN: a link with the router; chunks go in, notifications come out.
    CLOSING: the last bytes are on their way out; what comes is not looked at any more.
    CLOSED: the wire is gone.
    """

    WAITING = "waiting"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class ClientWire(Protocol):
    """What carries the bytes; all calls come from one thread."""

    #: Whether more was written than the other side has taken.
    is_full: bool

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None:
        """Read on."""

    def read_arrived(self) -> None:
        """Hand on what has arrived by now, without a poll."""

    def close(self) -> None:
        """Close once everything written has left, and the client has closed its side.

        A socket that is closed before resets the connection as soon as more comes, and the
        reset overtakes what was said last.
        """

    def abort(self) -> None:
        """Close at once."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""


class Screen(Protocol):
    """Sees the packets of one connection, and may change or drop them."""

    def incoming(self, chunk: bytes) -> bytes:
        """Return what the router gets in place of a chunk."""

    def outgoing(self, chunk: bytes) -> bytes:
        """Return what the client gets in place of a chunk."""


class _Pause:
    """Why nothing is read; plain bits, as each read looks at them: an enum's cost 1 µs."""

    ADMISSION: Final = 1
    TURN: Final = 2
    RATE: Final = 4
    READERS: Final = 8
    END: Final = 16
    HELD: Final = 32


#: Names of their own: an attribute of an enum costs ten times a global.
_WAITING: Final = ClientState.WAITING
_ADMITTING: Final = ClientState.ADMITTING
_OPEN: Final = ClientState.OPEN
_CLOSING: Final = ClientState.CLOSING
_CONNECT: Final = int(PacketType.CONNECT)
_PUBLISH: Final = int(PacketType.PUBLISH)

#: While one of these holds, silence is not the client's.
_OURS: Final = _Pause.TURN | _Pause.RATE | _Pause.READERS | _Pause.HELD

#: States in which a client may say something.
_READS: Final = frozenset((_ADMITTING, _OPEN))


#: What `Door.is_full` compares with: of all connections, of strangers, of one address of each.
_bounds_of = attrgetter(
    "open_connections", "strangers", "connections_per_address", "strangers_per_address"
)

#: Seconds of linger where none is set: one that never closes must not keep its place.
LEAST_LINGER: Final = 1.0


#: Calls of `ClientWire.write` that are due, each with its bytes.
Writes = list[tuple[Callable[[bytes], None], bytes]]


def _refuse(*_: object) -> Admission:
    """Stand for authentication methods where there are none."""
    return NO_SUCH_METHOD


@dataclass(slots=True, eq=False)
class Source:
    """What comes from one address: connections, and those of them without a CONNECT yet."""

    name: str
    connections: int = 0
    strangers: int = 0


@dataclass(eq=False)
class Door:
    """What all connections of a router share: the gate, limits, figures, the way to the router.

    Attributes:
        mailbox: the router's.
        clock: monotonic seconds.
        limits: of each connection; see `set_limits`.
        gate: may be replaced while connections are open.
        figures: counted of all connections.
        links: all connections, admitted or not, in the order in which they came.
        make_screen: makes the screen of a connection, if there are hooks.
        authenticate: begins what a CONNECT with an authentication method asks for, or refuses.
        writes: what the connections that were flushed last want written; the driver of the
            router empties it, so that one turn decides for all clients before it writes to any.
        emptied: called when the last connection has left.
        report: takes events.
        is_unguarded: tells whether everybody may do everything, and nobody has said so.
    """

    mailbox: Mailbox
    clock: Callable[[], float]
    limits: NetworkLimits
    gate: Admitter
    figures: NetworkFigures = field(default_factory=NetworkFigures)
    links: "dict[RemoteLink, None]" = field(default_factory=dict)
    make_screen: "Callable[[RemoteLink], Screen] | None" = None
    authenticate: Callable[[Connect, Peer, Candidate], Authentication | Admission] = _refuse
    writes: Writes = field(default_factory=list)
    emptied: Callable[[], object] = bool
    report: Callable[[object], object] = bool
    is_unguarded: Callable[[], bool] = bool

    def __post_init__(self) -> None:
        self._count = 0
        #: By address, as long as there are connections.
        self._sources: dict[str, Source] = {}
        #: Connections that have not brought their CONNECT.
        self._strangers: dict[object, Source] = {}
        self.backpressure = Backpressure(self.limits.reader_patience, self.clock)
        self._connections = TokenBucket(self.limits.connection_rate)
        self.set_limits(self.limits)

    def set_limits(self, limits: NetworkLimits) -> None:
        """Let other limits hold, for connections that come from here on."""
        if limits.connection_rate != self.limits.connection_rate:
            self._connections = TokenBucket(limits.connection_rate)
        self.limits = limits
        rates = limits.message_rate, limits.byte_rate
        #: Packets and bytes a second of each connection; None without a limit.
        self.rates = rates if any(rates) else None
        #: What `is_full` compares with.
        self._most = tuple(most or inf for most in _bounds_of(limits))
        #: With fewer connections than that none of them is reached.
        self._least = min(self._most)
        self.backpressure.patience = limits.reader_patience

    def note_certificates(self, event: object) -> None:
        """Count and report that files of TLS were read again, or are of no use."""
        name = "refused" if isinstance(event, CertificatesRefused) else "replaced"
        name = f"certificates_{name}"
        setattr(self.figures, name, getattr(self.figures, name) + 1)
        self.report(event)

    def is_full(self, host: str) -> bool:
        """Whether a connection more of an address would be too many; counts it then."""
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
        """Take note of a connection of an address."""
        name = source_of(host)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = Source(name)
        self._strangers[connection] = source
        source.connections += 1
        source.strangers += 1
        self._count += 1

    def know(self, connection: object) -> None:
        """Take note that a connection has brought its CONNECT."""
        source = self._strangers.pop(connection, None)
        if source is not None:
            source.strangers -= 1

    def depart(self, connection: object, host: str) -> None:
        """Take note that a connection is gone."""
        self.know(connection)
        self._count -= 1
        source = self._sources[source_of(host)]
        source.connections -= 1
        if not source.connections:
            del self._sources[source.name]

    def leave(self, remote: "RemoteLink") -> None:
        """Take note that a connection is over."""
        if remote in self.links:
            del self.links[remote]
            self.depart(remote, remote.peer.host)
        self.backpressure.forget(remote)
        if not self.links:
            self.emptied()

    def keep_alive(self, connect: Connect) -> int:
        """Return a client's keep-alive in seconds; 0 is none.

        A client of MQTT 5 is told a shorter one in its CONNACK; 3.1.1 has no way to say it.
        """
        asked, limit = connect.keep_alive, self.limits.keep_alive
        if connect.version >= V5 and limit and (not asked or asked > limit):
            return limit
        return asked

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Let the gate decide about a client; see `Admitter.admit`."""
        self.figures.accepted += 1
        rate = self.limits.connection_rate
        if rate and not self._connections.allows(self.clock()):
            text = f"more than {rate:g} connections a second"
            return Admission(ReasonCode.CONNECTION_RATE_EXCEEDED, text)
        return self.gate.admit(connect, peer, answer)

    def write_all(self) -> None:
        """Write what the connections that were flushed want written."""
        writes = self.writes
        if writes:
            for write, data in writes:
                write(data)
            writes.clear()

    def check(self) -> None:
        """Look for connections that were silent for too long; about once a second."""
        now = self.clock()
        for remote in list(self.links):
            remote.check(now)


@dataclass(slots=True, eq=False)
class RemoteLink:
    """One client that came over a network.

    Attributes:
        peer: where it comes from.
        state: changed by the link alone.
        link: with the router, once the client is in.
        proof: proves the identity of the client; None if its CONNECT names no method.
        tracer: told of all bytes, by direction; None nearly always.
        screen: sees and may change the packets of both directions; None nearly always.
    """

    _door: Door
    _wire: ClientWire
    peer: Peer
    state: ClientState = _WAITING
    link: Link | None = None
    proof: Authentication | None = None
    tracer: Callable[[str, bytes], None] | None = None
    screen: Screen | None = field(init=False)
    _deframer: Deframer = field(init=False)
    _limiter: TrafficLimit | None = field(init=False)
    _silent_since: float = field(init=False)
    _patience: float = field(init=False)
    #: While the gate thinks about it.
    _connect: Connect | None = None
    _early: bytes = b""
    _owes_ready: bool = False
    _is_active: bool = False
    _pauses: int = 0

    def __post_init__(self) -> None:
        door, limits = self._door, self._door.limits
        self.screen = None if door.make_screen is None else door.make_screen(self)
        self._deframer = Deframer(limits.packet_size, limits.packets_per_read)
        rates = door.rates
        self._limiter = None if rates is None else TrafficLimit(*rates)
        self._silent_since = door.clock()
        self._patience = limits.connect_timeout
        door.links[self] = None
        door.arrive(self, self.peer.host)

    @property
    def client_id(self) -> str:
        """The id of the session; empty before there is one."""
        return self.link.client_id if self.link is not None else ""

    # --- what the wire tells ---

    def receive(self, data: bytes) -> None:
        """Take a read."""
        if self._pauses & _Pause.END:
            return  # what follows a mistake has no borders any more
        self._is_active = True
        figures, deframer, size = self._door.figures, self._deframer, len(data)
        figures.bytes_in += size
        if (
            1 < size < SHORT
            and size == data[1] + 2 <= deframer.packet_size
            and not deframer.rest
        ):
            # A client that says one short thing and waits, which is the most usual of all.
            chunk, packets, is_full = data, 1, False
        else:
            try:
                chunk = deframer.receive(data)
            except RemoteMqttError as error:
                self._refuse_bytes(error)
                return
            if not chunk:
                return
            packets, is_full = deframer.packets, deframer.is_full
        figures.packets_in += packets
        if self.state is _OPEN:
            self._push(chunk)
        elif self.state is _WAITING:
            self._open(chunk)
        elif self.state is _ADMITTING:
            self._take_early(chunk)
        if is_full and self.state in _READS:
            self._pause(_Pause.TURN)
            self._wire.later(0, self._read_on)
        if self._limiter is not None:
            self._slow_down(packets, size)

    def drained(self) -> None:
        """Take note that the wire takes more."""
        if self._owes_ready and self.link is not None:
            self._owes_ready = False
            self._door.backpressure.end(self)
            self.link.ready()

    def hang_up(self) -> None:
        """Take note that nothing follows from the client; what waits for it may still leave."""
        if self.state is _OPEN and self.link is not None:
            self.link.disconnect()
        self._close()

    def lost(self) -> None:
        """Take note that the wire is gone."""
        if self.state is ClientState.CLOSED:
            return
        was_open = self.state is _OPEN
        self.state = ClientState.CLOSED
        self._door.leave(self)
        self.proof = None
        if self.link is not None:
            if was_open:
                self.link.disconnect()
            self.link.let_go()

    def catch_up(self) -> None:
        """Take all that has arrived, as another connection wants the session; pauses go on."""
        self._wire.resume()
        self._wire.read_arrived()
        while self._pauses & _Pause.TURN and self.state is _OPEN:
            self._pauses &= ~_Pause.TURN
            self.receive(b"")
        if self._pauses and self.state is _OPEN:
            self._wire.pause()

    def check(self, now: float) -> None:
        """End the connection if nothing came for too long; for the one timer of all."""
        if (self._is_active and self.state is _OPEN) or (self._pauses and self._pauses & _OURS):
            self._is_active = False
            self._silent_since = now
        elif self._patience and now - self._silent_since > self._patience:
            self._run_out()

    # --- what the router and others tell ---

    def flush(self) -> None:
        """Take what the router has for this client, to be written with the rest of its turn."""
        link = self.link
        if link is None:
            return
        taken, link.outgoing = link.outgoing, []
        link.is_woken = False
        if self.state is not _OPEN:
            return
        if self._pauses and not link.is_full:
            self._resume(_Pause.HELD)
        if not taken:
            return
        last = taken[-1]
        if type(last) is bytes and self.screen is None and self.tracer is None:
            data = last if len(taken) == 1 else b"".join(taken)  # type: ignore[arg-type]
            door = self._door
            door.figures.bytes_out += len(data)
            door.writes.append((self._wire.write, data))
        else:
            self._write_rare(taken)

    def _write_rare(self, taken: list[Notification]) -> None:
        """Write what ends with a marker, or what hooks or a trace have to see."""
        packets = [each for each in taken if isinstance(each, bytes)]
        if packets:
            self._write(b"".join(packets))
        last = taken[-1]
        if last is UNSCHEDULE:
            if self._wire.is_full:
                self._owes_ready = True
                self._door.backpressure.begin(self, self._wire.later)
            elif self.link is not None:
                self.link.ready()
        elif isinstance(last, Disconnected):
            self._door.figures.ends[reason_text(last.reason_code)] += 1
            self._close()

    def end(self, reason: ReasonCode, *, has_will: bool = True) -> None:
        """End the connection for a reason of ours."""
        if self.state is _OPEN and self.link is not None:
            self.link.disconnect(reason, is_told=True, has_will=has_will)
        elif self.state in {_WAITING, _ADMITTING}:
            self._close()

    def cut(self) -> None:
        """Close at once; the router is told."""
        self._wire.abort()
        self.lost()

    # --- the CONNECT ---

    def _open(self, chunk: bytes) -> None:
        """Take the first chunk: a CONNECT, and perhaps more."""
        size = packet_end(chunk)
        try:
            if chunk[0] >> 4 != _CONNECT:
                self._door.figures.count_refusal(ReasonCode.PROTOCOL_ERROR)
                self._close()
                return
            connect = decode_packet(chunk[:size], V5)
        except RemoteMqttError as error:
            self._refuse_bytes(error, chunk)
            return
        assert isinstance(connect, Connect)
        self._door.know(self)
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
        """Let the gate decide about a client, which has proved its identity if it has to."""
        self._connect = connect
        admission = self._door.admit(connect, self.peer, self._admitted)
        if admission is None:
            self._pause(_Pause.ADMISSION)
        else:
            self._admitted(admission)

    def _admitted(self, admission: Admission) -> None:
        """Begin the link of a client that is let in, or refuse it."""
        connect, self._connect = self._connect, None
        if self.state is not _ADMITTING or connect is None:
            return
        if admission.reason_code:
            self.refuse(connect.version, admission.reason_code, admission.text)
            return
        if admission.client_id is not None:
            connect = replace(connect, client_id=admission.client_id)
        said = connect.properties
        if connect.password is not None or (said is not None and said.user_properties):
            # The connection keeps it for its life, and nobody asks for these any more.
            said = said and replace(said, user_properties=())
            connect = replace(connect, password=None, properties=said)
        self.link = link = Link(
            self._door.mailbox,
            connect,
            self.flush,
            access=admission.access,
            peer=self.peer.address,
            user=admission.user,
            listed=admission.listed,
        )
        link.catch_up = self.catch_up
        self.state = _OPEN
        self._patience = 1.5 * self._door.keep_alive(connect)
        self._silent_since = self._door.clock()
        if self.proof is not None:
            link.authenticate = self.proof.take
        link.begin()
        early, self._early = self._early, b""
        if early:
            self._push(early)
        if self._pauses:
            self._resume(_Pause.ADMISSION)

    def refuse(self, version: int, reason: ReasonCode, text: str = "") -> None:
        """Answer the CONNECT with a refusal, and close."""
        self._door.figures.count_refusal(reason)
        self._write(encode_refusal(version, reason, text))
        self._close()

    def _refuse_bytes(self, error: RemoteMqttError, chunk: bytes = b"") -> None:
        """End a connection whose bytes are wrong, in the way that its state allows."""
        if self.state is _OPEN and self.link is not None:
            self._pause(_Pause.END)
            self.link.disconnect(error.reason_code, is_told=True)
        elif error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self.refuse(V5 if _level_of(chunk) > V5 else V4, error.reason_code, str(error))
        elif self.state is _WAITING and _level_of(chunk) == V5:
            self.refuse(V5, error.reason_code, str(error))
        elif self.state in {_WAITING, _ADMITTING}:
            self._door.figures.count_refusal(error.reason_code)
            self._close()

    # --- a client that proves its identity ---

    def _authenticate(self, connect: Connect) -> None:
        """Begin with the method that a CONNECT names."""
        begun = self._door.authenticate(connect, self.peer, self)
        if isinstance(begun, Admission):
            self.refuse(V5, begun.reason_code, begun.text)
        else:
            assert connect.properties is not None
            self._connect = connect
            self.proof = begun
            begun.start(connect.properties.authentication_data)

    def _take_early(self, chunk: bytes) -> None:
        """Take what comes before the client is in."""
        if self.proof is None:
            self._early += chunk
            return
        try:
            self.proof.receive(chunk)
        except RemoteMqttError as error:
            self.refuse(V5, error.reason_code, str(error))

    def think(self) -> None:
        """Read nothing while a step of the client's proof takes its time."""
        self._pause(_Pause.ADMISSION)

    # --- bytes ---

    def _push(self, chunk: bytes) -> None:
        """Give a chunk to the router."""
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
        if self._door.backpressure.full and chunk[0] >> 4 == _PUBLISH:
            self._door.backpressure.wait(self)
        if link.is_full:
            self._pause(_Pause.HELD)

    def _write(self, data: bytes) -> None:
        """Write packets at once, seen by hooks and traces."""
        if self.screen is not None:
            data = self.screen.outgoing(data)
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Write packets as they are; traces see them."""
        if self.tracer is not None:
            self.tracer("out", data)
        self._door.figures.bytes_out += len(data)
        self._wire.write(data)

    def answer(self, data: bytes) -> None:
        """Write a packet that does not come from the router."""
        if self.state in _READS:
            self._send(data)
            self._resume(_Pause.ADMISSION)

    def proved(self, user: str, data: bytes | None) -> None:
        """Let a client in that has proved its identity; see `Candidate`."""
        connect = self._connect
        if self.state is _ADMITTING and connect is not None:
            self.peer = self.peer._replace(user=user)
            # What the method says last goes back in the CONNACK, with the method's name.
            assert connect.properties is not None
            said = replace(connect.properties, authentication_data=data)
            self.admit(replace(connect, properties=said))

    def fail(self, reason: ReasonCode, text: str) -> None:
        """Refuse a client, or end its connection; see `Candidate`."""
        if self.state is _ADMITTING:
            self.refuse(V5, reason, text)
        elif self.link is not None:
            said = reason if reason in DISCONNECT_CODES else ReasonCode.NOT_AUTHORIZED
            self.link.disconnect(said, is_told=True)

    # --- pauses ---

    def hold(self) -> None:
        """Read nothing: readers of what this client publishes do not keep up."""
        self._door.figures.held += 1
        self._pause(_Pause.READERS)

    def release(self) -> None:
        """Read on."""
        self._resume(_Pause.READERS)

    def _pause(self, why: int) -> None:
        """Read nothing for a reason."""
        if not self._pauses:
            self._wire.pause()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        """Drop a reason; without any, read on."""
        if self._pauses and self._pauses & why:
            self._pauses &= ~why
            if not self._pauses and self.state in _READS:
                self._wire.resume()

    def _read_on(self) -> None:
        """Hand on what a read held beyond its packets for one turn."""
        self._resume(_Pause.TURN)
        if self.state in _READS:
            self.receive(b"")

    def _slow_down(self, packets: int, size: int) -> None:
        """Stop reading for as long as the rate limits say."""
        assert self._limiter is not None
        pause = self._limiter.spend(packets, size, self._door.clock())
        if pause > 0 and self.state is _OPEN:
            self._door.figures.slowed += 1
            self._pause(_Pause.RATE)
            self._wire.later(pause, lambda: self._resume(_Pause.RATE))

    # --- ends ---

    def _run_out(self) -> None:
        """End a connection that was silent for too long."""
        if self.state is _OPEN and self.link is not None:
            self._patience = self._door.limits.linger or LEAST_LINGER
            self._silent_since = self._door.clock()
            self._door.figures.timeouts += 1
            self.link.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, is_told=True)
        else:
            if self.state is not _CLOSING:
                self._door.figures.timeouts += 1
            self.cut()

    def _close(self) -> None:
        """Close once the last bytes have left."""
        self.state = _CLOSING
        self._early = b""
        self._is_active = False
        self._pauses = 0
        self._door.backpressure.forget(self)
        self._silent_since = self._door.clock()
        self._patience = self._door.limits.linger or LEAST_LINGER
        self._wire.close()

    def __repr__(self) -> str:
        return (
            f"<RemoteLink {self.client_id or '?'} from {self.peer.address} {self.state.value}>"
        )


def _level_of(connect: bytes) -> int:
    """Return the protocol level of a CONNECT that was refused; 0 if it does not get to it."""
    start = body_start(connect) if connect else 0
    level = start + 2 + int.from_bytes(connect[start : start + 2], "big")
    return connect[level] if level < len(connect) else 0
