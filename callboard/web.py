"""An HTTP server that slow or numerous clients cannot block.

`http.server` has a thread for each connection and a timeout for each read, so a client that
sends a byte now and then keeps its thread forever. Here a whole request has a deadline, and so
has its answer. The number of connections is limited, in total and per address. If there are
too many, the connection ends whose request has been incomplete for the longest time: a
well-behaved client sends its request at once.
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
from callboard.kernel.ports import source_of
from callboard.support import after_fork
from callboard.support.host_guard import Asking, HostGuard, Refusal
from callboard.support.text import logged

_log = logging.getLogger("callboard")

#: Seconds for receiving a whole request, and for sending its answer.
REQUEST_LIMIT: Final = 10.0

#: Seconds for a client to close its connection after the answer.
LINGER: Final = 2.0

#: Connections at a time, each with a thread: more than probes and scrapers need.
CONNECTIONS: Final = 64

#: Connections of one address.
CONNECTIONS_PER_ADDRESS: Final = 32

#: Bytes per second of the slowest accepted body.
SLOWEST: Final = 64 * 1024

#: Bytes of the first line and the headers of a request.
HEAD_LIMIT: Final = 64 * 1024

#: A line of a header. Other forms are refused: with a blank before the colon, a folded line or
#: a bare CR, a proxy before this server may see other headers than this server does.
_HEADER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r?\n")
_BODY_HEADERS: Final = ("Content-Length", "Transfer-Encoding")
_LENGTH: Final = re.compile(r"[0-9]+")
#: Digits of a length: converting a much longer text to a number would take long.
_LENGTH_DIGITS: Final = 15


class WebServer(ThreadingHTTPServer):
    """Accepts a limited number of connections, and ends connections that take too long."""

    daemon_threads = True
    block_on_close = False  # the threads of connections end at their deadlines
    request_queue_size = 128  # with fewer, a flood of connections would keep probes out

    def __init__(
        self, address: tuple[str, int], handler: type["WebHandler"], guard: HostGuard
    ) -> None:
        """Open a port; the guard checks each request of any method.

        Raises:
            OSError: the address is not one of this machine, or the port is in use.
        """
        self.guard = guard
        self._lock = locks.lock("sessions of a web server", 290)
        #: Open connections, oldest first: address, and the deadline of the request or the
        #: answer; None while the answer is being created.
        self._open: dict[Any, tuple[str, float | None]] = {}
        super().__init__(address, handler)
        after_fork.own_listener(self.socket)
        after_fork.register(self)

    @property
    def port(self) -> int:
        """The port that was opened."""
        return int(self.server_address[1])

    def start(self, name: str) -> None:
        """Start answering, on a thread of the given name."""
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
        """Accept a connection, and drop another one if there are too many.

        Returns:
            False if none can be dropped, because all wait for their answers.
        """
        host = source_of(str(client_address[0]))
        with self._lock:
            has_room = len(self._open) < CONNECTIONS or self._drop_one(None)
            hosts = [address for address, _ in self._open.values()]
            is_accepted = has_room and (
                hosts.count(host) < CONNECTIONS_PER_ADDRESS or self._drop_one(host)
            )
            if is_accepted:
                self._open[request] = (host, time.monotonic() + REQUEST_LIMIT)
        return is_accepted

    def set_deadline(self, request: Any, seconds: float | None) -> None:
        """Set the deadline of a connection from now; None while its answer is created."""
        with self._lock:
            if request in self._open:
                deadline = None if seconds is None else time.monotonic() + seconds
                self._open[request] = (self._open[request][0], deadline)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection after its answer.

        If unread bytes were left, the system would send a reset, which can overtake the
        answer. So all further bytes are read until the client closes, too, or its time is over.
        """
        if request in self._open:
            self.set_deadline(request, LINGER)
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                unused = bytearray(64 * 1024)
                while request.recv_into(unused):
                    pass
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections after their deadlines; called on every poll of the port."""
        now = time.monotonic()
        with self._lock:
            for request, (_, deadline) in list(self._open.items()):
                if deadline is not None and deadline <= now:
                    self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request, except that its client disconnected."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            logged(_log, "a request from %s failed", client_address[0], error=error)

    def _drop_one(self, host: str | None) -> bool:
        """End the oldest connection that is not waiting for its answer; False if none is.

        Args:
            host: only connections of this address; None for all.
        """
        for request, (address, deadline) in self._open.items():
            if deadline is not None and host in (None, address):
                self._end(request)
                return True
        return False

    def _end(self, request: Any) -> None:
        """Shut a connection down, so that its thread wakes up and ends."""
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class WebHandler(BaseHTTPRequestHandler):
    """Reads one request within its limits; subclasses answer it."""

    timeout = REQUEST_LIMIT
    rbufsize = 0  # `_RequestReader` has a buffer
    server: WebServer
    rfile: "_RequestReader"

    def setup(self) -> None:
        """Limit the size of the head of a request."""
        super().setup()
        self.rfile = _RequestReader(self.rfile)

    def parse_request(self) -> bool:
        """Read the head of a request; return False if the request was refused."""
        if not super().parse_request():
            return False
        self._target = self.path
        # Requests to a proxy have an absolute target.
        if "://" in self.path and not self.path.startswith("/"):
            self.path = "/" + self.path.partition("://")[2].partition("/")[2]
        refusal = self._malformed() or self.refusal()
        if refusal is not None:
            self.refuse(refusal)
        return refusal is None

    def refusal(self) -> Refusal | None:
        """Return the reason to refuse the request; None to answer it."""
        return self.server.guard.refusal(self.asking)

    @property
    def asking(self) -> Asking:
        """The parts of the request that the guard checks."""
        hosts = self.headers.get_all("Host", [])
        origins = self.headers.get_all("Origin", [])
        fetched = self.headers.get("Sec-Fetch-Site", "")
        is_old = self.request_version in ("HTTP/0.9", "HTTP/1.0")
        return Asking(hosts, origins, fetched, self._target, not is_old)

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
        """Return the error of a head that a proxy may read differently; None without one."""
        lengths = self.headers.get_all("Content-Length", [])
        codings = self.headers.get_all("Transfer-Encoding", [])
        text = ""
        if not all(map(_HEADER.fullmatch, self.rfile.header_lines)):
            text = "a header must be one line of the form NAME: VALUE"
        elif len(lengths) > 1 or (lengths and codings):
            text = "the body has more than one length; send Content-Length once"
        elif lengths and not _LENGTH.fullmatch(lengths[0]):
            text = "Content-Length must be a number of bytes in decimal digits"
        return Refusal(HTTPStatus.BAD_REQUEST, text) if text else None

    def body(self, limit: int) -> bytes | None:
        """Read the body; return None if its length is missing or greater than `limit` bytes.

        A request without a body needs no length. After the call the request is complete, and
        the deadline is suspended until the answer is sent.
        """
        is_missing = not any(name in self.headers for name in _BODY_HEADERS)
        text = "0" if is_missing else self.headers.get("Content-Length", "")
        size = int(text) if text and len(text) <= _LENGTH_DIGITS else -1
        if not 0 <= size <= limit:
            return None
        self.server.set_deadline(self.connection, REQUEST_LIMIT + size / SLOWEST)
        content = self.rfile.read(size)
        self.server.set_deadline(self.connection, None)
        return content

    def end_headers(self) -> None:
        """Send the headers, and set the deadline of the answer."""
        self.server.set_deadline(self.connection, REQUEST_LIMIT)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Log nothing, because probes send requests every few seconds."""


class _RequestReader(io.BufferedReader):
    """The input of a handler, with a limit for the size of all header lines together."""

    _left = HEAD_LIMIT

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        #: The lines of the head without the first and the last one.
        self.header_lines: list[bytes] = []

    def readline(self, _size: int | None = -1) -> bytes:
        """Return the next line; the base class of the handler refuses a first one too long.

        Raises:
            LineTooLong: the head is too large. If it were cut, headers would be missing, such
                as `Origin`, and the guard would accept a request that it must refuse.
        """
        is_first = self._left == HEAD_LIMIT
        line = super().readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0 and not is_first:
            part = "head"
            raise LineTooLong(part)
        if not is_first and line not in (b"\r\n", b"\n", b""):
            self.header_lines.append(line)
        return line
