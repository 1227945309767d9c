"""A few pages over HTTP for monitoring, each made when somebody asks for it.

It answers on threads of its own. Anybody who reaches the port may ask, so it belongs on
127.0.0.1 or a network of yours.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

__all__ = ["JSON", "PLAIN", "Page", "PageServer"]

log = logging.getLogger("callboard")

REQUEST_LIMIT: Final = 10.0
"""Seconds that a client may take to say what it wants."""

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
        self, pages: Mapping[str, Callable[[], Page]], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Open the port and begin to answer.

        Args:
            pages: for each path what makes its page; called on any thread.
            host: local address.
            port: TCP port; 0 picks one.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self._server = _Server((host, port), _Handler)
        self._server.pages = pages
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    pages: Mapping[str, Callable[[], Page]]


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT
    server: _Server

    def do_GET(self) -> None:  # noqa: N802  # the base class calls it
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            text = f"nothing here; there are {', '.join(pages)}\n"
            self._send(Page(HTTPStatus.NOT_FOUND, PLAIN, text))
        else:
            self._send(self._made(page))

    do_HEAD = do_GET  # noqa: N815  # as above

    def _made(self, page: Callable[[], Page]) -> Page:
        try:
            return page()
        except Exception:  # what it tells of may have ended meanwhile
            log.exception("the page %s could not be made", self.path)
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, "see the log\n")

    def _send(self, page: Page) -> None:
        body = page.text.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing: a probe comes every few seconds."""
