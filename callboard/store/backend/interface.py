"""Backends of stores: their interface, their kinds and their options."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from enum import Enum
from typing import Any, Literal, Protocol

from callboard.store.errors import BackendFailure
from callboard.store.machine.command import PlainEntity
from callboard.store.machine.step import Persist, Row, WriterRow
from callboard.store.machine.stored import Token
from callboard.support.dataclass import dataclass


class Backend(Enum):
    """The kinds of backends, by the names of Broker's Python package."""

    Memory = "memory"
    SQLite = "sqlite"


@dataclass(slots=True)
class Contents:
    """The contents of a backend.

    Attributes:
        rows: value and deadline of each key.
        writers: the progress of each writer.
        unreadable: number of rows that were left out because they cannot be read.
    """

    rows: dict[Token, Row] = field(default_factory=dict)
    writers: dict[PlainEntity, WriterRow] = field(default_factory=dict)
    unreadable: int = 0


class StoreBackend(Protocol):
    """Storage of the rows of one master."""

    #: Whether the backend stores anything; if not, `write` is never called.
    is_durable: bool

    def open(self, wall_offset: float) -> Contents:
        """Open the backend and return its contents; may block.

        Args:
            wall_offset: Unix time, in seconds, at which the node's clock showed 0. Deadlines of
                rows are in seconds of the node's clock.

        Raises:
            BackendFailure: the backend cannot be opened, or is damaged.
        """

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:
        """Write changes, all or nothing; never blocks.

        `done` is called with None when they are durable, or with the failure; on any thread,
        in the order of the writes.
        """

    def close(self) -> None:
        """Complete all writes, and release all resources; may block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions(Mapping[str, Any]):
    """Options of a backend; None means its default. The memory backend does not have any.

    Attributes:
        path: the file of a SQLite backend, which requires one.
        synchronous: when a write counts as durable; the default is `FULL`.
        journal_mode: SQLite's journal mode; the default is `WAL`.
        failure_mode: what happens to a damaged file: opening fails (`FAIL`, the default), or
            the file is deleted (`DELETE`).
        integrity_check: whether opening checks the whole file; the default is no.
    """

    path: str | os.PathLike[str] | None = None
    synchronous: Literal["OFF", "NORMAL", "FULL", "EXTRA"] | None = None
    journal_mode: Literal["WAL", "DELETE"] | None = None
    failure_mode: Literal["FAIL", "DELETE"] | None = None
    integrity_check: bool | None = None

    def __getitem__(self, name: str) -> Any:
        """Return an option that is set."""
        if name not in list(self):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the options that are set."""
        return (
            option.name for option in fields(self) if getattr(self, option.name) is not None
        )

    def __len__(self) -> int:
        """Return the number of options that are set."""
        return len(list(iter(self)))


class MemoryBackend:
    """A backend that stores nothing: values exist only in the memory of the master."""

    is_durable = False

    def open(self, wall_offset: float) -> Contents:
        """Return empty contents."""
        return Contents()

    def write(self, changes: Persist, done: Callable[[BackendFailure | None], object]) -> None:
        """Report success at once."""
        done(None)

    def close(self) -> None:
        """Do nothing."""
