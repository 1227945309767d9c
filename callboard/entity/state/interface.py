"""What a state of entities does: events, snapshots, fences and positions in one database.

A slot of a type belongs to one owner at a time, and the state holds a **fence** for each: the
epoch and the writer of its last claim. A commit checks the fences of its slots inside its
transaction; a claim raises the fence before anything is read. So whoever is second sees what
the first one did, however late it comes.

Slots, keys and numbers of events are the caller's; positions in the journal are the state's:
they rise in the order of commits, for each type by itself, without gaps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass

#: A slot: the name of the type, and the slot's number.
Slot = tuple[str, int]

#: How many events `recover`, `events` and `journal` return at once, if nothing else is said.
PAGE: int = 10_000


class NewEvent(NamedTuple):
    """An event to be stored."""

    key: str
    #: Of the key: 1, 2, 3 … without gaps.
    number: int
    #: The name under which the event's class is registered.
    kind: str
    #: The version of that class.
    version: int
    #: The event as JSON.
    body: str


class StoredEvent(NamedTuple):
    """An event that was committed."""

    #: In the journal of its type: 1, 2, 3 … in the order of commits.
    position: int
    key: str
    number: int
    #: When it was committed, in milliseconds since 1970, by the database's clock.
    time_ms: int
    #: The epoch of the slot's owner.
    epoch: int
    kind: str
    version: int
    body: str


class PastEvent(NamedTuple):
    """What an entity needs of a stored event to be made again; a replay reads a million."""

    number: int
    kind: str
    version: int
    body: str


class EntitySnapshot(NamedTuple):
    """The state of an entity after an event."""

    key: str
    #: The number of the last event that it holds; 0 is none.
    number: int
    #: The version of the entity's class.
    version: int
    #: The state as JSON.
    body: str


class Recovered(NamedTuple):
    """What an entity is made of when it is activated."""

    snapshot: EntitySnapshot | None
    #: The events behind the snapshot, at most a page of them.
    events: Sequence[PastEvent]
    #: Whether there are more: go on with `past_events` behind the last number.
    has_more: bool


class StoredReminder(NamedTuple):
    """A message that an entity gets at its time; the last of a name stands."""

    key: str
    name: str
    #: When, in milliseconds since 1970 by the database's clock.
    due_ms: int
    #: Milliseconds until it is due again; 0 for once.
    every_ms: int
    #: The message as JSON.
    body: str
    #: How often it was about to be delivered by a process that may have ended by that.
    attempts: int = 0


#: Attempts after which a reminder is parked: no host delivers it until it is started again. One
#: delivery comes before the first that is counted.
PARKED_FROM: Final = 3


class DueReminders(NamedTuple):
    """The reminders of some slots that are due soon."""

    #: The database's clock.
    now_ms: int
    #: In the order in which they are due.
    reminders: Sequence[StoredReminder]


class JobStatus(IntEnum):
    """What may become of a job next; the numbers stand in the database."""

    #: It is handed to the next taker.
    READY = 0
    #: It is ready at its time.
    DELAYED = 1
    #: It was handed to a taker.
    TAKEN = 2
    #: It failed too often, and waits for people.
    DEAD = 3


class JobState(NamedTuple):
    """What changes of a job."""

    status: JobStatus = JobStatus.READY
    #: When it is ready, by the database's clock; 0 unless it is delayed.
    due_ms: int = 0
    #: How often it was taken.
    attempt: int = 0
    #: Names the taking, if it is taken.
    taker: str = ""
    #: Milliseconds that the taker has.
    visible_ms: int = 0
    #: Why it was given back or is dead.
    reason: str = ""


class StoredJob(NamedTuple):
    """A job of a queue, the entity of a key."""

    key: str
    #: Rises in the order in which the jobs were put; never used twice.
    number: int
    state: JobState
    #: When it was put, by the database's clock; 0 for one that is to be stored.
    time_ms: int
    #: The value as JSON.
    body: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows of reminders and jobs that a slot changes; None deletes."""

    #: By key and name.
    reminders: dict[tuple[str, str], StoredReminder | None] = field(default_factory=dict)
    #: By key and number: a new job, or what changes of one.
    jobs: dict[tuple[str, int], StoredJob | JobState | None] = field(default_factory=dict)

    def change_job(self, key: str, number: int, change: StoredJob | JobState | None) -> None:
        """Add a change of a job; of one that is not stored yet, nothing else is left."""
        before = self.jobs.get((key, number))
        if isinstance(before, StoredJob) and not isinstance(change, StoredJob):
            if change is None:
                del self.jobs[key, number]
                return
            change = before._replace(state=change)
        self.jobs[key, number] = change

    def include(self, later: "RowChanges") -> None:
        """Add changes that come after these."""
        self.reminders.update(later.reminders)
        for (key, number), change in later.jobs.items():
            self.change_job(key, number, change)


class Fence(NamedTuple):
    """The last claim of a slot; epoch 0 and no writer where there was none."""

    epoch: int
    writer: str


NO_FENCE = Fence(0, "")


