"""ZeroMQ sockets on a node's event loop: read in batches, with CURVE and a state that is seen.

ZeroMQ moves bytes on a thread of its own and tells by a descriptor that something may have
changed. The descriptor is in the node's poller, so no thread waits for a socket. It tells of
changes only: a socket is read until nothing is left, or goes on in the next turn, and is looked
at again behind each send, which may have swallowed a change.

ZeroMQ connects again by itself, and says nothing of it but to a monitor. Each socket has one:
it counts its connections and tells when one came, ended, or was refused, and why.

Sockets are opened from any thread and used on the node's thread alone.
"""

import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from errno import EACCES
from pathlib import Path
from selectors import EVENT_READ
from tomllib import TOMLDecodeError, loads
from typing import Any, Final, NamedTuple, Self

import zmq
from zmq.utils.z85 import decode

from callboard.kernel.errors import PortUnavailable, PublicAddress
from callboard.kernel.tls import is_loopback
from callboard.kernel.wire import Runner, Timer
from callboard.model.errors import InvalidOption
from callboard.support import after_fork
from callboard.support.dataclass import dataclass

#: Frames, and bytes, that are read before others have their turn.
FRAMES_A_TURN: Final = 400
BYTES_A_TURN: Final = 4 << 20

#: Bytes of a frame; ZeroMQ ends the connection that brings a larger one.
FRAME_LIMIT: Final = 64 << 20

#: Messages that ZeroMQ keeps for a connection, in each direction: as Zeek does.
HIGH_WATER: Final = 1000

#: Milliseconds of the first pause between attempts to connect, and of the longest.
RECONNECT_MS: Final = 100
SLOWEST_RECONNECT_MS: Final = 500

#: Seconds after which a connection is made anew that ZeroMQ does not make again.
AGAIN: Final = 0.5

#: Milliseconds for a connection to be one of ZeroMQ's.
HANDSHAKE_MS: Final = 10_000

#: Milliseconds between pings, and without an answer after which a connection is given up.
HEARTBEAT_MS: Final = 2_000
SILENCE_MS: Final = 10_000

#: Milliseconds that what was sent has to go out after the end.
LINGER_MS: Final = 500

_DONTWAIT: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_UP, _DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
_RETRIED: Final = int(zmq.EVENT_CONNECT_RETRIED)
_FAILED: Final = {
    int(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    ): "it ended in the handshake, as with other CURVE keys",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it is no ZeroMQ socket, or another kind",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "the keys are not accepted",
}
_MISMATCHES: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "one side has CURVE and the other has not",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "the CURVE keys do not fit",
}
_WATCHED: Final = _UP | _DOWN | _RETRIED | sum(_FAILED)
_EVENT: Final = struct.Struct("=HI").unpack

_Options = Mapping[int, int]
#: Takes the messages of a batch; one of too many frames has lost its last ones. It is called
#: without messages too: there may be room to send again.
Taken = Callable[[list[list[bytes]]], object]


@dataclass(frozen=True, slots=True)
class Curve:
    """CURVE keys of a side that connects, 40 characters each, as Zeek's options have them.

    Attributes:
        server: `curve_server_publickey`.
        secret: `curve_client_secretkey`; by default a new key.
    """

    server: str
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_key("server", self.server)
        if self.secret:
            _check_key("secret", self.secret)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the keys of a TOML file with `server` and `secret`.

        Raises:
            InvalidOption: it cannot be read, or holds no such keys.
        """
        return cls(**_keys_of(path, {"server": str, "secret": str}))

    def options(self) -> dict[int, bytes]:
        """Return the options of a socket."""
        secret = self.secret.encode() or zmq.curve_keypair()[1]
        return {
            zmq.CURVE_SERVERKEY: self.server.encode(),
            zmq.CURVE_SECRETKEY: secret,
            zmq.CURVE_PUBLICKEY: zmq.curve_public(secret),
        }


@dataclass(frozen=True, slots=True)
class CurveServer:
    """CURVE keys of a side that listens, 40 characters each.

    Attributes:
        secret: `curve_server_secretkey`.
        clients: public keys of those who may connect: `curve_client_publickey`.
    """

    secret: str = field(repr=False)
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_key("secret", self.secret)
        for each in self.clients:
            _check_key("clients", each)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the keys of a TOML file with `secret` and a list `clients`.

        Raises:
            InvalidOption: it cannot be read, or holds no such keys.
        """
        keys = _keys_of(path, {"secret": str, "clients": list})
        return cls(**keys | {"clients": tuple(keys.get("clients", ()))})

    def options(self) -> dict[int, bytes | int]:
        """Return the options of a socket."""
        return {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: self.secret.encode()}

    def accepts(self, key: bytes) -> bool:
        """Return whether a client with that public key, of 32 bytes, may connect."""
        return any(decode(each) == key for each in self.clients)


