"""The end of a connection whose peer was told why: its last words arrive.

A socket that is closed with unread bytes in it, or gets more afterwards, answers with a reset.
It overtakes what was written last, or makes the peer stop before it has read that. So the
direction of our own is closed alone, behind all that was written, and what still comes is read
and thrown away until the peer closes too. The owner bounds the time, and counts the connection
as open until then.
"""

import contextlib
import socket
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Final

from callboard.actors.runner.runner import Runner
from callboard.proxies.link.tls_socket import TlsSocket

#: Bytes of one read.
READ_SIZE: Final = 64 * 1024

#: Bytes of a peer that are thrown away; from there on they wait in its system and ours, so
#: that one that sends without end costs no more than this.
DISCARD_LIMIT: Final = 64 << 20


def _nothing() -> None:
    """Stand for a function that was called."""


class Parting:
    """Writes what waits, closes for writing, and reads on until the peer closes."""

    def __init__(
        self,
        runner: Runner,
        sock: socket.socket | TlsSocket,
        ended: Callable[[], object],
        rest: bytes | bytearray = b"",
    ) -> None:
        """Take a socket that does not block, and that no selector watches; `begin` starts.

        Args:
            runner: whose selector is used; everything happens with its role.
            sock: the socket; it is closed in the end.
            ended: called when it is closed.
            rest: bytes that are still to be written.
        """
        self._sock: Any = sock
        self._runner = runner
        self._ended = ended
        self._rest = memoryview(rest)
        self._left = DISCARD_LIMIT
        self._reads = self._writes = True
        self._watched = 0

    def begin(self) -> None:
        """Go as far as it goes at once, which may be the end."""
        self._go_on(EVENT_READ | EVENT_WRITE)

    def wait(self, until: float) -> None:
        """Block until the peer has closed, or to a monotonic time; the runner is over."""
        with contextlib.suppress(OSError), DefaultSelector() as selector:
            selector.register(self._sock, EVENT_READ)
            while (left := until - time.monotonic()) > 0 and selector.select(left):
                if not self._sock.recv(READ_SIZE):
                    break
        self._sock.close()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        self._watch(0)
        self._sock.close()
        ended, self._ended = self._ended, _nothing
        ended()

    def _go_on(self, events: int) -> None:
        """Read and write as far as the socket is ready."""
        try:
            if events & EVENT_READ and self._reads:
                self._read()
            if events & EVENT_WRITE and self._writes:
                self._write()
        except OSError:  # the peer has reset it
            self.abort()
            return
        if self._writes or self._reads or self._left <= 0:
            self._watch(EVENT_READ * self._reads | EVENT_WRITE * self._writes)
        else:
            self.abort()

    def _read(self) -> None:
        """Throw a read away."""
        try:
            count = len(self._sock.recv(READ_SIZE))
        except (BlockingIOError, InterruptedError):
            return
        self._left -= count
        if not count:  # the peer has closed, and only what it may still read is left to do
            self._reads = False
            self._writes = bool(self._rest)
        elif self._left <= 0:
            self._reads = False

    def _write(self) -> None:
        """Write what waits, and close for writing behind it."""
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        self._writes = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _watch(self, events: int) -> None:
        """Ask the poller for these events from here on."""
        before, self._watched = self._watched, events
        selector = self._runner.selector
        if not before and events:
            selector.register(self._sock, events, self._go_on)
        elif before and not events:
            selector.unregister(self._sock)
        elif events != before:
            selector.modify(self._sock, events, self._go_on)
