"""The window: one page in a browser through which a cluster is watched and handled.

Needs the extra `dashboard`. `Node(dashboard=True)` and `callboard dashboard` open a port;
`make_app(node)` returns an ASGI application that can be mounted in another one.
"""

from callboard.dashboard.app import make_app
from callboard.dashboard.errors import DashboardError
from callboard.dashboard.server import DashboardServer

__all__ = ["DashboardError", "DashboardServer", "make_app"]
