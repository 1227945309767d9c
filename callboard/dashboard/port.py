"""The port of a dashboard: uvicorn, with bounds that it lacks.

As at the other HTTP doors (`callboard.web`), connections are bounded, in all and by address,
handshakes of TLS among them, and a request has to be whole within its time. Where connections
are too many, the one goes that has taken longest to say what it wants.
"""

import asyncio
import contextlib
import socket
from contextlib import suppress
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from callboard import web
from callboard.kernel.tls import Certificates, source_of
from callboard.support.after_fork import own_loop

#: Seconds that requests have at the end, before they are cancelled, and then to end.
LAST_WORDS: Final = 0.25


class _Visit:
    """One connection: where it comes from, and until when it has to have said what it wants."""

    def __init__(self, host: str, sock: socket.socket, deadline: float) -> None:
        self.host, self.sock = host, sock
        #: Seconds of the loop's clock; None while a request is answered.
        self.deadline: float | None = deadline

    def end(self) -> None:
        """Wake whoever reads or writes with the end of the connection."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Visits:
    """The connections of a port. The one that has waited longest for a request comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[_Visit, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, host: str, sock: socket.socket) -> _Visit | None:
        """Take a connection; None where all that there are wait for their answers."""
        hosts = [each.host for each in self._open]
        if len(hosts) >= web.CONNECTIONS and not self._drop_one(None):
            return None
        if hosts.count(host) >= web.CONNECTIONS_PER_ADDRESS and not self._drop_one(host):
            return None
        visit = _Visit(host, sock, self._loop.time() + web.REQUEST_LIMIT)
        self._open[visit] = None
        self._look_later()
        return visit

    def listen(self, visit: _Visit, *, is_heard: bool) -> None:
        """Note whether a request is whole; a new time begins when it was answered."""
        if is_heard:
            visit.deadline = None
        elif visit.deadline is None and visit in self._open:
            visit.deadline = self._loop.time() + web.REQUEST_LIMIT
            del self._open[visit]  # behind those that wait for longer
            self._open[visit] = None
            self._look_later()

    def end(self, visit: _Visit) -> None:
        """Forget a connection that is closed; behind the last one no timer is left."""
        self._open.pop(visit, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_all(self) -> None:
        """Wake all with the end: also pages that wait for what changes."""
        for visit in list(self._open):
            visit.end()

    def _drop_one(self, host: str | None) -> bool:
        for visit in self._open:
            if visit.deadline is not None and host in (None, visit.host):
                visit.end()
                self.end(visit)
                return True
        return False

    def _look_later(self) -> None:
        """Look when the first deadline is over; there is no timer while nobody is awaited."""
        due = [each.deadline for each in self._open if each.deadline is not None]
        if due and self._timer is None:
            self._timer = self._loop.call_at(min(due), self._look)

    def _look(self) -> None:
        self._timer, now = None, self._loop.time()
        for visit in list(self._open):
            if visit.deadline is not None and visit.deadline <= now:
                visit.end()
                self.end(visit)
        self._look_later()


class _Protocol(H11Protocol):
    """HTTP on one connection."""

    def __init__(self, visits: _Visits, visit: _Visit, **given: Any) -> None:
        super().__init__(**given)
        self._visits, self._visit = visits, visit

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        is_heard = cycle is not None and not cycle.response_complete and not cycle.more_body
        self._visits.listen(self._visit, is_heard=is_heard)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._visits.listen(self._visit, is_heard=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self._visits.end(self._visit)
        super().connection_lost(exc)


class DashboardPort(uvicorn.Server):  # type: ignore[misc]  # an extra, seen as Any
    """Serves a socket until `end`, without a clock: where nobody comes nothing happens."""

    def __init__(
        self, config: uvicorn.Config, certificates: Certificates | None = None
    ) -> None:
        """Take what is served, and the certificates where it speaks TLS."""
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
        """Leave nothing half done: streams see the end of their connections; cancel others."""
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=LAST_WORDS)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_WORDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
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
            except OSError:  # no descriptors, or it went away: those who come later wait
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
        """Speak TLS where it is wanted, then HTTP."""
        secure = None if self._certificates is None else self._certificates.listening()

        def protocol() -> _Protocol:
            given = {"config": self.config, "server_state": self.server_state}
            return _Protocol(self._visits, visit, app_state=self.lifespan.state, **given)

        try:
            await self._loop.connect_accepted_socket(
                protocol,
                sock,
                ssl=secure,
                ssl_handshake_timeout=web.REQUEST_LIMIT if secure else None,
            )
        except OSError:  # a handshake failed, or the client has gone
            self._visits.end(visit)
            sock.close()

    async def main_loop(self) -> None:
        """Wait for the end."""
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
        """Let it end; from any thread."""
        self._is_over = True
        loop = getattr(self, "_loop", None)
        if loop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._over.set)
