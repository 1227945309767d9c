"""The error for operations that a simulation does not support."""

from callboard.kernel.errors import CallboardError


class NotSimulated(CallboardError, NotImplementedError):
    """A program or an actor used something that a simulated host or node does not support."""
