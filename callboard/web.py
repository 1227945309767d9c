"""An HTTP server that clients can neither hold up nor exhaust.

`http.server` gives each connection a thread and each read a time: a client that sends a byte
now and then keeps both for ever. Here a whole request has a deadline, and so has its answer.
Connections are bounded, in all and by address. Where they are too many, the one goes that has
taken longest to say what it wants: an honest client says it at once.
"""

import contextlib
import io
import ipaddress
import logging
import socket
import sys
import threading
import time
from functools import partial
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from callboard import locks
from callboard.proxies.link.limits import source_of
from callboard.text import logged

_log = logging.getLogger("callboard")

#: Seconds for a whole request, and for its answer to leave.
REQUEST_LIMIT: Final = 10.0

#: Seconds that a client has to close its connection behind the answer.
LINGER: Final = 2.0

#: Connections at a time, each with a thread: more than probes and scrapers need.
CONNECTIONS: Final = 64

#: Those of one address.
CONNECTIONS_PER_ADDRESS: Final = 32

#: Bytes of a body in a second: slower clients run out of time.
SLOWEST: Final = 64 * 1024

#: Bytes of the first line and the headers of a request.
HEAD_LIMIT: Final = 64 * 1024


class WebServer(ThreadingHTTPServer):
    """Accepts connections within bounds, and ends those that take too long."""

    daemon_threads = True
    block_on_close = False  # their threads end with their deadlines
    request_queue_size = 128  # a flood keeps nobody out at the door

    def __init__(self, address: tuple[str, int], handler: type["WebHandler"]) -> None:
        """Open a port.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self._lock = locks.lock("sessions of a web server", 290)
        #: Open connections: address, and the deadline of the request or the answer; None while
        #: the answer is made. The oldest comes first.
        self._open: dict[Any, tuple[str, float | None]] = {}
        super().__init__(address, handler)

    @property
    def port(self) -> int:
        """The port that was opened."""
        return int(self.server_address[1])

    def start(self, name: str) -> None:
        """Begin to answer, on a thread of that name."""
        serve = partial(self.serve_forever, 0.1)
        self._thread = threading.Thread(target=serve, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port of a server that was started. Idempotent."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a connection; False where all that there are wait for their answers."""
        host = source_of(str(client_address[0]))
        with self._lock:
            there = len(self._open) < CONNECTIONS or self._drop_one(None)
            hosts = [known for known, _ in self._open.values()]
            is_taken = there and (
                hosts.count(host) < CONNECTIONS_PER_ADDRESS or self._drop_one(host)
            )
            if is_taken:
                self._open[request] = (host, time.monotonic() + REQUEST_LIMIT)
        return is_taken

    def set_deadline(self, request: Any, seconds: float | None) -> None:
        """Let a connection take so long from now; None while its answer is made."""
        with self._lock:
            if request in self._open:
                deadline = None if seconds is None else time.monotonic() + seconds
                self._open[request] = (self._open[request][0], deadline)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection behind its answer, which a reset would overtake.

        So what a client sends beyond its request is read, until it closes as well or is late.
        """
        if request in self._open:
            self.set_deadline(request, LINGER)
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                thrown_away = bytearray(64 * 1024)
                while request.recv_into(thrown_away):
                    pass
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End what takes too long; called between two looks at the port."""
        now = time.monotonic()
        with self._lock:
            for request, (_, deadline) in list(self._open.items()):
                if deadline is not None and deadline <= now:
                    self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request; a client that went away is none."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            logged(_log, "a request from %s failed", client_address[0], error=error)

    def _drop_one(self, host: str | None) -> bool:
        """End the connection, of an address or any, that has read its request for longest."""
        for request, (known, deadline) in self._open.items():
            if deadline is not None and host in (None, known):
                self._end(request)
                return True
        return False

    def _end(self, request: Any) -> None:
        """Wake the thread of a connection with its end."""
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class WebHandler(BaseHTTPRequestHandler):
    """Reads one request within its bounds; derived classes answer it."""

    timeout = REQUEST_LIMIT
    rbufsize = 0  # what reads has a buffer of its own
    server: WebServer

    def setup(self) -> None:
        """Bound what is read of a head."""
        super().setup()
        self.rfile = _Reader(self.rfile)  # the stream is unbuffered

    def body(self, limit: int) -> bytes | None:
        """Read what is posted; None unless it says its length, of at most `limit` bytes.

        The request is whole then, and its answer may take its time.
        """
        text = self.headers.get("Content-Length", "")
        size = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else -1
        if not 0 <= size <= limit:
            return None
        self.server.set_deadline(self.connection, REQUEST_LIMIT + size / SLOWEST)
        found = self.rfile.read(size)
        self.server.set_deadline(self.connection, None)
        return found

    def is_browser(self) -> bool:
        """Return whether a browser sent this for a page: all say so where they post."""
        return "Origin" in self.headers or "Sec-Fetch-Site" in self.headers

    def is_foreign(self) -> bool:
        """Return whether a page of another site may have made the browser send this.

        A browser says the site (`Origin`), and the name by which it reached us (`Host`). That
        name has to be an address, `localhost` or this machine's own: any other may be one of
        the site, which lets its name lead here (DNS rebinding).
        """
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            site = None if origin is None else urlsplit(origin).netloc.lower()
        except ValueError:  # no browser says that
            return True
        own = {"localhost", socket.gethostname().lower(), str(self.server.server_address[0])}
        if name not in own and not name.endswith(".localhost") and not _is_address(name):
            return True
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return True
        return site is not None and site != host.lower()

    def end_headers(self) -> None:
        """Let the answer leave within its time."""
        self.server.set_deadline(self.connection, REQUEST_LIMIT)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Log nothing: a probe comes every few seconds."""


class _Reader(io.BufferedReader):
    """What a handler reads from: lines up to a limit in all, and bodies."""

    _left = HEAD_LIMIT

    def readline(self, _size: int | None = -1) -> bytes:
        """Return the next line; the handler itself refuses a first one beyond the limit.

        Raises:
            LineTooLong: the head is too large. To read on as if it ended there would leave out
                headers, such as the site whose page a browser sends this for.
        """
        is_first = self._left == HEAD_LIMIT
        line = super().readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0 and not is_first:
            what = "head"
            raise LineTooLong(what)
        return line


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
