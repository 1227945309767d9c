"""What runs the entities of one type on one node: activations, commits, reads, idle ones.

The host hands everything that takes time to its state, and is called back on the node's thread.
Its lock guards what handlers on other threads touch as well.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from callboard import locks
from callboard.entity.cell import (
    DeferredReply,
    Emission,
    EntityBatch,
    EntityCell,
    HeldCarried,
    LeasedCell,
    emission_of,
    read_only,
    unavailable,
)
from callboard.entity.entity import Entity, EntityType
from callboard.entity.errors import EntityUnavailable
from callboard.entity.event_json import EventSerializer
from callboard.entity.inspection.events import SlotFenced, SlotsMoved
from callboard.entity.inspection.figures import TIMED, EntityCounters
from callboard.entity.machine.ownership_machine import MOVED_AT_ONCE
from callboard.entity.machine.table import slot_of
from callboard.entity.reentrancy import comes_back, is_nested, would_deadlock
from callboard.entity.reminders import Reminders, ReminderTicket
from callboard.entity.replay import apply_all, public_state, restore
from callboard.entity.sending import TypeSender
from callboard.entity.singletons import Singletons
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    Fence,
    NewEvent,
    PastEvent,
    Recovered,
    RowChanges,
    Slot,
    SlotBatch,
    check_numbers,
)
from callboard.entity.unpersisted import checking
from callboard.kernel.activation import DispatchTable, Envelope
from callboard.kernel.actors import ActorRef, ExitReason
from callboard.kernel.codec import RecordType
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Sender
from callboard.lease.errors import Fenced, StateCorrupt
from callboard.support import reentry
from callboard.support.histogram import Histogram
from callboard.support.reentry import HandOver
from callboard.support.text import error_text

if TYPE_CHECKING:
    from collections.abc import Sequence

#: As `SlotBatch`, in half of the time: each commit of an entity is made so.
_slot_batch: Final[Callable[[tuple[Any, ...]], SlotBatch]] = partial(tuple.__new__, SlotBatch)

#: What applies an event, its registered type, and the version in which it is written.
KnownEvent = tuple[Callable[[Any, Any], object], RecordType, int]

#: What waits for a look at the fence of a slot, with the epoch that this node had it in.
_Proof = tuple[int, int | None, Emission | DeferredReply]

#: Of a batch that lets no events be forgotten.
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

#: Seconds between looks for idle entities at most.
_LOOK_AT_MOST: Final = 5.0

#: Events that an entity is read with at once; in between others have their turns.
REPLAYED_AT_ONCE: Final = 2_000

#: Entities that are put away at once for a move, as far as a slot has no more by itself.
PUT_AWAY_AT_ONCE: Final = 500

#: Events behind the last snapshot of an entity from which on it may get another before it
#: moves: reading and applying as many takes the new owner about a millisecond.
EVENTS_TO_MOVE: Final = 100

#: Seconds between looks whether a handler that runs awaits something.
LOOK: Final = 0.001

#: Seconds that an ask of a handler is held for a slot that comes to rest.
NESTED_SECONDS: Final = 0.02

#: Seconds between looks whether a lease that has run out is valid again.
_LOOK_AT_LEASE: Final = 0.02

_NO_LEASE: Final = "the lease of its node had run out"

#: Messages that may wait for one key while its former activation ends.
WAITING_LIMIT: Final = 1_000


class EntityHost:
    """The entities of one type on one node."""

    #: Passes on what was held for slots that others have.
    sending: "TypeSender"
    is_closed = False
    #: Whether the node's lease is valid; None where fences are looked at instead.
    is_leased: Callable[[], bool] | None = None
    #: Whether a look at fences is under way, and whether what handlers ask is let in soon.
    _is_proving = False
    _lets_in = False

    def __init__(
        self,
        runtime: NodeContext,
        form: EventSerializer,
        kind: EntityType,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        state: StateClient | None,
        ref: Callable[[str, str], ActorRef[Any]],
        *,
        is_checked: bool = False,
    ) -> None:
        """Make a host that owns no slot yet.

        Args:
            runtime: of the node.
            form: how events are written.
            kind: the class.
            arguments: for the class's `__init__`.
            state: where events are kept; None for nowhere.
            ref: makes the ref of a type's key.
            is_checked: whether handlers that lose changes of the state are found.
        """
        self.runtime, self.form, self.type = runtime, form, kind
        self.arguments, self.state = arguments, state
        self.table = _table_of(kind.cls, form if is_checked else None)
        self._lock = locks.collecting_lock("host of entities", 530)
        self.lock = self._lock.guard
        self.is_inside = locks.owner_test(self.lock)
        self.hand_over = HandOver(self.lock, runtime.post, runtime.counters)
        self.handed = self.hand_over.calls
        #: The activations, by key.
        self.cells: dict[str, EntityCell] = {}
        #: How many there are in each slot.
        self._live: Counter[int] = Counter()
        #: The epochs of the slots that this node owns.
        self.epochs: dict[int, int] = {}
        #: The writer's name in fences.
        self.writer = ""
        #: Runs the activations.
        self.runner: Any = None
        #: Told of the position that a commit of this node gave the type.
        self.grew: Callable[[int], object] = lambda _: None
        self._position = 0
        #: The outcome of the latest transaction of which no batch failed.
        self.all_committed: Committed | None = None
        #: By class, what is done with an event that is persisted; filled by use.
        self.known_events: dict[type, KnownEvent] = {}
        #: What happened here, and how long commits took.
        self.counters = EntityCounters()
        self.commit_seconds = Histogram()
        self._make_ref = ref
        #: Messages that wait until a former activation has ended.
        self._waiting: dict[str, list[tuple[Any, Sender | None]]] = {}
        #: The reminders that are due soon in the slots of this node.
        self.reminders = Reminders(self)
        #: Told of each activation that has ended, if anybody is.
        self.when_left: Callable[[EntityCell], object] = lambda _: None
        self.singletons = Singletons(self)
        #: By slot, with the epoch that this node had it in.
        self._proofs: list[_Proof] = []
        self._when_empty: list[Callable[[], object]] = []
        #: Slots that are being given away, what waits for that, and what came meanwhile.
        self._stopped: set[int] = set()
        self._when_stopped: Callable[[], object] | None = None
        self._held: list[tuple[str, Any, Sender | None, bool]] = []
        #: How many of these there are, by slot.
        self._held_in: Counter[int] = Counter()
        self._markers: list[tuple[int, Callable[[], object]]] = []
        #: Refuses a message of another node that was not handled; False for others.
        self.send_back: Callable[[str, Sender | None], bool] = lambda *_: False
        self._parked: list[EntityCell] = []
        self.on_kind: Callable[[tuple[str, int]], object] = lambda _: None
        #: Told of a slot, and its epoch, whose fence another claim has; and of kinds written.
        self.on_lost: Callable[[int, int], object] = lambda *_: None
        #: Seconds without a message after which an entity is put away; None for never.
        self.idle = idle = kind.idle(is_kept=state is not None)
        if idle is not None:
            self._look = min(max(idle / 4, 0.01), _LOOK_AT_MOST)
            runtime.call_later(self._look, self._put_idle_away)

    def ref(self, key: str) -> ActorRef[Any]:
        """Return the ref of a key."""
        return self._make_ref(self.type.name, key)

    def send_by(self, sending: "TypeSender") -> None:
        """Send by the sender of the type; under its lock this host refuses nothing at once."""
        self.sending = sending
        self._lock.outer = sending.lock

    @property
    def reads(self) -> tuple[tuple[str, int], ...]:
        """The kinds of events that the class reads, with the highest version of each."""
        return tuple(
            (name, self.type.version_of(*kind.names))
            for kind in self.form.kinds_below(self.type.appliers)
            for name in kind.names
        )

    # --- messages ---

    def deliver(
        self,
        key: str,
        message: Any,
        sender: Sender | None,
        *,
        is_urgent: bool = False,
        is_held: bool = False,
    ) -> bool:
        """Give a message to the entity of a key, which is made if need be; from any thread.

        `is_held`: the caller holds the lock.

        Returns:
            False if this node does not serve the key's slot: nothing happened.
        """
        if is_nested(message) and self._comes_back(key, message, sender):
            return True
        if is_held:
            return self._take(key, message, sender, is_urgent=is_urgent)
        lock = self.lock
        if (
            self.handed or self.is_inside() or not (lock.acquire(False) or reentry.wait(lock))  # noqa: FBT003
        ):
            if not self.serves(slot_of(key)):
                return False
            give = partial(self._give_late, key, message, sender, is_urgent=is_urgent)
            self.hand_over.add(give, lambda _: self.refuse(key, message, sender))
            return True
        try:
            return self._take(key, message, sender, is_urgent=is_urgent)
        finally:
            if self._lock.calls:
                self._lock.release()
            else:
                lock.release()

    def _give_late(
        self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Give a message to an entity that was handed over from inside a call."""
        with self._lock:
            is_taken = self._take(key, message, sender, is_urgent=is_urgent)
        if not is_taken:
            self.sending.send(key, slot_of(key), message, sender, is_urgent=is_urgent)

    def deliver_carried(
        self, key: str, message: Any, sender: HeldCarried, refused: Container[int]
    ) -> bool:
        """Give a message of another node to an entity that is awake, as `deliver` does.

        Args:
            key: of the entity.
            message: that came with others.
            sender: of the message.
            refused: slots whose messages were refused to that node.

        Returns:
            False if there is anything else to it, and nothing has happened: `deliver` tells.
        """
        if message.__class__ is Envelope or self.is_leased is not None or self.is_closed:
            return False
        if self.handed:  # an earlier message of this entity may be among them
            return False
        lock = self.lock
        lock.acquire()  # in half of the time that `with` takes: each message comes here
        try:
            cell = self.cells.get(key)
            if (
                cell is None
                or self._stopped
                or cell.is_put_away
                or cell.reason is not None
                or cell.slot in refused
            ):
                return False
            sender.cell = cell
            cell.post_held(message, sender)
        finally:
            lock.release()
        return True

    def _comes_back(self, key: str, message: Any, sender: Sender | None) -> bool:
        """Look soon at an ask that comes back to an entity; False if it is none."""
        if sender is None or not sender.expects or key not in self.cells:
            return False
        if not comes_back(message, f"{self.type.name}/{key}"):
            return False
        self.runtime.post(self._answer_or_refuse, key, message, sender)
        return True

    def _answer_or_refuse(self, key: str, message: Any, sender: Any) -> None:
        """Answer an ask that came back by a handler that only reads, or refuse it."""
        cell = self.cells.get(key)
        if cell is not None and cell.running:  # whether it waits will be known soon
            self.runtime.call_later(LOOK, self._answer_or_refuse, key, message, sender)
        elif cell is None or cell.task is None:  # it does not wait any more
            self._give_late(key, message, sender, is_urgent=False)
        elif not cell.answer_meanwhile(message, sender):
            sender.set_exception(would_deadlock(message.chain, f"{self.type.name}/{key}"))

    def _take(self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool) -> bool:
        """Give a message to the entity of a key; False if the slot is not served here.

        Needs the lock.
        """
        if self.is_leased is not None and self._is_unleased(key, sender):
            self.refuse_unleased(sender)
            return True
        cell = self.cells.get(key)
        if self._stopped and slot_of(key) in self._stopped and not self.is_closed:
            if self._hold(key, message, sender, is_urgent=is_urgent):
                return True
            cell = None
        elif cell is None:
            if not self.serves(slot_of(key)):
                return False
            if not self.is_closed:
                cell = self._activate(key)
        elif cell.is_put_away or cell.reason is not None:
            waiting = self._waiting.setdefault(key, [])
            if len(waiting) < WAITING_LIMIT:
                waiting.append((message, sender))
                return True
            cell = None
        if cell is not None:
            (cell.post_urgent if is_urgent else cell.post)(message, sender)
            return True
        self.refuse(key, message, sender)
        return True

    def _hold(self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool) -> bool:
        """Let a message wait until it is known who owns its slot; needs the lock.

        Returns:
            False if as many wait for the slot as may.
        """
        if self._held_in[slot_of(key)] >= WAITING_LIMIT:
            return False
        self._hold_on(key, message, sender, is_urgent=is_urgent)
        if is_nested(message):
            self._plan_to_let_in()
        return True

    def _hold_on(
        self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Let a message wait that may: it waits already, or there is room; needs the lock."""
        self._held.append((key, message, sender, is_urgent))
        self._held_in[slot_of(key)] += 1

    def _take_held(self) -> list[tuple[str, Any, Sender | None, bool]]:
        """Return all messages that wait so, which wait no more; needs the lock."""
        held, self._held = self._held, []
        self._held_in.clear()
        return held

    def post_reminder(self, ticket: ReminderTicket) -> bool:
        """Post a reminder to its entity; False if that takes none just now. Needs the lock."""
        key = ticket.row.key
        if self.is_closed or slot_of(key) in self._stopped:
            return False
        cell = self.cells.get(key)
        if cell is None:
            cell = self._activate(key)
        elif cell.is_put_away:
            return False
        cell.post_reminder(ticket)
        return True

    # --- slots ---

    @property
    def portion(self) -> int:
        """How many slots come to rest in a moment: fewer where many entities live in each."""
        in_each = len(self.cells) / max(1, len(self.epochs))
        return max(1, min(MOVED_AT_ONCE, int(PUT_AWAY_AT_ONCE / max(1.0, in_each))))

    def serves(self, slot: int) -> bool:
        """Return whether this node has a slot, and handles what comes for it."""
        return slot in self.epochs or slot in self._stopped

    def gives_away(self, slot: int) -> bool:
        """Return whether a slot is on its way to another host."""
        return slot in self._stopped

    def serve(self, epochs: Mapping[int, int]) -> None:
        """Serve slots whose fences were raised."""
        with self.lock:
            gained = len(epochs.keys() - self.epochs.keys())
            self.epochs.update(epochs)
            if self.state is not None:
                self.reminders.served(epochs)
            self.singletons.start()
        self._moved(gained=gained)

    def activate_if_served(self, key: str) -> None:
        """Make the activation of a key if its slot is here and it is not; needs the lock."""
        slot = slot_of(key)
        if slot in self.epochs and slot not in self._stopped and key not in self.cells:
            self._activate(key)

    def keep_only(self, owned: Mapping[int, int]) -> None:
        """End what runs in slots that are others' by now."""
        with self.lock:
            lost = [s for s, epoch in self.epochs.items() if owned.get(s) != epoch]
            for slot in lost:
                del self.epochs[slot]
            gone = self._cells_of(lost)
        for cell in gone:
            cell.kill(ExitReason.SHUTDOWN, "its slot moved")
        self._moved(lost=len(lost))

    def _cells_of(self, slots: Iterable[int]) -> list[EntityCell]:
        """Return the activations in some slots; needs the lock."""
        wanted = {slot for slot in slots if self._live[slot]}
        return [cell for cell in self.cells.values() if cell.slot in wanted] if wanted else []

    def _moved(self, gained: int = 0, lost: int = 0) -> None:
        """Count slots that came or went, and tell of them."""
        if gained or lost:
            self.counters.gained += gained
            self.counters.lost += lost
            owned = len(self.epochs)
            self.runtime.report(SlotsMoved(self.type.name, gained, lost, owned))

    @property
    def waiting(self) -> int:
        """How many messages wait for entities here."""
        with self.lock:
            mail = sum(cell.depth for cell in self.cells.values())
            return mail + len(self._held) + sum(map(len, self._waiting.values()))

    def shorten_replay(self, slots: "Sequence[int]") -> None:
        """Write snapshots of entities that move: the new owner has fewer events to replay."""
        with self.lock:
            cells = self._cells_of(slots)
        for cell in cells:
            cell.write_snapshot(EVENTS_TO_MOVE)

    def stop_slots(self, slots: "Sequence[int]", done: Callable[[], object]) -> None:
        """Take no message for slots, and put their entities away; calls back after that."""
        with self.lock:
            self._stopped.update(slots)
            self._when_stopped = done
            for cell in self._cells_of(self._stopped):
                self.put_away(cell)
        self._tell_stopped()

    def _plan_to_let_in(self) -> None:
        """Let in soon what handlers ask, unless all has come to rest; needs the lock."""
        if self._when_stopped is not None and not self._lets_in:
            self._lets_in = True
            self.runtime.post(self.runtime.call_later, NESTED_SECONDS, self._let_in)

    def _let_in(self) -> None:
        """Let entities handle what handlers ask of them, and put them away again.

        A handler that the slots wait for may wait for one of these answers, also by way of
        others. All that is held for such a key goes in, so that it keeps its order.
        """
        with self.lock:
            self._lets_in = False
            if self._when_stopped is None or self.is_closed:
                return
            nested = {key for key, message, *_ in self._held if is_nested(message)}
            at_rest = {
                key for key in nested if key not in self.cells and slot_of(key) in self.epochs
            }
            held = self._take_held()
            for key, message, sender, is_urgent in held:
                if key in at_rest:
                    cell = self.cells.get(key) or self._activate(key)
                    (cell.post_urgent if is_urgent else cell.post)(message, sender)
                else:
                    self._hold_on(key, message, sender, is_urgent=is_urgent)
            for key in at_rest:
                self.put_away(self.cells[key])
            if nested - at_rest:  # their former activations have not ended yet
                self._plan_to_let_in()

    def _tell_stopped(self) -> None:
        """Call back once nothing runs in the slots that are given away."""
        with self.lock:
            told = self._when_stopped
            if told is None or any(self._live[slot] for slot in self._stopped):
                return
            self._when_stopped = None
        told()

    def slots_moved(self, slots: "Sequence[int]") -> None:
        """Send on what came for slots while they were given away, in its order."""
        with self._lock:  # what could not be given away is served again
            kept = {slot for slot in slots if slot in self.epochs}
            self._stopped -= kept
            held = self._take_held()
            for key, message, sender, is_urgent in held:
                if slot_of(key) in kept:
                    self.deliver(key, message, sender, is_urgent=is_urgent, is_held=True)
                else:
                    self._hold_on(key, message, sender, is_urgent=is_urgent)
        while True:
            with self.lock:
                held = self._take_held()
                markers, self._markers = self._markers, []
                if not held and not markers:
                    self._stopped.difference_update(slots)
                    break
            for key, message, sender, is_urgent in held:
                self.sending.pass_on(key, slot_of(key), message, sender, is_urgent=is_urgent)
            for slot, passed in markers:
                self.sending.pass_marker(slot, passed)
        self.sending.end_passing(slots)

    def take_marker(self, slot: int, passed: Callable[[], object]) -> bool:
        """Call back once what was sent for a slot before is taken here, or is passed on.

        Returns:
            False if this node does not serve the slot: nothing will happen.
        """
        if self.handed and self.serves(slot):  # messages before it were handed over
            late = partial(self._take_marker_late, slot, passed)
            self.hand_over.add(late, reentry.nothing)
            return True
        return self._take_marker(slot, passed)

    def _take_marker_late(self, slot: int, passed: Callable[[], object]) -> None:
        """Take a marker behind messages that were handed over; they may have been sent on."""
        if not self._take_marker(slot, passed):
            self.sending.send_marker(slot, passed)

    def _take_marker(self, slot: int, passed: Callable[[], object]) -> bool:
        """Take a marker, as `take_marker` says."""
        with self.lock:
            if slot in self._stopped:
                self._markers.append((slot, passed))
                return True
            if slot not in self.epochs:
                return False
        self._lock.after(passed)
        return True

    def refuse(self, key: str, message: Any, sender: Sender | None) -> None:
        """Refuse a message that no activation takes."""
        if sender is not None and sender.expects:
            name = self.runtime.name
            text = f"{name} takes no messages for {self.ref(key)} just now; repeat it"
            self._lock.after(sender.set_exception, EntityUnavailable(text))
        self._lock.after(self.runtime.dead_letter, self.ref(key), message, sender)

    def _activate(self, key: str) -> EntityCell:
        """Make the activation of a key, which reads its state; needs the lock."""
        slot = slot_of(key)
        cls = EntityCell if self.is_leased is None else LeasedCell
        cell = self.runtime.place(lambda number: cls(self, number, key, slot))
        self.cells[key] = cell
        self._live[slot] += 1
        cell.read_state()
        cell.open(trap_exit=False)
        return cell

    def left(self, cell: EntityCell) -> None:
        """Take note that an activation has ended; what waited for that makes the next one."""
        with self._lock:
            if self.cells.get(cell.key) is not cell:
                return
            self.runtime.succession.leave_to(cell.number, self.ref(cell.key))
            self.when_left(cell)
            if not cell.is_clean:  # what is being committed comes first
                cell.after_commits = lambda: self.left(cell)
                return
            del self.cells[cell.key]
            self._live[cell.slot] -= 1
            waiting = self._waiting.pop(cell.key, ())
            if cell.slot in self._stopped:  # they came before what is held
                self._held[:0] = [(cell.key, *item, False) for item in waiting]
                self._held_in[cell.slot] += len(waiting)
                if any(is_nested(message) for message, _ in waiting):
                    self._plan_to_let_in()
                waiting = ()
            elif self.serves(cell.slot) and not self.is_closed:
                for message, sender in waiting:  # before anything that comes from now on
                    self.deliver(cell.key, message, sender, is_held=True)
                waiting = ()
            is_empty = not self.cells
        self._bring_elsewhere(cell, waiting)
        self._tell_stopped()
        if is_empty:
            for told in self._when_empty:
                told()

    def take_back(self, cell: EntityCell, mail: "list[tuple[Any, Sender | None]]") -> None:
        """Let mail of an activation that has ended wait, before what came after its end."""
        with self.lock:
            if self.cells.get(cell.key) is cell:
                self._waiting.setdefault(cell.key, [])[:0] = mail
                return
        self._bring_elsewhere(cell, mail)

    def _bring_elsewhere(
        self, cell: EntityCell, mail: Iterable[tuple[Any, Sender | None]]
    ) -> None:
        """Bring mail of a slot that was lost to its owner.

        Nodes that asked are told, and ask again if they have not given up meanwhile: after a
        pause, that may be so.
        """
        for message, sender in mail:
            if not self.send_back(self.type.name, sender):
                self.sending.pass_on(cell.key, cell.slot, message, sender, is_urgent=False)
                self.sending.end_passing((cell.slot,))

    def put_away(self, cell: EntityCell) -> None:
        """Let an activation end behind its mail; what comes from here on goes to the next."""
        with self.lock:
            if not cell.is_put_away:
                cell.is_put_away = True
                cell.leave()

    def _put_idle_away(self) -> None:
        """Put away what nobody has used for long."""
        if self.is_closed or self.idle is None:
            return
        before = self.runtime.now() - self.idle
        with self.lock:
            for cell in list(self.cells.values()):
                is_kept = cell.key in self.singletons
                if cell.last_used <= before and cell.is_idle and not is_kept:
                    self.put_away(cell)
        self.runtime.call_later(self._look, self._put_idle_away)

    def close(self, when_empty: Callable[[], object]) -> None:
        """Take no message more, and put all away; calls back when nothing is left."""
        with self.lock:
            self.is_closed = True
            self._when_empty.append(when_empty)
            cells = list(self.cells.values())
            for cell in cells:
                self.put_away(cell)
            parked = list(self._parked)
        for cell in parked:
            cell.kill(ExitReason.SHUTDOWN, _NO_LEASE)
        if not cells:
            when_empty()

    def kill_all(self, why: str) -> None:
        """End every activation before its next message."""
        with self.lock:
            cells = list(self.cells.values())
        for cell in cells:
            cell.kill(ExitReason.SHUTDOWN, why)

    # --- the state ---

    def recover(
        self, cell: EntityCell, done: Callable[[Recovered | BaseException], object]
    ) -> None:
        """Read what an entity is made of: its snapshot, and the first page of events."""
        if self.state is None:
            self.runtime.post(done, Recovered(None, (), has_more=False))
            return
        version = self.type.snapshot_version
        name, key = self.type.name, cell.key
        self.state.submit(done, EntityState.recover, name, key, version, REPLAYED_AT_ONCE)

    def recover_more(
        self,
        cell: EntityCell,
        after: int,
        done: Callable[[Recovered | BaseException], object],
    ) -> None:
        """Read the page of an entity's events behind a number."""
        name, key = self.type.name, cell.key

        def take(events: "Sequence[PastEvent] | BaseException") -> None:
            if isinstance(events, BaseException):
                done(events)
                return
            has_more = len(events) == REPLAYED_AT_ONCE
            try:
                check_numbers(name, key, events, after)
            except StateCorrupt as error:
                done(error)
            else:
                done(Recovered(None, events, has_more))

        assert self.state is not None, "there is a page before it"
        self.state.submit(take, EntityState.past_events, name, key, after, REPLAYED_AT_ONCE)

    def commit(self, cell: EntityCell, batch: EntityBatch) -> None:
        """Commit a batch of an entity in the next transaction; the entity is told of it."""
        if batch.snapshot is None and batch.rows is None:
            self.commit_events(cell, batch.events)
            return
        snapshots: tuple[EntitySnapshot, ...] = ()
        forget = _NOTHING
        if batch.snapshot is not None:
            snapshots, keep = (batch.snapshot,), self.type.cls.keep
            if keep != "all" and self.type.appliers:
                last = batch.snapshot.number - keep
                forget = {cell.key: last} if last > 0 else _NOTHING
        assert self.state is not None
        epoch = self.epochs.get(cell.slot, 0)
        made = SlotBatch(cell.home, epoch, batch.events, snapshots, forget, batch.rows)
        self.state.commit(made, cell.take_outcome)

    def commit_events(self, cell: EntityCell, events: "Sequence[NewEvent]") -> None:
        """Commit events of an entity, and nothing else."""
        done: Callable[[Committed | BaseException], None] = cell.take_outcome
        if not self.counters.commits % TIMED:
            done = self._timed(done)
        epoch = self.epochs.get(cell.slot, 0)
        assert self.state is not None
        self.state.commit(_slot_batch((cell.home, epoch, events, (), _NOTHING, None)), done)

    def _timed(
        self, done: Callable[[Committed | BaseException], None]
    ) -> Callable[[Committed | BaseException], None]:
        """Return what takes an outcome, and notes how long it took."""
        began = self.runtime.now()

        def take(outcome: Committed | BaseException) -> None:
            self.commit_seconds.add(self.runtime.now() - began)
            done(outcome)

        return take

    def has_committed(self, outcome: Committed) -> None:
        """Take note of a transaction that holds a batch which is durable."""
        if not (outcome.fenced or outcome.failed):
            self.all_committed = outcome
        position = outcome.positions.get(self.type.name, 0)
        if position > self._position:  # each batch of a transaction is told the same
            self._position = position
            self.grew(position)

    def error_of(
        self, cell: EntityCell, outcome: Committed | BaseException
    ) -> BaseException | None:
        """Return why a batch of an entity was not committed; None if it was."""
        if isinstance(outcome, BaseException):
            return outcome
        fence = outcome.fenced.get(cell.home)
        if fence is not None:
            return self._fenced(cell.slot, fence)
        return outcome.failed.get(cell.home)

    def not_committed(self, cell: EntityCell, outcome: Committed | BaseException) -> None:
        """Take note of a batch that failed; the entity knows it."""
        self.counters.failures += 1
        if not isinstance(outcome, BaseException) and cell.home in outcome.fenced:
            self.lost(cell.slot, outcome.fenced[cell.home])

    def rows_committed(self, rows: RowChanges) -> None:
        """Take note of reminders that were set or went."""
        if rows.reminders:
            with self.lock:
                self.reminders.committed(rows.reminders)

    def _fenced(self, slot: int, fence: Fence) -> Fenced:
        """Return the error of a slot that another owner has."""
        return Fenced(
            f"slot {slot} of {self.type.name} was taken over by {fence.writer or 'nobody'}"
        )

    def prove(self, slot: int, emission: "Emission | DeferredReply") -> None:
        """Let an answer go once it is proven that this node has the slot; needs the lock."""
        if (
            self.is_leased is not None
        ):  # it proves what answers show: nobody else has it while the lease is valid
            go, fail = emission_of(emission)
            post = self.runtime.post
            post(go) if self.is_leased() else post(fail, self._unleased())
            return
        self._proofs.append((slot, self.epochs.get(slot), emission))
        if not self._is_proving:
            self._is_proving = True
            self.runtime.post(self._prove_all)

    def _prove_all(self) -> None:
        """Let go what shows slots that this node has for certain; look longer for the rest."""
        assert self.state is not None
        with self.lock:  # first: a look proves nothing of what comes behind it
            waiting, self._proofs = self._proofs, []
        own = self.state.own_fences(self.type.name) or {}
        unproven: list[_Proof] = []
        for proof in waiting:
            slot, epoch, emission = proof
            if epoch is not None and own.get(slot) == epoch:
                if isinstance(emission, DeferredReply):  # as nearly always
                    emission.leave()
                else:
                    emission[0]()
            else:
                unproven.append(proof)
        with self.lock:
            self._is_proving = bool(self._proofs)
            if unproven:
                self._proofs[:0] = unproven
                self._prove()
            elif self._proofs:
                self.runtime.post(self._prove_all)

    def _prove(self) -> None:
        """Look at the fences of all that wait; needs the lock."""
        proofs, self._proofs = self._proofs, []
        self._is_proving = bool(proofs)
        if not proofs:
            return
        name = self.type.name

        def take(fences: Mapping[Slot, Fence] | BaseException) -> None:
            with self.lock:
                self._prove()
            for slot, epoch, emission in proofs:
                go, fail = emission_of(emission)
                if isinstance(fences, BaseException):
                    fail(unavailable(fences))
                    continue
                fence = fences[name, slot]
                if fence == (epoch, self.writer):  # also if it was given away since
                    go()
                else:
                    fail(unavailable(self._fenced(slot, fence)))
                    self.lost(slot, fence)

        assert self.state is not None
        slots = {(name, slot) for slot, *_ in proofs}
        self.state.submit(take, EntityState.fences, slots)

    def lost(self, slot: int, fence: Fence) -> None:
        """Have a slot no more whose fence another claim has, or a failover of the database."""
        with self.lock:
            epoch = self.epochs.get(slot)
            if epoch is None or fence.epoch < epoch or fence == (epoch, self.writer):
                return  # it is another epoch's
            del self.epochs[slot]
            cells = self._cells_of([slot])
        self.counters.fenced += 1
        self.counters.lost += 1
        self.runtime.report(SlotFenced(self.type.name, slot, fence.epoch, fence.writer))
        for cell in cells:  # each may show what is no longer so; their mail waits
            cell.kill(ExitReason.SHUTDOWN, "its slot moved")
        self.on_lost(slot, epoch)

    # --- a lease that has run out ---

    def _unleased(self) -> EntityUnavailable:
        """Return the error of what may not be handled without the lease."""
        where = f"the lease of {self.runtime.name} for {self.type.name}"
        return EntityUnavailable(f"{where} has run out; repeat it")

    def _is_unleased(self, key: str, sender: Sender | None) -> bool:
        """Return whether this is an ask of a key of this node, whose lease has run out."""
        is_ask = sender is not None and sender.expects
        is_over = self.is_leased is not None and not self.is_leased()
        return is_over and is_ask and self.serves(slot_of(key))

    def refuse_unleased(self, sender: Any) -> None:
        """Refuse an ask because the lease has run out; what was told waits."""
        self._lock.after(sender.set_exception, self._unleased())

    def park(self, cell: EntityCell) -> None:
        """Keep an activation from its turn until the lease is valid, or it is to end."""
        with self.lock:
            self._parked.append(cell)
            is_first = len(self._parked) == 1
        if self.is_closed:
            cell.kill(ExitReason.SHUTDOWN, _NO_LEASE)
        elif cell.end is not None:  # it was killed meanwhile
            self.unpark(cell)
        elif is_first:
            self.runtime.post(self.runtime.call_later, _LOOK_AT_LEASE, self._look_at_lease)

    def unpark(self, cell: EntityCell) -> None:
        """Let an activation have its turn, which ends it."""
        with self.lock:
            if cell not in self._parked:
                return
            self._parked.remove(cell)
        cell.runner.schedule(cell)

    def _look_at_lease(self) -> None:
        """Let all go on if the lease is valid again; else look again soon."""
        with self.lock:
            if self.is_leased is not None and not self.is_leased():
                if self._parked:
                    self.runtime.call_later(_LOOK_AT_LEASE, self._look_at_lease)
                return
            parked, self._parked = self._parked, []
        for cell in parked:
            cell.runner.schedule(cell)

    def begun(self, cell: EntityCell) -> None:
        """Take note that an activation begins."""
        self.counters.activations += 1

    # --- forms ---

    def learn(self, event: object) -> KnownEvent:
        """Return what is done with events of a class; the next one is looked up.

        Raises:
            NotPersistable: no `@event` takes it.
            NotSerializable: its class is no registered dataclass or named tuple.
        """
        apply = self.type.applier(event)
        kind = self.form.kind_of(event)
        version = self.type.version_of(*kind.names)
        known = apply, kind, version
        with self.lock:
            if self.state is not None:  # told before the first of them is stored
                self.on_kind((kind.name, version))
            self.known_events[type(event)] = known
        return known

    def snapshot(self, cell: EntityCell) -> EntitySnapshot | None:
        """Return the state of an entity as it is, if it can be written."""
        try:
            body = self.form.write(public_state(cell.actor))
        except Exception as error:  # noqa: BLE001 - the events are there
            where = self.type.cls.__qualname__
            text = f"{where} has no snapshots, events are replayed: {error_text(error)}"
            self.runtime.warn_once((self.type.cls, "snapshot"), text)
            return None
        version = self.type.snapshot_version or 0
        return EntitySnapshot(cell.key, cell.written, version, body)

    def restore(self, actor: Entity, snapshot: EntitySnapshot) -> None:
        """Give an entity the state of a snapshot."""
        restore(self.form, self.type, actor, snapshot)

    def apply(self, cell: EntityCell, actor: Entity, events: "Iterable[PastEvent]") -> None:
        """Apply stored events to an entity.

        Raises:
            StateVersion: a newer version of the class wrote one, or one that knew more events.
        """
        apply_all(self.form, self.type, cell, actor, events)


def _table_of(cls: type[Entity], checked: EventSerializer | None) -> DispatchTable:
    """Return the handlers of a class; those that are read-only may persist nothing.

    With a form, handlers that lose changes of the state are found.
    """
    table = DispatchTable(cls)
    for entry in table.declared.values():
        if checked is not None:
            entry.function = checking(entry.function, checked, awaits=entry.is_coroutine)
        if entry.is_read_only:
            entry.function = read_only(entry.function, awaits=entry.is_coroutine)
    return table
