"""The server of a dashboard: uvicorn on a separate thread."""

import secrets
import socket
import threading
from pathlib import Path
from typing import Final

from callboard.closing import Closing
from callboard.configuration.host_port import parse_host_port
from callboard.dashboard.actions import NodeControls
from callboard.dashboard.app import make_app
from callboard.dashboard.collector import ClusterWatch
from callboard.dashboard.errors import DashboardError
from callboard.dashboard.guard import Guard
from callboard.kernel.errors import TlsError
from callboard.node import Node
from callboard.support import after_fork
from callboard.support.host_guard import HostGuard, is_loopback
from callboard.tls.certificates import Certificates
from callboard.tls.contexts import Tls

_EXTRA: Final = "a dashboard needs starlette and uvicorn; pip install 'callboard[dashboard]'"

#: Seconds to wait for connections to end.
END_LIMIT: Final = 2.0

#: Connections that the system queues before they are accepted.
BACKLOG: Final = 128


class DashboardServer(Closing):
    """Serves the dashboard of a node until it is closed."""

    def __init__(
        self,
        node: Node,
        listen: str = "127.0.0.1:0",
        *,
        actions: bool = False,
        levers: NodeControls | None = None,
        shows_itself: bool = True,
        hosts: tuple[str, ...] = (),
        tls: Path | None = None,
        insecure: bool = False,
        opened: socket.socket | None = None,
        token: str = "",
    ) -> None:
        """Open the port and start serving.

        Args:
            node: the node through which the cluster is inspected.
            listen: `HOST:PORT`; port 0 picks a free one.
            actions: whether actions are allowed; else the dashboard is read-only.
            levers: extra actions; see `make_app`.
            shows_itself: whether the node itself is shown.
            hosts: names that browsers may use, besides its address and `localhost`.
            tls: folder with `certificate.pem` and `key.pem`.
            insecure: whether a public address without TLS is allowed.
            opened: a listening socket to use instead of `listen`.
            token: required in every request; a random one by default.

        Raises:
            DashboardError: the extra is missing, the address is public without TLS, or the
                port cannot be opened.
        """
        try:
            import uvicorn

            from callboard.dashboard.port import DashboardPort
        except ImportError:
            raise DashboardError(_EXTRA) from None
        try:
            host, port = parse_host_port(listen)
        except ValueError as error:
            msg = f"{listen!r} is not HOST:PORT; write it like 127.0.0.1:0"
            raise DashboardError(msg) from error
        if not is_loopback(host) and tls is None and not insecure:
            msg = f"{host} is a public address; pass tls, or insecure (--insecure) to allow it"
            raise DashboardError(msg)
        certificates = _certificates(tls)
        self._socket = opened or _open(host, port)
        self.port = int(self._socket.getsockname()[1])
        host_guard = HostGuard.of_port(host, hosts)
        token, cookie = token or secrets.token_urlsafe(32), f"callboard-{self.port}"
        self.guard = Guard(token, host_guard.names, host_guard.any_address, cookie)
        self.collector = ClusterWatch(node, shows_itself=shows_itself)
        app = make_app(
            node, self.guard, actions=actions, levers=levers, collector=self.collector
        )
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = DashboardPort(config, certificates)
        browser_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104  # compared, not bound
        browser_host = f"[{browser_host}]" if ":" in browser_host else browser_host
        self.url = f"http{'s' if tls else ''}://{browser_host}:{self.port}/"
        run = self._server.run_on
        self._thread = threading.Thread(
            target=run, args=(self._socket,), name="callboard-dashboard", daemon=True
        )
        self._thread.start()

    @property
    def link(self) -> str:
        """The link that opens the dashboard; it contains the token."""
        return f"{self.url}?token={self.guard.token}"

    def close(self) -> None:
        """Close the port and all pages. Idempotent."""
        self._server.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(END_LIMIT)
        self._socket.close()


def _open(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        DashboardError: the port cannot be opened.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = after_fork.own_listener(
            socket.create_server((host, port), family=family, backlog=BACKLOG)
        )
    except OSError as error:
        reason = error.strerror or error
        msg = f"the dashboard cannot listen on {host}:{port}: {reason}; port 0 picks a free one"
        raise DashboardError(msg) from error
    return listener


def _certificates(folder: Path | None) -> Certificates | None:
    """Return the certificates in a folder; they are read again after a renewal.

    Raises:
        DashboardError: a file is missing or unusable.
    """
    if folder is None:
        return None
    chain, key = folder / "certificate.pem", folder / "key.pem"
    try:
        certificates = Certificates(Tls(chain, key if key.exists() else None, mutual=False))
        certificates.listening()
    except TlsError as error:
        msg = f"{folder} needs certificate.pem and key.pem of the dashboard: {error}"
        raise DashboardError(msg) from error
    return certificates
