"""The root of the errors of callboard, which every package may import."""


class CallboardError(Exception):
    """Root of all errors that callboard raises in the code of its users."""
