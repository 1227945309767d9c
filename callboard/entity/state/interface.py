"""Interface of an entity state: events, snapshots, fences and positions in one database.

A slot of a type belongs to one owner at a time. The state holds a **fence** for each slot: the
epoch and the writer of its last claim. A commit checks the fences of its slots inside its
transaction; a claim raises the fence before it reads anything. So the later of two owners reads
everything that the earlier one has committed, and after that the earlier one can commit
nothing.

Callers choose slots, keys and numbers of events. The state assigns positions in the journal:
for each type they rise in the order of commits, without gaps.
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

#: Default number of events that `recover`, `events` and `journal` return together.
PAGE: int = 10_000


class NewEvent(NamedTuple):
    """An event to store."""

    key: str
    #: Counts the events of the key: 1, 2, 3 … without gaps.
    number: int
    #: The registered name of the event's class.
    kind: str
    #: The version of that class.
    version: int
    #: The event as JSON.
    body: str


class StoredEvent(NamedTuple):
    """A committed event."""

    #: Position in the journal of its type: 1, 2, 3 … in the order of commits.
    position: int
    key: str
    number: int
    #: Time of the commit, in milliseconds since 1970, by the database's clock.
    time_ms: int
    #: The epoch of the slot's owner.
    epoch: int
    kind: str
    version: int
    body: str


class PastEvent(NamedTuple):
    """The part of a stored event that a replay needs; a replay may read a million."""

    number: int
    kind: str
    version: int
    body: str


class EntitySnapshot(NamedTuple):
    """The state of an entity after an event."""

    key: str
    #: The number of the last event in it; 0 for none.
    number: int
    #: The version of the entity's class.
    version: int
    #: The state as JSON.
    body: str


class Recovered(NamedTuple):
    """The stored content of an entity, read for an activation."""

    snapshot: EntitySnapshot | None
    #: The events after the snapshot, at most one page.
    events: Sequence[PastEvent]
    #: Whether there are more events; `past_events` returns them.
    has_more: bool


class StoredReminder(NamedTuple):
    """A message that an entity receives at a time; a later one of the same name replaces it."""

    key: str
    name: str
    #: Due time in milliseconds since 1970, by the database's clock.
    due_ms: int
    #: Milliseconds between repetitions; 0 for none.
    every_ms: int
    #: The message as JSON.
    body: str
    #: Number of deliveries that may have crashed their process.
    attempts: int = 0


#: Attempts after which a reminder is parked: no host delivers it until it is started by hand.
#: The first delivery is not counted.
PARKED_FROM: Final = 3


class DueReminders(NamedTuple):
    """The reminders of some slots that are due within a time."""

    #: The database's clock.
    now_ms: int
    #: Ordered by due time.
    reminders: Sequence[StoredReminder]


class JobStatus(IntEnum):
    """The status of a job; the numbers are stored in the database."""

    #: For the next taker.
    READY = 0
    #: Becomes ready at its due time.
    DELAYED = 1
    #: A taker has it.
    TAKEN = 2
    #: After too many attempts; waits for people.
    DEAD = 3


class JobState(NamedTuple):
    """The changeable part of a job."""

    status: JobStatus = JobStatus.READY
    #: When it becomes ready, by the database's clock; 0 unless it is delayed.
    due_ms: int = 0
    #: Number of times that it was taken.
    attempt: int = 0
    #: Token of its assignment, while it is taken.
    taker: str = ""
    #: Milliseconds that it is reserved for its taker.
    visible_ms: int = 0
    #: The reason of its last return.
    reason: str = ""


class StoredJob(NamedTuple):
    """A job of a queue, the entity of a key."""

    key: str
    #: Rises in the order in which the jobs were put; never used again.
    number: int
    state: JobState
    #: When it was put, by the database's clock; 0 before it is stored.
    time_ms: int
    #: The value as JSON.
    body: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows of reminders and jobs that a slot changes; None deletes a row."""

    #: By key and name.
    reminders: dict[tuple[str, str], StoredReminder | None] = field(default_factory=dict)
    #: By key and number: a new job, or the new state of one.
    jobs: dict[tuple[str, int], StoredJob | JobState | None] = field(default_factory=dict)

    def change_job(self, key: str, number: int, change: StoredJob | JobState | None) -> None:
        """Add a change of a job, merged with an earlier change in this object."""
        pending = self.jobs.get((key, number))
        if isinstance(pending, StoredJob) and not isinstance(change, StoredJob):
            if change is None:
                del self.jobs[key, number]
                return
            change = pending._replace(state=change)
        self.jobs[key, number] = change

    def include(self, later: "RowChanges") -> None:
        """Add later changes to these."""
        self.reminders.update(later.reminders)
        for (key, number), change in later.jobs.items():
            self.change_job(key, number, change)


class Fence(NamedTuple):
    """The last claim of a slot; epoch 0 and no writer if there was none."""

    epoch: int
    writer: str


NO_FENCE = Fence(0, "")


