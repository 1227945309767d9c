"""Where masters keep what must outlive them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from callboard.store.action import Who
from callboard.store.effect import Persist, Row, WriterRow
from callboard.store.errors import BackendFailure
from callboard.store.stored import Token

__all__ = ["Backend", "Contents", "StoreBackend", "make_backend"]


class Backend(Enum):
    """The kinds of backends, by the names of Broker's Python package."""

    Memory = "memory"
    SQLite = "sqlite"


@dataclass(slots=True)
class Contents:
    """What a backend holds: rows, and how far each writer's commands were carried out."""

    rows: dict[Token, Row] = field(default_factory=dict)
    writers: dict[Who, WriterRow] = field(default_factory=dict)


class StoreBackend(Protocol):
    """Keeps the rows of one master."""

    #: Whether `write` does anything: if not, nothing is ever handed to it.
    is_durable: bool

    def open(self, wall_offset: float) -> Contents:
        """Return what is there; may block.

        Args:
            wall_offset: seconds since 1970 of the moment when the node's clock showed 0.
                Deadlines of rows are in the seconds of the node's clock.

        Raises:
            BackendFailure: it cannot be opened, or is damaged.
        """

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:
        """Write changes, all or nothing; never blocks.

        `done` is called on any thread when they are durable, in the order of the writes.
        """

    def close(self) -> None:
        """Finish what was written, and release everything; may block."""


def make_backend(kind: Backend, options: Mapping[str, Any] | None) -> StoreBackend:
    """Return a backend.

    Raises:
        InvalidData: options that it does not have.
    """
    from callboard.store.memory_backend import MemoryBackend  # noqa: PLC0415  # they import this
    from callboard.store.sqlite_backend import SqliteBackend  # noqa: PLC0415

    if kind is Backend.SQLite:
        return SqliteBackend.from_options(options or {})
    return MemoryBackend.from_options(options or {})
