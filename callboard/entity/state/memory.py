"""A state in the memory of this process."""

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
    """What a database holds; the states of several writers share it."""

    def __init__(self, lock: locks.Lock | None = None) -> None:
        """Make empty tables of a new identity; a lock that is given has to be reentrant."""
        self.id = uuid4().hex
        self.lock = lock or locks.lock("state in memory", 582, reentrant=True)
        self.fences: dict[Slot, Fence] = {}
        #: By type and key, in order of numbers.
        self.events: dict[tuple[str, str], list[StoredEvent]] = {}
        #: By type and key: the last two.
        self.snapshots: dict[tuple[str, str], list[EntitySnapshot]] = {}
        self.journals: dict[str, list[StoredEvent]] = {}
        #: By type, the last position: events before may be forgotten.
        self.positions: dict[str, int] = {}
        self.kinds: dict[str, set[tuple[str, int]]] = {}
        #: By type, key and name; with the slot.
        self.reminders: dict[tuple[str, str, str], tuple[int, StoredReminder]] = {}
        #: By type and key, by number.
        self.jobs: dict[tuple[str, str], dict[int, StoredJob]] = {}

        #: Readers of journals, by type and name.
        self.readers: dict[tuple[str, str], ReaderPosition] = {}

    def recover(self, type_name: str, key: str, version: int | None, limit: int) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events behind it."""
        found = self.snapshots.get((type_name, key), [])
        fitting = [each for each in found if version in (None, each.version)]
        snapshot = fitting[-1] if fitting else None
        after = snapshot.number if snapshot else 0
        events = self.read_past(type_name, key, after, limit + 1)
        return recovered(type_name, key, snapshot, events, limit, has_others=bool(found))

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store an attempt count of reminders, where these still stand."""
        for each in reminders:
            place = type_name, each.key, each.name
            slot, found = self.reminders.get(place, (0, None))
            if found is not None and found.due_ms == each.due_ms:
                self.reminders[place] = slot, found._replace(attempts=attempts)

    def start_reminders(self, type_name: str, key: str, name: str | None, now_ms: int) -> int:
        """Let parked reminders of an entity be due now."""
        count = 0
        for place, (slot, found) in list(self.reminders.items()):
            is_meant = place[:2] == (type_name, key) and name in (None, found.name)
            if is_meant and found.attempts >= PARKED_FROM:
                self.reminders[place] = slot, found._replace(attempts=0, due_ms=now_ms)
                count += 1
        return count

    def read(self, type_name: str, key: str, after: int, limit: int) -> list[StoredEvent]:
        """Return the events of a key behind a number."""
        events = self.events.get((type_name, key), [])
        start = bisect_right(events, after, key=_number)
        return events[start : start + limit]

    def read_past(self, type_name: str, key: str, after: int, limit: int) -> list[PastEvent]:
        """Return what is applied of the events of a key behind a number."""
        found = self.read(type_name, key, after, limit)
        return [PastEvent(each.number, each.kind, each.version, each.body) for each in found]

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Give a reader of a journal its next epoch."""
        before = self.readers.get((type_name, reader), ReaderPosition(0, 0))
        opened = self.readers[type_name, reader] = before._replace(epoch=before.epoch + 1)
        return opened

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store how far a reader is, unless it was opened again."""
        if self.readers.get((type_name, reader), ReaderPosition(0, 0)).epoch != epoch:
            return False
        self.readers[type_name, reader] = ReaderPosition(position, epoch)
        return True

    def write(self, batch: SlotBatch, now_ms: int) -> None:
        """Write the rows of a slot.

        Raises:
            StateCorrupt: a key has an event of that number.
        """
        type_name = batch.slot[0]
        for event in batch.events:
            events = self.events.setdefault((type_name, event.key), [])
            if events and events[-1].number >= event.number:
                message = f"{type_name} {event.key!r} has an event {event.number} already"
                raise StateCorrupt(message)
            position = self.positions[type_name] = self.positions.get(type_name, 0) + 1
            stored = StoredEvent(
                position, event.key, event.number, now_ms, batch.epoch, *event[2:]
            )
            events.append(stored)
            self.journals.setdefault(type_name, []).append(stored)
            self.kinds.setdefault(type_name, set()).add((event.kind, event.version))
        for snapshot in batch.snapshots:
            kept = self.snapshots.setdefault((type_name, snapshot.key), [])
            kept[:] = [s for s in kept if s.number != snapshot.number][-1:] + [snapshot]
        for key, last in batch.forget.items():
            events = self.events.get((type_name, key), [])
            gone = {e.position for e in events if e.number <= last}
            events[:] = [e for e in events if e.number > last]
            journal = self.journals.get(type_name, [])
            journal[:] = [e for e in journal if e.position not in gone]
        if batch.rows is not None:
            self._change_rows(batch.slot, batch.rows, now_ms)

    def _change_rows(self, slot: Slot, rows: RowChanges, now_ms: int) -> None:
        """Write reminders and jobs of a slot."""
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
    """A state in memory; one for each writer, several share the same tables."""

    def __init__(
        self,
        writer: str,
        tables: MemoryTables | None = None,
        clock: Callable[[], int] = _clock_ms,
    ) -> None:
        """Make the state of a writer, with tables of its own unless some are given."""
        self.writer = writer
        self.tables = tables or MemoryTables()
        self.clock = clock

    def identity(self) -> Identity:
        """Return which state this is."""
        return Identity(self.tables.id, "the memory of this process")

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots; returns those that another claim holds."""
        with self.tables.lock:
            held, fences = {}, self.tables.fences
            for slot, epoch in sorted(slots.items()):
                fence, claimed = (
                    fences.get((type_name, slot), NO_FENCE),
                    Fence(epoch, self.writer),
                )
                if fence.epoch < epoch:
                    fences[type_name, slot] = claimed
                elif fence != claimed:
                    held[slot] = fence
            return held

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events behind it."""
        with self.tables.lock:
            return self.tables.recover(type_name, key, version, limit)

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key behind a number."""
        with self.tables.lock:
            return self.tables.read(type_name, key, after, limit)

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return what is applied of the events of a key behind a number."""
        with self.tables.lock:
            return self.tables.read_past(type_name, key, after, limit)

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots; those of fenced slots are left out."""
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
        """Return the events of a type behind a position."""
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
        """Store how far a reader is; returns False if it was opened again."""
        with self.tables.lock:
            return self.tables.move_reader(type_name, reader, epoch, position)

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type ever had."""
        with self.tables.lock:
            return set(self.tables.kinds.get(type_name, ()))

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type, in order, behind one."""
        with self.tables.lock:
            tables = self.tables
            found = {k for t, k in (*tables.events, *tables.snapshots) if t == type_name}
            return sorted(key for key in found if key > after)[:limit]

    def types(self) -> Sequence[str]:
        """Return the names of the types that have events or fences."""
        with self.tables.lock:
            return sorted({*self.tables.positions, *(t for t, _ in self.tables.fences)})

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time."""
        now_ms = self.clock()
        with self.tables.lock:
            found = [
                reminder
                for (name, _, _), (slot, reminder) in self.tables.reminders.items()
                if name == type_name
                and slot in slots
                and reminder.due_ms <= now_ms + within_ms
                and reminder.attempts < PARKED_FROM
            ]
        found.sort(key=lambda each: (each.due_ms, each.key, each.name))
        return DueReminders(now_ms, found[:limit])

    def reminders_of(self, type_name: str, key: str) -> Sequence[StoredReminder]:
        """Return the reminders of an entity."""
        with self.tables.lock:
            found = self.tables.reminders.items()
            return sorted(each for (t, k, _), (_, each) in found if (t, k) == (type_name, key))

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store an attempt count of reminders, where these still stand."""
        with self.tables.lock:
            self.tables.set_attempts(type_name, reminders, attempts)

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the reminders of a type that are parked."""
        with self.tables.lock:
            found = [
                each for (t, _, _), (_, each) in self.tables.reminders.items() if t == type_name
            ]
        return sorted(each for each in found if each.attempts >= PARKED_FROM)[:limit]

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Let parked reminders of an entity be due now."""
        now_ms = self.clock()
        with self.tables.lock:
            return self.tables.start_reminders(type_name, key, name, now_ms)

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return how many jobs of a queue there are of each status."""
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
        """Return jobs of a status in the order of (due_ms, number), behind such a pair."""
        with self.tables.lock:
            jobs = self.tables.jobs.get((type_name, key), {})
            found = [job for job in jobs.values() if job.state.status == status]
        found.sort(key=_place)
        return [job for job in found if _place(job) > after][:limit]

    def close(self) -> None:
        """Do nothing: memory needs no release."""


def _place(job: StoredJob) -> tuple[int, int]:
    """Return what jobs are ordered by."""
    return job.state.due_ms, job.number
