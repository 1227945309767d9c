"""Health and metrics over HTTP, for whoever starts, watches and restarts nodes.

- `/livez` 200 while the node's runner makes progress, else 503: restart it
- `/readyz` 200 while the node may get work, else 503 and why: it starts, joins or drains
- `/metrics` its figures in Prometheus's text format

It answers on a thread of its own, reads counters when asked, and changes nothing. Anybody who
reaches the port may ask, so it belongs on 127.0.0.1 or a network of yours.
"""

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, Self

from callboard.operation.metrics import CONTENT_TYPE, exposition, node_metrics

if TYPE_CHECKING:
    from callboard import Node

LIVE_LIMIT: Final = 2.0
"""Seconds in which the runner of a node that lives takes a turn: its watcher needs far less."""

REQUEST_LIMIT: Final = 10.0
"""Seconds that a client may take to say what it wants."""

PLAIN: Final = "text/plain; charset=utf-8"


class HealthServer:
    """Serves `/livez`, `/readyz` and `/metrics` of one node until it is closed."""

    def __init__(
        self, node: "Node", host: str = "127.0.0.1", port: int = 0, *, joins: bool = False
    ) -> None:
        """Open the port and begin to answer.

        Args:
            node: that runs.
            host: local address.
            port: TCP port; 0 picks one.
            joins: the node is not ready before it has reached another node once.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self._node = node
        self._is_set_up = False
        self._has_joined = not joins
        self._server = _Server((host, port), _Handler)
        self._server.health = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="health", daemon=True
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

    def set_ready(self) -> None:
        """Say that the node's set-up is over."""
        self._is_set_up = True

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- answers: status, content type, text ---

    def livez(self) -> tuple[HTTPStatus, str, str]:
        """Tell whether the runner takes turns."""
        if is_live(self._node, LIVE_LIMIT):
            return HTTPStatus.OK, PLAIN, "live\n"
        text = f"the runner took no turn within {LIVE_LIMIT:g} s\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, text

    def readyz(self) -> tuple[HTTPStatus, str, str]:
        """Tell whether the node may get work."""
        reason = self._reason_not_ready()
        if not reason:
            return HTTPStatus.OK, PLAIN, "ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{reason}\n"

    def _reason_not_ready(self) -> str:
        node = self._node
        self._has_joined = self._has_joined or bool(node.nodes())
        if node.runtime.closed:
            return "closed"
        if node.is_draining:
            return "draining"
        if not self._is_set_up:
            return "starting"
        return "" if self._has_joined else "joining: no other node is reached yet"

    def metrics(self) -> tuple[HTTPStatus, str, str]:
        """Tell the node's figures."""
        return HTTPStatus.OK, CONTENT_TYPE, exposition(node_metrics(self._node))


def is_live(node: "Node", limit: float) -> bool:
    """Return whether a node's runner takes a turn within `limit` seconds; blocks until then."""
    turned = threading.Event()
    node.runtime.runner.post(turned.set)
    return not node.runtime.closed and turned.wait(limit)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    health: HealthServer


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT
    server: _Server

    def do_GET(self) -> None:  # noqa: N802  # the base class calls it
        answers = {
            "/livez": self.server.health.livez,
            "/readyz": self.server.health.readyz,
            "/metrics": self.server.health.metrics,
        }
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            text = f"nothing here; there are {', '.join(answers)}\n"
            self._send(HTTPStatus.NOT_FOUND, PLAIN, text)
        else:
            self._send(*answer())

    do_HEAD = do_GET  # noqa: N815  # as above

    def _send(self, status: HTTPStatus, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing: a probe comes every few seconds."""
