"""Bounded mailboxes: how much may wait at an actor, and what becomes of the rest.

A plain mailbox is a deque and accepts everything. An actor with bounds has a `BoundedMailbox`
in its place, so that actors without bounds pay nothing.

A message fits while less than `limit` messages and `bytes` wait. What happens to one that does
not fit is the mailbox's policy:

- `wait`: a thread outside the system blocks until there is room. A handler never blocks: its
  message is taken, up to the bound once more (the overdraft), and its actor gets no turn until
  there is room. Beyond the overdraft the message is refused.
- `drop_newest`, `drop_oldest`: that message, or the oldest ones, are dropped.
- `fail`: the message is refused.

Senders on other nodes wait there (`callboard.proxies.traffic.credit_window`), and send what
they were granted. What they send before they know that, and what comes while local senders have
filled the mailbox, is parked beside it, in order, within bounds for each node.

To refuse means `MailboxFull`, raised at the teller, or as the outcome of an ask; the ask of a
dropped message fails so too. Each message that is dropped or refused is counted, and told in
`MailboxOverflow` events. Signals of the runtime (stops, downs, exits) always fit.
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
from typing import Any, Final, Literal, Protocol, SupportsIndex

from callboard import locks
from callboard.actors import errors
from callboard.actors.envelope import Encoded, Envelope
from callboard.actors.events import Counters, MailboxOverflow
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Down, Home, Running, Sender, current_cell
from callboard.actors.seconds import count as checked_count
from callboard.actors.signals import ChildDown, Exit, LinkExit, Resume, Stop, Urgent
from callboard.support.dataclass import dataclass
from callboard.support.reentry import HandOver, TooManyCalls
from callboard.support.seconds import check_numbers
from callboard.support.text import safe_repr

log = logging.getLogger("callboard.actors")

Item = tuple[Any, Sender | None]
OnFull = Literal["wait", "drop_newest", "drop_oldest", "fail"]

_POLICIES: Final = ("wait", "drop_newest", "drop_oldest", "fail")

#: Seconds between two events about one mailbox that overflows all the time.
REPORT_INTERVAL: Final = 1.0

#: Messages and bytes of one node that may be parked beside a mailbox, above its bounds.
PARKED_MESSAGES: Final = 16
PARKED_OCTETS: Final = 256 * 1024

#: What the runtime itself sends: an actor that is full must still learn of ends, and end.
ALWAYS_FIT: Final[set[type]] = {ChildDown, Down, Exit, LinkExit, Resume, Stop, Urgent}


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The bounds of an actor's mailbox: `mailbox = Mailbox(limit=1000)` in its class.

    Attributes:
        limit: messages that may wait; None for any number.
        bytes: estimated bytes that they may hold, see `size_of`; None for any number.
        on_full: what happens to a message that does not fit.
    """

    limit: int | None = None
    bytes: int | None = None
    on_full: OnFull = "wait"

    def __post_init__(self) -> None:
        check_numbers(self)
        for name, bound in (("limit", self.limit), ("bytes", self.bytes)):
            if bound is not None:
                checked_count(bound, f"Mailbox: {name}", 1)
        if self.on_full not in _POLICIES:
            msg = f"Mailbox(on_full={self.on_full!r}): choose one of {', '.join(_POLICIES)}"
            raise errors.WrongValue(msg)


