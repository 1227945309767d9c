"""Hosts the entities of one type on one node: activations, slots, commits, proofs, leases.

The host passes all work that takes time to threads of its state, which call back on the node's
thread. The host's lock guards the fields that handlers on other threads use as well.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from callboard import locks
from callboard.entity.cell import EntityCell, LeasedCell, read_only
from callboard.entity.entity import Entity, EntityType
from callboard.entity.errors import EntityUnavailable
from callboard.entity.event_json import EventSerializer
from callboard.entity.inspection.events import SlotFenced, SlotsMoved
from callboard.entity.inspection.figures import TIMED, EntityCounters
from callboard.entity.machine.hosted_slot import (
    HELD,
    HOSTED_SLOTS,
    HostedSlot,
    HostedSlotEvent,
)
from callboard.entity.machine.ownership_machine import MOVED_AT_ONCE
from callboard.entity.machine.table import SLOTS, slot_of
from callboard.entity.proofs import FenceProofs, LeaseProofs, fenced_error
from callboard.entity.reentrancy import comes_back, is_nested, would_deadlock
from callboard.entity.reminders import Reminders, ReminderTicket
from callboard.entity.replay import apply_all, public_state, restore
from callboard.entity.router import TypeRouter
from callboard.entity.singletons import Singletons
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    Fence,
    PastEvent,
    Recovered,
    RowChanges,
    SlotBatch,
    check_numbers,
)
from callboard.entity.unit_of_work import DeferredReply, EntityBatch
from callboard.entity.unpersisted import checking
from callboard.kernel.activation import Cell, DispatchTable, Envelope, RemoteReply
from callboard.kernel.actors import ActorRef, ExitReason
from callboard.kernel.codec import RecordType
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Asker, Sender
from callboard.lease.errors import StateCorrupt
from callboard.support import reentry
from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram
from callboard.support.reentry import HandOver
from callboard.support.text import error_text
from callboard.transitions import next_state

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Makes a `SlotBatch` in half the time of its constructor; runs for each commit of an entity.
_slot_batch: Final[Callable[[tuple[Any, ...]], SlotBatch]] = partial(tuple.__new__, SlotBatch)

#: The function that applies an event, its registered type, and the version to write.
KnownEvent = tuple[Callable[[Any, Any], object], RecordType, int]

#: The states that each message asks for; a global is read faster than a member of its class.
_ABSENT: Final = HostedSlot.ABSENT
_OWNED: Final = HostedSlot.OWNED

#: A message from another node: its key, itself, its sender, whether it goes ahead of others,
#: the attempt in which it was sent, and the reply to it, also if it has no asker.
Arrival = tuple[str, Any, Sender | None, bool, int, RemoteReply]

#: For a batch that forgets no events.
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

#: Most seconds between checks for idle entities.
_IDLE_POLL_SECONDS: Final = 5.0

#: Events in one page of a recovery; other actors run between two pages.
REPLAYED_AT_ONCE: Final = 2_000

#: Entities that are passivated together in a move; a portion of slots holds about this many.
PASSIVATED_AT_ONCE: Final = 500

#: Events since the last snapshot that make a new snapshot worthwhile before a move: replaying
#: this many takes the new owner about a millisecond.
EVENTS_TO_MOVE: Final = 100

#: Seconds between checks whether a running handler awaits or has returned.
RUNNING_POLL_SECONDS: Final = 0.001

#: Seconds that an ask from a handler is held for a slot that is being drained.
NESTED_SECONDS: Final = 0.02

#: Seconds between checks whether an expired lease is valid again.
_LEASE_POLL_SECONDS: Final = 0.02

_NO_LEASE: Final = "the lease of its node had run out"

#: Messages that may wait for one key while its last activation ends, or for one slot that
#: moves.
WAITING_LIMIT: Final = 1_000


def ignore(*_: object) -> None:
    """Stand for a callback that is not needed."""


@dataclass(frozen=True, slots=True)
class HostNode:
    """The parts of a node that its hosts of entities use."""

    runtime: NodeContext
    #: Runs the activations.
    runner: Any
    #: The name of this node's life in fences.
    writer: str
    #: Serializer of events.
    form: EventSerializer
    #: Makes the ref of a type and key.
    ref: Callable[[str, str], ActorRef]
    #: Returns a message to the node that asked; returns False if no node asked.
    send_back: Callable[[str, Sender | None], bool]
    #: Whether to find handlers that change the state without persisting.
    is_checked: bool = False
    #: Returns the node's address for people; empty without a port.
    address: Callable[[], str] = str


@dataclass(frozen=True, slots=True)
class HostedType:
    """A type as it is hosted on a node."""

    kind: EntityType
    #: For the class's `__init__`.
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    #: Stores the events; None for a type without state.
    state: StateClient | None
    #: Called with the journal position of each local commit.
    on_growth: Callable[[int], object]
    #: Called with each activation that has ended.
    on_ended: Callable[[EntityCell], object] = ignore


@dataclass(frozen=True, slots=True)
class HostMembership:
    """The membership of this node in the table of a type, as the host uses it."""

    #: Returns whether the node's lease is valid; None where fences are checked instead.
    is_leased: Callable[[], bool] | None = None
    #: Called with each kind and version of events before the first one is stored.
    on_kind: Callable[[tuple[str, int]], object] = ignore
    #: Called with a slot and its epoch when another node has raised its fence.
    on_lost: Callable[[int, int], object] = ignore


#: For a type without leases: this node owns all its slots.
ALONE: Final = HostMembership()


class EntityHost:
    """The entities of one type on one node."""

    is_closed = False
    #: Whether `_let_in` is scheduled.
    _lets_in = False

    def __init__(
        self,
        node: HostNode,
        hosted: HostedType,
        router: TypeRouter,
        membership: HostMembership = ALONE,
    ) -> None:
        """Create a host that owns no slot yet.

        Args:
            node: the parts of the node that it uses.
            hosted: the type.
            router: forwards held messages of slots that other nodes own.
            membership: the node's membership in the table of the type.
        """
        runtime = node.runtime
        self.runtime, self.form, self.type = runtime, node.form, hosted.kind
        self.runner, self.writer = node.runner, node.writer
        self._make_ref, self._send_back = node.ref, node.send_back
        self.arguments, self.state = hosted.arguments, hosted.state
        self._on_growth, self._on_ended = hosted.on_growth, hosted.on_ended
        self.is_leased, self._on_kind = membership.is_leased, membership.on_kind
        self._on_lost = membership.on_lost
        self.table = _table_of(self.type.cls, self.form if node.is_checked else None)
        self._lock = locks.collecting_lock("host of entities", 530)
        self._lock.outer = router.lock  # under the router's lock, refusals are deferred
        self.lock = self._lock.guard
        self.is_inside = locks.owner_test(self.lock)
        self.hand_over = HandOver(self.lock, runtime.post, runtime.counters)
        self.handed = self.hand_over.calls
        self.router = router
        #: The activations, by key.
        self.cells: dict[str, EntityCell] = {}
        #: Number of activations in each slot.
        self._live: Counter[int] = Counter()
        #: The epochs of the slots that this node owns.
        self.epochs: dict[int, int] = {}
        #: The state of each slot: see `callboard.entity.machine.hosted_slot`.
        self.slots = [HostedSlot.ABSENT] * SLOTS
        self._position = 0
        #: The outcome of the latest transaction without a failed batch.
        self.all_committed: Committed | None = None
        #: By class of events; filled by `learn`.
        self.known_events: dict[type, KnownEvent] = {}
        #: Counts of this host, and the times of its commits.
        self.counters = EntityCounters()
        self.commit_seconds = Histogram()
        #: By key: messages that wait until its last activation has ended.
        self._waiting: dict[str, list[tuple[Any, Sender | None]]] = {}
        #: The reminders in the slots of this node.
        self.reminders = Reminders(self)
        self.singletons = Singletons(self)
        #: Sends an answer after a proof that this node owns its slot. The caller holds the
        #: lock.
        self.prove = self._proofs(membership.is_leased).prove
        self._when_empty: list[Callable[[], object]] = []
        #: The callback for the end of a drain, and the messages held for its slots.
        self._when_stopped: Callable[[], object] | None = None
        self._held: list[tuple[str, Any, Sender | None, bool]] = []
        #: By slot: the number of held messages.
        self._held_in: Counter[int] = Counter()
        self._markers: list[tuple[int, Callable[[], object]]] = []
        self._parked: list[EntityCell] = []
        #: Seconds without a message until an entity is passivated; None for never.
        self.idle = idle = self.type.idle(is_kept=self.state is not None)
        if idle is not None:
            self._idle_poll = min(max(idle / 4, 0.01), _IDLE_POLL_SECONDS)
            runtime.call_later(self._idle_poll, self._passivate_idle)

    def _proofs(self, is_leased: Callable[[], bool] | None) -> FenceProofs | LeaseProofs:
        """Return the proofs of answers: by a lease, or by fences in the state."""
        if is_leased is not None:
            return LeaseProofs(self.runtime, is_leased, self._unleased)
        return FenceProofs(self, self.type.name, self.state)

    def ref(self, key: str) -> ActorRef:
        """Return the ref of a key."""
        return self._make_ref(self.type.name, key)

    @property
    def reads(self) -> tuple[tuple[str, int], ...]:
        """Kinds of events that the class can read, with the highest version of each."""
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
        """Deliver a message to the entity of a key, which is activated if needed.

        Can be called from any thread.

        `is_held` is set if the caller holds the lock.

        Returns:
            False if this node does not serve the slot of the key, so that nothing was done.
        """
        if message.__class__ is Envelope and self._comes_back(key, message, sender):
            return True
        if is_held:
            return self._post(key, message, sender, is_urgent=is_urgent)
        lock = self.lock
        if (
            self.handed or self.is_inside() or not (lock.acquire(False) or reentry.wait(lock))  # noqa: FBT003
        ):
            if not self.serves(slot_of(key)):
                return False
            give = partial(self._post_late, key, message, sender, is_urgent=is_urgent)
            self.hand_over.add(give, lambda _: self.refuse(key, message, sender))
            return True
        try:
            return self._post(key, message, sender, is_urgent=is_urgent)
        finally:
            if self._lock.calls:
                self._lock.release()
            else:
                lock.release()

    def deliver_run(
        self,
        messages: "Sequence[Arrival]",
        first: int,
        apart: Container[int],
        fail: Callable[[int, Exception], object],
    ) -> int:
        """Deliver messages of another node in order, up to the first one that is special.

        A message is special if it is for a slot in `apart`, or for one that this host does not
        serve. The lock is acquired once for all messages. Runs on the node's thread.

        Args:
            messages: messages that arrived together; none is an `Envelope`.
            first: the position of the first one to post.
            apart: slots whose messages the caller handles one by one.
            fail: called with the position of a message that cannot be posted, and the error.

        Returns:
            The position of the first special message, or the number of messages.
        """
        queues, post = self.router.forwarded, self._post
        with self._lock:
            if self.is_closed:
                return first
            for position in range(first, len(messages)):
                key, message, sender, is_urgent, _, _ = messages[position]
                # A message must not overtake forwarded messages of its slot.
                if (apart or queues) and ((slot := slot_of(key)) in apart or slot in queues):
                    return position
                try:
                    if not post(key, message, sender, is_urgent=is_urgent):
                        return position
                except Exception as error:  # noqa: BLE001 - the other messages are posted
                    self._lock.after(fail, position, error)
        return len(messages)

    def _post_late(
        self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Deliver a message that a nested call had deferred."""
        with self._lock:
            is_taken = self._post(key, message, sender, is_urgent=is_urgent)
        if not is_taken:
            self.router.send(key, slot_of(key), message, sender, is_urgent=is_urgent)

    def _comes_back(self, key: str, message: Any, sender: Sender | None) -> bool:
        """Schedule an ask whose chain includes the receiving entity.

        Returns False if the chain does not include it.
        """
        if sender is None or not sender.expects or key not in self.cells:
            return False
        if not comes_back(message, f"{self.type.name}/{key}"):
            return False
        self.runtime.post(self._answer_or_refuse, key, message, sender)
        return True

    def _answer_or_refuse(self, key: str, message: Any, sender: Asker) -> None:
        """Answer an ask that came back with a read-only handler, or fail it as a deadlock."""
        cell = self.cells.get(key)
        if cell is not None and cell.running:  # the handler will soon await or return
            self.runtime.call_later(
                RUNNING_POLL_SECONDS, self._answer_or_refuse, key, message, sender
            )
        elif cell is None or cell.task is None:  # the handler has returned
            self._post_late(key, message, sender, is_urgent=False)
        elif not cell.answer_meanwhile(message, sender):
            sender.set_exception(would_deadlock(message.chain, f"{self.type.name}/{key}"))

    # Every message passes here, so the usual case is inline.
    def _post(  # noqa: C901
        self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> bool:
        """Post a message to the entity of a key; return False if the slot is not served here.

        The caller must hold the lock.
        """
        if self.is_leased is not None and self._is_unleased(key, sender):
            self.refuse_unleased(sender)
            return True
        cell = self.cells.get(key)
        state = self.slots[slot_of(key) if cell is None else cell.slot]
        if state is not _OWNED and state in HELD and not self.is_closed:
            if self._hold(key, message, sender, is_urgent=is_urgent):
                return True
            cell = None
        elif cell is None:
            if state is _ABSENT:
                return False
            if not self.is_closed:
                cell = self._activate(key)
        elif cell.is_ending or cell.reason is not None:
            waiting = self._waiting.setdefault(key, [])
            if len(waiting) < WAITING_LIMIT:
                waiting.append((message, sender))
                return True
            cell = None
        if cell is None:
            self.refuse(key, message, sender)
        elif is_urgent:
            cell.post_urgent(message, sender)
        else:  # a copy of `EntityCell.post`, because this runs for each message
            cell.last_used = self.runner.now()
            Cell.post(cell, message, DeferredReply(cell, sender))
        return True

    def _hold(self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool) -> bool:
        """Hold a message until the owner of its slot is known. The caller must hold the lock.

        Returns:
            False if the limit of held messages is reached.
        """
        if self._held_in[slot_of(key)] >= WAITING_LIMIT:
            return False
        self._add_held(key, message, sender, is_urgent=is_urgent)
        if is_nested(message):
            self._schedule_let_in()
        return True

    def _add_held(
        self, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Hold a message without checking the limit. The caller must hold the lock."""
        self._held.append((key, message, sender, is_urgent))
        self._held_in[slot_of(key)] += 1

    def _pop_held(self) -> list[tuple[str, Any, Sender | None, bool]]:
        """Return all held messages, and hold none; the caller must hold the lock."""
        messages, self._held = self._held, []
        self._held_in.clear()
        return messages

    def post_reminder(self, ticket: ReminderTicket) -> bool:
        """Deliver a reminder; return False if its entity accepts no messages now.

        The caller must hold the lock.
        """
        key = ticket.row.key
        if self.is_closed or self.gives_away(slot_of(key)):
            return False
        cell = self.cells.get(key)
        if cell is None:
            cell = self._activate(key)
        elif cell.is_ending:
            return False
        cell.post_reminder(ticket)
        return True

    # --- slots ---

    def _change(self, slots: Iterable[int], event: HostedSlotEvent) -> None:
        """Change the states of slots by an event; the caller must hold the lock."""
        states = self.slots
        for slot in slots:
            states[slot] = next_state(HOSTED_SLOTS, states[slot], event, (self.type.name, slot))

    @property
    def portion(self) -> int:
        """Number of slots to drain together: fewer if each slot has many entities."""
        per_slot = len(self.cells) / max(1, len(self.epochs))
        return max(1, min(MOVED_AT_ONCE, int(PASSIVATED_AT_ONCE / max(1.0, per_slot))))

    def serves(self, slot: int) -> bool:
        """Return whether this node accepts messages for a slot."""
        return self.slots[slot] is not _ABSENT

    def gives_away(self, slot: int) -> bool:
        """Return whether messages for a slot are held, as it goes to another host."""
        return self.slots[slot] in HELD

    def serve(self, epochs: Mapping[int, int]) -> None:
        """Serve slots whose fences this node has raised."""
        with self.lock:
            gained = len(epochs.keys() - self.epochs.keys())
            self.epochs.update(epochs)
            self._change(epochs, HostedSlotEvent.SERVED)
            if self.state is not None:
                self.reminders.served(epochs)
            self.singletons.start()
        self._moved(gained=gained)

    def activate_if_served(self, key: str) -> None:
        """Activate an entity if this node serves its slot, unless it is active.

        The caller must hold the lock.
        """
        slot = slot_of(key)
        if self.slots[slot] is _OWNED and key not in self.cells:
            self._activate(key)

    def keep_only(self, owned: Mapping[int, int]) -> None:
        """End the activations in slots that this node no longer owns."""
        with self.lock:
            lost = [s for s, epoch in self.epochs.items() if owned.get(s) != epoch]
            for slot in lost:
                del self.epochs[slot]
            self._change(lost, HostedSlotEvent.LOST)
            moved = self._cells_of(lost)
        for cell in moved:
            cell.kill(ExitReason.SHUTDOWN, "its slot moved")
        self._moved(lost=len(lost))

    def _cells_of(self, slots: Iterable[int]) -> list[EntityCell]:
        """Return the activations in some slots. The caller must hold the lock."""
        occupied = {slot for slot in slots if self._live[slot]}
        return (
            [cell for cell in self.cells.values() if cell.slot in occupied] if occupied else []
        )

    def _moved(self, gained: int = 0, lost: int = 0) -> None:
        """Count and report slots that were gained or lost."""
        if gained or lost:
            self.counters.gained += gained
            self.counters.lost += lost
            owned = len(self.epochs)
            self.runtime.report(SlotsMoved(self.type.name, gained, lost, owned))

    @property
    def waiting(self) -> int:
        """Number of messages that wait in this host and its mailboxes."""
        with self.lock:
            mail = sum(cell.depth for cell in self.cells.values())
            return mail + len(self._held) + sum(map(len, self._waiting.values()))

    def shorten_replay(self, slots: "Sequence[int]") -> None:
        """Write snapshots before a move, so that the new owner has fewer events to replay."""
        with self.lock:
            cells = self._cells_of(slots)
        for cell in cells:
            cell.write_snapshot(EVENTS_TO_MOVE)

    def stop_slots(self, slots: "Sequence[int]", done: Callable[[], object]) -> None:
        """Hold the messages for some slots, passivate their entities, and then call `done`."""
        with self.lock:
            self._change(slots, HostedSlotEvent.STOPPED)
            self._when_stopped = done
            for cell in self._cells_of(self._stopped):
                self.passivate(cell)
        self._notify_stopped()

    @property
    def _stopped(self) -> list[int]:
        """The slots that messages are held for."""
        return [slot for slot, state in enumerate(self.slots) if state in HELD]

    def _schedule_let_in(self) -> None:
        """Schedule `_let_in` while slots are being drained; the caller must hold the lock."""
        if self._when_stopped is not None and not self._lets_in:
            self._lets_in = True
            self.runtime.post(self.runtime.call_later, NESTED_SECONDS, self._let_in)

    def _let_in(self) -> None:
        """Activate entities of drained slots for asks of handlers, and passivate them again.

        A handler in these slots may wait for the answer to such an ask, directly or through
        other entities. If the ask were held, the handler would not end, and the move would be
        blocked until its time limit. All held messages of the key are delivered, so they keep
        their order.
        """
        with self.lock:
            self._lets_in = False
            if self._when_stopped is None or self.is_closed:
                return
            nested = {key for key, message, *_ in self._held if is_nested(message)}
            drained = {
                key
                for key in nested
                if key not in self.cells and self.slots[slot_of(key)] is HostedSlot.DRAINING
            }
            messages = self._pop_held()
            for key, message, sender, is_urgent in messages:
                if key in drained:
                    cell = self.cells.get(key) or self._activate(key)
                    (cell.post_urgent if is_urgent else cell.post)(message, sender)
                else:
                    self._add_held(key, message, sender, is_urgent=is_urgent)
            for key in drained:
                self.passivate(self.cells[key])
            if nested - drained:  # their last activations have not ended yet
                self._schedule_let_in()

    def _notify_stopped(self) -> None:
        """Call back if no activation is left in the drained slots."""
        with self.lock:
            callback = self._when_stopped
            if callback is None or any(self._live[slot] for slot in self._stopped):
                return
            self._when_stopped = None
        callback()

    def slots_moved(self, slots: "Sequence[int]") -> None:
        """Serve slots that stayed, and forward held messages of moved slots, in order."""
        with self._lock:
            stayed = {slot for slot in slots if slot in self.epochs}
            self._change(stayed, HostedSlotEvent.RELEASED)
            messages = self._pop_held()
            for key, message, sender, is_urgent in messages:
                if slot_of(key) in stayed:
                    self.deliver(key, message, sender, is_urgent=is_urgent, is_held=True)
                else:
                    self._add_held(key, message, sender, is_urgent=is_urgent)
        while True:  # more messages may arrive while some are forwarded
            with self.lock:
                messages = self._pop_held()
                markers, self._markers = self._markers, []
                if not messages and not markers:
                    moved = [slot for slot in slots if slot not in stayed]
                    self._change(moved, HostedSlotEvent.RELEASED)
                    break
            for key, message, sender, is_urgent in messages:
                self.router.forward(key, slot_of(key), message, sender, is_urgent=is_urgent)
            for slot, passed in markers:
                self.router.forward_marker(slot, passed)
        self.router.end_forwarding(slots)

    def accept_marker(self, slot: int, passed: Callable[[], object]) -> bool:
        """Call `passed` when all earlier messages for a slot were accepted here or forwarded.

        Returns:
            False if this node does not serve the slot, so that `passed` is never called.
        """
        if self.handed and self.serves(slot):  # earlier messages were deferred by nested calls
            late = partial(self._accept_marker_late, slot, passed)
            self.hand_over.add(late, reentry.nothing)
            return True
        return self._accept_marker(slot, passed)

    def _accept_marker_late(self, slot: int, passed: Callable[[], object]) -> None:
        """Accept a marker after handed-over messages, or send it after them to the owner."""
        if not self._accept_marker(slot, passed):
            self.router.send_marker(slot, passed)

    def _accept_marker(self, slot: int, passed: Callable[[], object]) -> bool:
        """Accept a marker, as `accept_marker` does, when no earlier message is deferred."""
        with self.lock:
            if self.gives_away(slot):
                self._markers.append((slot, passed))
                return True
            if not self.serves(slot):
                return False
        self._lock.after(passed)
        return True

    def refuse(self, key: str, message: Any, sender: Sender | None) -> None:
        """Refuse a message for a slot of this node, because no activation can accept it now."""
        if sender is not None and sender.expects:
            name = self.runtime.name
            text = f"{name} accepts no messages for {self.ref(key)} now; repeat it"
            self._lock.after(sender.set_exception, EntityUnavailable(text))
        self._lock.after(self.runtime.dead_letter, self.ref(key), message, sender)

    def _activate(self, key: str) -> EntityCell:
        """Create the activation of a key, and read its state. The caller must hold the lock."""
        slot = slot_of(key)
        cls = EntityCell if self.is_leased is None else LeasedCell
        cell = self.runtime.place(lambda number: cls(self, number, key, slot))
        self.cells[key] = cell
        self._live[slot] += 1
        cell.read_state()
        cell.open(trap_exit=False)
        return cell

    def activation_ended(self, cell: EntityCell) -> None:
        """Remove an ended activation, and start the next one if messages wait for the key."""
        with self._lock:
            if self.cells.get(cell.key) is not cell:
                return
            self.runtime.succession.leave_to(cell.number, self.ref(cell.key))
            self._on_ended(cell)
            if not cell.is_clean:  # wait for its commits in progress
                cell.after_commits = lambda: self.activation_ended(cell)
                return
            del self.cells[cell.key]
            self._live[cell.slot] -= 1
            waiting = self._waiting.pop(cell.key, ())
            if self.gives_away(cell.slot):  # before the held messages, which are newer
                self._held[:0] = [(cell.key, *item, False) for item in waiting]
                self._held_in[cell.slot] += len(waiting)
                if any(is_nested(message) for message, _ in waiting):
                    self._schedule_let_in()
                waiting = ()
            elif self.serves(cell.slot) and not self.is_closed:
                # Before any later message, because the lock is held.
                for message, sender in waiting:
                    self.deliver(cell.key, message, sender, is_held=True)
                waiting = ()
            is_empty = not self.cells
        self._return_or_forward(cell, waiting)
        self._notify_stopped()
        if is_empty:
            for callback in self._when_empty:
                callback()

    def keep_mail(self, cell: EntityCell, mail: "list[tuple[Any, Sender | None]]") -> None:
        """Keep the messages of an ended activation, before later messages for the key."""
        with self.lock:
            if self.cells.get(cell.key) is cell:
                self._waiting.setdefault(cell.key, [])[:0] = mail
                return
        self._return_or_forward(cell, mail)

    def _return_or_forward(
        self, cell: EntityCell, mail: Iterable[tuple[Any, Sender | None]]
    ) -> None:
        """Return asks for a lost slot to the nodes that sent them, and forward other messages.

        The node that sent an ask sends it again only if the caller still waits. If this node
        was paused, the caller may have given up, and forwarding would make the new owner handle
        the ask in vain.
        """
        for message, sender in mail:
            if not self._send_back(self.type.name, sender):
                self.router.forward(cell.key, cell.slot, message, sender, is_urgent=False)
                self.router.end_forwarding((cell.slot,))

    def passivate(self, cell: EntityCell) -> None:
        """Passivate an activation after the messages in its mailbox.

        Later messages go to the next activation of the key.
        """
        with self.lock:
            if not cell.is_ending:
                cell.is_ending = True
                cell.passivate()

    def _passivate_idle(self) -> None:
        """Passivate entities without a recent message, and schedule the next check."""
        if self.is_closed or self.idle is None:
            return
        idle_since = self.runtime.now() - self.idle
        with self.lock:
            for cell in list(self.cells.values()):
                is_kept = cell.key in self.singletons
                if cell.last_used <= idle_since and cell.is_idle and not is_kept:
                    self.passivate(cell)
        self.runtime.call_later(self._idle_poll, self._passivate_idle)

    def close(self, when_empty: Callable[[], object]) -> None:
        """Refuse messages, passivate all entities, and call `when_empty` when none is left."""
        with self.lock:
            self.is_closed = True
            self._when_empty.append(when_empty)
            cells = list(self.cells.values())
            for cell in cells:
                self.passivate(cell)
            parked = list(self._parked)
        for cell in parked:
            cell.kill(ExitReason.SHUTDOWN, _NO_LEASE)
        if not cells:
            when_empty()

    def kill_all(self, reason: str) -> None:
        """End every activation before its next message."""
        with self.lock:
            cells = list(self.cells.values())
        for cell in cells:
            cell.kill(ExitReason.SHUTDOWN, reason)

    # --- the state ---

    def recover(
        self, cell: EntityCell, done: Callable[[Recovered | BaseException], object]
    ) -> None:
        """Read the snapshot of an entity and the first page of its events."""
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
        """Read the next page of an entity's events, after an event number."""
        name, key = self.type.name, cell.key

        def done_reading(events: "Sequence[PastEvent] | BaseException") -> None:
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

        assert self.state is not None, "an earlier page was read from it"
        self.state.submit(
            done_reading, EntityState.past_events, name, key, after, REPLAYED_AT_ONCE
        )

    def commit(self, cell: EntityCell, batch: EntityBatch) -> None:
        """Commit a batch in the next transaction, and call the entity with the outcome."""
        snapshots: tuple[EntitySnapshot, ...] = ()
        forget = _NOTHING
        if batch.snapshot is not None:
            snapshots, keep = (batch.snapshot,), self.type.cls.keep
            if keep != "all" and self.type.appliers:
                last = batch.snapshot.number - keep
                forget = {cell.key: last} if last > 0 else _NOTHING
        done: Callable[[Committed | BaseException], None] = cell.handle_outcome
        if not self.counters.commits % TIMED:
            done = self._timed(done)
        epoch = self.epochs.get(cell.slot, 0)
        assert self.state is not None
        self.state.commit(
            _slot_batch((cell.home, epoch, batch.events, snapshots, forget, batch.rows)), done
        )

    def _timed(
        self, done: Callable[[Committed | BaseException], None]
    ) -> Callable[[Committed | BaseException], None]:
        """Return a callback that also records how long the commit took."""
        began = self.runtime.now()

        def take(outcome: Committed | BaseException) -> None:
            self.commit_seconds.add(self.runtime.now() - began)
            done(outcome)

        return take

    def has_committed(self, outcome: Committed) -> None:
        """Record a transaction with a durable batch, and report a new position."""
        if not (outcome.fenced or outcome.failed):
            self.all_committed = outcome
        position = outcome.positions.get(self.type.name, 0)
        # The same position is reported for all batches of a transaction.
        if position > self._position:
            self._position = position
            self._on_growth(position)

    def error_of(
        self, cell: EntityCell, outcome: Committed | BaseException
    ) -> BaseException | None:
        """Return the error of an entity's batch; None if it was committed."""
        if isinstance(outcome, BaseException):
            return outcome
        fence = outcome.fenced.get(cell.home)
        if fence is not None:
            return fenced_error(self.type.name, cell.slot, fence)
        return outcome.failed.get(cell.home)

    def not_committed(self, cell: EntityCell, outcome: Committed | BaseException) -> None:
        """Count a failed batch; give up its slot if another owner has raised the fence."""
        self.counters.failures += 1
        if not isinstance(outcome, BaseException) and cell.home in outcome.fenced:
            self.lost(cell.slot, outcome.fenced[cell.home])

    def rows_committed(self, rows: RowChanges) -> None:
        """Apply committed changes of reminders."""
        if rows.reminders:
            with self.lock:
                self.reminders.committed(rows.reminders)

    def lost(self, slot: int, fence: Fence) -> None:
        """Stop serving a slot whose fence another owner has raised or a failover has lost."""
        with self.lock:
            epoch = self.epochs.get(slot)
            if epoch is None or fence.epoch < epoch or fence == (epoch, self.writer):
                return  # the fence belongs to another epoch
            del self.epochs[slot]
            self._change([slot], HostedSlotEvent.LOST)
            cells = self._cells_of([slot])
        self.counters.fenced += 1
        self.counters.lost += 1
        self.runtime.report(SlotFenced(self.type.name, slot, fence.epoch, fence.writer))
        for cell in cells:  # their states may be outdated; their messages are kept
            cell.kill(ExitReason.SHUTDOWN, "its slot moved")
        self._on_lost(slot, epoch)

    # --- an expired lease ---

    def _unleased(self) -> EntityUnavailable:
        """Return the error of an ask that is not handled without a valid lease."""
        lease = f"the lease of {self.runtime.name} for {self.type.name}"
        return EntityUnavailable(f"{lease} has run out; repeat it")

    def _is_unleased(self, key: str, sender: Sender | None) -> bool:
        """Return whether this is an ask for this node while its lease has run out."""
        is_ask = sender is not None and sender.expects
        is_over = self.is_leased is not None and not self.is_leased()
        return is_over and is_ask and self.serves(slot_of(key))

    def refuse_unleased(self, sender: Sender | None) -> None:
        """Refuse an ask because the lease has run out; messages without an answer wait."""
        if sender is not None and sender.expects:
            self._lock.after(sender.set_exception, self._unleased())

    def park(self, cell: EntityCell) -> None:
        """Keep a cell from running until the lease is valid, or the cell must end."""
        with self.lock:
            self._parked.append(cell)
            is_first = len(self._parked) == 1
        if self.is_closed:
            cell.kill(ExitReason.SHUTDOWN, _NO_LEASE)
        elif cell.end is not None:  # the cell was killed before it was parked
            self.unpark(cell)
        elif is_first:
            self.runtime.post(self.runtime.call_later, _LEASE_POLL_SECONDS, self._poll_lease)

    def unpark(self, cell: EntityCell) -> None:
        """Schedule a parked cell, because it has to end."""
        with self.lock:
            if cell not in self._parked:
                return
            self._parked.remove(cell)
        cell.runner.schedule(cell)

    def _poll_lease(self) -> None:
        """Schedule parked cells if the lease is valid again, or check again soon."""
        with self.lock:
            if self.is_leased is not None and not self.is_leased():
                if self._parked:
                    self.runtime.call_later(_LEASE_POLL_SECONDS, self._poll_lease)
                return
            parked, self._parked = self._parked, []
        for cell in parked:
            cell.runner.schedule(cell)

    def activated(self) -> None:
        """Count an activation."""
        self.counters.activations += 1

    # --- events and snapshots ---

    def learn(self, event: object) -> KnownEvent:
        """Return the functions that apply and write the events of a class, and cache them.

        Raises:
            NotPersistable: the class has no `@event` method for it.
            NotSerializable: the value's class is not a registered dataclass or named tuple.
        """
        apply = self.type.applier(event)
        kind = self.form.kind_of(event)
        version = self.type.version_of(*kind.names)
        known = apply, kind, version
        with self.lock:
            if self.state is not None:  # reported before the first event of this kind is stored
                self._on_kind((kind.name, version))
            self.known_events[type(event)] = known
        return known

    def snapshot(self, cell: EntityCell) -> EntitySnapshot | None:
        """Return a snapshot of an entity's state; None if it cannot be written."""
        try:
            body = self.form.write(public_state(cell.actor))
        except Exception as error:  # noqa: BLE001 - its events are enough to recover it
            name = self.type.cls.__qualname__
            text = f"{name} has no snapshots, its events are replayed: {error_text(error)}"
            self.runtime.warn_once((self.type.cls, "snapshot"), text)
            return None
        version = self.type.snapshot_version or 0
        return EntitySnapshot(cell.key, cell.written, version, body)

    def restore(self, actor: Entity, snapshot: EntitySnapshot) -> None:
        """Set the state of an entity from a snapshot."""
        restore(self.form, self.type, actor, snapshot)

    def apply(self, cell: EntityCell, actor: Entity, events: "Iterable[PastEvent]") -> None:
        """Apply stored events to an entity.

        Raises:
            StateVersion: an event was written by a newer version of the class.
        """
        apply_all(self.form, self.type, cell, actor, events)


def _table_of(cls: type[Entity], checked: EventSerializer | None) -> DispatchTable:
    """Return the handlers of a class, with read-only ones wrapped by `read_only`.

    With `checked`, handlers are also wrapped so that a change of the state without an event
    raises an error.
    """
    table = DispatchTable(cls)
    for entry in table.declared.values():
        if checked is not None:
            entry.function = checking(entry.function, checked, awaits=entry.is_coroutine)
        if entry.is_read_only:
            entry.function = read_only(entry.function, awaits=entry.is_coroutine)
    return table
