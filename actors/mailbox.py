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

To refuse means `MailboxFull`, raised at who tells, or as the outcome of an ask; the ask of a
dropped message fails so too. Each message that is dropped or refused is counted, and told in
`MailboxOverflow` events. Signals of the runtime (stops, downs, exits) always fit.
"""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

from actors.current import current_cell
from actors.envelope import Envelope
from actors.errors import MailboxFull, ResultTimeout
from actors.events import MailboxOverflow
from actors.future import Future
from actors.signals import ChildDown, Down, Exit, LinkExit, Resume, Stop, Urgent

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.cell import Cell

Item = tuple[Any, "Sender | None"]
OnFull = Literal["wait", "drop_newest", "drop_oldest", "fail"]

_POLICIES: Final = ("wait", "drop_newest", "drop_oldest", "fail")

REPORT_INTERVAL: Final = 1.0
"""Seconds between two events about one mailbox that overflows all the time."""

ALWAYS_FIT: Final[set[type]] = {ChildDown, Down, Exit, LinkExit, Resume, Stop, Urgent}
"""What the runtime itself sends: an actor that is full must still learn of ends, and end."""


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
        for name, bound in (("limit", self.limit), ("bytes", self.bytes)):
            if bound is not None and bound < 1:
                msg = f"Mailbox({name}={bound!r}): a bound is 1 or more, or None"
                raise ValueError(msg)
        if self.on_full not in _POLICIES:
            msg = f"Mailbox(on_full={self.on_full!r}): choose one of {', '.join(_POLICIES)}"
            raise ValueError(msg)


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
    size = sys.getsizeof(message)
    for part in _parts_of(message):
        if isinstance(part, bytes | bytearray | str):
            size += len(part)
    return size


def _parts_of(message: Any) -> Iterable[Any]:
    if isinstance(message, list | tuple | set | frozenset):
        return message
    if isinstance(message, dict):
        return message.values()
    fields = getattr(type(message), "__dataclass_fields__", None)
    if fields is not None:
        return (getattr(message, name, None) for name in fields)
    return getattr(message, "__dict__", {}).values()


class BoundedMailbox(deque[Item]):
    """A mailbox that knows its bounds; looks like a deque to the cell that empties it."""

    __slots__ = (
        "_cell",
        "_lock",
        "_lost",
        "_reporting",
        "_sizes",
        "_waiters",
        "bounds",
        "held",
    )

    def __init__(self, cell: "Cell", bounds: Mailbox) -> None:
        super().__init__()
        self.bounds = bounds
        #: Estimated bytes of what waits; 0 without a bound in bytes.
        self.held = 0
        self._cell = cell
        self._lock = threading.Lock()  # messages and their sizes go together
        self._sizes: deque[int] | None = None if bounds.bytes is None else deque()
        #: Called when there is room: they let threads and actors go on.
        self._waiters: deque[Callable[[], object]] = deque()
        self._lost = 0
        self._reporting = False

    # --- as a deque ---

    def append(self, item: Item) -> None:
        """Take a message, or do with it what the policy says."""
        message = item[0]
        if message.__class__ in ALWAYS_FIT:
            with self._lock:
                self._push(item, 0)
            return
        size = 0 if self._sizes is None else size_of(message)
        with self._lock:
            fits = self._fits(size)
            if fits:
                self._push(item, size)
        if not fits:
            self._overflow(item, size)

    def appendleft(self, item: Item) -> None:
        """Put a message at the front, whether it fits or not: it has been accepted before."""
        with self._lock:
            super().appendleft(item)
            if self._sizes is not None:
                size = size_of(item[0])
                self._sizes.appendleft(size)
                self.held += size

    def extendleft(self, items: Iterable[Item]) -> None:
        """Put messages at the front, one after the other."""
        for item in items:
            self.appendleft(item)

    def popleft(self) -> Item:
        """Take the oldest message out; who waits goes on when half of the bounds is free."""
        with self._lock:
            item = super().popleft()
            if self._sizes is not None:
                self.held -= self._sizes.popleft()
        if self._waiters and self._is_half_empty():
            self.release()
        return item

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        """Take a message out of the middle; needs the lock."""
        assert not isinstance(index, slice)
        super().__delitem__(index)
        if self._sizes is not None:
            self.held -= self._sizes[index]
            del self._sizes[index]

    # --- bounds ---

    def _push(self, item: Item, size: int) -> None:
        super().append(item)
        if self._sizes is not None:
            self._sizes.append(size)
            self.held += size

    def _fits(self, size: int, times: int = 1) -> bool:
        """Say whether a message fits into the bounds, or a multiple of them; needs the lock."""
        limit, most = self.bounds.limit, self.bounds.bytes
        if limit is not None and len(self) >= times * limit:
            return False
        return most is None or self.held + size <= times * most or not self

    def _is_half_empty(self) -> bool:
        limit, most = self.bounds.limit, self.bounds.bytes
        return (limit is None or 2 * len(self) <= limit) and (
            most is None or 2 * self.held <= most
        )

    def admit(self, message: Any, sender: "Sender | None") -> bool:
        """Do for an urgent message what `append` does, but leave its place to the caller."""
        with self._lock:
            if self._fits(0):
                return True
        if self.bounds.on_full == "drop_oldest":
            self._make_room(0)
            return True
        if self.bounds.on_full == "wait":
            return self._wait((message, sender), 0, None)
        self._turn_away((message, sender))
        return False

    def _overflow(self, item: Item, size: int) -> None:
        policy = self.bounds.on_full
        if policy == "drop_oldest":
            self._make_room(size)
            with self._lock:
                self._push(item, size)
        elif policy == "wait":
            self._wait(item, size, self._push)
        else:
            self._turn_away(item)

    def _make_room(self, size: int) -> None:
        dropped: list[Item] = []
        with self._lock:
            while not self._fits(size):
                index = next(
                    (i for i, item in enumerate(self) if item[0].__class__ not in ALWAYS_FIT),
                    None,
                )
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
        runtime.emit(MailboxOverflow(self._cell.ref, self.bounds.on_full, lost))
        runtime.runner.call_later(REPORT_INTERVAL, self._report)

    def _error(self) -> MailboxFull:
        bounds = self.bounds
        most = "any number of" if bounds.bytes is None else f"{bounds.bytes:,}"
        limit = "any number of" if bounds.limit is None else f"{bounds.limit:,}"
        return MailboxFull(
            f"the mailbox of {self._cell.ref} is full: {len(self):,} messages wait, it takes "
            f"{limit} messages and {most} bytes (on_full={bounds.on_full!r}); send less, or "
            "raise its bounds"
        )

    # --- waiting for room ---

    def _wait(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Wait outside of the system; inside use the overdraft, and refuse what is beyond."""
        if asyncio._get_running_loop() is None:
            return self._block(item, size, push)
        with self._lock:
            fits = self._fits(size, 2)
            if fits and push is not None:
                push(item, size)
        if not fits:
            self._turn_away(item)
            return False
        sender: Cell | None = current_cell.get()
        if sender is not None:
            self._hold(sender)
        return True

    def _hold(self, sender: "Cell") -> None:
        """Let an actor have no turn until there is room."""
        if sender.block_on(self._cell):
            self._waiters.append(sender.unblock)
            if self._is_half_empty():
                self.release()

    def _block(self, item: Item, size: int, push: Callable[[Item, int], None] | None) -> bool:
        """Block this thread until there is room, or the time of an ask is over."""
        sender = item[1]
        deadline = sender.deadline if isinstance(sender, Future) else None
        while True:
            room: Future[None] = Future(self._cell.ref)
            self._waiters.append(lambda room=room: room.set_result(None))  # type: ignore[misc]
            with self._lock:
                if self._fits(size) or not self._cell.alive:
                    if push is not None:
                        push(item, size)
                    return True
            left = None if deadline is None else deadline - self._cell.runner.now()
            try:
                room.result(left)
            except ResultTimeout:
                assert isinstance(sender, Future)
                sender.expire()
                self._lose(item)
                return False

    def release(self) -> None:
        """Let all go on that wait for room."""
        while self._waiters:
            try:
                self._waiters.popleft()()
            except IndexError:  # another thread was faster
                return
