"""The console: a router's state as JSON over HTTP.

| path | what |
|---|---|
| `/router` | counts |
| `/config` | what it was configured with |
| `/devices`, `/device/ID` | clients |
| `/subscriptions`, `/subscriptions/FILTER` | filters and who reads them |
| `/waiters/FILTER` | requests that have read all |
| `/readyqueue` | clients that wait to be served |
| `/slow` | subscribers that are behind |
| `/trace/ID/NUMBER` | packets of a client after a number |
| `/metrics` | counts for Prometheus |
| `POST /logs` | sets the level of the router's log: `debug`, `info`, `warning`, `error` |

In ids and filters `%2F` stands for `/`; in filters so does a dot where no filter has it.
Anybody who reaches the port may ask: it belongs on 127.0.0.1 or a network of yours.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from callboard.exposition import CONTENT_TYPE, exposition
from callboard.mqtt import console
from callboard.mqtt.metrics import router_metrics
from callboard.mqtt.trace import Tracer
from callboard.page_server import JSON, PLAIN, Page

if TYPE_CHECKING:
    from callboard.mqtt.router import Router

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_PATHS: Final = (
    "/router",
    "/config",
    "/devices",
    "/device/ID",
    "/subscriptions",
    "/subscriptions/FILTER",
    "/waiters/FILTER",
    "/readyqueue",
    "/slow",
    "/trace/ID/NUMBER",
    "/metrics",
)


class ConsolePages(Mapping[str, Callable[[], Page]]):
    """The pages of a router, by path."""

    def __init__(self, router: "Router") -> None:
        self._router = router
        self._tracer = Tracer(router.edge.door.clock)

    def __iter__(self) -> Iterator[str]:
        return iter(_PATHS)

    def __len__(self) -> int:
        return len(_PATHS)

    def __getitem__(self, path: str) -> Callable[[], Page]:
        """Return what makes a page.

        Raises:
            KeyError: there is no such page.
        """
        router = self._router
        machine, door = router.machine, router.edge.door
        noun, _, rest = path.removeprefix("/").partition("/")
        name = unquote(rest)
        if noun == "metrics" and not rest:
            return self._metrics
        if noun == "trace" and rest:
            client, _, since = rest.rpartition("/")
            return partial(self._trace, unquote(client), int(since) if since.isdecimal() else 0)
        views: dict[tuple[str, bool], Callable[[], Any]] = {
            ("", False): lambda: list(_PATHS),
            ("router", False): lambda: console.router_view(machine, door),
            ("config", False): lambda: console.config_view(router.config),
            ("devices", False): lambda: console.devices_view(machine),
            ("device", True): lambda: console.device_view(machine, name),
            ("subscriptions", False): lambda: console.subscriptions_view(machine),
            ("subscriptions", True): lambda: self._of_filter(console.subscription_view, name),
            ("waiters", True): lambda: self._of_filter(console.waiters_view, name),
            ("readyqueue", False): lambda: console.ready_queue_view(machine),
            ("slow", False): lambda: console.slow_view(machine, door),
        }
        return partial(self._answer, views[noun, bool(rest)])

    def _of_filter(self, view: Callable[..., Any], name: str) -> Any:
        found = view(self._router.machine, name)
        return view(self._router.machine, name.replace(".", "/")) if found is None else found

    def _answer(self, view: Callable[[], Any]) -> Page:
        found = self._router.call(view)
        if found is None:
            return Page(HTTPStatus.NOT_FOUND, PLAIN, "the router knows nothing of that name\n")
        return Page(HTTPStatus.OK, JSON, json.dumps(found, default=str) + "\n")

    def _metrics(self) -> Page:
        router = self._router
        found = router.call(router_metrics, router.machine, router.edge.door)
        return Page(HTTPStatus.OK, CONTENT_TYPE, exposition(found))

    def _trace(self, client_id: str, since: int) -> Page:
        def look() -> Any:
            remote = console.links_of(self._router.edge.door).get(client_id)
            return self._tracer.look(client_id, remote, since)

        found = self._router.call(look)
        if found is None:
            text = "too many clients are traced; wait until others have ended\n"
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, text)
        return Page(HTTPStatus.OK, JSON, json.dumps(found, default=str) + "\n")


def set_log_level(text: str) -> Page:
    """Let the router log from a level on."""
    level = text.strip().lower()
    if level not in _LEVELS:
        said = f"{level[:40]!r} is no level; there are {', '.join(_LEVELS)}\n"
        return Page(HTTPStatus.BAD_REQUEST, PLAIN, said)
    logging.getLogger("callboard.mqtt").setLevel(level.upper())
    return Page(HTTPStatus.OK, PLAIN, f"{level}\n")
