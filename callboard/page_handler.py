"""How pages are served: http.server, loaded only where somebody opens a port for them."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from callboard.page_server import PLAIN, Page

log = logging.getLogger("callboard")

POST_LIMIT: Final = 4_096
"""Bytes of a text that is posted."""

REQUEST_LIMIT: Final = 10.0
"""Seconds that a client may take to say what it wants."""


class PagesOverHttp(ThreadingHTTPServer):
    """A server that has pages to show."""

    daemon_threads = True
    pages: Mapping[str, Callable[[], Page]]
    actions: Mapping[str, Callable[[str], Page]]


class PageHandler(BaseHTTPRequestHandler):
    """Answers one connection."""

    timeout = REQUEST_LIMIT
    server: PagesOverHttp

    def do_GET(self) -> None:  # noqa: N802  # the base class calls it
        """Answer with a page."""
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            text = f"nothing here; there are {', '.join(pages)}\n"
            self._send(Page(HTTPStatus.NOT_FOUND, PLAIN, text))
        else:
            self._send(self._made(page))

    def do_POST(self) -> None:  # noqa: N802  # as above
        """Do what a text is posted for."""
        action = self.server.actions.get(self.path)
        size = self.headers.get("Content-Length", "")
        if action is None:
            self._send(Page(HTTPStatus.NOT_FOUND, PLAIN, "nothing is done here\n"))
        elif not size.isdecimal() or int(size) > POST_LIMIT:
            text = f"a text of at most {POST_LIMIT} bytes, with its length, is taken here\n"
            self._send(Page(HTTPStatus.BAD_REQUEST, PLAIN, text))
        else:
            said = self.rfile.read(int(size)).decode(errors="replace")
            self._send(self._made(partial(action, said)))

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
