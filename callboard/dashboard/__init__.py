"""The dashboard: watch and control a cluster from a browser.

It needs the extra `dashboard`. `Node(dashboard=True)` and `callboard dashboard` open a port;
`make_app(node)` returns an ASGI application to mount in another one.
"""

from callboard.dashboard.app import make_app
from callboard.dashboard.errors import DashboardError
from callboard.dashboard.server import DashboardServer

__all__ = ["DashboardError", "DashboardServer", "make_app"]
