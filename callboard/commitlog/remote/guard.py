"""Limits of a log server: concurrent calls, and connections.

Flight and gRPC do not limit calls, and do not expose their connections. The guard
finds the connections among the descriptors of the process, and shuts them down there: their
calls end, and our clients continue over another connection.

One token may use nearly all of the limit while there is no demand by others, as all executors
of a cluster share a token. The last quarter of the limit is reserved for tokens with few calls.
If there are too many connections, those of the token with most of them are closed first. So no
token can exclude others.
"""

import ipaddress
import logging
import os
import resource
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from pyarrow import flight

from callboard import locks
from callboard.commitlog.remote.disk import BUSY

#: Concurrent calls: each has a thread, and each stream a row of 1 MiB in flight.
CALL_LIMIT: Final = 128
#: Concurrent calls for columns: each holds decoded records of up to 16 MiB.
COLUMNS_LIMIT: Final = 16
#: Concurrent calls of one token beyond which the last quarter of either limit is reserved.
_RESERVED: Final = (8, 1)
#: Connections; at most half of the descriptors that the process may have.
CONNECTION_LIMIT: Final = 1000
#: Seconds in which a connection must have made a permitted call.
_GRACE_SECONDS: Final = 10.0
#: Seconds without progress of its reader after which a stream may be closed for another call.
_STALL_SECONDS: Final = 5.0
#: Seconds between checks of the connections, and while the server closes.
_TICK_SECONDS: Final = 1.0
_CLOSING_TICK_SECONDS: Final = 0.02

_log = logging.getLogger("callboard.commitlog")

Peer = tuple[str, int]


class ServedCall(flight.ServerMiddleware):
    """A running call.

    Attributes:
        token: The token that the call presented.
        owner: The token if the server requires one; calls of one owner share its limits.
        peer: Address of the client, once the call is admitted.
        is_for_columns: Whether the server decodes records for the call.
        since: Time since which it waits for its reader; None while the server works for it.
    """

    def __init__(self, token: str | None, guard: "LogGuard") -> None:
        self.token = token
        self.owner = ""
        self.peer: Peer | None = None
        self.is_for_columns = False
        self.since: float | None = None
        self._guard = guard

    def call_completed(self, exception: BaseException | None) -> None:
        """Release the call's share of the limits."""
        self._guard.end(self)