class ReaderPosition(NamedTuple):
    """How far a reader of a journal is, and the epoch of its last opening."""

    position: int
    epoch: int


class Identity(NamedTuple):
    """Which state this is."""

    #: Random, made with the tables: two states never have the same.
    id: str
    #: Where it is, for people: a file and its machine, or a database and its server.
    place: str
    #: The boot id of the machine that alone may use it; none where any machine may.
    boot_id: str = ""


class SlotBatch(NamedTuple):
    """What one slot of a type has to commit."""

    slot: Slot
    #: That of the writer's claim.
    epoch: int
    events: Sequence[NewEvent] = ()
    #: At most one for each key; the last two of a key are kept.
    snapshots: Sequence[EntitySnapshot] = ()
    #: Events to forget: by key, the last number that goes.
    forget: Mapping[str, int] = MappingProxyType({})
    #: Reminders and jobs; None where there are none.
    rows: RowChanges | None = None


class Committed(NamedTuple):
    """What became of a commit."""

    #: Slots of which nothing was written, and the fence that each has; all others are durable.
    fenced: Mapping[Slot, Fence]
    #: Slots whose rows the database refused, alone too, each with the error.
    failed: Mapping[Slot, Exception]
    #: By type, the position of the last event of this commit.
    positions: Mapping[str, int]


class EntityState(Protocol):
    """A state. Every call blocks, may be made on any thread, and ends within seconds.

    All of them raise `StateUnavailable` when nothing happened, `StateCorrupt` for what cannot
    be right, and `DatabaseReplaced` when another server answers.
    """

    def identity(self) -> Identity:
        """Return which state this is."""

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots to these epochs, all in one transaction.

        A fence is raised where its epoch was lower; claiming again what this writer claimed
        changes nothing. Commits under way end before; later ones of others are fenced.

        Returns:
            The slots that another claim holds, with their fences: these were not raised.
        """

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events behind it.

        Raises:
            StateCorrupt: a number is missing, or events before the first one were forgotten
                and no snapshot of that version is there.
        """

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key behind a number."""

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return what is applied of the events of a key behind a number."""

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction; each slot at most once.

        The batches of slots that others claimed are left out and reported; where the
        database refuses a group, each slot is tried once by itself. An answer that is lost
        is settled before this returns.

        Raises:
            OutcomeUnknown: it could not be settled: perhaps it is committed.
        """

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots, as of some moment after the call."""

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of all keys of a type behind a position, in order of commits."""

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type, 0 where there is none."""

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal: its next epoch, so that older openings store no more."""

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store how far a reader is; returns False if it was opened again."""

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type ever had."""

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type that have events or snapshots, in order, behind one."""

    def types(self) -> Sequence[str]:
        """Return the names of the types that have events or fences."""

    def clock(self) -> int:
        """Return the database's clock, in milliseconds since 1970."""

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time and not parked."""

    def reminders_of(self, type_name: str, key: str) -> Sequence[StoredReminder]:
        """Return the reminders of an entity, in order of their names."""

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store an attempt count of reminders, where they were neither set anew nor forgotten.

        It is durable when this returns.
        """

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the reminders of a type that are parked, in the order of their keys."""

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Let parked reminders of an entity be due now: of a name, or all; returns how many."""

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return how many jobs of a queue there are of each status."""

    def jobs(
        self,
        type_name: str,
        key: str,
        status: JobStatus,
        after: tuple[int, int] = (-1, 0),
        limit: int = PAGE,
    ) -> Sequence[StoredJob]:
        """Return jobs of a status in the order of (due_ms, number), behind such a pair."""

    def close(self) -> None:
        """Release what it holds; calls under way may fail."""


def recovered(
    type_name: str,
    key: str,
    snapshot: EntitySnapshot | None,
    events: Sequence[PastEvent],
    limit: int,
    *,
    has_others: bool,
) -> Recovered:
    """Return what was read of an entity, if nothing is missing.

    Args:
        type_name: of the entity.
        key: of the entity.
        snapshot: the newest that the class can read.
        events: those behind it, one more than `limit` where there are more.
        limit: how many a page has.
        has_others: whether there are snapshots, also of other versions.

    Raises:
        StateVersion: all snapshots are of other versions, and there are no events.
        StateCorrupt: the numbers of the events have a gap.
    """
    check_numbers(type_name, key, events, snapshot.number if snapshot else 0)
    if snapshot is None and has_others and not events:
        message = (
            f"{type_name} {key!r} has snapshots of other versions of the class only, and no"
            " events to make it from; give the class the `version` that it had"
        )
        raise StateVersion(message)
    return Recovered(snapshot, events[:limit], len(events) > limit)


def check_numbers(type_name: str, key: str, events: Sequence[PastEvent], after: int) -> None:
    """Refuse the events of a key behind a number if one is missing.

    Raises:
        StateCorrupt: the numbers have a gap.
    """
    for number, event in enumerate(events, after + 1):
        if event.number != number:
            message = (
                f"{type_name} {key!r} has event {event.number} where {number} has to be:"
                " rows were deleted, or events were forgotten and the class reads no snapshot"
            )
            raise StateCorrupt(message)
