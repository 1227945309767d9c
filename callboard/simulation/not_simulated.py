"""What simulated programs and actors get when they ask for what a simulation does not have."""

from callboard.kernel.errors import CallboardError


class NotSimulated(CallboardError, NotImplementedError):
    """A program or an actor asked for something that a simulated host or node does not have."""
