"""A few pages over HTTP for monitoring, each created for its request.

The server answers on its own threads. Every program that can reach the port can read the pages,
so bind it to 127.0.0.1 or to a private network. Web pages of other sites are refused: see
`host_guard`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callboard.closing import Closing
from callboard.figures import CONTENT_TYPE, Metric, exposition
from callboard.support.host_guard import HostGuard, Refusal
from callboard.support.json_form import json_of
from callboard.support.text import logged, printable

if TYPE_CHECKING:
    from callboard.web import WebServer

_log = logging.getLogger("callboard")

PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

#: Bytes of a posted text, which is a level or a name.
POST_LIMIT: Final = 4_096

#: Pages for probes and Prometheus, which send names of services as the host. They contain
#: no messages, so a port that other machines can reach answers them for every host.
PROBED_PAGES: Final = ("/livez", "/readyz", "/metrics")


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    content_type: str
    text: str


Pages = Mapping[str, Callable[[], Page]]
Actions = Mapping[str, Callable[[str], Page]]


def text_page(text: str, status: HTTPStatus = HTTPStatus.OK) -> Page:
    """Return a page of plain text; a line break is added."""
    return Page(status, PLAIN, f"{text}\n")


def json_page(value: Any) -> Page:
    """Return a page with a value as JSON; values that JSON lacks are written as text."""
    return Page(HTTPStatus.OK, JSON, json_of(value, ensure_ascii=True, default=str) + "\n")


def metrics_page(metrics: Iterable[Metric]) -> Page:
    """Return a page with metrics in the format of Prometheus."""
    return Page(HTTPStatus.OK, CONTENT_TYPE, exposition(metrics))


class PageServer(Closing):
    """Serves pages until it is closed."""

    def __init__(
        self,
        pages: Pages,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        actions: Actions | None = None,
        hosts: Iterable[str] = (),
        option: str = "hosts",
    ) -> None:
        """Open the port and start to answer.

        Args:
            pages: function that creates the page of each path; called on any thread.
            host: local address.
            port: TCP port; 0 selects a free one.
            actions: function that handles a text posted to each path.
            hosts: names of the port, besides addresses, `localhost` and the name of the
                machine; `*` for all.
            option: name of the option for `hosts`, for error texts.

        Raises:
            OSError: the address is not one of this machine, or the port is in use.
        """
        guard = HostGuard.of_port(host, hosts, option=option)
        self._server = _http_server((host, port), pages, actions or {}, guard)
        self._server.start("pages")

    @property
    def port(self) -> int:
        """The number of the port."""
        return self._server.port

    @property
    def url(self) -> str:
        """The URL of the server, without a path."""
        return f"http://{self._server.server_address[0]!s}:{self.port}"

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._server.close()


def _http_server(
    address: tuple[str, int], pages: Pages, actions: Actions, guard: HostGuard
) -> "WebServer":
    """Open a port. `http.server` is imported here, because most programs serve no pages."""
    from callboard.web import WebHandler, WebServer

    class PageHandler(WebHandler):
        """Answers one connection."""

        def refusal(self) -> Refusal | None:
            """Return the reason to refuse the request; a public port answers all probes."""
            path, is_get = self.path.partition("?")[0], self.command in ("GET", "HEAD")
            if guard.any_address and is_get and path in PROBED_PAGES:
                return None
            mode = self.headers.get("Sec-Fetch-Mode")
            return guard.refusal(self.asking, is_link=is_get and mode == "navigate")

        def do_GET(self) -> None:  # noqa: N802  # the base class calls it
            self.server.set_deadline(self.connection, None)
            self._send(_get(pages, actions, self.path))

        do_HEAD = do_GET  # noqa: N815  # as above

        def do_POST(self) -> None:  # noqa: N802  # as above
            action = actions.get(self.path)
            if action is None:
                self._send(text_page("this path takes no POST", HTTPStatus.NOT_FOUND))
            elif (content := self.body(POST_LIMIT)) is None:
                text = f"post a text of at most {POST_LIMIT} bytes, with a Content-Length"
                self._send(text_page(text, HTTPStatus.BAD_REQUEST))
            else:
                page = partial(action, content.decode(errors="replace"))
                self._send(_created(page, self.path))

        def _send(self, page: Page) -> None:
            body = page.text.encode(errors="replace")
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return WebServer(address, PageHandler, guard)


def _get(pages: Pages, actions: Actions, target: str) -> Page:
    path = target.partition("?")[0]
    page = pages.get(path)
    if page is None:
        if actions.get(path) is not None:
            text = "this path changes the node; use POST"
            return text_page(text, HTTPStatus.METHOD_NOT_ALLOWED)
        text = f"no such page; the pages are {', '.join(pages)}"
        return text_page(text, HTTPStatus.NOT_FOUND)
    return _created(page, target)


def _created(page: Callable[[], Page], target: str) -> Page:
    try:
        return page()
    except BaseException as error:  # noqa: BLE001  # such as an actor that ended during the call
        logged(_log, "the page %s could not be created", printable(target), error=error)
        return text_page("see the log", HTTPStatus.INTERNAL_SERVER_ERROR)
