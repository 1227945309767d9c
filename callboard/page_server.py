"""A few pages over HTTP for monitoring, each made when somebody asks for it.

It answers on threads of its own. Anybody who reaches the port may ask, so it belongs on
127.0.0.1 or a network of yours.
"""

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

__all__ = ["JSON", "PLAIN", "Page", "PageServer"]

PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Page(NamedTuple):
    """What is answered."""

    status: HTTPStatus
    content_type: str
    text: str


class PageServer:
    """Serves pages until it is closed."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[], Page]],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        actions: Mapping[str, Callable[[str], Page]] | None = None,
    ) -> None:
        """Open the port and begin to answer.

        Args:
            pages: for each path what makes its page; called on any thread.
            host: local address.
            port: TCP port; 0 picks one.
            actions: for each path what is done with a text that is posted there.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        from callboard.page_handler import PageHandler, PagesOverHttp  # loads http.server

        self._server = PagesOverHttp((host, port), PageHandler)
        self._server.pages = pages
        self._server.actions = actions or {}
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="pages", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that was opened."""
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        host, port = self._server.server_address[:2]
        text = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://{text}:{port}"

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
