"""Bounded mailboxes: how many messages may wait at an actor, and what happens to the rest.

A plain mailbox is a deque without limits. An actor with bounds has a `BoundedMailbox` instead,
so actors without bounds pay nothing for them.

A message fits while fewer than `limit` messages and `bytes` wait. The policy of the mailbox
decides about a message that does not fit:

- `wait`: a thread outside of actors blocks until there is room. A handler does not block: its
  message is accepted, up to twice the bounds (the overdraft), and its actor gets no turn until
  there is room. Beyond the overdraft the message is refused.
- `drop_newest`, `drop_oldest`: that message, or the oldest ones, are dropped.
- `fail`: the message is refused.

Senders on other nodes wait there (`callboard.proxies.traffic.credit_window`) for credit, and
then send that many messages. A message that was sent before its node knew of the credit, or
that arrives after local senders have filled the mailbox, is parked beside it, in order, within
bounds for each node.

If a message is refused, its sender gets `MailboxFull`, or its ask fails with it. If an ask is
dropped, it also fails with `MailboxFull`. Each dropped or refused message is counted, and
reported in `MailboxOverflow` events. Signals of the runtime (stops, downs, exits) always fit.
"""

import asyncio
import contextlib
import inspect
import logging
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final, Protocol, SupportsIndex, get_args

from callboard import locks
from callboard.actors import errors
from callboard.actors.envelope import Encoded, Envelope
from callboard.actors.events import Counters, MailboxOverflow
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Down, Home, Running, Sender, current_cell
from callboard.actors.signals import (
    STREAM_SIGNALS,
    ChildDown,
    Exit,
    LinkExit,
    Resume,
    Stop,
    Urgent,
)
from callboard.actors.values import Event, Message
from callboard.arguments import count as checked_count
from callboard.arguments import require
from callboard.bounded_queue import MailboxPolicy
from callboard.support.calls import Action, Callback, Keywords
from callboard.support.dataclass import dataclass
from callboard.support.reentry import HandOver, TooManyCalls
from callboard.support.seconds import check_numbers
from callboard.support.text import safe_repr

_log = logging.getLogger("callboard.actors")

Item = tuple[Any, Sender | None]

_POLICIES: Final = get_args(MailboxPolicy)

#: Minimum seconds between two events about the overflow of one mailbox.
REPORT_INTERVAL: Final = 1.0

#: Messages and bytes of one node that may be parked in addition to the bounds.
PARKED_MESSAGES: Final = 16
PARKED_OCTETS: Final = 256 * 1024

