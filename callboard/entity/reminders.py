"""The reminders of one type's entities on one node: when they are due, and who gets them.

A reminder is a row that was written in the transaction of the handler that set it, and goes in
the transaction of the handler that it was delivered to. In between it is due by the database's
clock, wherever its entity lives. A host **arms** the rows of its slots that are due within
`WINDOW`: it reads them when slots fell to it, and again each `SCAN`; what handlers set and
forget meanwhile it learns when their commits are through. So what is armed is what is stored.

The database's clock is read with each scan, and counted on by the node's own in between.

A reminder that is due is posted to its entity with a `ReminderTicket` as the asker: it learns
whether the handler returned and its commit went through, or else delivers it again, later each
time. The entity looks at the ticket again before it handles it: what was forgotten or set
anew while it waited in the mailbox is not handled.

A handler may end the process of its host, and then that of the next one, and so on. A reminder
that was due before its slot fell to this node is a **suspect**: perhaps the former owner has
ended by it. Before it is delivered, the attempt is counted in its row, durably. One that was
counted before is delivered while no other suspect is, so that the count rises of the culprit
alone. From `PARKED_FROM` counted attempts on no host delivers it, until somebody starts it
again. A handler that raises has not ended the process, so the count begins anew.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, Protocol

from callboard.entity.entity import EntityType
from callboard.entity.machine.table import slot_of
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import (
    PARKED_FROM,
    DueReminders,
    EntityState,
    StoredReminder,
)
from callboard.kernel.activation import Home
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Reply
from callboard.support.dataclass import dataclass

#: Milliseconds ahead for which reminders are held in memory, and seconds between reads of them.
WINDOW_MS: Final = 60_000
SCAN: Final = 30.0

#: Seconds until a read that failed is tried again.
SCAN_AGAIN: Final = 0.5

#: Reminders of a type that a node holds in memory; later ones are read when these are through.
ARMED_LIMIT: Final = 10_000

#: Seconds until one is delivered again whose handler failed: at first, and at most.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0

#: Seconds until it is tried again while an entity is put away, or its slot moves.
_NOT_NOW: Final = 0.05

#: Seconds after which the next suspect is delivered although the handler of one still runs.
ALONE_SECONDS: Final = 10.0

#: Parked reminders of a type that are looked at for the log.
_PARKED_LOGGED: Final = 100

#: Of an entity: its key and the reminder's name.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ParkedReminder:
    """A reminder that no host delivers, because processes ended while it was handled.

    Attributes:
        key: of the entity.
        name: of the reminder.
        due: when it was due, in UTC.
        message: what the entity would get; an `UnreadableValue` where this program cannot read
            it.
    """

    key: str
    name: str
    due: datetime
    message: Any


class RemindedHost(Protocol):
    """The host of the entities, as their reminders use it."""

    runtime: NodeContext
    type: EntityType
    state: StateClient | None
    #: Guards what handlers on other threads touch as well.
    lock: Any
    #: The epochs of the slots that this node owns.
    epochs: dict[int, int]
    is_closed: bool

    def post_reminder(self, ticket: "ReminderTicket", /) -> bool:
        """Post a reminder to its entity; False if that takes no messages just now."""


@dataclass(slots=True, eq=False)
class _Armed:
    """A reminder that is due soon."""

    row: StoredReminder
    #: When it is delivered next, in milliseconds of the database's clock.
    at_ms: float
    failures: int = 0
    #: Whether it was delivered, and what became of that is not known yet.
    is_out: bool = False
    #: Whether its attempts are counted, as a process may have ended by it.
    is_suspect: bool = False


class ReminderTicket(Reply):
    """The asker of a reminder's handler."""

    __slots__ = ("_armed", "_reminders", "deadline", "expects")

    expects: Literal[True]

    #: Nobody waits for an answer, so there is none to copy or to owe.
    wants_reply: Final = False

    def __init__(self, reminders: "Reminders", armed: _Armed) -> None:
        self.expects = True
        #: It may be marked as over, as that of an ask; the reminder then comes again.
        self.deadline: float | None = None
        self._reminders, self._armed = reminders, armed

    @property
    def row(self) -> StoredReminder:
        """The reminder."""
        return self._armed.row

    @property
    def is_current(self) -> bool:
        """Whether it was neither forgotten nor set anew."""
        return self._reminders.is_armed(self._armed)

    def following(self) -> StoredReminder | None:
        """Return what is stored in its place once it was handled: None for nothing."""
        return self._reminders.following(self.row)

    def set_result(self, _: Any) -> bool:
        """Do nothing: its row went with the commit."""
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Deliver it again later."""
        self._reminders.failed(self._armed, error)
        return True

    def mark_handled(self) -> None:
        """Do nothing: it is handled when its commit is through."""

    def reference(self, _: Home) -> ActorRef[Any] | None:
        """Nobody sent it."""
        return None


class Reminders:
    """Those of one host."""

    def __init__(self, host: RemindedHost) -> None:
        """Make one that has armed nothing."""
        self._host = host
        self._armed: dict[Place, _Armed] = {}
        #: (when, number, what): the number decides between equal times.
        self._heap: list[tuple[float, int, _Armed]] = []
        self._number = 0
        #: The database's clock less this node's, in milliseconds.
        self._offset_ms: float | None = None
        #: Whatever is due until then is armed.
        self._horizon_ms = 0.0
        #: Whether more is due within the window than may be armed.
        self._is_cut_short = False
        self._timer_at = math.inf
        self._is_scanning = self._scans_again = False
        #: What handlers changed while rows were being read.
        self._changed: set[Place] = set()
        #: When the last read was begun.
        self._scanned_at = -math.inf
        #: By slot, when it fell to this node, by the database's clock.
        self._served_ms: dict[int, float] = {}
        #: Suspects that wait until their attempt may be counted, and the one that is alone.
        self._suspects: deque[_Armed] = deque()
        self._alone: _Armed | None = None
        self._alone_since = -math.inf
        self._is_counting = False
        #: Slots that fell to this node since it was looked for parked reminders.
        self._gained: set[int] = set()

    # --- the clock ---

    def set_clock(self, now_ms: int) -> None:
        """Take the database's clock as it was just now."""
        self._offset_ms = now_ms - self._host.runtime.now() * 1000

    def now_ms(self) -> float:
        """Return the database's clock, as far as is known."""
        assert self._offset_ms is not None, "it was read before any slot was served"
        return self._host.runtime.now() * 1000 + self._offset_ms

    def due_ms(self, seconds: float) -> int:
        """Return when a time will have passed."""
        return math.ceil(self.now_ms() + seconds * 1000)

    # --- what is armed ---

    def served(self, slots: Collection[int]) -> None:
        """Arm what is due soon of slots that fell to this node; needs the host's lock."""
        if not slots:
            return
        fresh = set(slots)
        for place in [p for p in self._armed if slot_of(p[0]) in fresh]:
            del self._armed[place]
        self._served_ms.update(dict.fromkeys(fresh, self.now_ms()))
        self._gained |= fresh
        self._scan()

    def committed(self, changes: Mapping[Place, StoredReminder | None]) -> None:
        """Take what a commit wrote; needs the host's lock."""
        horizon = self._horizon_ms
        if self._is_scanning:  # what it reads is not taken of these
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
                # Reminders that are due later may hold the places; the next scan drops them.
                is_urgent = is_urgent or row.due_ms < self.now_ms() + 1000 * SCAN
        if is_urgent:
            self._scan()
        self._set_timer()
        self._count_suspects()

    def is_armed(self, armed: _Armed) -> bool:
        """Return whether a reminder is still the one of its name."""
        row = armed.row
        return self._armed.get((row.key, row.name)) is armed

    def following(self, row: StoredReminder) -> StoredReminder | None:
        """Return what is stored once a reminder was handled: its next time, if it repeats."""
        if not row.every_ms:
            return None
        missed = max(0, int(self.now_ms() - row.due_ms) // row.every_ms)
        return row._replace(due_ms=row.due_ms + (missed + 1) * row.every_ms)

    def _arm(self, place: Place, row: StoredReminder) -> None:
        """Let a reminder be delivered at its time."""
        armed = self._armed[place] = _Armed(row, row.due_ms)
        served_ms = self._served_ms.get(slot_of(row.key), -math.inf)
        armed.is_suspect = row.attempts > 0 or row.due_ms < served_ms
        self._push(armed)

    def _push(self, armed: _Armed) -> None:
        """Put a reminder among those that wait for their time."""
        self._number += 1
        heapq.heappush(self._heap, (armed.at_ms, self._number, armed))

    # --- reading ---

    @property
    def _is_low(self) -> bool:
        """Whether most of what is armed was handled, and more is due soon."""
        return self._is_cut_short and len(self._armed) < ARMED_LIMIT // 2

    def scan(self) -> None:
        """Read what is due soon."""
        with self._host.lock:
            self._scan()

    def _scan(self) -> None:
        """Read what is due soon; needs the host's lock."""
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
        host.state.submit(self._take, read, name, slots, WINDOW_MS, ARMED_LIMIT)

    @property
    def _type_name(self) -> str:
        return self._host.type.name

    def _take(self, found: DueReminders | BaseException) -> None:
        """Take what was read; on the node's thread."""
        host = self._host
        with host.lock:
            self._is_scanning = False
            changed, self._changed = self._changed, set()
            again, self._scans_again = self._scans_again, False
            if isinstance(found, BaseException):
                host.runtime.call_later(SCAN_AGAIN, self.scan)
                return
            self.set_clock(found.now_ms)
            rows = found.reminders
            self._is_cut_short = len(rows) >= ARMED_LIMIT
            self._horizon_ms = found.now_ms + WINDOW_MS
            if self._is_cut_short:
                self._horizon_ms = rows[-1].due_ms
            self._reconcile(rows, changed)
            if again:
                self._scan()
            self._look_for_parked()
        self._deliver()

    def _reconcile(self, rows: Sequence[StoredReminder], changed: set[Place]) -> None:
        """Let what is armed be what is stored, but for what changed while that was read."""
        stored = {(row.key, row.name): row for row in rows}
        for place, armed in list(self._armed.items()):
            if armed.row.due_ms <= self._horizon_ms:
                is_over = not _is_same(stored.get(place), armed.row)
            else:  # it holds a place of those that are due earlier
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
        """Come back when the next one is due, or rows have to be read; needs the lock."""
        runtime = self._host.runtime
        if self._offset_ms is None or self._host.is_closed:
            return
        at = self._scanned_at + SCAN
        if self._is_low and not self._is_scanning:
            at = runtime.now()
        elif self._heap:
            at = min(at, (self._heap[0][0] - self._offset_ms) / 1000)
        now = runtime.now()
        at = max(at, now)
        if at < self._timer_at:
            self._timer_at = at
            runtime.call_later(at - now, self._woken, at)

    def _woken(self, at: float) -> None:
        """Deliver what is due, if this is the timer that counts."""
        if at == self._timer_at:
            self._timer_at = math.inf
            self._deliver()

    def _deliver(self) -> None:
        """Deliver what is due, and read on when that is due; on the node's thread."""
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
            if self._is_low or host.runtime.now() >= self._scanned_at + SCAN:
                self._scan()
            self._set_timer()

    def _post(self, armed: _Armed) -> None:
        """Post a reminder to its entity, or try that again soon; needs the host's lock."""
        armed.is_out = self._host.post_reminder(ReminderTicket(self, armed))
        if not armed.is_out:
            armed.at_ms = self.now_ms() + 1000 * _NOT_NOW
            self._push(armed)

    # --- suspects ---

    def _look_for_parked(self) -> None:
        """Read which reminders of slots are parked that fell to this node; needs the lock."""
        state, gained = self._host.state, self._gained
        if state is None or not gained:
            return
        self._gained = set()
        done = partial(self._warn_of_parked, gained)
        state.submit(done, EntityState.parked_reminders, self._type_name, _PARKED_LOGGED)

    def _warn_of_parked(
        self, slots: set[int], found: Sequence[StoredReminder] | BaseException
    ) -> None:
        """Log the parked reminders of slots, each once."""
        name = self._type_name
        for row in () if isinstance(found, BaseException) else found:
            if slot_of(row.key) in slots:
                text = (
                    f"the reminder {row.name!r} of {name} {row.key!r} is parked: {PARKED_FROM} "
                    "processes have ended while its handler ran. Mend it, then call "
                    "node.start_reminders, or: callboard entity reminders --start"
                )
                self._host.runtime.warn_once(("parked", name, row.key, row.name), text)

    def _count_suspects(self) -> None:
        """Count the attempts of suspects that may be delivered now; needs the host's lock."""
        if self._is_counting or not self._suspects:
            return
        alone = self._alone
        if alone is not None and alone.is_out and self.is_armed(alone):
            left = self._alone_since + ALONE_SECONDS - self._host.runtime.now()
            if left > 0:
                return  # `failed`, its commit or this timer goes on
        chosen = [each for each in self._suspects if not each.row.attempts]
        if chosen:
            counted = [each for each in self._suspects if each.row.attempts]
            self._suspects = deque(counted)
        else:
            chosen = [self._suspects.popleft()]
        self._is_counting = True
        rows, attempts = [each.row for each in chosen], 1 + chosen[0].row.attempts
        if attempts > 1:
            self._alone, self._alone_since = chosen[0], self._host.runtime.now()
            self._host.runtime.call_later(ALONE_SECONDS, self._go_on)
        self._set_attempts(rows, attempts, partial(self._counted, chosen, attempts))

    def _set_attempts(
        self, rows: list[StoredReminder], attempts: int, done: Callable[[Any], object]
    ) -> None:
        """Store an attempt count of reminders."""
        state = self._host.state
        assert state is not None, "there are reminders only where there is a state"
        state.submit(done, EntityState.set_attempts, self._type_name, rows, attempts)

    def _counted(
        self, chosen: list[_Armed], attempts: int, answer: BaseException | None
    ) -> None:
        """Deliver suspects whose attempts were counted; on the node's thread."""
        host = self._host
        with host.lock:
            self._is_counting = False
            if host.is_closed:
                return
            for armed in chosen:
                if isinstance(answer, BaseException):
                    armed.is_out = False
                    armed.at_ms = self.now_ms() + 1000 * SCAN_AGAIN
                    self._push(armed)
                elif self.is_armed(armed):
                    armed.row = armed.row._replace(attempts=attempts)
                    self._post(armed)
            self._set_timer()
        self._go_on()

    def _go_on(self) -> None:
        """Go on with the suspects that wait."""
        with self._host.lock:
            if not self._host.is_closed:
                self._count_suspects()

    def failed(self, armed: _Armed, error: BaseException) -> None:
        """Deliver a reminder again after a while, unless it was forgotten or set anew."""
        host = self._host
        with host.lock:
            armed.is_out = False
            if not self.is_armed(armed) or host.is_closed:
                return
            if armed.is_suspect and armed.row.attempts:
                # The process goes on, so it is no end of processes, whatever ended the last.
                armed.is_suspect = False
                self._set_attempts([armed.row], 0, lambda _: None)
                armed.row = armed.row._replace(attempts=0)
            armed.failures += 1
            pause = min(FIRST_PAUSE * 2 ** min(armed.failures - 1, 10), LONGEST_PAUSE)
            armed.at_ms = self.now_ms() + 1000 * pause
            self._push(armed)
            self._set_timer()
            self._count_suspects()
        name = self._type_name
        text = f"the reminder {armed.row.name!r} of {name} {armed.row.key!r} comes again: "
        host.runtime.warn_once(("reminder", name, type(error)), f"{text}{error}")


def _is_same(stored: StoredReminder | None, armed: StoredReminder) -> bool:
    """Return whether a stored reminder is the one that is armed; its attempts may change."""
    return stored is not None and stored._replace(attempts=armed.attempts) == armed
