"""ZeroMQ sockets on a node's event loop: batched reads, CURVE keys, and a visible state.

ZeroMQ moves bytes on its own thread and signals through a file descriptor that a socket may
have changed. The node's poller watches the descriptor, so no thread blocks on a socket. The
signal is edge-triggered: a socket is read until it is empty, or read on in the next turn. It
is also checked after each send, because a send can consume the signal of an arrived message,
which would then stay unread.

ZeroMQ reconnects without telling the caller; only a monitor learns of it. Each socket has a
monitor, which counts its connections and reports when one opened, ended or was refused, and
why.

Sockets are opened from any thread and then used on the node's thread only.
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
from callboard.kernel.ports import is_loopback
from callboard.kernel.wire import Runner, Timer
from callboard.model.errors import InvalidOption
from callboard.support import after_fork
from callboard.support.dataclass import dataclass

#: Frames and bytes read in a turn, so that other work is not delayed.
FRAMES_A_TURN: Final = 400
BYTES_A_TURN: Final = 4 << 20

#: Largest frame in bytes; ZeroMQ closes a connection that delivers a larger one.
FRAME_LIMIT: Final = 64 << 20

#: Messages that ZeroMQ queues per connection and direction, as in Zeek.
HIGH_WATER: Final = 1000

#: Shortest and longest pause between attempts to connect, in milliseconds.
RECONNECT_MS: Final = 100
SLOWEST_RECONNECT_MS: Final = 500

#: Seconds after which we reconnect a socket that ZeroMQ has given up.
AGAIN: Final = 0.5

#: Milliseconds allowed for ZeroMQ's handshake.
HANDSHAKE_MS: Final = 10_000

#: Milliseconds between pings, and of silence after which a connection is dropped.
HEARTBEAT_MS: Final = 2_000
SILENCE_MS: Final = 10_000

#: Milliseconds for which a closed socket still sends its queue.
LINGER_MS: Final = 500

_DONTWAIT: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_UP, _DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
_RETRIED: Final = int(zmq.EVENT_CONNECT_RETRIED)
_FAILED: Final = {
    int(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    ): "it ended during the handshake, as with other CURVE keys",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it is not a ZeroMQ socket of the right kind",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "the keys are not accepted",
}
_MISMATCHES: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "only one side uses CURVE",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "the CURVE keys do not match",
}
_WATCHED: Final = _UP | _DOWN | _RETRIED | sum(_FAILED)
_EVENT: Final = struct.Struct("=HI").unpack

_Options = Mapping[int, int]
#: Callback for a batch of messages. A message with too many frames is truncated to one more
#: than expected. An empty batch means that there may be room to send again.
Taken = Callable[[list[list[bytes]]], object]


@dataclass(frozen=True, slots=True)
class Curve:
    """CURVE keys of a connecting side, 40 characters each, as in Zeek's options.

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
            InvalidOption: the file cannot be read, or its keys are invalid.
        """
        return cls(**_keys_of(path, {"server": str, "secret": str}))

    def options(self) -> dict[int, bytes]:
        """Return the socket options for these keys."""
        secret = self.secret.encode() or zmq.curve_keypair()[1]
        return {
            zmq.CURVE_SERVERKEY: self.server.encode(),
            zmq.CURVE_SECRETKEY: secret,
            zmq.CURVE_PUBLICKEY: zmq.curve_public(secret),
        }


@dataclass(frozen=True, slots=True)
class CurveServer:
    """CURVE keys of a listening side, 40 characters each.

    Attributes:
        secret: `curve_server_secretkey`.
        clients: public keys of the clients that may connect: `curve_client_publickey`.
    """

    secret: str = field(repr=False)
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_key("secret", self.secret)
        for key in self.clients:
            _check_key("clients", key)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the keys of a TOML file with `secret` and a list `clients`.

        Raises:
            InvalidOption: the file cannot be read, or its keys are invalid.
        """
        keys = _keys_of(path, {"secret": str, "clients": list})
        return cls(**keys | {"clients": tuple(keys.get("clients", ()))})

    def options(self) -> dict[int, bytes | int]:
        """Return the socket options for these keys."""
        return {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: self.secret.encode()}

    def accepts(self, key: bytes) -> bool:
        """Return whether a client with this public key (32 bytes) may connect."""
        return any(decode(client) == key for client in self.clients)


def _check_key(name: str, key: object) -> None:
    """Raise `InvalidOption` for a value that is not a CURVE key."""
    try:
        if isinstance(key, str) and len(decode(key)) == 32:
            return
    except (KeyError, ValueError, struct.error):
        pass
    msg = f"{name} is not a CURVE key; pass 40 characters, as Zeek's generate_keypair() returns"
    raise InvalidOption(msg)


