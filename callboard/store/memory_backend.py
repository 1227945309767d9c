"""No backend: what a master holds ends with it."""

from collections.abc import Callable, Mapping
from typing import Any

from callboard.endpoint.errors import InvalidData
from callboard.store.backend import Contents
from callboard.store.effect import Persist
from callboard.store.errors import BackendFailure

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """Keeps nothing: the master's own memory is all there is."""

    is_durable = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "MemoryBackend":
        """Make one.

        Raises:
            InvalidData: it has no options.
        """
        if options:
            msg = f"the memory backend has no option {next(iter(options))!r}"
            raise InvalidData(msg)
        return cls()

    def open(self, wall_offset: float) -> Contents:  # noqa: ARG002
        """Return nothing."""
        return Contents()

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:  # noqa: ARG002
        """Nothing is written: whoever calls this believes it is."""
        done(None)

    def close(self) -> None:
        """Nothing to close."""
