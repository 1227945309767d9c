"""What states in SQL databases have in common: everything that only reads."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from callboard.entity.state.interface import (
    NO_FENCE,
    PAGE,
    EntitySnapshot,
    Fence,
    Recovered,
    Slot,
    StoredEvent,
    recovered,
)

_EVENT = "position, key, number, time_ms, epoch, kind, version, body"
_EVENTS = (
    f"SELECT {_EVENT} FROM callboard_events"  # noqa: S608 - names of columns
    " WHERE type = ? AND key = ? AND number > ? ORDER BY number LIMIT ?"
)
_JOURNAL = (
    f"SELECT {_EVENT} FROM callboard_events"  # noqa: S608
    " WHERE type = ? AND position > ? ORDER BY position LIMIT ?"
)
_SNAPSHOTS = (
    "SELECT key, number, version, body FROM callboard_snapshots"
    " WHERE type = ? AND key = ? ORDER BY number DESC"
)
_KEYS = (
    "SELECT key FROM callboard_events WHERE type = ? AND key > ?"
    " UNION SELECT key FROM callboard_snapshots WHERE type = ? AND key > ?"
    " ORDER BY key LIMIT ?"
)


class SqlState(ABC):
    """A state in tables; the engines differ in how they write."""

    @abstractmethod
    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query that stands by itself; `?` are its parameters."""

    def recover(self, type_name: str, key: str, version: int, limit: int = PAGE) -> Recovered:
        """Return the newest snapshot of a version, and the events behind it."""
        found = [EntitySnapshot(*row) for row in self.rows(_SNAPSHOTS, type_name, key)]
        fitting = next((each for each in found if each.version == version), None)
        after = fitting.number if fitting else 0
        events = self.events(type_name, key, after, limit + 1)
        return recovered(type_name, key, fitting, events, limit, has_others=bool(found))

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key behind a number."""
        return list(map(StoredEvent._make, self.rows(_EVENTS, type_name, key, after, limit)))

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a type behind a position."""
        return list(map(StoredEvent._make, self.rows(_JOURNAL, type_name, after, limit)))

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots."""
        found: dict[Slot, Fence] = dict.fromkeys(slots, NO_FENCE)
        for type_name in sorted({name for name, _ in slots}):
            sql = "SELECT slot, epoch, writer FROM callboard_fences WHERE type = ?"
            for slot, epoch, writer in self.rows(sql, type_name):
                if (type_name, slot) in found:
                    found[type_name, slot] = Fence(epoch, writer)
        return found

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type."""
        found = self.rows("SELECT last FROM callboard_types WHERE type = ?", type_name)
        return int(found[0][0]) if found else 0

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type ever had."""
        sql = "SELECT kind, version FROM callboard_kinds WHERE type = ?"
        return {(kind, version) for kind, version in self.rows(sql, type_name)}

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type, in order, behind one."""
        found = self.rows(_KEYS, type_name, after, type_name, after, limit)
        return [row[0] for row in found]

    def types(self) -> Sequence[str]:
        """Return the names of the types that have events or fences."""
        return [row[0] for row in self.rows("SELECT type FROM callboard_types ORDER BY type")]