#: Signals of the runtime: an actor with a full mailbox must still receive them, and end.
ALWAYS_FIT: Final[set[type]] = {ChildDown, Down, Exit, LinkExit, Resume, Stop, Urgent}
ALWAYS_FIT.update(STREAM_SIGNALS)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The bounds of an actor's mailbox: `mailbox = Mailbox(limit=1000)` in its class.

    Attributes:
        limit: number of messages that may wait; None for no limit.
        bytes: estimated bytes of these messages, see `size_of`; None for no limit.
        on_full: policy for a message that does not fit.
    """

    limit: int | None = None
    bytes: int | None = None
    on_full: MailboxPolicy = "wait"

    def __post_init__(self) -> None:
        check_numbers(self)
        for name, bound in (("limit", self.limit), ("bytes", self.bytes)):
            if bound is not None:
                checked_count(bound, f"Mailbox: {name}", 1)
        if self.on_full not in _POLICIES:
            msg = f"Mailbox(on_full={self.on_full!r}): choose one of {', '.join(_POLICIES)}"
            raise errors.WrongValue(msg)


def size_of(message: Message) -> int:
    """Estimate the bytes of a message from its direct fields.

    The estimate adds the lengths of texts and byte strings among the message, its fields and
    its elements. For other objects it uses `sys.getsizeof`, which does not count nested
    objects.
    """
    if isinstance(message, Envelope):
        message = message.message
    if isinstance(message, bytes | bytearray | str):
        return len(message)
    if isinstance(message, memoryview):
        return message.nbytes
    if isinstance(message, Encoded):
        return message.size
    size = sys.getsizeof(message)
    for part in _parts_of(message):
        if isinstance(part, bytes | bytearray | str):
            size += len(part)
    return size


def _parts_of(message: Message) -> Iterable[Any]:
    """Return the direct fields or elements of a message."""
    if isinstance(message, list | tuple | set | frozenset):
        return message
    if isinstance(message, dict):
        return message.values()
    fields = getattr(type(message), "__dataclass_fields__", None)
    if fields is not None:
        return (getattr(message, name, None) for name in fields)
    return getattr(message, "__dict__", {}).values()


@dataclass(slots=True, eq=False)
class BackPressure:
    """The bounds of a queue, the size of its items, and the senders that wait for room.

    The queue passes the number of its items to each method, because it may be a plain deque to
    which other code appends.
    """

    bounds: Mailbox
    #: Bytes of the waiting items; 0 without a bound in bytes.
    held: int = 0
    #: Called when there is room, to resume threads and actors.
    waiters: deque[Action] = field(default_factory=deque)
    #: Coroutines that wait for room; they resume one at a time, see `SendTurn`.
    line: deque[Future[None]] = field(default_factory=deque)

    def fits(self, count: int, size: int, times: int = 1) -> bool:
        """Return whether an item of `size` bytes fits in addition to `count` items.

        Args:
            count: number of waiting items.
            size: bytes of the item; one larger than the bound fits into an empty queue.
            times: factor for the bounds; 2 is the overdraft of handlers.
        """
        limit, most = self.bounds.limit, self.bounds.bytes
        if limit is not None and count >= times * limit:
            return False
        return most is None or self.held + size <= times * most or not count

    def make_room(self, count: int) -> None:
        """Resume the waiting senders if half of the bounds is free."""
        limit, most = self.bounds.limit, self.bounds.bytes
        if (limit is None or 2 * count <= limit) and (most is None or 2 * self.held <= most):
            self.release()

    def release(self) -> None:
        """Resume the waiting senders."""
        while self.waiters:
            try:
                self.waiters.popleft()()
            except IndexError:  # another thread popped the last one
                break
        self.wake_next()

    def wake_next(self) -> None:
        """Resume the coroutine that has waited longest, which later resumes the next one."""
        while self.line:
            try:
                if self.line.popleft().set_result(None):
                    return
            except IndexError:  # another thread popped the last one
                return

    def room(self) -> Future[None]:
        """Return a future that is done at the next `release`."""
        room: Future[None] = Future()
        self.waiters.append(lambda: room.set_result(None))
        return room

    def wait(self, room: Future[None], sender: Sender | None, now: Callable[[], float]) -> bool:
        """Block this thread until there may be room; return False if the ask expired first."""
        deadline = sender.deadline if isinstance(sender, Future) else None
        try:
            room.result(None if deadline is None else deadline - now())
        except errors.ResultTimeout:
            if deadline is None:  # only a simulation limits the wait of a message without one
                raise
            assert isinstance(sender, Future)
            sender.expire()
            return False
        return True

    def hold(self, sender: Running, receiver: Running, count: Callable[[], int]) -> None:
        """Suspend a sending actor until there is room, unless the receiver waits for it."""
        if sender.block_on(receiver):
            self.waiters.append(sender.unblock)
            self.make_room(count())

    def describe(self, count: int) -> str:
        """Return the number of waiting items and the bounds, for error texts."""
        bounds = self.bounds
        return (
            f"{count:,} messages wait, its bounds are {_limit_text(bounds.limit)} messages and "
            f"{_limit_text(bounds.bytes)} bytes (on_full={bounds.on_full!r})"
        )


class SendTurn:
    """The turn of a coroutine to send one message, for which it waits in line.

    When there is room in a queue, only the first coroutine of its line resumes. It sends its
    message, and then resumes the next one. So a thousand waiting coroutines do not all wake up
    for each free place. A cancelled coroutine has sent nothing, and passes its turn on.
    """

    __slots__ = ("_receiver", "_left", "_pressure", "_room")

    def __init__(self, receiver: object) -> None:
        """Create a turn to send to `receiver`, a ref or None."""
        self._receiver = receiver
        self._pressure: BackPressure | None = None
        #: The previous line, after a change of lines; its next coroutine has to be resumed.
        self._left: BackPressure | None = None
        self._room: Future[None] = Future(receiver)

    def enter(self, pressure: BackPressure) -> None:
        """Enter the line of a full queue; at the front if it was at the front before.

        The caller holds the lock of the queue, so that no item is taken out in between.
        """
        self._room = Future(self._receiver)
        if pressure is self._pressure:
            pressure.line.appendleft(self._room)
        else:
            pressure.line.append(self._room)
            self._left, self._pressure = self._pressure, pressure

    def pause(self, home: Home, seconds: float) -> None:
        """Try again after some seconds; for a bound that does not resume coroutines."""
        room = self._room = Future(self._receiver)
        home.shutdown.retry_in(seconds, partial(room.set_result, None))

    def pass_on(self) -> None:
        """Resume the next coroutine of the line."""
        if self._pressure is not None:
            self._pressure.wake_next()

    async def send(self, offer: Callable[["SendTurn"], bool]) -> None:
        """Call `offer` until it has sent the message; if it has not, it called `enter`."""
        try:
            while not offer(self):
                left, self._left = self._left, None
                if left is not None:
                    left.wake_next()
                await self._room
        finally:
            if self._pressure is not None and (
                self._room.set_result(None) or self._room.cancelled()
            ):
                with contextlib.suppress(ValueError):  # it was just resumed
                    self._pressure.line.remove(self._room)
            self.pass_on()


def _limit_text(bound: int | None) -> str:
    """Return a bound as text."""
    return "unlimited" if bound is None else f"{bound:,}"


def may_wait() -> bool:
    """Return whether this thread may wait for room: it runs neither event loop nor handler."""
    return asyncio._get_running_loop() is None


class MailboxHost(Home, Protocol):
    """The interface of the runtime for bounded mailboxes."""

    #: The counters of the node.
    counters: Counters
    #: The way to other nodes.
    remote: "Remote"

    def report(self, event: Event, /) -> None:
        """Report an event to all subscribers."""

    def dead_letter(self, ref: ActorRef, message: Message, sender: Sender | None, /) -> None:
        """Count a message that no handler will receive."""

    def post(self, callback: Callback, /, *args: Any) -> None:
        """Call `callback(*args)` soon on the node's thread. Can be called from any thread."""