def _keys_of(path: Path, names: Mapping[str, type]) -> dict[str, Any]:
    """Return the keys in a file."""
    try:
        keys = loads(path.read_text())
    except (OSError, UnicodeDecodeError, TOMLDecodeError) as error:
        msg = f"no CURVE keys in {path}: {error}"
        raise InvalidOption(msg) from None
    unknown = [
        name for name, value in keys.items() if not isinstance(value, names.get(name, ()))
    ]
    missing = next(iter(names)) not in keys
    if unknown or missing:
        problem = f"{unknown[0]} is not one of" if unknown else "it lacks one of"
        msg = f"no CURVE keys in {path}: {problem} {', '.join(names)}"
        raise InvalidOption(msg)
    return keys


def _is_address(address: object) -> bool:
    """Return whether an address is valid; ZeroMQ itself takes ports above 65535."""
    if not isinstance(address, str) or not address.startswith(("tcp://", "ipc://")):
        return False
    port = address.rpartition(":")[2]
    return address.startswith("ipc://") or (port.isdecimal() and int(port) < 1 << 16)


class SocketChange(NamedTuple):
    """An event of a socket's monitor.

    Attributes:
        is_up: true when a connection opened; false when one ended or an attempt failed.
        connections: open connections now.
        reason: why the connection ended or was refused.
    """

    is_up: bool
    connections: int
    reason: str


class LoopSocket:
    """A socket of `ZeroMqSockets`.

    Attributes:
        address: where it is bound, or the address that it connects to.
        connections: open connections.
        reason: why the last connection ended or was refused; empty while one is open.
    """

    def __init__(
        self,
        runner: Runner,
        socket: Any,
        address: str,
        on_messages: Taken,
        on_change: Callable[[SocketChange], object] | None,
        frames: int,
        *,
        connects: bool = False,
    ) -> None:
        """Do not call this; use `ZeroMqSockets.connect` or `bind`."""
        self.address, self.connections, self.reason = address, 0, ""
        self._runner, self._socket, self._recv = runner, socket, socket.recv
        self._on_messages, self._on_change, self._frames = on_messages, on_change, frames
        self.connects = connects
        self._parts: list[bytes] = []
        #: Reconnects where ZeroMQ does not, for example after a protocol error.
        self._reconnect_timer: Timer | None = None
        self._is_due = self._is_paused = self._is_watched = self._is_closed = False
        self._failed = 0
        self._monitor: Any = None
        if on_change is not None:
            self._monitor = socket.get_monitor_socket(_WATCHED)
            self._monitor.linger = 0

    def begin(self) -> None:
        """Start watching the socket; the calling thread must not use it afterwards."""
        self._runner.post(self._begin)

    def _begin(self) -> None:
        """Start watching the socket. Must be called on the runner's thread."""
        if self._is_closed or self._runner.closed:
            return
        self._is_watched = True
        self._watch(0, EVENT_READ)
        self._read_monitor()
        self._read()

    def _watch(self, previous: int, events: int) -> None:
        """Watch the descriptors for events; 0 stops watching."""
        pairs = [(self._socket, self._on_signal), (self._monitor, self._read_monitor)]
        for socket, callback in pairs:
            if socket is not None:
                self._runner.watch(socket.getsockopt(zmq.FD), previous, events, callback)

    # --- receiving ---

    def _on_signal(self, _mask: int) -> None:
        """Read, unless a read is scheduled."""
        if not self._is_due:
            self._read()

    def _read(self) -> None:
        """Read messages, up to the limits of a turn."""
        self._is_due = False
        if self._is_closed:
            return
        if self._is_paused:
            self._socket.getsockopt(zmq.EVENTS)  # clears the signal, else the poller spins
            return
        messages: list[list[bytes]] = []
        try:
            self._read_into(messages)
        except zmq.Again:
            pass
        else:
            self.check_soon()
        self._on_messages(messages)

    def _read_into(self, messages: list[list[bytes]]) -> None:
        """Read one batch.

        Raises:
            zmq.Again: the socket is empty.
        """
        recv, limit, size, parts = self._recv, self._frames, 0, self._parts
        for _ in range(FRAMES_A_TURN):
            frame = recv(_DONTWAIT, False)  # noqa: FBT003  # without a copy, to see `more`
            if len(parts) <= limit:
                part = frame.bytes
                size += len(part)
                parts.append(part)
            if not frame.more:
                messages.append(parts)
                self._parts = parts = []
                if size > BYTES_A_TURN:
                    return

    def check_soon(self) -> None:
        """Check the socket in the next turn: the signal of a message may be lost."""
        if not self._is_due:
            self._is_due = True
            self._runner.post(self._read)

    def pause(self) -> None:
        """Stop reading until `resume`; messages wait in ZeroMQ, then at their senders."""
        self._is_paused = True

    def resume(self) -> None:
        """Resume reading."""
        if self._is_paused:
            self._is_paused = False
            self.check_soon()

    # --- sending ---

    def send(self, parts: list[bytes]) -> bool:
        """Send a message; return whether there was room."""
        self.check_soon()  # a send can consume the signal of a received message
        send, last_index = self._socket.send, len(parts) - 1
        try:
            for index, part in enumerate(parts):
                send(part, _DONTWAIT if index == last_index else _MORE)
        except zmq.Again:
            return False
        return True

    # --- the monitor ---

    def _read_monitor(self, _mask: int = 0) -> None:
        """Read the monitor's events."""
        try:
            while not self._is_closed and self._on_change is not None:
                event, value = _EVENT(self._monitor.recv_multipart(_DONTWAIT)[0])
                change = self._changed(event, value)
                if change is not None:
                    self._on_change(change)
        except zmq.Again:
            pass

    def _changed(self, event: int, value: int) -> SocketChange | None:
        """Apply an event of the monitor; return the change, if it is one to report."""
        is_up = event == _UP
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        if is_up:
            self.connections += 1
            self.reason = ""
        elif event in _FAILED:  # its disconnect follows
            self._failed += 1
            self.reason = _MISMATCHES.get(value, _FAILED[event])
        elif event == _DOWN:
            self._schedule_reconnect()
            if self._failed:
                self._failed -= 1
                return None
            self.connections -= 1
            self.reason = "the connection ended"
        elif self.reason:  # the first failed attempt was reported
            return None
        else:
            self.reason = "no answer"
        return SocketChange(is_up, self.connections, self.reason)

    def _schedule_reconnect(self) -> None:
        """Schedule a reconnect, in case ZeroMQ makes none."""
        if self.connects:
            self._reconnect_timer = self._runner.call_later(AGAIN, self._reconnect)

    def _reconnect(self) -> None:
        """Reconnect after an error on which ZeroMQ gives up, such as too large a frame."""
        if not self._is_closed:
            with suppress(zmq.ZMQError):  # ZeroMQ may have dropped the address
                self._socket.disconnect(self.address)
            self._socket.connect(self.address)
            self.check_soon()

    # --- the end ---

    def close(self, linger: int) -> None:
        """Close the socket. Must be called on the runner's thread; further calls do nothing."""
        if self._is_closed:
            return
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        if self._is_watched:
            self._watch(EVENT_READ, 0)
        self._is_closed = True
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(linger)


