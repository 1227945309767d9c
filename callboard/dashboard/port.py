"""The port of a dashboard: uvicorn with limits on connections and request times.

As in the other HTTP servers (`callboard.web`), the number of connections is limited, in total
and for each address, including those in a TLS handshake. A request must be complete within a
time limit. At the limit, a new connection replaces the one that has waited longest for its
request.
"""

import asyncio
import contextlib
import socket
from contextlib import suppress
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from callboard import web
from callboard.kernel.ports import source_of
from callboard.support.after_fork import own_loop
from callboard.tls.certificates import Certificates

#: Seconds to finish requests when the port closes; then, as long again for cancelled ones.
LAST_WORDS: Final = 0.25


class _Visit:
    """A connection: its address, and the deadline of its current request."""

    def __init__(self, host: str, sock: socket.socket, deadline: float) -> None:
        self.host, self.sock = host, sock
        #: Loop time by which the request must be complete; None while it is being answered.
        self.deadline: float | None = deadline

    def end(self) -> None:
        """Shut the socket down, which wakes its reader and writer."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Visits:
    """The connections of a port, ordered by deadline: the one with the oldest wait first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[_Visit, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, host: str, sock: socket.socket) -> _Visit | None:
        """Register a connection.

        At the limit, drop an idle one, or return None if there is none.
        """
        hosts = [other.host for other in self._open]
        if len(hosts) >= web.CONNECTIONS and not self._drop_one(None):
            return None
        if hosts.count(host) >= web.CONNECTIONS_PER_ADDRESS and not self._drop_one(host):
            return None
        visit = _Visit(host, sock, self._loop.time() + web.REQUEST_LIMIT)
        self._open[visit] = None
        self._schedule_check()
        return visit

    def listen(self, visit: _Visit, *, is_heard: bool) -> None:
        """Record whether a request is complete; start a new deadline after its response."""
        if is_heard:
            visit.deadline = None
        elif visit.deadline is None and visit in self._open:
            visit.deadline = self._loop.time() + web.REQUEST_LIMIT
            del self._open[visit]  # move to the end: this is now the latest deadline
            self._open[visit] = None
            self._schedule_check()

    def end(self, visit: _Visit) -> None:
        """Remove a closed connection; cancel the timer after the last one."""
        self._open.pop(visit, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_all(self) -> None:
        """Shut all connections down, including streams of pages."""
        for visit in list(self._open):
            visit.end()

    def _drop_one(self, host: str | None) -> bool:
        for visit in self._open:
            if visit.deadline is not None and host in (None, visit.host):
                visit.end()
                self.end(visit)
                return True
        return False

    def _schedule_check(self) -> None:
        """Schedule a check at the first deadline, unless one is scheduled or none is needed."""
        due = [visit.deadline for visit in self._open if visit.deadline is not None]
        if due and self._timer is None:
            self._timer = self._loop.call_at(min(due), self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer, now = None, self._loop.time()
        for visit in list(self._open):
            if visit.deadline is not None and visit.deadline <= now:
                visit.end()
                self.end(visit)
        self._schedule_check()


class _Protocol(H11Protocol):
    """HTTP/1.1 on one connection, with deadlines."""

    def __init__(self, visits: _Visits, visit: _Visit, **options: Any) -> None:
        super().__init__(**options)
        self._visits, self._visit = visits, visit

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; end its deadline when it is complete."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        is_heard = cycle is not None and not cycle.response_complete and not cycle.more_body
        self._visits.listen(self._visit, is_heard=is_heard)

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._visits.listen(self._visit, is_heard=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._visits.end(self._visit)
        super().connection_lost(exc)


class DashboardPort(uvicorn.Server):  # type: ignore[misc]  # an extra, seen as Any
    """Serves a socket until `end`, without uvicorn's polling loop: idle ports use no CPU."""

    def __init__(
        self, config: uvicorn.Config, certificates: Certificates | None = None
    ) -> None:
        """Create the port; with certificates it speaks TLS."""
        super().__init__(config)
        self._certificates = certificates

    def run_on(self, sock: socket.socket) -> None:
        """Serve a socket until `end`."""
        self._loop = asyncio.new_event_loop()
        own_loop(self._loop)
        self._over = asyncio.Event()
        self._is_over = getattr(self, "_is_over", False)
        try:
            self._loop.run_until_complete(self.serve(sockets=[sock]))
        finally:
            self._loop.run_until_complete(self._end_tasks())
            self._loop.close()

    async def _end_tasks(self) -> None:
        """Wait for open streams to see their connections end; cancel all remaining tasks."""
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=LAST_WORDS)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_WORDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        await self.lifespan.startup()
        assert sockets is not None
        listener = sockets[0]
        listener.settimeout(0.0)
        self.servers: list[asyncio.base_events.Server] = []
        self._visits = _Visits(self._loop)
        self._accepting = self._loop.create_task(self._accept(listener))
        self._joining: set[asyncio.Task[None]] = set()
        self.started = True

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listener)
            except OSError:  # out of descriptors, or the client left; retry after a pause
                await asyncio.sleep(web.LINGER / 10)
                continue
            visit = self._visits.begin(source_of(str(address[0])), sock)
            if visit is None:
                sock.close()
                continue
            task = self._loop.create_task(self._join(sock, visit))
            self._joining.add(task)
            task.add_done_callback(self._joining.discard)

    async def _join(self, sock: socket.socket, visit: _Visit) -> None:
        """Start HTTP on a connection, after the TLS handshake if there are certificates."""
        tls = None if self._certificates is None else self._certificates.listening()

        def protocol() -> _Protocol:
            options = {"config": self.config, "server_state": self.server_state}
            return _Protocol(self._visits, visit, app_state=self.lifespan.state, **options)

        try:
            await self._loop.connect_accepted_socket(
                protocol,
                sock,
                ssl=tls,
                ssl_handshake_timeout=web.REQUEST_LIMIT if tls else None,
            )
        except OSError:  # the handshake failed, or the client left
            self._visits.end(visit)
            sock.close()

    async def main_loop(self) -> None:
        """Wait until `end` is called, then close all connections."""
        self.server_state.default_headers = list(self.config.encoded_headers)
        if not self._is_over:
            await self._over.wait()
        self._accepting.cancel()
        for task in (self._accepting, *self._joining):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._visits.end_all()
        self.should_exit = self.force_exit = True

    def end(self) -> None:
        """Stop serving; thread-safe."""
        self._is_over = True
        loop = getattr(self, "_loop", None)
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(self._over.set)
