"""An HTTP server that clients can neither hold up nor exhaust.

`http.server` gives each connection a thread and each read a time: a client that sends a byte
now and then keeps both for ever. Here a whole request has a deadline, and so has its answer.
Connections are bounded, in all and by address. Where they are too many, the one goes that has
taken longest to say what it wants: an honest client says it at once.
"""

import contextlib
import io
import logging
import re
import socket
import sys
import threading
import time
from functools import partial
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from callboard import locks
from callboard.kernel.tls import source_of
from callboard.support import after_fork
from callboard.support.host_guard import Asking, HostGuard, Refusal
from callboard.support.text import logged

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

#: A line of a header. No other form is read: a blank before the colon, a folded line or a bare
#: CR would end or hide a header for one parser and not for another, such as that of a proxy.
_HEADER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r?\n")
_BODY_HEADERS: Final = ("Content-Length", "Transfer-Encoding")
_LENGTH: Final = re.compile(r"[0-9]+")
#: Digits of a length that is looked at: as a number, a longer text would take its time.
_LENGTH_DIGITS: Final = 15


class WebServer(ThreadingHTTPServer):
    """Accepts connections within bounds, and ends those that take too long."""

    daemon_threads = True
    block_on_close = False  # their threads end with their deadlines
    request_queue_size = 128  # a flood keeps nobody out at the door

    def __init__(
        self, address: tuple[str, int], handler: type["WebHandler"], guard: HostGuard
    ) -> None:
        """Open a port; the guard judges each request, whatever its method.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self.guard = guard
        self._lock = locks.lock("sessions of a web server", 290)
        #: Open connections: address, and the deadline of the request or the answer; None while
        #: the answer is made. The oldest comes first.
        self._open: dict[Any, tuple[str, float | None]] = {}
        super().__init__(address, handler)
        after_fork.own_listener(self.socket)
        after_fork.register(self)

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
        if after_fork.is_copy(self):
            return
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
    rfile: "_Reader"

    def setup(self) -> None:
        """Bound what is read of a head."""
        super().setup()
        self.rfile = _Reader(self.rfile)  # the stream is unbuffered

    def parse_request(self) -> bool:
        """Read the head of a request; False if it was refused, for whatever method."""
        if not super().parse_request():
            return False
        self._target = self.path
        if "://" in self.path and not self.path.startswith(
            "/"
        ):  # as requests to a proxy have it
            self.path = "/" + self.path.partition("://")[2].partition("/")[2]
        refusal = self._malformed() or self.refusal()
        if refusal is not None:
            self.refuse(refusal)
        return refusal is None

    def refusal(self) -> Refusal | None:
        """Return why the request is refused; None if it is answered."""
        return self.server.guard.refusal(self.asking)

    @property
    def asking(self) -> Asking:
        """The parts of the request that the guard judges."""
        found = self.headers.get_all
        fetched = self.headers.get("Sec-Fetch-Site", "")
        is_old = self.request_version in ("HTTP/0.9", "HTTP/1.0")
        return Asking(found("Host", []), found("Origin", []), fetched, self._target, not is_old)

    def refuse(self, refusal: Refusal) -> None:
        """Answer with a status and a line of text."""
        body = f"{refusal.text}\n".encode(errors="replace")
        self.close_connection = True
        self.send_response(refusal.status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _malformed(self) -> Refusal | None:
        """Return what is wrong with a head that a proxy may read in another way."""
        lengths = self.headers.get_all("Content-Length", [])
        codings = self.headers.get_all("Transfer-Encoding", [])
        text = ""
        if not all(map(_HEADER.fullmatch, self.rfile.header_lines)):
            text = "a header has the form NAME: VALUE, on one line"
        elif len(lengths) > 1 or (lengths and codings):
            text = "the lengths of the body contradict one another; send Content-Length once"
        elif lengths and not _LENGTH.fullmatch(lengths[0]):
            text = "Content-Length is a number of bytes in decimal digits"
        return Refusal(HTTPStatus.BAD_REQUEST, text) if text else None

    def body(self, limit: int) -> bytes | None:
        """Read what is posted; None if it has no length, or one of more than `limit` bytes.

        A request without a body needs no length. The request is whole then, and its answer may
        take its time.
        """
        is_missing = not any(name in self.headers for name in _BODY_HEADERS)
        text = "0" if is_missing else self.headers.get("Content-Length", "")
        size = int(text) if text and len(text) <= _LENGTH_DIGITS else -1
        if not 0 <= size <= limit:
            return None
        self.server.set_deadline(self.connection, REQUEST_LIMIT + size / SLOWEST)
        found = self.rfile.read(size)
        self.server.set_deadline(self.connection, None)
        return found

    def end_headers(self) -> None:
        """Let the answer leave within its time."""
        self.server.set_deadline(self.connection, REQUEST_LIMIT)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Log nothing: a probe comes every few seconds."""


class _Reader(io.BufferedReader):
    """What a handler reads from: lines up to a limit in all, and bodies."""

    _left = HEAD_LIMIT

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        #: The lines of the head but its first and its last one.
        self.header_lines: list[bytes] = []

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
        if not is_first and line not in (b"\r\n", b"\n", b""):
            self.header_lines.append(line)
        return line