def size_of(message: Any) -> int:
    """Estimate the bytes that a message holds, at the price of a look at its fields.

    The length of texts and byte strings, also of those that are direct fields or elements of
    the message; for all else what `sys.getsizeof` says, which does not look inside.
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


def _parts_of(message: Any) -> Iterable[Any]:
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
    """The bounds of a queue against what waits in it, and everyone waiting for room.

    The queue says how many items it has: it may be a plain deque that others append to.
    """

    bounds: Mailbox
    #: Bytes of the items that wait; 0 without a bound in bytes.
    held: int = 0
    #: Called when there is room: they let threads and actors go on.
    waiters: deque[Callable[[], object]] = field(default_factory=deque)
    #: Coroutines that wait for room: one after the other goes on, see `SendTurn`.
    line: deque[Future[None]] = field(default_factory=deque)

    def fits(self, count: int, size: int, times: int = 1) -> bool:
        """Return whether an item of `size` bytes fits beside `count` others.

        Args:
            count: items that wait.
            size: of the item; one that is larger than the bound fits into an empty queue.
            times: how many times the bounds; 2 is the overdraft of handlers.
        """
        limit, most = self.bounds.limit, self.bounds.bytes
        if limit is not None and count >= times * limit:
            return False
        return most is None or self.held + size <= times * most or not count

    def make_room(self, count: int) -> None:
        """Wake everyone waiting for room if half of the bounds is free."""
        limit, most = self.bounds.limit, self.bounds.bytes
        if (limit is None or 2 * count <= limit) and (most is None or 2 * self.held <= most):
            self.release()

    def release(self) -> None:
        """Wake everyone waiting for room."""
        while self.waiters:
            try:
                self.waiters.popleft()()
            except IndexError:  # another thread was faster
                break
        self.wake_next()

    def wake_next(self) -> None:
        """Wake the coroutine that has waited longest; it wakes the next one in its turn."""
        while self.line:
            try:
                if self.line.popleft().set_result(None):
                    return
            except IndexError:  # another thread was faster
                return

    def room(self) -> Future[None]:
        """Return a future that is done at the next `release`."""
        room: Future[None] = Future()
        self.waiters.append(lambda: room.set_result(None))
        return room

    def wait(self, room: Future[None], sender: Sender | None, now: Callable[[], float]) -> bool:
        """Block this thread until there may be room; False if the time of its ask was over."""
        deadline = sender.deadline if isinstance(sender, Future) else None
        try:
            room.result(None if deadline is None else deadline - now())
        except errors.ResultTimeout:
            if deadline is None:  # a simulation waits for so long only
                raise
            assert isinstance(sender, Future)
            sender.expire()
            return False
        return True

    def hold(self, sender: Running, receiver: Running, count: Callable[[], int]) -> None:
        """Give an actor no turn until there is room, unless the receiver waits for it."""
        if sender.block_on(receiver):
            self.waiters.append(sender.unblock)
            self.make_room(count())

    def describe(self, count: int) -> str:
        """Return how much waits and what the bounds are, for errors."""
        bounds = self.bounds
        return (
            f"{count:,} messages wait, it takes {_shown(bounds.limit)} messages and "
            f"{_shown(bounds.bytes)} bytes (on_full={bounds.on_full!r})"
        )


class SendTurn:
    """A coroutine's turn to send one message, for which it waits in line.

    Of those that wait for one queue the first is woken when there is room. It sends, and wakes
    the next: a thousand that wait cost no thousand wake-ups for each place. Cancelled, it has
    sent nothing, and its turn passes on.
    """

    __slots__ = ("_asked", "_left", "_line", "_room")

    def __init__(self, asked: object) -> None:
        """Begin; `asked` is the ref of the actor that the message is for."""
        self._asked = asked
        self._line: BackPressure | None = None
        #: The line that it has left for another one: the next in it is to be woken.
        self._left: BackPressure | None = None
        self._room: Future[None] = Future(asked)

    def stand(self, line: BackPressure) -> None:
        """Stand in the line for a queue that is full, in front if it was this one's turn.

        The caller holds the lock of the queue: nothing is taken out of it meanwhile.
        """
        self._room = Future(self._asked)
        if line is self._line:
            line.line.appendleft(self._room)
        else:
            line.line.append(self._room)
            self._left, self._line = self._line, line

    def pause(self, home: Home, seconds: float) -> None:
        """Look again in so many seconds: what is full wakes no coroutines."""
        room = self._room = Future(self._asked)
        home.shutdown.retry_in(seconds, partial(room.set_result, None))

    def pass_on(self) -> None:
        """Let the next one in line try."""
        if self._line is not None:
            self._line.wake_next()

    async def send(self, offer: Callable[["SendTurn"], bool]) -> None:
        """Call `offer` until it has sent the message; while it has not, it says `stand`."""
        try:
            while not offer(self):
                left, self._left = self._left, None
                if left is not None:
                    left.wake_next()
                await self._room
        finally:
            if self._line is not None and (
                self._room.set_result(None) or self._room.cancelled()
            ):
                with contextlib.suppress(ValueError):  # it was just woken
                    self._line.line.remove(self._room)
            self.pass_on()


def _shown(bound: int | None) -> str:
    """Return the text of a bound."""
    return "any number of" if bound is None else f"{bound:,}"


def may_wait() -> bool:
    """Return whether this thread may wait for room: no event loop runs on it, nor a handler."""
    return asyncio._get_running_loop() is None


class MailboxHost(Home, Protocol):
    """What a bounded mailbox uses of the runtime."""

    #: What the node counts.
    counters: Counters
    #: What leads to other nodes.
    remote: "Remote"

    def report(self, event: object, /) -> None:
        """Hand an event to all subscribers."""

    def dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None, /) -> None:
        """Count a message that no handler will take."""

    def post(self, callback: Callable[..., object], /, *args: Any) -> None:
        """Call `callback(*args)` soon on the node's thread; from any thread."""


