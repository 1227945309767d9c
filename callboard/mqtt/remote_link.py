"""The life of one client's connection, from its CONNECT to its end.

`link_state` has its states. Chunks reach the router in the order of their bytes, with one
wake-up for each read; what the router gives is written in its order. After the `Unschedule`
marker the router is told `Ready` as soon as the wire takes more, so a slow client holds up to
one buffer of the router and one of the wire. Pure but for the wire and the clock it is given.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from callboard.mqtt.authentication import Authentication
from callboard.mqtt.codec import decode
from callboard.mqtt.door import Admission, Door, Peer
from callboard.mqtt.errors import RemoteMqttError
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.link import UNSCHEDULE, Disconnected, Link, Notification
from callboard.mqtt.link_state import State
from callboard.mqtt.network import Network
from callboard.mqtt.packet import V4, V5, Connect, PacketType
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.refusal import level_of, refusal
from callboard.mqtt.wire import Wire


class _Pause:
    """Why nothing is read; plain bits, as each read looks at them: an enum's cost 1 µs."""

    ADMISSION: Final = 1
    TURN: Final = 2
    RATE: Final = 4
    READERS: Final = 8
    END: Final = 16
    HELD: Final = 32


_OPEN: Final = State.OPEN
"""A name of its own, as each read and write looks at it."""

_OURS: Final = _Pause.TURN | _Pause.RATE | _Pause.READERS | _Pause.HELD
"""While one of these holds, silence is not the client's."""