def _check_key(name: str, key: object) -> None:
    """Raise `InvalidOption` unless a key is one."""
    try:
        if isinstance(key, str) and len(decode(key)) == 32:
            return
    except (KeyError, ValueError, struct.error):
        pass
    msg = f"{name} is no CURVE key: 40 characters, as Zeek's generate_keypair() returns them"
    raise InvalidOption(msg)


def _keys_of(path: Path, names: Mapping[str, type]) -> dict[str, Any]:
    """Return the keys that a file holds."""
    try:
        found = loads(path.read_text())
    except (OSError, UnicodeDecodeError, TOMLDecodeError) as error:
        msg = f"no CURVE keys in {path}: {error}"
        raise InvalidOption(msg) from None
    odd = [name for name, value in found.items() if not isinstance(value, names.get(name, ()))]
    missing = next(iter(names)) not in found
    if odd or missing:
        what = f"{odd[0]} is not one of" if odd else "it lacks one of"
        msg = f"no CURVE keys in {path}: {what} {', '.join(names)}"
        raise InvalidOption(msg)
    return found


def _is_address(address: object) -> bool:
    """Return whether ZeroMQ may be asked: it takes ports that are too large for others."""
    if not isinstance(address, str) or not address.startswith(("tcp://", "ipc://")):
        return False
    port = address.rpartition(":")[2]
    return address.startswith("ipc://") or (port.isdecimal() and int(port) < 1 << 16)


class SocketChange(NamedTuple):
    """What the monitor of a socket told.

    Attributes:
        is_up: a connection is there; else one has ended, or none came about.
        connections: how many there are.
        reason: why one ended or was refused.
    """

    is_up: bool
    connections: int
    reason: str


