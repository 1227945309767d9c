"""What a server of logs takes at once: calls that run, and connections.

Flight and gRPC have no bounds of their own, and tell nothing of their connections. These are
found among the descriptors of the process, and cut there: the calls on them end, and a client
of ours goes on over another one.

One token may take nearly all there is while nobody else wants it: a cluster has one for all of
its executors. The last quarter of it is for those that have little, and where connections are
too many, those go first whose token has most. So no token keeps others out.
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

#: Calls that run at once: each has a thread, and a stream a row of 1 MiB on its way.
CALLS: Final = 128
#: Calls for columns, of which each holds records of up to 16 MiB.
COLUMNS: Final = 16
#: Of the last quarter of either, a token gets so many.
_FEW: Final = (8, 1)
#: Connections, where the process may have twice as many descriptors.
CONNECTIONS: Final = 1000
#: Seconds in which a connection has to show that somebody may read.
_GRACE: Final = 10.0
#: Seconds without reading after which a stream makes room for another one.
_STALLED: Final = 5.0
_TICK: Final = 1.0
_CLOSING: Final = 0.02

_log = logging.getLogger("callboard.commitlog")

Peer = tuple[str, int]


class ServedCall(flight.ServerMiddleware):
    """One call while it runs.

    Attributes:
        token: What it showed.
        owner: The token, where one is demanded; calls of one owner share its bounds.
        peer: Where it comes from, once it may read.
        is_for_columns: Whether the server decodes records for it.
        since: When it began to wait for its reader; None while the server works for it.
    """

    def __init__(self, token: str | None, guard: "LogGuard") -> None:
        self.token = token
        self.owner = ""
        self.peer: Peer | None = None
        self.is_for_columns = False
        self.since: float | None = None
        self._guard = guard

    def call_completed(self, exception: BaseException | None) -> None:
        """Make room."""
        self._guard.end(self)


class LogGuard(flight.ServerMiddlewareFactory):
    """Refuses calls beyond what a server takes at once, and cuts connections."""

    def __init__(self) -> None:
        """Begin without any."""
        self._lock = locks.lock("guard of a remote log", 605)
        self._calls: set[ServedCall] = set()
        self._readers: dict[Peer, float] = {}  # the last call of each
        self._owners: dict[Peer, str] = {}
        self._seen: dict[Peer, float] = {}  # when each connection was seen first
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None
        self._port = 0
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(CONNECTIONS, max(8, soft // 2))

    def start_call(self, _: Any, headers: Mapping[str, Sequence[str]]) -> ServedCall:
        """Let a call begin.

        Raises:
            FlightUnavailableError: there are as many as can be.
        """
        given = headers.get("authorization") or ("",)
        scheme, _, token = str(given[0]).partition(" ")
        call = ServedCall(token.strip() if scheme.lower() == "bearer" else None, self)
        with self._lock:
            if len(self._calls) >= 2 * CALLS:  # most of which were not looked at so far
                self._refuse(f"{CALLS} calls")
            self._calls.add(call)
        return call

    def admit(self, call: ServedCall, peer: str, *, is_open: bool) -> None:
        """Let a call run that may read; where it is open, no token is demanded.

        Raises:
            FlightUnavailableError: there are as many as can be, or few are left and its token
                has its share.
        """
        call.owner = "" if is_open else call.token or ""
        with self._lock:
            admitted = [each for each in self._calls if each.peer is not None]
            self._share(call, admitted, CALLS, _FEW[0], "calls")
            call.peer = _peer(peer.partition(":")[2])
            self._readers[call.peer] = time.monotonic()
            self._owners[call.peer] = call.owner

    def decode(self, call: ServedCall) -> None:
        """Let the server decode records for a call.

        Raises:
            FlightUnavailableError: as for `admit`.
        """
        with self._lock:
            others = [each for each in self._calls if each.is_for_columns]
            self._share(call, others, COLUMNS, _FEW[1], "calls for columns")
            call.is_for_columns = True

    def _share(
        self, call: ServedCall, others: list[ServedCall], most: int, few: int, what: str
    ) -> None:
        """Refuse a call where there are too many, or few are left and its owner has `few`."""
        if len(others) >= most:
            self._refuse(f"{most} {what}")
        own = [each for each in others if each.owner == call.owner]
        if call.owner and len(others) >= most - most // 4 and len(own) >= few:
            self._refuse(f"{len(own)} {what} of this token", own)

    def end(self, call: ServedCall) -> None:
        """Forget a call."""
        with self._lock:
            self._calls.discard(call)

    def _refuse(self, what: str, of: Sequence[ServedCall] | None = None) -> NoReturn:
        """Refuse one more; who has not read for longest makes room for when it comes again."""
        now = time.monotonic()
        stalled = [
            (each.since, each.peer)
            for each in (self._calls if of is None else of)
            if each.peer is not None and each.since is not None and each.since < now - _STALLED
        ]
        if stalled:
            self._cut({min(stalled)[1]}, "its reader does not read, and others wait")
        why = f"{BUSY}: {what} run, as many as it takes at once; ask again"
        raise flight.FlightUnavailableError(why)

    def start(self, port: int) -> None:
        """Watch the connections at a port, until `close`."""
        self._port = port
        self._watch = threading.Thread(target=self._run, name="log connections", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Cut all connections from now on, until `join`: who never reads holds nobody up."""
        self._most = -1

    def join(self) -> None:
        """End the watch."""
        self._stop.set()
        if self._watch is not None:
            self._watch.join()

    def _run(self) -> None:
        """Look at the connections again and again."""
        while not self._stop.wait(_CLOSING if self._most < 0 else _TICK):
            self.look()

    def look(self) -> None:
        """Cut the connections that show nothing, and those that are too many."""
        now, there = time.monotonic(), {peer for peer, _ in _connections(self._port)}
        self._seen = {peer: self._seen.get(peer, now) for peer in there}
        with self._lock:
            busy = {call.peer for call in self._calls}
            for peer in [each for each in self._readers if each not in there]:
                del self._readers[peer], self._owners[peer]
        late = {
            peer
            for peer, since in self._seen.items()
            if peer not in self._readers and now - since >= _GRACE
        }
        self._cut(late, "nobody showed a token there")

        # Who showed nothing goes first; then of the owner with most who asks nothing, and of
        # those who came last.
        def use(peer: Peer) -> tuple[bool, float, float]:
            return peer in busy, self._readers.get(peer, 0.0), -self._seen[peer]

        owned, ranks = Counter[str](), {}
        for peer in sorted(there & self._readers.keys(), key=use, reverse=True):
            owner = self._owners[peer]
            ranks[peer] = owned[owner] if owner else 0
            owned[owner] += 1
        rest = sorted(there - late, key=lambda peer: (-ranks.get(peer, len(there)), use(peer)))
        many = len(rest) - max(0, self._most)
        if many > 0:
            why = (
                "the server ends" if self._most < 0 else f"{self._most} are as many as it takes"
            )
            self._cut(set(rest[:many]), why)

    def _cut(self, peers: set[Any], why: str) -> None:
        """Cut connections."""
        if not peers:
            return
        for peer, connection in _connections(self._port):
            if peer in peers:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self._most >= 0:
            names = ", ".join(sorted({host for host, _ in peers})[:5])
            _log.warning("%d connections from %s cut: %s", len(peers), names, why)


def _connections(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """Iterate over the connections that this process has accepted at a port, as duplicates."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  (names, not paths)
        with suppress(OSError):  # closed meanwhile, or it only listens
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                is_network = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_network and connection.getsockname()[1] == port:
                    host, its_port, *_ = connection.getpeername()
                    yield _peer(f"{host}:{its_port}"), connection


def _peer(text: str) -> Peer:
    """Return host and port of a text such as `[::ffff:1.2.3.4]:80`; gRPC escapes some."""
    host, _, port = unquote(text).rpartition(":")
    host = host.strip("[]").partition("%")[0]
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = str(getattr(address, "ipv4_mapped", None) or address)
    return host, int(port) if port.isdecimal() else 0
