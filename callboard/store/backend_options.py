"""The options of backends as an object; a dictionary with the same names does as well."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = ["BackendOptions"]


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