class LoopSocket:
    """One socket; of `ZeroMqSockets.open`.

    Attributes:
        address: where it is bound, or what it connects to.
        connections: those that are there.
        reason: why the last one ended or was refused; empty while one is there.
    """

    def __init__(
        self,
        runner: Runner,
        socket: Any,
        address: str,
        taken: Taken,
        told: Callable[[SocketChange], object] | None,
        frames: int,
        *,
        connects: bool = False,
    ) -> None:
        """Use `ZeroMqSockets.open`."""
        self.address, self.connections, self.reason = address, 0, ""
        self._runner, self._socket, self._recv = runner, socket, socket.recv
        self._taken, self._told, self._frames = taken, told, frames
        self.connects = connects
        self._parts: list[bytes] = []
        #: Connects again where ZeroMQ does not: behind what it takes for a wrong protocol.
        self._again: Timer | None = None
        self._is_due = self._is_paused = self._is_watched = self._is_closed = False
        self._failed = 0
        self._monitor: Any = None
        if told is not None:
            self._monitor = socket.get_monitor_socket(_WATCHED)
            self._monitor.linger = 0

    def begin(self) -> None:
        """Look at the socket from here on; from any thread, which does not use it any more."""
        self._runner.post(self._begin)

    def _begin(self) -> None:
        """Look at the socket, on the runner."""
        if self._is_closed or self._runner.closed:
            return
        self._is_watched = True
        self._watch(0, EVENT_READ)
        self._look_at_monitor()
        self._read()

    def _watch(self, before: int, events: int) -> None:
        """Wait for what the descriptors tell, or (0) no more."""
        pairs = [(self._socket, self._changed_somehow), (self._monitor, self._look_at_monitor)]
        for socket, look in pairs:
            if socket is not None:
                self._runner.watch(socket.getsockopt(zmq.FD), before, events, look)

    # --- in ---

    def _changed_somehow(self, _mask: int) -> None:
        """Read, unless that is to be done in a moment."""
        if not self._is_due:
            self._read()

    def _read(self) -> None:
        """Take what is there, up to a turn's share."""
        self._is_due = False
        if self._is_closed:
            return
        if self._is_paused:
            self._socket.getsockopt(zmq.EVENTS)  # which takes the signal back
            return
        found: list[list[bytes]] = []
        try:
            self._read_into(found)
        except zmq.Again:
            pass
        else:
            self.look()
        self._taken(found)

    def _read_into(self, found: list[list[bytes]]) -> None:
        """Read a batch.

        Raises:
            zmq.Again: nothing is left.
        """
        recv, limit, size, parts = self._recv, self._frames, 0, self._parts
        for _ in range(FRAMES_A_TURN):
            frame = recv(_DONTWAIT, False)  # noqa: FBT003  # without a copy, to see `more`
            if len(parts) <= limit:
                part = frame.bytes
                size += len(part)
                parts.append(part)
            if not frame.more:
                found.append(parts)
                self._parts = parts = []
                if size > BYTES_A_TURN:
                    return

    def look(self) -> None:
        """Look at the socket in the next turn: something may have come unnoticed."""
        if not self._is_due:
            self._is_due = True
            self._runner.post(self._read)

    def pause(self) -> None:
        """Read nothing until `resume`: what comes waits in ZeroMQ, and then at its senders."""
        self._is_paused = True

    def resume(self) -> None:
        """Read again."""
        if self._is_paused:
            self._is_paused = False
            self.look()

    # --- out ---

    def send(self, parts: list[bytes]) -> bool:
        """Send a message; returns whether there was room."""
        self.look()  # a change may be noticed by the send alone
        send, last = self._socket.send, len(parts) - 1
        try:
            for number, part in enumerate(parts):
                send(part, _DONTWAIT if number == last else _MORE)
        except zmq.Again:
            return False
        return True

    # --- the monitor ---

    def _look_at_monitor(self, _mask: int = 0) -> None:
        """Take what the monitor tells."""
        try:
            while not self._is_closed and self._told is not None:
                event, value = _EVENT(self._monitor.recv_multipart(_DONTWAIT)[0])
                change = self._changed(event, value)
                if change is not None:
                    self._told(change)
        except zmq.Again:
            pass

    def _changed(self, event: int, value: int) -> SocketChange | None:
        """Take note of an event of the monitor."""
        is_up = event == _UP
        if self._again is not None:
            self._again.cancel()
        if is_up:
            self.connections += 1
            self.reason = ""
        elif event in _FAILED:  # its disconnect follows
            self._failed += 1
            self.reason = _MISMATCHES.get(value, _FAILED[event])
        elif event == _DOWN:
            self._plan_again()
            if self._failed:
                self._failed -= 1
                return None
            self.connections -= 1
            self.reason = "the connection ended"
        elif self.reason:  # a further attempt that found nobody
            return None
        else:
            self.reason = "nobody answers"
        return SocketChange(is_up, self.connections, self.reason)

    def _plan_again(self) -> None:
        """See to it that a connection that ended is made again, unless ZeroMQ says it does."""
        if self.connects:
            self._again = self._runner.call_later(AGAIN, self._connect_again)

    def _connect_again(self) -> None:
        """Connect: a frame was too large, or keys did not fit, and ZeroMQ has given up."""
        if not self._is_closed:
            with suppress(zmq.ZMQError):  # it has forgotten the address
                self._socket.disconnect(self.address)
            self._socket.connect(self.address)
            self.look()

    # --- the end ---

    def close(self, linger: int) -> None:
        """End it; on the runner. Idempotent."""
        if self._is_closed:
            return
        if self._again is not None:
            self._again.cancel()
        if self._is_watched:
            self._watch(EVENT_READ, 0)
        self._is_closed = True
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(linger)


