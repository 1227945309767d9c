"""The databases of a node's entities: states, registers, and this node's leases in them.

Each database is opened once per URL, on a separate thread, because opening may block for
seconds.
"""

import threading
from collections.abc import Callable
from typing import Any

from callboard.entity.state.backends import (
    open_leases,
    open_sockets,
    open_state,
    open_view,
)
from callboard.entity.state.client import StateClient, ThreadedStateClient
from callboard.entity.state.member_links import MemberLinks
from callboard.kernel.activation import handler_frame
from callboard.kernel.errors import InvalidAddress
from callboard.kernel.reply import Future
from callboard.lease.driver import LeaseDriver, LeaseLoop, LeaseNews, LeasePlace, LeaseThread
from callboard.lease.machine.lease_machine import LeaseKilled, LeaseMachine
from callboard.support.redaction import redacted

#: Opens the state or leases of a URL for a writer.
Opener = Callable[[str, str], Any]


class Databases:
    """Clients of databases by URL. All methods but `release` run on the node's thread."""

    def __init__(
        self,
        runtime: Any,
        runner: Any,
        writer: str,
        on_news: Callable[[str, LeaseNews], object],
        links: MemberLinks,
    ) -> None:
        """Start without open databases.

        Args:
            runtime: the runtime of the node.
            runner: the runner of the node.
            writer: the name of the node's life.
            on_news: called with the URL of a register and each change of a lease in it; on
                the node's thread.
            links: links with the other nodes that use a register.
        """
        self._runtime, self._runner, self._links = runtime, runner, links
        self._writer, self._on_news = writer, on_news
        self._states: dict[str, StateClient] = {}
        self._registers: dict[str, Any] = {}
        #: Read-only clients of states, for journals.
        self._views: dict[str, StateClient] = {}
        #: This node's leases.
        self._leases: dict[str, LeaseDriver] = {}
        #: Clients that are being opened, by their table and URL.
        self._opening: dict[tuple[int, str], Future[Any]] = {}

    async def state(self, url: str) -> StateClient:
        """Return the client of a state."""
        client: StateClient = await self._open(self._states, url, open_state)
        return client

    async def view(self, url: str) -> StateClient:
        """Return a read-only client of a state."""
        client: StateClient = await self._open(self._views, url, open_view)
        return client

    async def register(self, url: str) -> Any:
        """Return the client of a register; this node holds a lease in it from then on."""
        return await self._open(self._registers, url, self._open_register)

    def lease(self, url: str) -> LeaseDriver:
        """Return this node's lease in an open register."""
        return self._leases[url]

    async def _open(self, opened: dict[str, Any], url: str, opener: Opener) -> Any:
        """Return a client, opened once."""
        if url not in opened and (model := self._runner.databases) is not None:
            opened[url] = model(url).client(self._writer, self._runner)
            if opened is self._registers:
                self._hold_lease(url, LeaseLoop(opened[url], self._runtime))
        if url not in opened:
            # The register must not be opened twice: two connections of one writer would take
            # over each other's lock.
            place = id(opened), url
            future = self._opening.get(place)
            if future is None:
                future = self._opening[place] = self._open_on_thread(opener, url)
            try:
                target = await future
            finally:
                self._opening.pop(place, None)
            if url not in opened:
                opened[url] = ThreadedStateClient(target, self._runtime.post)
        return opened[url]

    def _open_on_thread(self, opener: Opener, url: str) -> Future[Any]:
        """Open a state or a register on a thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(opener(url, self._writer))
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)

        threading.Thread(target=run, name="callboard-open", daemon=True).start()
        return future

    def _open_register(self, url: str, writer: str) -> Any:
        """Open a register, and start to hold a lease there; may block."""
        leases = open_leases(url, writer)
        try:
            self._hold_lease(url, LeaseThread(leases.again(), self._runtime.name))
        except BaseException:
            leases.close()
            raise
        self._listen(url)
        return leases

    def _listen(self, url: str) -> None:
        """Listen for other nodes that use the same register, if it is a file. May block."""
        try:
            if (sockets := open_sockets(url)) is not None:
                self._links.listen(url, sockets)
        except (OSError, InvalidAddress) as error:
            text = (
                f"{self._runtime.name} cannot listen for the other processes that use "
                f"{redacted(url)} ({error}); link them with node.connect(…) or join=[…]"
            )
            self._runtime.warn_once(("no socket", url), text)

    def _hold_lease(self, url: str, place: LeasePlace) -> None:
        """Start holding this node's lease in a register."""

        def notify(news: LeaseNews) -> None:
            self._runtime.post(self._handle_news, url, news)

        machine = LeaseMachine(self._writer)
        self._leases[url] = LeaseDriver(place, machine, notify, running=self._running)
        self._leases[url].start()

    def _handle_news(self, url: str, news: LeaseNews) -> None:
        """Report a change of a lease; acquire this node's lease again if it was killed."""
        self._on_news(url, news)
        if isinstance(news, LeaseKilled):
            self._leases[url].begin_anew()

    def _running(self) -> str:
        """Return the handler that blocks this node's thread; empty if none does."""
        frame = handler_frame(self._runner.holder or 0)
        return "" if frame is None else frame.f_code.co_qualname

    def release(self) -> None:
        """Close all databases. Runs on a thread that may block."""
        self._links.release()
        for lease in self._leases.values():
            lease.close()
        for opened in (self._states, self._registers, self._views):
            for client in opened.values():
                client.close()
            opened.clear()
