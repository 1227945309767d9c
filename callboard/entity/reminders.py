"""Reminders of one type's entities on one node: timing and delivery.

A reminder is a row. It is written in the transaction of the handler that sets it, and deleted
in the transaction of the handler that it is delivered to. Its due time is by the database's
clock, so it does not depend on the node of its entity. A host **arms** the rows of its slots
that are due within `WINDOW_MS`: it reads them into memory when it gains slots, and every
`SCAN_SECONDS`. When the commit of a handler on this host succeeds, the host also applies the
handler's changes of reminders. So the armed reminders always agree with the stored ones.

Each scan reads the database's clock. Between scans the node's own clock continues it.

A due reminder is posted to its entity as a `ReminderTicket`. The ticket is notified when the
handler has returned and its commit has succeeded. If not, the reminder is delivered again,
after a pause that grows. The entity checks the ticket again before it handles the reminder: a
reminder that was forgotten or replaced while it waited in the mailbox is not handled.

A handler may crash its process, then the process of the next host, and so on. A reminder that
was already due when its slot moved here is a **suspect**: it may have crashed the former
owner. Before a suspect is delivered, the attempt is counted durably in its row. A suspect with
an earlier attempt is delivered only while no other suspect is being handled. So if the process
crashes again, only the count of the reminder that caused the crash rises. A reminder with
`PARKED_FROM` attempts is **parked**: no host delivers it until a person starts it again. A
handler that raises has not crashed the process, so it resets the count.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

from callboard.backoff import Backoff
from callboard.entity.entity import EntityType
from callboard.entity.machine.table import slot_of
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import (
    PARKED_FROM,
    DueReminders,
    EntityState,
    StoredReminder,
)
from callboard.kernel.context import NodeContext
from callboard.support.dataclass import dataclass

#: Milliseconds ahead for which reminders are armed, and seconds between scans.
WINDOW_MS: Final = 60_000
SCAN_SECONDS: Final = 30.0

#: Seconds until a failed read is repeated.
SCAN_RETRY_SECONDS: Final = 0.5

#: Armed reminders of one type on one node; later ones are read after these were handled.
ARMED_LIMIT: Final = 10_000

#: Seconds until a reminder whose handler failed is delivered again: at first, and at most.
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 60.0

#: Seconds until a delivery is repeated that arrived while the entity ended or its slot moved.
_BUSY_SECONDS: Final = 0.05

#: Seconds after which the next suspect is delivered even if the handler of the last one runs.
ALONE_SECONDS: Final = 10.0

#: Parked reminders of one type that are read for the log.
_PARKED_LOGGED: Final = 100

#: The key of an entity, and the name of its reminder.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ParkedReminder:
    """A reminder that no host delivers, because its handler has crashed processes.

    Attributes:
        key: the key of the entity.
        name: the name of the reminder.
        due: when it was due, in UTC.
        message: the message to the entity; an `UnreadableValue` if this program cannot read it.
    """

    key: str
    name: str
    due: datetime
    message: Any


class RemindedHost(Protocol):
    """The part of an entity host that its reminders use."""

    runtime: NodeContext
    type: EntityType
    state: StateClient | None
    #: Guards the fields that handlers on other threads use too.
    lock: Any
    #: Epochs of the slots that this node owns.
    epochs: dict[int, int]
    is_closed: bool

    def post_reminder(self, ticket: "ReminderTicket", /) -> bool:
        """Post a reminder to its entity; return False if the entity accepts none now."""


@dataclass(slots=True, eq=False)
class _Armed:
    """A reminder that is due within the window."""

    row: StoredReminder
    #: When to deliver it next, in milliseconds of the database's clock.
    at_ms: float
    #: The pauses after failures; None before the first one.
    backoff: Backoff | None = None
    #: Whether it was delivered and its outcome is not known yet.
    is_out: bool = False
    #: Whether its attempts are counted because it may crash the process.
    is_suspect: bool = False


class RemindedCell(Protocol):
    """The cell of an entity that handles a reminder."""

    def finish_reminder(self, ticket: "ReminderTicket", /) -> None:
        """Delete or advance a handled reminder with the unit of work."""


class ReminderTicket:
    """The message of a due reminder, and the call that its `DeferredReply` replies to."""

    __slots__ = ("_armed", "_reminders")

    def __init__(self, reminders: "Reminders", armed: _Armed) -> None:
        self._reminders, self._armed = reminders, armed

    @property
    def row(self) -> StoredReminder:
        """The stored reminder."""
        return self._armed.row

    @property
    def is_current(self) -> bool:
        """Whether the reminder was neither forgotten nor replaced."""
        return self._reminders.is_armed(self._armed)

    def following(self) -> StoredReminder | None:
        """Return the row to store after the handler; None deletes the reminder."""
        return self._reminders.following(self.row)

    def finish(self, cell: RemindedCell) -> None:
        """Delete or advance the reminder with the unit of work of its handler."""
        cell.finish_reminder(self)

    def failed(self, error: BaseException) -> bool:
        """Deliver the reminder again later; return True."""
        self._reminders.failed(self._armed, error)
        return True


class Reminders:
    """The reminders of one host."""

    def __init__(self, host: RemindedHost) -> None:
        """Start with no armed reminder."""
        self._host = host
        self._armed: dict[Place, _Armed] = {}
        #: (time, number, reminder); the number orders equal times.
        self._heap: list[tuple[float, int, _Armed]] = []
        self._number = 0
        #: Database clock minus node clock, in milliseconds.
        self._offset_ms: float | None = None
        #: Every stored reminder that is due before this time is armed.
        self._horizon_ms = 0.0
        #: Whether more reminders are due within the window than `ARMED_LIMIT`.
        self._is_cut_short = False
        self._timer_at = math.inf
        self._is_scanning = self._scans_again = False
        #: Reminders that handlers changed while a scan was reading rows.
        self._changed: set[Place] = set()
        #: When the last scan started.
        self._scanned_at = -math.inf
        #: By slot: when this node gained it, by the database's clock.
        self._served_ms: dict[int, float] = {}
        #: Suspects whose attempt is not counted yet, and the suspect that is being delivered
        #: alone.
        self._suspects: deque[_Armed] = deque()
        self._alone: _Armed | None = None
        self._alone_since = -math.inf
        self._is_counting = False
        #: Slots gained since the last check for parked reminders.
        self._gained: set[int] = set()

    # --- the clock ---

    def set_clock(self, now_ms: int) -> None:
        """Set the database's clock, as just read."""
        self._offset_ms = now_ms - self._host.runtime.now() * 1000

    def now_ms(self) -> float:
        """Return the database's clock, estimated since the last scan."""
        assert self._offset_ms is not None, "it was read before any slot was served"
        return self._host.runtime.now() * 1000 + self._offset_ms

    def due_ms(self, seconds: float) -> int:
        """Return the due time of a reminder that is due in some seconds."""
        return math.ceil(self.now_ms() + seconds * 1000)

    # --- armed reminders ---

    def served(self, slots: Collection[int]) -> None:
        """Arm the reminders of gained slots. The caller must hold the host's lock."""
        if not slots:
            return
        fresh = set(slots)
        for place in [p for p in self._armed if slot_of(p[0]) in fresh]:
            del self._armed[place]
        self._served_ms.update(dict.fromkeys(fresh, self.now_ms()))
        self._gained |= fresh
        self._scan()

    def committed(self, changes: Mapping[Place, StoredReminder | None]) -> None:
        """Apply the reminders that a commit wrote. The caller must hold the host's lock."""
        horizon = self._horizon_ms
        # The scan will skip these rows, so arm all that are due within its window.
        if self._is_scanning:
            horizon = max(horizon, self.now_ms() + WINDOW_MS)
        is_urgent = False
        for place, row in changes.items():
            if self._is_scanning:
                self._changed.add(place)
            armed = self._armed.pop(place, None)
            if armed is not None and armed is self._alone:
                self._alone = None
            if row is None or row.due_ms > horizon:
                continue
            if len(self._armed) < ARMED_LIMIT:
                self._arm(place, row)
            else:
                self._horizon_ms = min(self._horizon_ms, row.due_ms - 1)
                self._is_cut_short = True
                # Reminders that are due later may fill the limit; the next scan drops them.
                is_urgent = is_urgent or row.due_ms < self.now_ms() + 1000 * SCAN_SECONDS
        if is_urgent:
            self._scan()
        self._set_timer()
        self._count_suspects()

    def is_armed(self, armed: _Armed) -> bool:
        """Return whether a reminder is still the armed one of its name."""
        row = armed.row
        return self._armed.get((row.key, row.name)) is armed

    def following(self, row: StoredReminder) -> StoredReminder | None:
        """Return the next occurrence of a handled reminder; None if it does not repeat."""
        if not row.every_ms:
            return None
        missed = max(0, int(self.now_ms() - row.due_ms) // row.every_ms)
        return row._replace(due_ms=row.due_ms + (missed + 1) * row.every_ms)

    def _arm(self, place: Place, row: StoredReminder) -> None:
        """Arm a reminder for its time."""
        armed = self._armed[place] = _Armed(row, row.due_ms)
        served_ms = self._served_ms.get(slot_of(row.key), -math.inf)
        armed.is_suspect = row.attempts > 0 or row.due_ms < served_ms
        self._push(armed)

    def _push(self, armed: _Armed) -> None:
        """Queue an armed reminder by its time."""
        self._number += 1
        heapq.heappush(self._heap, (armed.at_ms, self._number, armed))

    # --- reading ---

    @property
    def _is_low(self) -> bool:
        """Whether most armed reminders were handled, and more are due soon."""
        return self._is_cut_short and len(self._armed) < ARMED_LIMIT // 2

    def scan(self) -> None:
        """Read the reminders that are due within the window."""
        with self._host.lock:
            self._scan()

    def _scan(self) -> None:
        """Read the reminders that are due within the window.

        The caller holds the host's lock.
        """
        host = self._host
        if self._is_scanning:
            self._scans_again = True
            return
        if host.is_closed or host.state is None or not host.epochs:
            return
        self._is_scanning = True
        self._scanned_at = host.runtime.now()
        name, slots = self._type_name, sorted(host.epochs)
        read = EntityState.reminders
        host.state.submit(self._scanned, read, name, slots, WINDOW_MS, ARMED_LIMIT)

    @property
    def _type_name(self) -> str:
        return self._host.type.name

    def _scanned(self, due: DueReminders | BaseException) -> None:
        """Arm the reminders that a scan has read. Runs on the node's thread."""
        host = self._host
        with host.lock:
            self._is_scanning = False
            changed, self._changed = self._changed, set()
            again, self._scans_again = self._scans_again, False
            if isinstance(due, BaseException):
                host.runtime.call_later(SCAN_RETRY_SECONDS, self.scan)
                return
            self.set_clock(due.now_ms)
            rows = due.reminders
            self._is_cut_short = len(rows) >= ARMED_LIMIT
            self._horizon_ms = due.now_ms + WINDOW_MS
            if self._is_cut_short:
                self._horizon_ms = rows[-1].due_ms
            self._reconcile(rows, changed)
            if again:
                self._scan()
            self._check_parked()
        self._deliver()

    def _reconcile(self, rows: Sequence[StoredReminder], changed: set[Place]) -> None:
        """Make the armed reminders the stored ones, except those changed during the read."""
        stored = {(row.key, row.name): row for row in rows}
        for place, armed in list(self._armed.items()):
            if armed.row.due_ms <= self._horizon_ms:
                is_over = not _is_same(stored.get(place), armed.row)
            else:  # the reminder takes a place that earlier ones need
                is_over = self._is_cut_short and not armed.is_out
            if is_over and place not in changed:
                del self._armed[place]
        for place, row in stored.items():
            is_served = slot_of(row.key) in self._host.epochs
            if place in changed or place in self._armed or not is_served:
                continue
            if len(self._armed) >= ARMED_LIMIT:
                self._horizon_ms = min(self._horizon_ms, row.due_ms - 1)
                self._is_cut_short = True
                break
            self._arm(place, row)

    # --- delivering ---

    def _set_timer(self) -> None:
        """Set the timer for the next due reminder or scan. The caller must hold the lock."""
        runtime = self._host.runtime
        if self._offset_ms is None or self._host.is_closed:
            return
        due_at = self._scanned_at + SCAN_SECONDS
        if self._is_low and not self._is_scanning:
            due_at = runtime.now()
        elif self._heap:
            due_at = min(due_at, (self._heap[0][0] - self._offset_ms) / 1000)
        now = runtime.now()
        due_at = max(due_at, now)
        if due_at < self._timer_at:
            self._timer_at = due_at
            runtime.call_later(due_at - now, self._woken, due_at)

    def _woken(self, due_at: float) -> None:
        """Deliver due reminders, unless a later timer has replaced this one."""
        if due_at == self._timer_at:
            self._timer_at = math.inf
            self._deliver()

    def _deliver(self) -> None:
        """Deliver due reminders, and scan if it is time. Runs on the node's thread."""
        host = self._host
        with host.lock:
            if host.is_closed or self._offset_ms is None:
                return
            now = self.now_ms()
            while self._heap and self._heap[0][0] <= now:
                _, _, armed = heapq.heappop(self._heap)
                if armed.is_out or not self.is_armed(armed):
                    continue
                if slot_of(armed.row.key) not in host.epochs:
                    del self._armed[armed.row.key, armed.row.name]
                    continue
                if armed.is_suspect:
                    armed.is_out = True
                    self._suspects.append(armed)
                else:
                    self._post(armed)
            self._count_suspects()
            if self._is_low or host.runtime.now() >= self._scanned_at + SCAN_SECONDS:
                self._scan()
            self._set_timer()

    def _post(self, armed: _Armed) -> None:
        """Deliver a reminder to its entity, or try again soon.

        The caller holds the host's lock.
        """
        armed.is_out = self._host.post_reminder(ReminderTicket(self, armed))
        if not armed.is_out:
            armed.at_ms = self.now_ms() + 1000 * _BUSY_SECONDS
            self._push(armed)

    # --- suspects ---

    def _check_parked(self) -> None:
        """Read the parked reminders of gained slots. The caller must hold the lock."""
        state, gained = self._host.state, self._gained
        if state is None or not gained:
            return
        self._gained = set()
        done = partial(self._warn_of_parked, gained)
        state.submit(done, EntityState.parked_reminders, self._type_name, _PARKED_LOGGED)

    def _warn_of_parked(
        self, slots: set[int], parked: Sequence[StoredReminder] | BaseException
    ) -> None:
        """Log each parked reminder of the slots once."""
        name = self._type_name
        for row in () if isinstance(parked, BaseException) else parked:
            if slot_of(row.key) in slots:
                text = (
                    f"the reminder {row.name!r} of {name} {row.key!r} is parked: {PARKED_FROM} "
                    "processes have ended while its handler ran. Fix the handler, then call "
                    "node.start_reminders, or: callboard entity reminders --start"
                )
                self._host.runtime.warn_once(("parked", name, row.key, row.name), text)

    def _count_suspects(self) -> None:
        """Count attempts of suspects that may be delivered.

        The caller holds the host's lock.
        """
        if self._is_counting or not self._suspects:
            return
        alone = self._alone
        if alone is not None and alone.is_out and self.is_armed(alone):
            left = self._alone_since + ALONE_SECONDS - self._host.runtime.now()
            if left > 0:
                # This method is called again after a failure, after a commit, or by the timer.
                return
        chosen = [armed for armed in self._suspects if not armed.row.attempts]
        if chosen:
            counted = [armed for armed in self._suspects if armed.row.attempts]
            self._suspects = deque(counted)
        else:
            chosen = [self._suspects.popleft()]
        self._is_counting = True
        rows, attempts = [armed.row for armed in chosen], 1 + chosen[0].row.attempts
        if attempts > 1:
            self._alone, self._alone_since = chosen[0], self._host.runtime.now()
            self._host.runtime.call_later(ALONE_SECONDS, self._resume_suspects)
        self._set_attempts(rows, attempts, partial(self._counted, chosen, attempts))

    def _set_attempts(
        self, rows: list[StoredReminder], attempts: int, done: Callable[[Any], object]
    ) -> None:
        """Store the attempt count of reminders."""
        state = self._host.state
        assert state is not None, "there are reminders only where there is a state"
        state.submit(done, EntityState.set_attempts, self._type_name, rows, attempts)

    def _counted(
        self, chosen: list[_Armed], attempts: int, answer: BaseException | None
    ) -> None:
        """Deliver suspects whose attempts were counted. Runs on the node's thread."""
        host = self._host
        with host.lock:
            self._is_counting = False
            if host.is_closed:
                return
            for armed in chosen:
                if isinstance(answer, BaseException):
                    armed.is_out = False
                    armed.at_ms = self.now_ms() + 1000 * SCAN_RETRY_SECONDS
                    self._push(armed)
                elif self.is_armed(armed):
                    armed.row = armed.row._replace(attempts=attempts)
                    self._post(armed)
            self._set_timer()
        self._resume_suspects()

    def _resume_suspects(self) -> None:
        """Continue with the suspects that wait."""
        with self._host.lock:
            if not self._host.is_closed:
                self._count_suspects()

    def failed(self, armed: _Armed, error: BaseException) -> None:
        """Deliver a reminder again after a pause, unless it was forgotten or replaced."""
        host = self._host
        with host.lock:
            armed.is_out = False
            if not self.is_armed(armed) or host.is_closed:
                return
            if armed.is_suspect and armed.row.attempts:
                # The handler raised, and the process is alive, so this reminder does not crash
                # processes.
                armed.is_suspect = False
                self._set_attempts([armed.row], 0, lambda _: None)
                armed.row = armed.row._replace(attempts=0)
            if armed.backoff is None:
                armed.backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            armed.at_ms = self.now_ms() + 1000 * armed.backoff.next_pause()
            self._push(armed)
            self._set_timer()
            self._count_suspects()
        name = self._type_name
        label = f"the reminder {armed.row.name!r} of {name} {armed.row.key!r}"
        host.runtime.warn_once(("reminder", name, type(error)), f"{label} is repeated: {error}")


def _is_same(stored: StoredReminder | None, armed: StoredReminder) -> bool:
    """Return whether a stored reminder is the armed one; its attempts may differ."""
    return stored is not None and stored._replace(attempts=armed.attempts) == armed