class ReaderPosition(NamedTuple):
    """The position of a journal reader, and the epoch of its last opening."""

    position: int
    epoch: int


class Identity(NamedTuple):
    """Identifies a state."""

    #: Random, made with the tables; two states never have the same.
    id: str
    #: Its place, for people: a file and its machine, or a database and its server.
    place: str
    #: The boot id of the only machine that may use it; empty if any machine may.
    boot_id: str = ""


class SlotBatch(NamedTuple):
    """The rows that one slot of a type commits."""

    slot: Slot
    #: The epoch of the writer's claim.
    epoch: int
    events: Sequence[NewEvent] = ()
    #: At most one for each key; the state keeps the last two of a key.
    snapshots: Sequence[EntitySnapshot] = ()
    #: Events to delete: by key, the number of the last one.
    forget: Mapping[str, int] = MappingProxyType({})
    #: Changes of reminders and jobs; None if there are none.
    rows: RowChanges | None = None


class Committed(NamedTuple):
    """The outcome of a commit."""

    #: Slots claimed by others, with their fences: nothing was written. All others are durable.
    fenced: Mapping[Slot, Fence]
    #: Slots whose rows the database refused even in a transaction of their own, with the
    #: errors.
    failed: Mapping[Slot, Exception]
    #: By type, the position of the last event of this commit.
    positions: Mapping[str, int]


class EntityState(Protocol):
    """A state. Every call blocks, is allowed on any thread, and ends within seconds.

    Each call may raise `StateUnavailable` if nothing happened, `StateCorrupt` for invalid data,
    and `DatabaseReplaced` if another server answers.
    """

    def identity(self) -> Identity:
        """Return the identity of this state."""

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots to these epochs, in one transaction.

        A fence is raised if its epoch is lower; repeating a claim of this writer changes
        nothing. Commits in flight end before the claim; later commits of other writers are
        fenced.

        Returns:
            The slots that another claim holds, with their fences; these were not raised.
        """

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot and the events after it.

        Raises:
            StateCorrupt: the number of an event is missing, or early events were deleted and
                there is no snapshot of that version.
        """

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key after a number."""

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return the replayed part of a key's events after a number."""

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction.

        Each slot has at most one batch.

        Batches of slots that another writer has claimed are left out and reported. If the
        database refuses the transaction, each slot is tried once in a separate one. If the
        answer of the database is lost, this method queries the outcome before it returns.

        Raises:
            OutcomeUnknown: the state could not find out whether the transaction was committed.
        """

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots, as they are at some moment during the call."""

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a type after a position, in the order of commits."""

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type; 0 if there is none."""

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal in a new epoch, which ends its older openings."""

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store the position of a reader; return False if it was opened again."""

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type has ever stored."""

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type with events or snapshots, in order, after a key."""

    def types(self) -> Sequence[str]:
        """Return the names of the types with events or fences."""

    def clock(self) -> int:
        """Return the database's clock, in milliseconds since 1970."""

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time and not parked."""

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store the attempt count of reminders that were neither replaced nor forgotten.

        It is durable when this returns.
        """

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the parked reminders of a type, ordered by key."""

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Make parked reminders of an entity due now, of one name or all; returns how many."""

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return the number of a queue's jobs by status."""

    def jobs(
        self,
        type_name: str,
        key: str,
        status: JobStatus,
        after: tuple[int, int] = (-1, 0),
        limit: int = PAGE,
    ) -> Sequence[StoredJob]:
        """Return jobs of a status in the order of (due_ms, number), after such a pair."""

    def close(self) -> None:
        """Release its connections; calls in progress may fail."""


def recovered(
    type_name: str,
    key: str,
    snapshot: EntitySnapshot | None,
    events: Sequence[PastEvent],
    limit: int,
    *,
    has_others: bool,
) -> Recovered:
    """Return the stored content of an entity after a check that no event is missing.

    Args:
        type_name: the type name of the entity.
        key: the key of the entity.
        snapshot: the newest one that the class can read.
        events: the events after it; one more than `limit` if there are more.
        limit: events in one page.
        has_others: whether there are snapshots of any version.

    Raises:
        StateVersion: all snapshots are of other versions, and there are no events.
        StateCorrupt: a number is missing.
    """
    check_numbers(type_name, key, events, snapshot.number if snapshot else 0)
    if snapshot is None and has_others and not events:
        message = (
            f"{type_name} {key!r} has only snapshots of other versions of the class, and no"
            " events to replay; give the class its former `version`"
        )
        raise StateVersion(message)
    return Recovered(snapshot, events[:limit], len(events) > limit)


def check_numbers(type_name: str, key: str, events: Sequence[PastEvent], after: int) -> None:
    """Check that no event of a key is missing after a number.

    Raises:
        StateCorrupt: a number is missing.
    """
    for number, event in enumerate(events, after + 1):
        if event.number != number:
            message = (
                f"{type_name} {key!r} has event {event.number} where event {number} should be:"
                " rows were deleted, or events were forgotten and no snapshot is readable"
            )
            raise StateCorrupt(message)