class RemoteLink:
    """One client that came over a network."""

    __slots__ = (
        "_connect",
        "_door",
        "_early",
        "_is_active",
        "_limiter",
        "_network",
        "_owes_ready",
        "_patience",
        "_pauses",
        "_silent_since",
        "_wire",
        "link",
        "peer",
        "proof",
        "screen",
        "state",
        "tracer",
    )

    def __init__(self, door: Door, wire: Wire, peer: Peer) -> None:
        limits = door.limits
        self.peer = peer
        self.state = State.WAITING
        self.link: Link | None = None
        #: Sees and may change the packets of both directions; None nearly always.
        self.screen = None if door.make_screen is None else door.make_screen(self)
        #: Told of all bytes, by direction; None nearly always.
        self.tracer: Callable[[str, bytes], None] | None = None
        self._door = door
        self._wire = wire
        self._network = Network(limits.packet_size, limits.packets_per_read)
        self._limiter = door.limiter()
        #: What the client proves who it is with; None if its CONNECT names no method.
        self.proof: Authentication | None = None
        #: While the gate thinks about it.
        self._connect: Connect | None = None
        self._early = b""
        self._owes_ready = False
        self._is_active = False
        self._pauses = 0
        self._silent_since = door.clock()
        self._patience = limits.connect_timeout
        door.links.add(self)

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
        figures = self._door.figures
        figures.bytes_in += len(data)
        try:
            chunk = self._network.receive(data)
        except RemoteMqttError as error:
            self._refuse_bytes(error)
            return
        if not chunk:
            return
        figures.packets_in += self._network.packets
        if self.state is _OPEN:
            self._push(chunk)
        elif self.state is State.WAITING:
            self._open(chunk)
        elif self.state is State.ADMITTING:
            self._take_early(chunk)
        if self._network.is_full and self.state in {State.OPEN, State.ADMITTING}:
            self._pause(_Pause.TURN)
            self._wire.later(0, self._read_on)
        if self._limiter is not None:
            self._slow_down(len(data))

    def drained(self) -> None:
        """Take note that the wire takes more."""
        if self._owes_ready and self.link is not None:
            self._owes_ready = False
            self._door.holding.end(self)
            self.link.ready()

    def lost(self) -> None:
        """Take note that the wire is gone."""
        if self.state is State.CLOSED:
            return
        was_open = self.state is State.OPEN
        self.state = State.CLOSED
        self._door.leave(self)
        self.proof = None
        if self.link is not None:
            if was_open:
                self.link.disconnect()
            self.link.let_go()

    def check(self, now: float) -> None:
        """End the connection if nothing came for too long; for the one timer of all."""
        if (self._is_active and self.state is State.OPEN) or (
            self._pauses and self._pauses & _OURS
        ):
            self._is_active = False
            self._silent_since = now
        elif self._patience and now - self._silent_since > self._patience:
            self._run_out()

    # --- what the router and others tell ---

    def flush(self) -> None:
        """Write what the router has for this client."""
        link = self.link
        if link is None:
            return
        taken = link.take()
        if self.state is not _OPEN:
            return
        if self._pauses and not link.is_full:
            self._resume(_Pause.HELD)
        last: Notification | None = None
        if taken and type(taken[-1]) is not bytes:
            last = taken.pop()
        if taken:
            self._write(taken[0] if len(taken) == 1 else b"".join(taken))  # type: ignore[arg-type]
        if last is UNSCHEDULE:
            if self._wire.is_full:
                self._owes_ready = True
                self._door.holding.begin(self, self._wire.later)
            else:
                link.ready()
        elif isinstance(last, Disconnected):
            self._door.figures.count_end(last.reason_code)
            self._close()

    def end(self, reason: ReasonCode) -> None:
        """End the connection for a reason of ours."""
        if self.state is State.OPEN and self.link is not None:
            self.link.disconnect(reason, is_told=True)
        elif self.state in {State.WAITING, State.ADMITTING}:
            self._close()

    def cut(self) -> None:
        """Close at once; the router is told."""
        self._wire.abort()
        self.lost()

    # --- the CONNECT ---

    def _open(self, chunk: bytes) -> None:
        size = packet_end(chunk)
        try:
            if chunk[0] >> 4 != PacketType.CONNECT:
                self._door.figures.count_refusal(ReasonCode.PROTOCOL_ERROR)
                self._close()
                return
            connect = decode(chunk[0], chunk[body_start(chunk) : size], V5)
        except RemoteMqttError as error:
            self._refuse_bytes(error, chunk)
            return
        assert isinstance(connect, Connect)
        self.state = State.ADMITTING
        self._network.minimal = connect.version >= V5
        if connect.properties is None or connect.properties.authentication_method is None:
            self._early = chunk[size:]
            self.admit(connect)
        elif size < len(chunk):
            self.refuse(V5, ReasonCode.PROTOCOL_ERROR, "more than a CONNECT with a method")
        else:
            self._authenticate(connect)

    def admit(self, connect: Connect) -> None:
        """Let the gate decide about a client, which has proved who it is if it has to."""
        self._connect = connect
        admission = self._door.admit(connect, self.peer, self._admitted)
        if admission is None:
            self._pause(_Pause.ADMISSION)
        else:
            self._admitted(admission)

    def _admitted(self, admission: Admission) -> None:
        connect, self._connect = self._connect, None
        if self.state is not State.ADMITTING or connect is None:
            return
        if admission.reason_code:
            self.refuse(connect.version, admission.reason_code, admission.text)
            return
        if admission.client_id is not None:
            connect = replace(connect, client_id=admission.client_id)
        self.link = link = Link(
            self._door.mailbox,
            connect,
            self.flush,
            access=admission.access,
            peer=self.peer.address,
        )
        self.state = State.OPEN
        self._patience = 1.5 * self._door.keep_alive(connect)
        self._silent_since = self._door.clock()
        if self.proof is not None:
            link.authenticate = self.proof.take
        link.begin()
        early, self._early = self._early, b""
        if early:
            self._push(early)
        self._resume(_Pause.ADMISSION)

    def refuse(self, version: int, reason: ReasonCode, text: str = "") -> None:
        """Answer the CONNECT with a refusal, and close."""
        self._door.figures.count_refusal(reason)
        self._write(refusal(version, reason, text))
        self._close()

    def _refuse_bytes(self, error: RemoteMqttError, chunk: bytes = b"") -> None:
        """End a connection whose bytes are wrong, in the way that its state allows."""
        if self.state is State.OPEN and self.link is not None:
            self._pause(_Pause.END)
            self.link.disconnect(error.reason_code, is_told=True)
        elif error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self.refuse(V5 if level_of(chunk) > V5 else V4, error.reason_code, str(error))
        elif self.state in {State.WAITING, State.ADMITTING}:
            self._door.figures.count_refusal(error.reason_code)
            self._close()

    # --- a client that proves who it is ---

    def _authenticate(self, connect: Connect) -> None:
        begun = self._door.authenticate(connect, self)
        if isinstance(begun, Admission):
            self.refuse(V5, begun.reason_code, begun.text)
        else:
            assert connect.properties is not None
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
        if self._door.holding.full and chunk[0] >> 4 == PacketType.PUBLISH:
            self._door.holding.wait(self)
        if link.is_full:
            self._pause(_Pause.HELD)

    def _write(self, data: bytes) -> None:
        if self.screen is not None:
            data = self.screen.outgoing(data)
        if self.tracer is not None:
            self.tracer("out", data)
        self._door.figures.bytes_out += len(data)
        self._wire.write(data)

    def answer(self, data: bytes) -> None:
        """Write a packet that does not come from the router."""
        if self.state is State.ADMITTING or self.state is State.OPEN:
            if self.tracer is not None:
                self.tracer("out", data)
            self._door.figures.bytes_out += len(data)
            self._wire.write(data)
            self._resume(_Pause.ADMISSION)

    # --- pauses ---

    def hold(self) -> None:
        """Read nothing: readers of what this client publishes do not keep up."""
        self._door.figures.held += 1
        self._pause(_Pause.READERS)

    def release(self) -> None:
        """Read on."""
        self._resume(_Pause.READERS)

    def _pause(self, why: int) -> None:
        if not self._pauses:
            self._wire.pause()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        if self._pauses and self._pauses & why:
            self._pauses &= ~why
            if not self._pauses and self.state in {State.OPEN, State.ADMITTING}:
                self._wire.resume()

    def _read_on(self) -> None:
        self._resume(_Pause.TURN)
        if self.state in {State.OPEN, State.ADMITTING}:
            self.receive(b"")

    def _slow_down(self, size: int) -> None:
        """Stop reading for as long as the rate limits say."""
        assert self._limiter is not None
        pause = self._limiter.spend(self._network.packets, size, self._door.clock())
        if pause > 0 and self.state is State.OPEN:
            self._door.figures.slowed += 1
            self._pause(_Pause.RATE)
            self._wire.later(pause, lambda: self._resume(_Pause.RATE))

    # --- ends ---

    def _run_out(self) -> None:
        if self.state is State.OPEN and self.link is not None:
            self._patience = self._door.limits.linger
            self._silent_since = self._door.clock()
            self._door.figures.timeouts += 1
            self.link.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, is_told=True)
        else:
            if self.state is not State.CLOSING:
                self._door.figures.timeouts += 1
            self.cut()

    def _close(self) -> None:
        self.state = State.CLOSING
        self._early = b""
        self._is_active = False
        self._pauses = 0
        self._door.holding.forget(self)
        self._silent_since = self._door.clock()
        self._patience = self._door.limits.linger
        self._wire.close()

    def __repr__(self) -> str:
        return (
            f"<RemoteLink {self.client_id or '?'} from {self.peer.address} {self.state.value}>"
        )