class MailboxOwner(Running, Protocol):
    """The interface of an actor's cell for its bounded mailbox."""

    @property
    def runtime(self) -> MailboxHost:
        """The runtime of the actor."""

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""

    def schedule(self) -> None:
        """Schedule a turn of the actor."""


class BorrowedCredit(Protocol):
    """The nodes that have credit for one mailbox."""

    def arrived(self, node: bytes, /) -> None:
        """Count a message that was accepted from another node."""

    def knows(self, node: bytes, /) -> bool:
        """Return whether a node uses credit; an unknown node is added if it can."""


class Remote(Protocol):
    """The interface to other nodes."""

    #: Numbers of actors, possibly ended ones, that other nodes still refer to.
    held_numbers: Container[int]

    def ref_text(self, node: bytes, number: int) -> str:
        """Return the text of a ref."""

    def remote_ref(self, node: bytes, number: int) -> ActorRef:
        """Return the ref of an actor on another node."""

    def hosting_of(self, number: int) -> BorrowedCredit | None:
        """Return the nodes that send to an actor with a bounded mailbox; None for another."""

    def actor_ended(self, context: Any, down: Down) -> None:
        """Handle the end of an actor of this node."""

    def is_reachable(self, node: bytes, /) -> bool:
        """Return whether a path leads to another node."""


