"""The root of the errors of callboard, below all rooms that raise some."""


class CallboardError(Exception):
    """Root of everything that callboard raises at its users."""
