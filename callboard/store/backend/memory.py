"""No backend: what a master holds ends with it."""

from collections.abc import Callable

from callboard.store.backend.interface import Contents
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import Persist


class MemoryBackend:
    """Keeps nothing: the master's own memory is all there is."""

    is_durable = False

    def open(self, wall_offset: float) -> Contents:
        """Return nothing."""
        return Contents()

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:
        """Report success at once: nothing is written."""
        done(None)

    def close(self) -> None:
        """Nothing to close."""