class BoundedMailbox(deque[Item]):
    """A mailbox with bounds, which is a deque for the cell that empties it.

    Not a `BoundedQueue`: a dropped message fails its ask and becomes a dead letter, and several
    threads append. Its bounds and the senders that wait are its `BackPressure`.
    """

    #: Messages of nested calls; created for the first of them.
    _hand_over: HandOver | None = None
    #: The nodes that have credit; None while there are none.
    hosting: BorrowedCredit | None = None

    def __init__(self, cell: MailboxOwner, bounds: Mailbox) -> None:
        super().__init__()
        self.bounds = bounds
        self.pressure = BackPressure(bounds)
        self._cell = cell
        self._lock = locks.lock("bounded mailbox", 850)  # keeps messages and sizes consistent
        self._is_inside = locks.owner_test(self._lock)
        self._sizes: deque[int] | None = None if bounds.bytes is None else deque()
        self._losses = 0
        self._reporting = False
        #: Messages of other nodes that wait for room, with their sizes and nodes.
        self._parked: deque[tuple[Item, int, bytes]] = deque()
        #: Number and bytes of the parked messages of each node.
        self._parked_of: dict[bytes, list[int]] = {}

    # --- the interface of a deque ---

    def append(self, item: Item) -> None:
        """Append a message, or apply the policy if it does not fit."""
        hand_over = self._hand_over
        if (hand_over is not None and hand_over.calls) or self._is_inside():
            self._append_later(item)
        else:
            self._append(item)

    def _append_later(self, item: Item) -> None:
        """Append a message of a nested call, or one that must stay in order after these."""
        runtime = self._cell.runtime
        fresh = HandOver(self._lock, runtime.post, runtime.counters)
        # `setdefault` is atomic: a nested call may create the object at the same time.
        hand_over: HandOver = self.__dict__.setdefault("_hand_over", fresh)
        hand_over.add(partial(self._append_late, item), partial(self._refuse_late, item))
        hand_over.carry_out()  # has no effect inside another call

    def _append_late(self, item: Item) -> None:
        """Append a message that was handed over."""
        self._append(item)
        self._cell.schedule()

    def _refuse_late(self, item: Item, error: BaseException) -> None:
        """Count a refused message, unless it was counted because it did not fit."""
        if isinstance(error, TooManyCalls):
            # Posted, because this thread is inside a call of the mailbox.
            self._cell.runtime.post(
                self._record_late_loss, item, errors.MailboxFull(str(error))
            )

    def _record_late_loss(self, item: Item, error: errors.MailboxFull) -> None:
        """Report a refused message as a dead letter, and fail its ask."""
        message, sender = item
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._cell.runtime.dead_letter(self._cell.ref, message, sender)

    def _append(self, item: Item) -> None:
        """Append a message, or apply the policy if it does not fit."""
        message = item[0]
        if message.__class__ in ALWAYS_FIT:
            with self._lock:
                if self._parked and message.__class__ is Stop:
                    self._parked.append((item, 0, b""))
                else:
                    self._push(item, 0)
            return
        size = 0 if self._sizes is None else size_of(message)
        if self.bounds.on_full == "wait" and (node := self._borrowing_node(item)):
            self._accept(item, size, node)
            return
        lock = self._lock
        lock.acquire()  # takes half the time of `with`, and every message passes here
        try:
            fits = self.pressure.fits(len(self), size)
            if fits:
                self._push(item, size)
        finally:
            lock.release()
        if not fits:
            self._overflow(item, size)

    def appendleft(self, item: Item) -> None:
        """Put a message at the front, without a check: it has been accepted before."""
        size = 0 if self._sizes is None else size_of(item[0])  # may run user code
        with self._lock:
            super().appendleft(item)
            if self._sizes is not None:
                self._sizes.appendleft(size)
                self.pressure.held += size

    def extendleft(self, items: Iterable[Item]) -> None:
        """Put messages at the front, one after the other."""
        for item in items:
            self.appendleft(item)

    def popleft(self) -> Item:
        """Pop the oldest message; resume waiting senders if half of the bounds is free."""
        with self._lock:
            item = super().popleft()
            if self._sizes is not None:
                self.pressure.held -= self._sizes.popleft()
            if self._parked:
                self._unpark()
        if self.pressure.waiters or self.pressure.line:
            self.pressure.make_room(len(self))
        return item

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        """Remove a message from the middle; the caller must hold the lock."""
        assert not isinstance(index, slice)
        super().__delitem__(index)
        if self._sizes is not None:
            self.pressure.held -= self._sizes[index]
            del self._sizes[index]

    def offer(self, item: Item) -> Future[None] | None:
        """Append a message if it fits; otherwise return a future that is done at the next room.

        A mailbox that drops messages applies its policy instead.
        """
        if self.bounds.on_full in ("drop_newest", "drop_oldest"):
            self.append(item)
            return None
        size = 0 if self._sizes is None else size_of(item[0])
        room: Future[None] | None = None
        while True:
            with self._lock:
                if self.pressure.fits(len(self), size) or not self._cell.alive:
                    self._push(item, size)
                    return None
            if room is not None:
                return room
            room = self.pressure.room()  # then check again, as there may be room by now

    def take_turn(self, item: Item, turn: SendTurn, *, is_urgent: bool) -> bool:
        """Append a message if it fits, or put its sender in line; return whether it fits.

        An urgent message is not appended; the caller does this.
        """
        size = 0 if self._sizes is None else size_of(item[0])
        with self._lock:
            fits = self.pressure.fits(len(self), size) or not self._cell.alive
            if not fits:
                turn.enter(self.pressure)
            elif not is_urgent:
                self._push(item, size)
        return fits

    # --- messages of other nodes ---

    @property
    def load(self) -> tuple[int, int]:
        """Number of waiting messages, including parked ones, and their bytes."""
        with self._lock:
            parked = sum(load[1] for load in self._parked_of.values())
            return len(self) + len(self._parked), self.pressure.held + parked

    def _borrowing_node(self, item: Item) -> bytes | None:
        """Return the node of a message's sender if it uses credit; None otherwise."""
        if item[1] is None:
            return None
        node: bytes = item[1].node
        if self.hosting is None:
            self.hosting = self._cell.runtime.remote.hosting_of(self._cell.number)
        return node if self.hosting is not None and self.hosting.knows(node) else None

    def _accept(self, item: Item, size: int, node: bytes) -> None:
        """Accept a message that was sent with credit: append it, or park it."""
        assert self.hosting is not None, "only a node with credit sends here"
        with self._lock:
            fits = not self._parked and self.pressure.fits(len(self), size)
            load = self._parked_of.get(node, [0, 0])
            is_accepted = fits or self._may_park(*load)
            if fits:
                self._push(item, size)
            elif is_accepted:
                self._parked.append((item, size, node))
                self._parked_of[node] = [load[0] + 1, load[1] + size]
        self.hosting.arrived(node)
        if not is_accepted:  # the node sends more than its credit allows
            self._refuse(item)

    def _may_park(self, count: int, size: int) -> bool:
        """Return whether another message may be parked for a node that has these already."""
        limit, most = self.bounds.limit, self.bounds.bytes
        return (limit is None or count < limit + PARKED_MESSAGES) and (
            most is None or size < most + PARKED_OCTETS
        )

    def _unpark(self) -> None:
        """Append parked messages while there is room; the caller must hold the lock."""
        while self._parked:
            item, size, node = self._parked[0]
            if item[0].__class__ is not Stop and not self.pressure.fits(len(self), size):
                return
            self._parked.popleft()
            self._push(item, size)
            if node:
                load = self._parked_of[node]
                load[0] -= 1
                load[1] -= size
                if not load[0]:
                    del self._parked_of[node]

    # --- bounds ---

    def _push(self, item: Item, size: int) -> None:
        """Append a message and its size; the caller must hold the lock."""
        super().append(item)
        if self._sizes is not None:
            self._sizes.append(size)
            self.pressure.held += size

    def admit(self, message: Message, sender: Sender | None) -> bool:
        """Apply bounds and policy to an urgent message, which the caller then appends."""
        node = (
            self._borrowing_node((message, sender)) if self.bounds.on_full == "wait" else None
        )
        beside = 0 if node is None else PARKED_MESSAGES
        with self._lock:
            fits = self.pressure.fits(max(0, len(self) - beside), 0, 1 if node is None else 2)
        if node is not None and self.hosting is not None:
            self.hosting.arrived(node)
        if fits:
            return True
        if self.bounds.on_full == "drop_oldest":
            self._make_room(0)
            return True
        if self.bounds.on_full == "wait":
            return self._wait((message, sender), 0, None)
        self._refuse((message, sender))
        return False

    def _overflow(self, item: Item, size: int) -> None:
        """Apply the policy to a message that does not fit."""
        if self.bounds.on_full == "drop_oldest":
            self._make_room(size)
            with self._lock:
                self._push(item, size)
        elif self.bounds.on_full == "wait":
            self._wait(item, size, self._push)
        else:
            self._refuse(item)

    def _make_room(self, size: int) -> None:
        """Drop the oldest messages until one of this size fits."""
        dropped: list[Item] = []
        with self._lock:
            while not self.pressure.fits(len(self), size):
                items = enumerate(self)
                index = next(
                    (i for i, pair in items if pair[0].__class__ not in ALWAYS_FIT), None
                )
                if index is None:
                    break
                dropped.append(self[index])
                del self[index]
        for item in dropped:
            self._record_loss(item)

    def _refuse(self, item: Item) -> None:
        """Drop a message or refuse it; fail its ask in both cases."""
        self._record_loss(item)
        sender = item[1]
        if self.bounds.on_full != "drop_newest" and not (sender is not None and sender.expects):
            raise self._error()

    def _record_loss(self, item: Item) -> None:
        """Count a dropped or refused message, and fail its ask."""
        sender = item[1]
        if sender is not None and sender.expects:
            sender.set_exception(self._error())
        self._cell.runtime.counters.overflows += 1
        self._losses += 1
        if not self._reporting:
            self._reporting = True
            self._report()

    def _report(self) -> None:
        """Report the losses since the last event; repeat after a while if there are more."""
        lost, self._losses = self._losses, 0
        if not lost:
            self._reporting = False
            return
        runtime = self._cell.runtime
        runtime.report(MailboxOverflow(self._cell.ref, self.bounds.on_full, lost))
        runtime.call_later(REPORT_INTERVAL, self._report)

    def _error(self) -> errors.MailboxFull:
        """Return the error of a full mailbox."""
        state = self.pressure.describe(len(self))
        return errors.MailboxFull(
            f"the mailbox of {self._cell.ref} is full: {state}; send less, or raise its bounds"
        )

    # --- waiting for room ---

    def _wait(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Wait outside of actors; inside, use the overdraft, and refuse beyond it."""
        if may_wait() and not locks.holds_any():  # not in a nested call, either
            return self._block(item, size, push)
        with self._lock:
            fits = self.pressure.fits(len(self), size, 2)
            if fits and push is not None:
                push(item, size)
        if not fits:
            self._refuse(item)
            return False
        sender = current_cell.get()
        if sender is not None:
            self.pressure.hold(sender, self._cell, self.__len__)
        return True

    def _block(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Block this thread until there is room, or the ask has expired."""
        while True:
            room = self.pressure.room()
            room.asked = self._cell.ref
            with self._lock:
                if self.pressure.fits(len(self), size) or not self._cell.alive:
                    if push is not None:
                        push(item, size)
                    return True
            if not self.pressure.wait(room, item[1], self._cell.runtime.now):
                self._record_loss(item)
                return False


@dataclass(frozen=True, slots=True)
class SpawnOptions:
    """The options of a spawn, apart from class and arguments."""

    trap_exit: bool = False
    mailbox: Mailbox | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClassWithOptions:
    """An actor class with options for one spawn; the result of `Actor.with_options`."""

    actor_class: type
    options: SpawnOptions


def options_of(actor_class: Any) -> tuple[Any, SpawnOptions]:
    """Split the first argument of `spawn` into the class and its options.

    Raises:
        WrongArgument: the argument is not a class.
    """
    if isinstance(actor_class, ClassWithOptions):
        return actor_class.actor_class, actor_class.options
    if not isinstance(actor_class, type):
        kind = type(actor_class)
        label = safe_repr(actor_class)
        msg = f"{label:.100} is not an actor class; derive it from callboard.Actor"
        if hasattr(kind, "cell_class"):
            msg = f"spawn() takes the class, not an object of it: spawn({kind.__name__}, …)"
        raise errors.WrongArgument(msg)
    trap_exit = bool(getattr(actor_class, "trap_exit", False))
    bounds = getattr(actor_class, "mailbox", None)  # in a Thespian class, possibly not ours
    detached = getattr(actor_class, "detached", False) is True
    if not trap_exit and bounds is None and not detached:
        return actor_class, _DEFAULTS  # a new object would take a tenth of the time of a spawn
    bounds = bounds if isinstance(bounds, Mailbox) else None
    return actor_class, SpawnOptions(trap_exit, bounds, detached)


#: The options of actor classes by their normalized names, to find misspelled ones.
_OPTIONS: Final = {
    name.replace("_", ""): name
    for name in ("trap_exit", "mailbox", "detached", "concurrent_limit")
}


def check_options(owner: str, options: Mapping[str, Any]) -> None:
    """Check the types of an actor's options; None means that an option was not given.

    Raises:
        WrongArgument: an option has the wrong type.
    """
    for name, value in options.items():
        if name == "mailbox":
            is_so = not isinstance(value, int | str | dict | tuple | list)
            require(is_so, f"{owner}: mailbox = Mailbox(limit=1000) bounds a mailbox", value)
        else:
            is_so = isinstance(value, bool | None)
            require(is_so, f"{owner}: {name} must be True or False", value)


def check_class(actor_class: type) -> None:
    """Check the attributes of an actor class that configure the runtime.

    Raises:
        WrongArgument: an option has the wrong type, or `__init__` is a coroutine.
        WrongValue: an option has an invalid value.
    """
    own, owner = vars(actor_class), actor_class.__qualname__
    check_options(owner, {name: own.get(name) for name in ("mailbox", "trap_exit", "detached")})
    if inspect.iscoroutinefunction(own.get("__init__")):
        msg = f"{owner}.__init__ is async, but is not awaited; move its code to a handler"
        raise errors.WrongArgument(msg)
    if "concurrent_limit" in own:
        checked_count(own["concurrent_limit"], f"{owner}.concurrent_limit", 1)
    callables = own.get("remote_methods")
    needed = f"{owner}: remote_methods is a set of names, {{{callables!r}}}"
    require(not isinstance(callables, str), needed, callables)
    if isinstance(callables, set | frozenset | list | tuple):
        unknown = sorted(str(n) for n in callables if not hasattr(actor_class, str(n)))
        if unknown:
            msg = f"{owner}.remote_methods names {', '.join(unknown)}, which it does not have"
            raise errors.WrongValue(msg)
    for name, value in own.items():
        option = _OPTIONS.get(name.lower().replace("_", "").rstrip("s"), name)
        if option != name and not callable(value):
            _log.warning("%s.%s is not an option of actors; use %s", owner, name, option)
        is_own = name.startswith("_") or not name.islower() or name == "remote_methods"
        if type(value) in _SHARED and not is_own:
            text = "%s.%s is one %s shared by all actors of the class; create it in __init__"
            _log.warning(text, owner, name, type(value).__name__)


def refuse_abstract(actor_class: type) -> None:
    """Refuse a class with abstract methods.

    Raises:
        WrongArgument: the class has abstract methods.
    """
    members: Keywords = {}
    for kind in reversed(actor_class.__mro__):
        members |= vars(kind)  # runs once per class and node; `inspect` would be much slower
    missing = sorted(n for n, m in members.items() if getattr(m, "__isabstractmethod__", False))
    if missing:
        name = actor_class.__qualname__
        msg = f"{name} is abstract: spawn a subclass that defines {', '.join(missing)}"
        raise errors.WrongArgument(msg)


#: Mutable types that all actors of a class would share.
_SHARED: Final = frozenset({list, dict, set, bytearray, deque})

#: The options of most spawns.
_DEFAULTS: Final = SpawnOptions()
