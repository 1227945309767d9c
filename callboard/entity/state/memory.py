"""A state in the memory of this process, for tests and single-process programs."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from uuid import uuid4

from callboard import locks
from callboard.entity.state.interface import (
    NO_FENCE,
    PAGE,
    PARKED_FROM,
    Committed,
    DueReminders,
    EntitySnapshot,
    Fence,
    Identity,
    JobStatus,
    PastEvent,
    ReaderPosition,
    Recovered,
    RowChanges,
    Slot,
    SlotBatch,
    StoredEvent,
    StoredJob,
    StoredReminder,
    recovered,
)
from callboard.lease.errors import StateCorrupt

_number = attrgetter("number")


def _clock_ms() -> int:
    """Return the time of the machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class MemoryTables:
    """The content of a database, shared by the states of several writers."""

    def __init__(self, lock: locks.Lock | None = None) -> None:
        """Create empty tables with a new identity. If a lock is given, it must be reentrant."""
        self.id = uuid4().hex
        self.lock = lock or locks.lock("state in memory", 582, reentrant=True)
        self.fences: dict[Slot, Fence] = {}
        #: By type and key, in order of numbers.
        self.events: dict[tuple[str, str], list[StoredEvent]] = {}
        #: By type and key: the last two.
        self.snapshots: dict[tuple[str, str], list[EntitySnapshot]] = {}
        self.journals: dict[str, list[StoredEvent]] = {}
        #: By type: the last position; earlier events may have been deleted.
        self.positions: dict[str, int] = {}
        self.kinds: dict[str, set[tuple[str, int]]] = {}
        #: By type, key and name: the slot and the reminder.
        self.reminders: dict[tuple[str, str, str], tuple[int, StoredReminder]] = {}
        #: By type and key, by number.
        self.jobs: dict[tuple[str, str], dict[int, StoredJob]] = {}

        #: Readers of journals, by type and name.
        self.readers: dict[tuple[str, str], ReaderPosition] = {}

    def recover(self, type_name: str, key: str, version: int | None, limit: int) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events after it."""
        snapshots = self.snapshots.get((type_name, key), [])
        readable = [s for s in snapshots if version in (None, s.version)]
        snapshot = readable[-1] if readable else None
        after = snapshot.number if snapshot else 0
        events = self.read_past(type_name, key, after, limit + 1)
        return recovered(type_name, key, snapshot, events, limit, has_others=bool(snapshots))

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store the attempt count of reminders that were neither replaced nor forgotten."""
        for reminder in reminders:
            place = type_name, reminder.key, reminder.name
            slot, stored = self.reminders.get(place, (0, None))
            if stored is not None and stored.due_ms == reminder.due_ms:
                self.reminders[place] = slot, stored._replace(attempts=attempts)

    def start_reminders(self, type_name: str, key: str, name: str | None, now_ms: int) -> int:
        """Make parked reminders of an entity due now."""
        count = 0
        for place, (slot, stored) in list(self.reminders.items()):
            is_selected = place[:2] == (type_name, key) and name in (None, stored.name)
            if is_selected and stored.attempts >= PARKED_FROM:
                self.reminders[place] = slot, stored._replace(attempts=0, due_ms=now_ms)
                count += 1
        return count

    def read(self, type_name: str, key: str, after: int, limit: int) -> list[StoredEvent]:
        """Return the events of a key after a number."""
        events = self.events.get((type_name, key), [])
        start = bisect_right(events, after, key=_number)
        return events[start : start + limit]

    def read_past(self, type_name: str, key: str, after: int, limit: int) -> list[PastEvent]:
        """Return the replayed part of a key's events after a number."""
        events = self.read(type_name, key, after, limit)
        return [PastEvent(e.number, e.kind, e.version, e.body) for e in events]

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal in its next epoch."""
        last = self.readers.get((type_name, reader), ReaderPosition(0, 0))
        opened = self.readers[type_name, reader] = last._replace(epoch=last.epoch + 1)
        return opened

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store the position of a reader, unless it was opened again."""
        if self.readers.get((type_name, reader), ReaderPosition(0, 0)).epoch != epoch:
            return False
        self.readers[type_name, reader] = ReaderPosition(position, epoch)
        return True

    def write(self, batch: SlotBatch, now_ms: int) -> None:
        """Write the rows of a slot.

        Raises:
            StateCorrupt: the key already has an event of that number.
        """
        type_name = batch.slot[0]
        for event in batch.events:
            events = self.events.setdefault((type_name, event.key), [])
            if events and events[-1].number >= event.number:
                message = f"{type_name} {event.key!r} already has an event {event.number}"
                raise StateCorrupt(message)
            position = self.positions[type_name] = self.positions.get(type_name, 0) + 1
            stored = StoredEvent(
                position, event.key, event.number, now_ms, batch.epoch, *event[2:]
            )
            events.append(stored)
            self.journals.setdefault(type_name, []).append(stored)
            self.kinds.setdefault(type_name, set()).add((event.kind, event.version))
        for snapshot in batch.snapshots:
            recent = self.snapshots.setdefault((type_name, snapshot.key), [])
            recent[:] = [s for s in recent if s.number != snapshot.number][-1:] + [snapshot]
        for key, last in batch.forget.items():
            events = self.events.get((type_name, key), [])
            deleted = {e.position for e in events if e.number <= last}
            events[:] = [e for e in events if e.number > last]
            journal = self.journals.get(type_name, [])
            journal[:] = [e for e in journal if e.position not in deleted]
        if batch.rows is not None:
            self._change_rows(batch.slot, batch.rows, now_ms)

    def _change_rows(self, slot: Slot, rows: RowChanges, now_ms: int) -> None:
        """Write the changed reminders and jobs of a slot."""
        type_name, number = slot
        for (key, name), reminder in rows.reminders.items():
            if reminder is None:
                self.reminders.pop((type_name, key, name), None)
            else:
                self.reminders[type_name, key, name] = number, reminder._replace(attempts=0)
        for (key, job_number), change in rows.jobs.items():
            jobs = self.jobs.setdefault((type_name, key), {})
            if change is None:
                jobs.pop(job_number, None)
            elif isinstance(change, StoredJob):
                jobs[job_number] = change._replace(time_ms=now_ms)
            elif job_number in jobs:
                jobs[job_number] = jobs[job_number]._replace(state=change)