class ZeroMqSockets:
    """The sockets of one door; they share keys, and a context that ends with them."""

    def __init__(self, runner: Runner, curve: Curve | CurveServer | None = None) -> None:
        """Open none yet; from any thread.

        Args:
            runner: of the node.
            curve: keys of all these sockets; without, nothing is encrypted.
        """
        self._runner, self._curve = runner, curve
        self._context: Any = zmq.Context()
        self._sockets: list[LoopSocket] = []
        after_fork.register(self, ZeroMqSockets._leave)
        #: Connections that were refused, as their keys are not among those that are accepted.
        self.refused = 0
        if isinstance(curve, CurveServer):
            self._zap = self._context.socket(zmq.ROUTER)  # a REP answers one by one
            self._zap.bind("inproc://zeromq.zap.01")
            self._add(self._zap, "", self._authenticate, None, 9).begin()

    def _add(self, *parts: Any, connects: bool = False) -> LoopSocket:
        made = LoopSocket(self._runner, *parts, connects=connects)
        self._sockets.append(made)
        return made

    def connect(
        self,
        kind: int,
        address: str,
        taken: Taken,
        told: Callable[[SocketChange], object],
        *,
        frames: int,
        options: _Options | None = None,
        begins: bool = True,
    ) -> LoopSocket:
        """Open a socket that connects, and connects again whenever it has to.

        Args:
            kind: `zmq.XSUB` and so on.
            address: as in `tcp://HOST:PORT`.
            taken: gets the messages of each batch; on the node's thread.
            told: gets what becomes of connections; on the node's thread.
            frames: frames of a message; of what has more, one more is kept.
            options: of the socket, beside those of all.
            begins: False where the caller does `LoopSocket.begin` itself.

        Raises:
            InvalidOption: that is no such address; all sockets are closed.
        """
        socket = self._socket(kind, address, options or {})
        made = self._add(socket, address, taken, told, frames, connects=True)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise self._unfit(address, error) from None
        if begins:
            made.begin()
        return made

    def bind(
        self,
        kind: int,
        address: str,
        taken: Taken,
        told: Callable[[SocketChange], object],
        *,
        frames: int,
        options: _Options | None = None,
        insecure: bool = False,
    ) -> LoopSocket:
        """Open a socket that others connect to; see `connect`.

        Args:
            kind: as there.
            address: as there; the port 0 picks a free one, see `LoopSocket.address`.
            taken: as there.
            told: as there.
            frames: as there.
            options: as there.
            insecure: allow an address that other machines reach though nothing guards it.

        Raises:
            InvalidOption: that is no such address; as with the next two, all are closed.
            PortUnavailable: the port is taken, or the address is not this machine's.
            PublicAddress: other machines reach it, and no keys guard it.
        """
        socket = self._socket(kind, address, options or {})
        made = self._add(socket, address, taken, told, frames)
        try:
            socket.bind(f"{address[:-2]}:*" if address.endswith(":0") else address)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL, EACCES):
                raise self._unfit(address, error) from None
            self._runner.post(self.close, 0)
            msg = f"nothing can listen at {address}: {error}"
            raise PortUnavailable(error.errno, msg) from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        host = bound.removeprefix("tcp://").rpartition(":")[0].strip("[]")  # as ZeroMQ read it
        is_guarded = isinstance(self._curve, CurveServer) and bool(self._curve.clients)
        if not (bound.startswith("ipc:") or is_loopback(host) or is_guarded or insecure):
            self._runner.post(self.close, 0)
            msg = (
                f"{address} can be reached from other machines; pass CURVE keys of those who "
                "may connect, or insecure=True if whoever gets through may do everything"
            )
            raise PublicAddress(msg)
        made.address = bound
        made.begin()
        return made

    def _unfit(self, address: str, error: Exception) -> InvalidOption:
        """End all sockets, and return the error for an address that ZeroMQ does not take."""
        self._runner.post(self.close, 0)
        return InvalidOption(f"{address} is no address of ZeroMQ's: {error}")

    def _leave(self) -> None:
        """Drop the connections of this copy in a forked process.

        The context is not ended: ZeroMQ would wait for its thread, which is not here.
        """
        after_fork.keep_for_ever(self._context)
        for each in self._sockets:
            after_fork.drop_endpoint(each.address, is_bound=not each.connects)

    def _socket(self, kind: int, address: str, options: _Options) -> Any:
        """Return a socket with the options of all, and its own."""
        if not _is_address(address):
            raise self._unfit(address, ValueError("one is tcp://HOST:PORT"))
        made = self._context.socket(kind)
        wanted: dict[int, Any] = {
            zmq.IPV6: int("[" in address), zmq.MAXMSGSIZE: FRAME_LIMIT,
            zmq.SNDHWM: HIGH_WATER, zmq.RCVHWM: HIGH_WATER,
            zmq.LINGER: LINGER_MS, zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: SLOWEST_RECONNECT_MS,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS, zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: SILENCE_MS,
            **({} if self._curve is None else self._curve.options()), **options,
        }  # fmt: skip
        for option, value in wanted.items():
            made.setsockopt(option, value)
        return made

    def _authenticate(self, requests: list[list[bytes]]) -> None:
        """Answer ZeroMQ's questions who may connect (RFC 27)."""
        assert isinstance(self._curve, CurveServer)
        for asker, empty, version, number, *_, mechanism, key in requests:
            is_known = mechanism == b"CURVE" and self._curve.accepts(key)
            self.refused += not is_known
            status = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            answer = [asker, empty, version, number, *status, b"", b""]
            self._zap.send_multipart(answer, _DONTWAIT)

    def close(self, linger: int = LINGER_MS) -> None:
        """End all; on the runner. What was sent has `linger` milliseconds to go out.

        A thread waits for that, which a program that ends waits for.
        """
        if after_fork.is_copy(self):
            return
        for each in self._sockets:
            each.close(linger)
        self._sockets.clear()
        threading.Thread(target=self._context.term, name="callboard-zeromq-end").start()