class LogGuard(flight.ServerMiddlewareFactory):
    """Refuses calls beyond the limits of a server, and closes connections."""

    def __init__(self) -> None:
        self._lock = locks.lock("guard of a remote log", 605)
        self._calls: set[ServedCall] = set()
        #: The time of the last call of each peer.
        self._readers: dict[Peer, float] = {}
        self._owners: dict[Peer, str] = {}
        #: The time at which each connection was first found.
        self._found_at: dict[Peer, float] = {}
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None
        self._port = 0
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = min(CONNECTION_LIMIT, max(8, soft // 2))

    def start_call(self, _: Any, headers: Mapping[str, Sequence[str]]) -> ServedCall:
        """Register a call.

        Raises:
            FlightUnavailableError: too many calls are registered.
        """
        header = headers.get("authorization") or ("",)
        scheme, _, token = str(header[0]).partition(" ")
        call = ServedCall(token.strip() if scheme.lower() == "bearer" else None, self)
        with self._lock:
            if len(self._calls) >= 2 * CALL_LIMIT:  # most of them are not admitted yet
                self._refuse(f"{CALL_LIMIT} calls")
            self._calls.add(call)
        return call

    def admit(self, call: ServedCall, peer: str, *, is_open: bool) -> None:
        """Admit a call that may read; an open server requires no token.

        Raises:
            FlightUnavailableError: the limit of calls is reached, or its rest is reserved for
                other tokens.
        """
        call.owner = "" if is_open else call.token or ""
        with self._lock:
            admitted = [running for running in self._calls if running.peer is not None]
            self._share(call, admitted, CALL_LIMIT, _RESERVED[0], "calls")
            call.peer = _peer(peer.partition(":")[2])
            self._readers[call.peer] = time.monotonic()
            self._owners[call.peer] = call.owner

    def decode(self, call: ServedCall) -> None:
        """Admit a call for columns, for which the server decodes records.

        Raises:
            FlightUnavailableError: as for `admit`.
        """
        with self._lock:
            running = [running for running in self._calls if running.is_for_columns]
            self._share(call, running, COLUMNS_LIMIT, _RESERVED[1], "calls for columns")
            call.is_for_columns = True

    def _share(
        self, call: ServedCall, running: list[ServedCall], limit: int, reserved: int, label: str
    ) -> None:
        """Refuse a call at the limit, or in the last quarter if its owner has `reserved`."""
        if len(running) >= limit:
            self._refuse(f"{limit} {label}")
        own = [other for other in running if other.owner == call.owner]
        if call.owner and len(running) >= limit - limit // 4 and len(own) >= reserved:
            self._refuse(f"{len(own)} {label} of this token", own)

    def end(self, call: ServedCall) -> None:
        """Unregister a call."""
        with self._lock:
            self._calls.discard(call)

    def _refuse(self, label: str, calls: Sequence[ServedCall] | None = None) -> NoReturn:
        """Refuse a call; close the call that is stalled longest, to make room for a retry."""
        stalled_before = time.monotonic() - _STALL_SECONDS
        stalled = [
            (call.since, call.peer)
            for call in (self._calls if calls is None else calls)
            if call.peer is not None and call.since is not None and call.since < stalled_before
        ]
        if stalled:
            self._cut({min(stalled)[1]}, "its reader has stalled, and other calls wait")
        message = f"{BUSY}: {label} run, which is the limit; ask again"
        raise flight.FlightUnavailableError(message)

    def start(self, port: int) -> None:
        """Watch the connections at a port, until `join`."""
        self._port = port
        self._watch = threading.Thread(target=self._run, name="log connections", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Close all connections until `join`, or a stalled reader would delay the shutdown."""
        self._limit = -1

    def join(self) -> None:
        """End the thread that watches the connections."""
        self._stop.set()
        if self._watch is not None:
            self._watch.join()

    def _run(self) -> None:
        """Check the connections until the end."""
        while not self._stop.wait(_CLOSING_TICK_SECONDS if self._limit < 0 else _TICK_SECONDS):
            self.check()

    def check(self) -> None:
        """Close connections without a permitted call, and those beyond the limit."""
        now, peers = time.monotonic(), {peer for peer, _ in _connections(self._port)}
        self._found_at = {peer: self._found_at.get(peer, now) for peer in peers}
        with self._lock:
            busy = {call.peer for call in self._calls}
            for peer in [reader for reader in self._readers if reader not in peers]:
                del self._readers[peer], self._owners[peer]
        late = {
            peer
            for peer, found_at in self._found_at.items()
            if peer not in self._readers and now - found_at >= _GRACE_SECONDS
        }
        self._cut(late, "no token was presented")

        # Connections without a permitted call are closed first, then those of the owner with
        # most of them: first the idle ones, then the newest.
        def use(peer: Peer) -> tuple[bool, float, float]:
            return peer in busy, self._readers.get(peer, 0.0), -self._found_at[peer]

        owned, ranks = Counter[str](), {}
        for peer in sorted(peers & self._readers.keys(), key=use, reverse=True):
            owner = self._owners[peer]
            ranks[peer] = owned[owner] if owner else 0
            owned[owner] += 1
        rest = sorted(peers - late, key=lambda peer: (-ranks.get(peer, len(peers)), use(peer)))
        excess = len(rest) - max(0, self._limit)
        if excess > 0:
            reason = "the server ends" if self._limit < 0 else f"the limit is {self._limit}"
            self._cut(set(rest[:excess]), reason)

    def _cut(self, peers: set[Any], reason: str) -> None:
        """Shut connections down."""
        if not peers:
            return
        for peer, connection in _connections(self._port):
            if peer in peers:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self._limit >= 0:
            hosts = ", ".join(sorted({host for host, _ in peers})[:5])
            _log.warning("%d connections from %s closed: %s", len(peers), hosts, reason)


def _connections(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """Iterate over duplicates of the connections that this process has accepted at a port."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  (names, not paths)
        with suppress(OSError):  # closed since, or a listening socket
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                is_network = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_network and connection.getsockname()[1] == port:
                    host, its_port, *_ = connection.getpeername()
                    yield _peer(f"{host}:{its_port}"), connection


def _peer(text: str) -> Peer:
    """Return host and port of a text such as `[::ffff:1.2.3.4]:80`; gRPC escapes brackets."""
    host, _, port = unquote(text).rpartition(":")
    host = host.strip("[]").partition("%")[0]
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = str(getattr(address, "ipv4_mapped", None) or address)
    return host, int(port) if port.isdecimal() else 0
