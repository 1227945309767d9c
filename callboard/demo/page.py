"""The demo's page in the browser: its link is available at once, the page a moment later.

To avoid delays, the demo only opens a port and creates a token; a thread loads the server. The
server's node is linked only with A, as a tool, because links to several nodes would add paths
between them. Without an open page it sends nothing, so the balance contains only messages of
the demo.
"""

import contextlib
import importlib.util
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Final

from callboard import locks
from callboard.backoff import Backoff, retrying
from callboard.closing import Closing
from callboard.demo.line import LINKS, NAMES
from callboard.demo.screen import KeyCommand, Verb

#: The levers of the page: actions on the demo's own cluster.
LEVERS: Final[tuple[Verb, ...]] = ("kill", "freeze", "cut")

#: Seconds to wait for the first answer of node A.
CONNECT_LIMIT: Final = 60.0

#: Seconds between connection attempts while A is not listening yet.
RETRY: Final = 0.2


class DemoPage(Closing):
    """The page of one run of the demo."""

    def __init__(self, address: str, pull: Callable[[KeyCommand], object]) -> None:
        """Open a port, and start loading the server.

        Args:
            address: address of node A.
            pull: called with each clicked command, on a thread of the page.
        """
        self._address, self._pull = address, pull
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._token = secrets.token_urlsafe(32)
        self._parts = contextlib.ExitStack()
        self._lock = locks.lock("page of the demo", 110, runs_users=True)
        self._over = threading.Event()
        threading.Thread(target=self._serve, name="demo-page", daemon=True).start()

    @staticmethod
    def is_possible() -> bool:
        """Return whether the extra `dashboard` is installed."""
        return all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn"))

    @property
    def link(self) -> str:
        """The link that opens the page."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/?token={self._token}"

    def close(self) -> None:
        """Close the page and its node. Idempotent."""
        with self._lock:
            self._over.set()
            self._parts.close()
        self._socket.close()

    def _serve(self) -> None:
        """Load the server, start it, and connect its node to A."""
        from callboard.dashboard import DashboardServer
        from callboard.node import Node

        with self._lock:
            if self._over.is_set():
                return
            node = self._parts.enter_context(Node("page", is_tool=True))
            server = DashboardServer(
                node,
                actions=True,
                levers={verb: self._lever(verb) for verb in LEVERS},
                shows_itself=False,
                opened=self._socket,
                token=self._token,
            )
            self._parts.enter_context(server)
        # A busy machine is slow to start A.
        for _ in retrying(Backoff.fixed(RETRY), CONNECT_LIMIT, stop=self._over):
            with contextlib.suppress(Exception):  # the page is closed, or A is not listening
                node.connect(self._address, CONNECT_LIMIT)
                return

    def _lever(self, verb: Verb) -> Callable[[str], str]:
        def pull(target: str) -> str:
            command = command_of(verb, target)
            if command is None:
                return f"there is nothing called {target[:40]!r} to {verb}"
            self._pull(command)
            return f"{verb} {target}"

        return pull


def command_of(verb: Verb, target: str) -> KeyCommand | None:
    """Return the command of a click on a node, or on a link; None for an unknown target."""
    if verb != "cut":
        return KeyCommand(verb, target) if target in NAMES else None
    ends = tuple(sorted(target.split("-")))
    return KeyCommand(verb, ends[0]) if ends in LINKS else None