class MailboxOwner(Running, Protocol):
    """What a bounded mailbox uses of the cell that empties it."""

    @property
    def runtime(self) -> MailboxHost:
        """The runtime of the actor."""

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""

    def schedule(self) -> None:
        """See to it that the actor has a turn."""


class BorrowedCredit(Protocol):
    """The nodes that send to one mailbox what they were granted."""

    def arrived(self, node: bytes, /) -> None:
        """Count a message of another node that was taken."""

    def knows(self, node: bytes, /) -> bool:
        """Return whether a node is one of them; a new one is, unless it knows of no credit."""


class Remote(Protocol):
    """What leads from a runtime to other nodes."""

    #: Numbers that other nodes know, though no actor here may have them any more.
    held_numbers: Container[int]

    def ref_text(self, node: bytes, number: int) -> str:
        """Return the text of a ref."""

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor on another node."""

    def guests_of(self, number: int) -> BorrowedCredit | None:
        """Return the nodes that send to an actor with a bounded mailbox; else None."""

    def actor_ended(self, context: Any, down: Down) -> None:
        """Take note that an actor of this node ended."""

    def is_reachable(self, node: bytes, /) -> bool:
        """Return whether a path leads to another node."""


class BoundedMailbox(deque[Item]):
    """A mailbox that knows its bounds; looks like a deque to the cell that empties it."""

    #: Messages from inside calls of this mailbox; made when there is one.
    _hand_over: HandOver | None = None
    #: The nodes that know of the bounds; None as long as there are none.
    guests: BorrowedCredit | None = None

    def __init__(self, cell: MailboxOwner, bounds: Mailbox) -> None:
        super().__init__()
        self.bounds = bounds
        self.pressure = BackPressure(bounds)
        self._cell = cell
        self._lock = locks.lock("bounded mailbox", 850)  # messages and their sizes go together
        self._is_inside = locks.owner_test(self._lock)
        self._sizes: deque[int] | None = None if bounds.bytes is None else deque()
        self._lost = 0
        self._reporting = False
        #: Messages of guests that wait for room, their sizes and nodes.
        self._parked: deque[tuple[Item, int, bytes]] = deque()
        #: How many these are of each node, and their bytes.
        self._parked_of: dict[bytes, list[int]] = {}

    # --- as a deque ---

    def append(self, item: Item) -> None:
        """Take a message, or do with it what the policy says."""
        hand_over = self._hand_over
        if (hand_over is not None and hand_over.calls) or self._is_inside():
            self._append_later(item)
        else:
            self._append(item)

    def _append_later(self, item: Item) -> None:
        """Append a message that is sent inside a call of this mailbox, or behind such ones."""
        runtime = self._cell.runtime
        made = HandOver(self._lock, runtime.post, runtime.counters)
        # One step: a call inside this one may make it, too.
        hand_over: HandOver = self.__dict__.setdefault("_hand_over", made)
        hand_over.add(partial(self._append_late, item), partial(self._refuse_late, item))
        hand_over.carry_out()  # unless it is inside

    def _append_late(self, item: Item) -> None:
        """Append a message that was handed over."""
        self._append(item)
        self._cell.schedule()

    def _refuse_late(self, item: Item, error: BaseException) -> None:
        """Count a message that was not handed over; one that did not fit is counted already."""
        if isinstance(error, TooManyCalls):
            # On the node's thread: this one is inside a call of the mailbox.
            self._cell.runtime.post(self._lose_late, item, errors.MailboxFull(str(error)))

    def _lose_late(self, item: Item, error: errors.MailboxFull) -> None:
        """Count a message that was not handed over as a dead letter, and fail its ask."""
        message, sender = item
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._cell.runtime.dead_letter(self._cell.ref, message, sender)

    def _append(self, item: Item) -> None:
        """Take a message, or do with it what the policy says."""
        message = item[0]
        if message.__class__ in ALWAYS_FIT:
            with self._lock:
                if self._parked and message.__class__ is Stop:
                    self._parked.append((item, 0, b""))
                else:
                    self._push(item, 0)
            return
        size = 0 if self._sizes is None else size_of(message)
        if self.bounds.on_full == "wait" and (node := self._guest(item)):
            self._take_in(item, size, node)
            return
        lock = self._lock
        lock.acquire()  # in half of the time that `with` takes: each message comes here
        try:
            fits = self.pressure.fits(len(self), size)
            if fits:
                self._push(item, size)
        finally:
            lock.release()
        if not fits:
            self._overflow(item, size)

    def appendleft(self, item: Item) -> None:
        """Put a message at the front, whether it fits or not: it has been accepted before."""
        size = 0 if self._sizes is None else size_of(item[0])  # may run code of users
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
        """Take the oldest message out; waiters go on when half of the bounds is free."""
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
        """Take a message out of the middle; needs the lock."""
        assert not isinstance(index, slice)
        super().__delitem__(index)
        if self._sizes is not None:
            self.pressure.held -= self._sizes[index]
            del self._sizes[index]

    def offer(self, item: Item) -> Future[None] | None:
        """Append a message if it fits; else return a future that is done when to try again.

        Where the policy drops messages it is appended in any case, and the policy decides.
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
            room = self.pressure.room()  # then look again: it may just have become free

    def take_turn(self, item: Item, turn: SendTurn, *, is_urgent: bool) -> bool:
        """Append a message if it fits, else let its sender stand in line.

        The place of one that is urgent is left to the caller.
        """
        size = 0 if self._sizes is None else size_of(item[0])
        with self._lock:
            fits = self.pressure.fits(len(self), size) or not self._cell.alive
            if not fits:
                turn.stand(self.pressure)
            elif not is_urgent:
                self._push(item, size)
        return fits

    # --- messages of other nodes ---

    @property
    def load(self) -> tuple[int, int]:
        """Messages that wait, those that are parked included, and their bytes."""
        with self._lock:
            parked = sum(held[1] for held in self._parked_of.values())
            return len(self) + len(self._parked), self.pressure.held + parked

    def _guest(self, item: Item) -> bytes | None:
        """Return the node that a message came from, if it knows of the bounds."""
        node: bytes | None = getattr(item[1], "node", None)
        if node is None:
            return None
        if self.guests is None:
            self.guests = self._cell.runtime.remote.guests_of(self._cell.number)
        return node if self.guests is not None and self.guests.knows(node) else None

    def _take_in(self, item: Item, size: int, node: bytes) -> None:
        """Take a message that was granted: into the mailbox, or beside it."""
        assert self.guests is not None, "only guests are taken in"
        with self._lock:
            fits = not self._parked and self.pressure.fits(len(self), size)
            held = self._parked_of.get(node, [0, 0])
            is_taken = fits or self._may_park(*held)
            if fits:
                self._push(item, size)
            elif is_taken:
                self._parked.append((item, size, node))
                self._parked_of[node] = [held[0] + 1, held[1] + size]
        self.guests.arrived(node)
        if not is_taken:  # the node does not do what was agreed on
            self._turn_away(item)

    def _may_park(self, count: int, held: int) -> bool:
        """Return whether one more message may be parked beside so many of its node."""
        limit, most = self.bounds.limit, self.bounds.bytes
        return (limit is None or count < limit + PARKED_MESSAGES) and (
            most is None or held < most + PARKED_OCTETS
        )

    def _unpark(self) -> None:
        """Take in what is parked as far as there is room; needs the lock."""
        while self._parked:
            item, size, node = self._parked[0]
            if item[0].__class__ is not Stop and not self.pressure.fits(len(self), size):
                return
            self._parked.popleft()
            self._push(item, size)
            if node:
                held = self._parked_of[node]
                held[0] -= 1
                held[1] -= size
                if not held[0]:
                    del self._parked_of[node]

    # --- bounds ---

    def _push(self, item: Item, size: int) -> None:
        """Append a message with its size; needs the lock."""
        super().append(item)
        if self._sizes is not None:
            self._sizes.append(size)
            self.pressure.held += size

    def admit(self, message: Any, sender: Sender | None) -> bool:
        """Do for an urgent message what `append` does, but leave its place to the caller."""
        node = self._guest((message, sender)) if self.bounds.on_full == "wait" else None
        beside = 0 if node is None else PARKED_MESSAGES
        with self._lock:
            fits = self.pressure.fits(max(0, len(self) - beside), 0, 1 if node is None else 2)
        if node is not None and self.guests is not None:
            self.guests.arrived(node)
        if fits:
            return True
        if self.bounds.on_full == "drop_oldest":
            self._make_room(0)
            return True
        if self.bounds.on_full == "wait":
            return self._wait((message, sender), 0, None)
        self._turn_away((message, sender))
        return False

    def _overflow(self, item: Item, size: int) -> None:
        """Do with a message that does not fit what the policy says."""
        if self.bounds.on_full == "drop_oldest":
            self._make_room(size)
            with self._lock:
                self._push(item, size)
        elif self.bounds.on_full == "wait":
            self._wait(item, size, self._push)
        else:
            self._turn_away(item)

    def _make_room(self, size: int) -> None:
        """Drop the oldest messages until one of this size fits."""
        dropped: list[Item] = []
        with self._lock:
            while not self.pressure.fits(len(self), size):
                items = enumerate(self)
                index = next((i for i, it in items if it[0].__class__ not in ALWAYS_FIT), None)
                if index is None:
                    break
                dropped.append(self[index])
                del self[index]
        for item in dropped:
            self._lose(item)

    def _turn_away(self, item: Item) -> None:
        """Drop a message, or refuse it; an ask fails in any case."""
        self._lose(item)
        sender = item[1]
        if self.bounds.on_full != "drop_newest" and not (sender is not None and sender.expects):
            raise self._error()

    def _lose(self, item: Item) -> None:
        """Count a message that is dropped or refused, and fail its ask."""
        sender = item[1]
        if sender is not None and sender.expects:
            sender.set_exception(self._error())
        self._cell.runtime.counters.overflows += 1
        self._lost += 1
        if not self._reporting:
            self._reporting = True
            self._report()

    def _report(self) -> None:
        """Tell what was lost since the last event; again after a while if more is."""
        lost, self._lost = self._lost, 0
        if not lost:
            self._reporting = False
            return
        runtime = self._cell.runtime
        runtime.report(MailboxOverflow(self._cell.ref, self.bounds.on_full, lost))
        runtime.call_later(REPORT_INTERVAL, self._report)

    def _error(self) -> errors.MailboxFull:
        """Return the error that says how full the mailbox is."""
        state = self.pressure.describe(len(self))
        return errors.MailboxFull(
            f"the mailbox of {self._cell.ref} is full: {state}; send less, or raise its bounds"
        )

    # --- waiting for room ---

    def _wait(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Wait outside of the system; inside use the overdraft, and refuse what is beyond."""
        if may_wait() and not locks.holds_any():  # nor inside a call of callboard
            return self._block(item, size, push)
        with self._lock:
            fits = self.pressure.fits(len(self), size, 2)
            if fits and push is not None:
                push(item, size)
        if not fits:
            self._turn_away(item)
            return False
        sender = current_cell.get()
        if sender is not None:
            self.pressure.hold(sender, self._cell, self.__len__)
        return True

    def _block(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Block this thread until there is room, or the time of an ask is over."""
        while True:
            room = self.pressure.room()
            room.asked = self._cell.ref
            with self._lock:
                if self.pressure.fits(len(self), size) or not self._cell.alive:
                    if push is not None:
                        push(item, size)
                    return True
            if not self.pressure.wait(room, item[1], self._cell.runtime.now):
                self._lose(item)
                return False


@dataclass(frozen=True, slots=True)
class SpawnOptions:
    """How an actor is run, apart from its class and arguments."""

    trap_exit: bool = False
    mailbox: Mailbox | None = None
    detached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClassWithOptions:
    """An actor class and options for one spawn: what `Actor.with_options` returns."""

    actor_class: type
    options: SpawnOptions


def options_of(actor_class: Any) -> tuple[Any, SpawnOptions]:
    """Split what was given to `spawn` into the class and its options.

    Raises:
        WrongArgument: it is not a class.
    """
    if isinstance(actor_class, ClassWithOptions):
        return actor_class.actor_class, actor_class.options
    if not isinstance(actor_class, type):
        kind = type(actor_class)
        msg = (
            f"{safe_repr(actor_class):.100} is no actor class; derive one from callboard.Actor"
        )
        if hasattr(kind, "cell_class"):
            msg = f"spawn() makes the {kind.__name__} itself: spawn({kind.__name__}, …)"
        raise errors.WrongArgument(msg)
    trap_exit = bool(getattr(actor_class, "trap_exit", False))
    bounds = getattr(actor_class, "mailbox", None)  # a Thespian class may have another thing
    detached = getattr(actor_class, "detached", False) is True
    if not trap_exit and bounds is None and not detached:
        return actor_class, _DEFAULTS  # making them anew would cost a tenth of the spawn
    bounds = bounds if isinstance(bounds, Mailbox) else None
    return actor_class, SpawnOptions(trap_exit, bounds, detached)


#: The options that a class may set, by how they are mistaken.
_OPTIONS: Final = {
    name.replace("_", ""): name
    for name in ("trap_exit", "mailbox", "detached", "concurrent_limit")
}


def check_options(where: str, options: Mapping[str, Any]) -> None:
    """Look whether options of an actor are of their kinds; what is None was not given.

    Raises:
        WrongArgument: one is not.
    """
    for name, value in options.items():
        if name == "mailbox":
            is_so = not isinstance(value, int | str | dict | tuple | list)
            errors.require(
                is_so, f"{where}: mailbox = Mailbox(limit=1000) bounds a mailbox", value
            )
        else:
            is_so = isinstance(value, bool | None)
            errors.require(is_so, f"{where}: {name} is True or False", value)


def check_class(actor_class: type) -> None:
    """Look whether what an actor class sets for the runtime can be meant.

    Raises:
        WrongArgument: an option is of another kind, or `__init__` is a coroutine.
        WrongValue: an option has a value that means nothing.
    """
    own, where = vars(actor_class), actor_class.__qualname__
    check_options(where, {name: own.get(name) for name in ("mailbox", "trap_exit", "detached")})
    if inspect.iscoroutinefunction(own.get("__init__")):
        msg = f"{where}.__init__ is async, and nobody would await it; begin in a handler"
        raise errors.WrongArgument(msg)
    if "concurrent_limit" in own:
        checked_count(own["concurrent_limit"], f"{where}.concurrent_limit", 1)
    callables = own.get("remote_methods")
    needed = f"{where}: remote_methods is a set of names, {{{callables!r}}}"
    errors.require(not isinstance(callables, str), needed, callables)
    if isinstance(callables, set | frozenset | list | tuple):
        unknown = sorted(str(n) for n in callables if not hasattr(actor_class, str(n)))
        if unknown:
            msg = f"{where}.remote_methods names {', '.join(unknown)}, which it does not have"
            raise errors.WrongValue(msg)
    for name, value in own.items():
        meant = _OPTIONS.get(name.lower().replace("_", "").rstrip("s"), name)
        if meant != name and not callable(value):
            log.warning("%s.%s is no option of actors; %s is", where, name, meant)
        is_own = name.startswith("_") or not name.islower() or name == "remote_methods"
        if type(value) in _SHARED and not is_own:
            text = "%s.%s is one %s for all actors of the class; make it in __init__"
            log.warning(text, where, name, type(value).__name__)


def refuse_abstract(actor_class: type) -> None:
    """Refuse a class that lacks methods.

    Raises:
        WrongArgument: some are abstract.
    """
    members: dict[str, Any] = {}
    for kind in reversed(actor_class.__mro__):
        members |= vars(kind)  # each node looks: `inspect` would take longer than all the rest
    missing = sorted(n for n, m in members.items() if getattr(m, "__isabstractmethod__", False))
    if missing:
        name = actor_class.__qualname__
        msg = f"{name} is abstract: spawn a subclass of it that has {', '.join(missing)}"
        raise errors.WrongArgument(msg)


#: What each actor of a class would share with all others.
_SHARED: Final = frozenset({list, dict, set, bytearray, deque})

#: The options of most spawns.
_DEFAULTS: Final = SpawnOptions()
