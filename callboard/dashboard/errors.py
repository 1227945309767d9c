"""What can be wrong with a dashboard."""

from callboard.actors.errors import CallboardError


class DashboardError(CallboardError):
    """A dashboard cannot be shown: an extra is missing, a port is taken, or it is public."""
