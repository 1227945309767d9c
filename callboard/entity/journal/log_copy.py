"""Copies journals to logs: each event becomes one record, even if the copy is interrupted.

A producer of the log appends the records. Each record has the position of its event as a
header, so a record and the position of the copy are one write. The sender of the records is the
id of the state.
"""

import dataclasses
import re
import typing
from contextlib import ExitStack
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from callboard.commitlog import CommitLog, FieldConflict
from callboard.entity.event_json import EventSerializer
from callboard.entity.state.interface import StoredEvent
from callboard.lease.errors import StateCorrupt, WrongState

#: Bytes of events after which a batch is appended; far below the limit of a batch.
BATCH_BYTES: Final = 1 << 20

_NAME: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,100}", re.ASCII)

#: Types of fields that become columns of logs.
_COLUMNS: Final[dict[object, str]] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    datetime: "time",
    list[str]: "text[]",
    list[int]: "int[]",
    list[float]: "float[]",
}


class StoredJournal(Protocol):
    """The part of a journal that a copy uses."""

    type_name: str
    state_id: str

    def next_stored(self) -> list[StoredEvent]:
        """Return the next events; empty at the end."""

    def start_after(self, position: int) -> None:
        """Start after a position."""


def producer_name(type_name: str) -> str:
    """Return the producer name of a type's journal in a log."""
    if _NAME.fullmatch(type_name):
        return f"journal/{type_name}"
    return f"journal/{blake2b(type_name.encode(), digest_size=16).hexdigest()}"


def copy_to_log(
    journal: StoredJournal, form: EventSerializer, log: CommitLog | str | Path
) -> int:
    """Append the events of a journal to a log until the journal ends; return their number.

    Raises:
        WrongState: the log has the journal of another state.
        StateCorrupt: the last record of this journal is missing in the log, or belongs to
            another journal.
        LogError: the log cannot be written.
    """
    with ExitStack() as stack:
        if not isinstance(log, CommitLog):
            log = stack.enter_context(CommitLog(log))
        copy = _LogCopy(journal, form, log)
        while events := journal.next_stored():
            copy.append(events)
        return copy.count


class _LogCopy:
    """A copy in progress."""

    def __init__(self, journal: StoredJournal, form: EventSerializer, log: CommitLog) -> None:
        """Open the producer, and start after the last event that it has appended."""
        self._journal, self._form, self._log = journal, form, log
        self._declared: set[str] = set()
        self._state_id = ""
        self.count = 0
        name = producer_name(journal.type_name)
        self._producer = log.producer(name)
        last = next(log.runs_of(name), None)
        if last is None:
            return
        offset = last.offset + last.records - 1
        record = next(iter(log.read(offset)), None)
        position = "" if record is None else record.headers.get("position", "")
        if record is None or record.offset != offset or not position.isdecimal():
            msg = (
                f"record {offset} of {log.folder}, the last one of the journal of "
                f"{journal.type_name}, is missing, or belongs to another journal; copy into a "
                "new log"
            )
            raise StateCorrupt(msg)
        self._state_id = record.sender
        journal.start_after(int(position))

    def append(self, events: list[StoredEvent]) -> None:
        """Append events, in batches of limited size."""
        state_id = self._journal.state_id
        if self._state_id not in ("", state_id):
            msg = (
                f"{self._log.folder} has the journal of {self._journal.type_name} of another "
                f"state ({self._state_id[:8]}, not {state_id[:8]}); use another log"
            )
            raise WrongState(msg)
        self._state_id = state_id
        self._declare(events)
        batch: list[StoredEvent] = []
        size = 0
        for event in events:
            if batch and size + len(event.body) > BATCH_BYTES:
                self._append_batch(batch)
                batch, size = [], 0
            batch.append(event)
            size += len(event.body)
        self._append_batch(batch)

    def _append_batch(self, events: list[StoredEvent]) -> None:
        """Append events in one write: all of them or none."""
        name = self._journal.type_name
        self._producer.append_batch(
            [self._form.read_loosely(event.body) for event in events],
            topic=[f"/{name}/{quote(event.key, safe='')}" for event in events],
            key=[event.key for event in events],
            headers=[_headers(event) for event in events],
            sender=self._journal.state_id,
            time=[event.time_ms * 1_000_000 for event in events],
        )
        self.count += len(events)

    def _declare(self, events: list[StoredEvent]) -> None:
        """Declare the fields of events as columns, where this program knows their classes."""
        for name in sorted({event.kind for event in events} - self._declared):
            self._declared.add(name)
            kind = self._form.kind_named(name)
            if kind is None or not dataclasses.is_dataclass(kind.cls):
                continue
            for field, column in _columns_of(kind.cls).items():
                try:
                    self._log.declare({field: column})
                except (FieldConflict, ValueError):
                    # Another event has a field of that name, so this field gets no column.
                    continue


def _headers(event: StoredEvent) -> dict[str, str]:
    """Return the headers of a record in a fixed order, so that a retry has the same bytes."""
    return {
        "epoch": str(event.epoch),
        "kind": event.kind,
        "number": str(event.number),
        "position": str(event.position),
        "version": str(event.version),
    }


def _columns_of(cls: type) -> dict[str, str]:
    """Return the simple fields of a dataclass, with the types of their columns."""
    try:
        hints: dict[str, Any] = typing.get_type_hints(cls)
    except (NameError, TypeError):  # annotations that cannot be resolved outside of their scope
        return {}
    return {name: _COLUMNS[hint] for name, hint in hints.items() if hint in _COLUMNS}