class ZeroMqSockets:
    """The sockets of one adapter, with common keys and their own context."""

    def __init__(self, runner: Runner, curve: Curve | CurveServer | None = None) -> None:
        """Create the context. Can be called from any thread.

        Args:
            runner: the runner of the node.
            curve: keys of all sockets; None: no encryption.
        """
        self._runner, self._curve = runner, curve
        self._context: Any = zmq.Context()
        self._sockets: list[LoopSocket] = []
        after_fork.register(self, ZeroMqSockets._drop_copy)
        #: Connections refused because of an unknown key.
        self.refused = 0
        if isinstance(curve, CurveServer):
            self._zap = self._context.socket(
                zmq.ROUTER
            )  # REP would serve one request at a time
            self._zap.bind("inproc://zeromq.zap.01")
            self._add(self._zap, "", self._authenticate, None, 9).begin()

    def _add(self, *parts: Any, connects: bool = False) -> LoopSocket:
        loop_socket = LoopSocket(self._runner, *parts, connects=connects)
        self._sockets.append(loop_socket)
        return loop_socket

    def connect(
        self,
        kind: int,
        address: str,
        taken: Taken,
        on_change: Callable[[SocketChange], object],
        *,
        frames: int,
        options: _Options | None = None,
        begins: bool = True,
    ) -> LoopSocket:
        """Open a socket that connects, and reconnects when the connection ends.

        Args:
            kind: `zmq.XSUB` and the like.
            address: `tcp://HOST:PORT`.
            taken: called with the messages of each batch; on the node's thread.
            on_change: called with each change of the connections; on the node's thread.
            frames: expected frames of a message; of a longer one, one more frame is kept.
            options: further options of the socket.
            begins: False if the caller calls `LoopSocket.begin`.

        Raises:
            InvalidOption: the address is invalid; all sockets are closed.
        """
        socket = self._socket(kind, address, options or {})
        loop_socket = self._add(socket, address, taken, on_change, frames, connects=True)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise self._unfit(address, error) from None
        if begins:
            loop_socket.begin()
        return loop_socket

    def bind(
        self,
        kind: int,
        address: str,
        taken: Taken,
        on_change: Callable[[SocketChange], object],
        *,
        frames: int,
        options: _Options | None = None,
        insecure: bool = False,
    ) -> LoopSocket:
        """Open a socket that accepts connections; the arguments are as for `connect`.

        Args:
            kind: as for `connect`.
            address: as for `connect`; port 0 picks a free one, see `LoopSocket.address`.
            taken: as for `connect`.
            on_change: as for `connect`.
            frames: as for `connect`.
            options: as for `connect`.
            insecure: allow a public address although clients need no key.

        Raises:
            InvalidOption: the address is invalid; on any error all sockets are closed.
            PortUnavailable: the port is in use, or the address is not local.
            PublicAddress: other machines can reach the address, and no key is required.
        """
        socket = self._socket(kind, address, options or {})
        loop_socket = self._add(socket, address, taken, on_change, frames)
        try:
            socket.bind(f"{address[:-2]}:*" if address.endswith(":0") else address)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL, EACCES):
                raise self._unfit(address, error) from None
            self._runner.post(self.close, 0)
            msg = f"cannot listen at {address}: {error}"
            raise PortUnavailable(error.errno, msg) from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        # The host as ZeroMQ has parsed it: our own parsing could take a public one for local.
        host = bound.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        is_guarded = isinstance(self._curve, CurveServer) and bool(self._curve.clients)
        if not (bound.startswith("ipc:") or is_loopback(host) or is_guarded or insecure):
            self._runner.post(self.close, 0)
            msg = (
                f"{address} can be reached from other machines; pass the CURVE keys of the "
                "clients that may connect, or insecure=True to accept every client"
            )
            raise PublicAddress(msg)
        loop_socket.address = bound
        loop_socket.begin()
        return loop_socket

    def _unfit(self, address: str, error: Exception) -> InvalidOption:
        """Close all sockets, and return the error for an invalid address."""
        self._runner.post(self.close, 0)
        return InvalidOption(f"{address} is not a ZeroMQ address: {error}")

    def _drop_copy(self) -> None:
        """Drop the connections of this copy in a forked process.

        The context is kept: terminating it would wait for ZeroMQ's thread, which a fork does
        not copy.
        """
        after_fork.keep_for_ever(self._context)
        for loop_socket in self._sockets:
            after_fork.drop_endpoint(loop_socket.address, is_bound=not loop_socket.connects)

    def _socket(self, kind: int, address: str, options: _Options) -> Any:
        """Create a socket with the common options and its own."""
        if not _is_address(address):
            raise self._unfit(address, ValueError("use tcp://HOST:PORT"))
        socket = self._context.socket(kind)
        all_options: dict[int, Any] = {
            zmq.IPV6: int("[" in address), zmq.MAXMSGSIZE: FRAME_LIMIT,
            zmq.SNDHWM: HIGH_WATER, zmq.RCVHWM: HIGH_WATER,
            zmq.LINGER: LINGER_MS, zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: SLOWEST_RECONNECT_MS,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS, zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: SILENCE_MS,
            **({} if self._curve is None else self._curve.options()), **options,
        }  # fmt: skip
        for option, value in all_options.items():
            socket.setsockopt(option, value)
        return socket

    def _authenticate(self, requests: list[list[bytes]]) -> None:
        """Answer ZeroMQ's authentication requests (RFC 27)."""
        assert isinstance(self._curve, CurveServer)
        for peer, empty, version, number, *_, mechanism, key in requests:
            is_known = mechanism == b"CURVE" and self._curve.accepts(key)
            self.refused += not is_known
            status = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            reply = [peer, empty, version, number, *status, b"", b""]
            self._zap.send_multipart(reply, _DONTWAIT)

    def close(self, linger: int = LINGER_MS) -> None:
        """Close all sockets. Must be called on the runner's thread.

        Messages already sent have `linger` milliseconds to leave. A thread waits for that; it
        is not a daemon, so the interpreter waits for it at exit.
        """
        if after_fork.is_copy(self):
            return
        for loop_socket in self._sockets:
            loop_socket.close(linger)
        self._sockets.clear()
        threading.Thread(target=self._context.term, name="callboard-zeromq-end").start()
