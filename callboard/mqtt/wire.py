"""What carries the bytes of one connection, whatever it goes over."""

from collections.abc import Callable
from typing import Protocol


class Wire(Protocol):
    """What carries the bytes; all calls come from one thread."""

    is_full: bool
    """Whether more was written than the other side has taken."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Close once everything written has left."""

    def abort(self) -> None:
        """Close at once."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""