class MemoryState:
    """A state in memory for one writer; several writers may share the tables."""

    def __init__(
        self,
        writer: str,
        tables: MemoryTables | None = None,
        clock: Callable[[], int] = _clock_ms,
    ) -> None:
        """Create the state of a writer, with new tables by default."""
        self.writer = writer
        self.tables = tables or MemoryTables()
        self.clock = clock

    def identity(self) -> Identity:
        """Return the identity of this state."""
        return Identity(self.tables.id, "the memory of this process")

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots.

        Return the fences that are higher because of other claims.
        """
        with self.tables.lock:
            foreign, fences = {}, self.tables.fences
            for slot, epoch in sorted(slots.items()):
                fence, claimed = (
                    fences.get((type_name, slot), NO_FENCE),
                    Fence(epoch, self.writer),
                )
                if fence.epoch < epoch:
                    fences[type_name, slot] = claimed
                elif fence != claimed:
                    foreign[slot] = fence
            return foreign

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events after it."""
        with self.tables.lock:
            return self.tables.recover(type_name, key, version, limit)

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key after a number."""
        with self.tables.lock:
            return self.tables.read(type_name, key, after, limit)

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return the replayed part of a key's events after a number."""
        with self.tables.lock:
            return self.tables.read_past(type_name, key, after, limit)

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots; batches of fenced slots are left out."""
        tables, now_ms = self.tables, self.clock()
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        positions: dict[str, int] = {}
        with tables.lock:
            for batch in sorted(batches, key=attrgetter("slot")):
                fence = tables.fences.get(batch.slot, NO_FENCE)
                if fence != (batch.epoch, self.writer):
                    fenced[batch.slot] = fence
                    continue
                try:
                    tables.write(batch, now_ms)
                except StateCorrupt as error:
                    failed[batch.slot] = error
                if batch.events:
                    positions[batch.slot[0]] = tables.positions.get(batch.slot[0], 0)
        return Committed(fenced, failed, positions)

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots."""
        with self.tables.lock:
            return {slot: self.tables.fences.get(slot, NO_FENCE) for slot in slots}

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a type after a position."""
        with self.tables.lock:
            journal = self.tables.journals.get(type_name, [])
            start = bisect_right(journal, after, key=attrgetter("position"))
            return journal[start : start + limit]

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type."""
        return self.tables.positions.get(type_name, 0)

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal."""
        with self.tables.lock:
            return self.tables.open_reader(type_name, reader)

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store the position of a reader; return False if it was opened again."""
        with self.tables.lock:
            return self.tables.move_reader(type_name, reader, epoch, position)

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type has ever stored."""
        with self.tables.lock:
            return set(self.tables.kinds.get(type_name, ()))

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type, in order, after a key."""
        with self.tables.lock:
            tables = self.tables
            keys = {k for t, k in (*tables.events, *tables.snapshots) if t == type_name}
            return sorted(key for key in keys if key > after)[:limit]

    def types(self) -> Sequence[str]:
        """Return the names of the types with events or fences."""
        with self.tables.lock:
            return sorted({*self.tables.positions, *(t for t, _ in self.tables.fences)})

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time."""
        now_ms = self.clock()
        with self.tables.lock:
            due = [
                reminder
                for (name, _, _), (slot, reminder) in self.tables.reminders.items()
                if name == type_name
                and slot in slots
                and reminder.due_ms <= now_ms + within_ms
                and reminder.attempts < PARKED_FROM
            ]
        due.sort(key=lambda reminder: (reminder.due_ms, reminder.key, reminder.name))
        return DueReminders(now_ms, due[:limit])

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store the attempt count of reminders that were neither replaced nor forgotten."""
        with self.tables.lock:
            self.tables.set_attempts(type_name, reminders, attempts)

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the parked reminders of a type."""
        with self.tables.lock:
            rows = self.tables.reminders.items()
            reminders = [row for (t, _, _), (_, row) in rows if t == type_name]
        return sorted(row for row in reminders if row.attempts >= PARKED_FROM)[:limit]

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Make parked reminders of an entity due now."""
        now_ms = self.clock()
        with self.tables.lock:
            return self.tables.start_reminders(type_name, key, name, now_ms)

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return the number of a queue's jobs by status."""
        with self.tables.lock:
            jobs = self.tables.jobs.get((type_name, key), {})
            return Counter(job.state.status for job in jobs.values())

    def jobs(
        self,
        type_name: str,
        key: str,
        status: JobStatus,
        after: tuple[int, int] = (-1, 0),
        limit: int = PAGE,
    ) -> Sequence[StoredJob]:
        """Return jobs of a status after a pair (due_ms, number), in that order."""
        with self.tables.lock:
            jobs = self.tables.jobs.get((type_name, key), {})
            selected = [job for job in jobs.values() if job.state.status == status]
        selected.sort(key=_place)
        return [job for job in selected if _place(job) > after][:limit]

    def close(self) -> None:
        """Do nothing: memory needs no release."""


def _place(job: StoredJob) -> tuple[int, int]:
    """Return the sort key of a job."""
    return job.state.due_ms, job.number
