"""What a backend is, which kinds there are, and their options."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from enum import Enum
from typing import Any, Literal, Protocol

from callboard.store.errors import BackendFailure
from callboard.store.machine.command import Who
from callboard.store.machine.step import Persist, Row, WriterRow
from callboard.store.machine.stored import Token
from callboard.support.dataclass import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions(Mapping[str, Any]):
    """What a backend is asked for; None leaves the choice to it. Memory has no options.

    Attributes:
        path: the file of a SQLite backend, which needs one.
        synchronous: when a write counts as durable; `FULL`.
        journal_mode: `WAL`.
        failure_mode: what to do with a damaged file, `FAIL` or `DELETE` it; `FAIL`.
        integrity_check: whether to look through the whole file when it is opened; it is not.
    """

    path: str | os.PathLike[str] | None = None
    synchronous: Literal["OFF", "NORMAL", "FULL", "EXTRA"] | None = None
    journal_mode: Literal["WAL", "DELETE"] | None = None
    failure_mode: Literal["FAIL", "DELETE"] | None = None
    integrity_check: bool | None = None

    def __getitem__(self, name: str) -> Any:
        """Return an option that was given."""
        if name not in list(self):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of those that were given."""
        return (each.name for each in fields(self) if getattr(self, each.name) is not None)

    def __len__(self) -> int:
        """Return how many were given."""
        return len(list(iter(self)))


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
