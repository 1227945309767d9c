"""Re-entrant sends: calls of callboard from inside its own calls.

Python code of a program may run between any two steps of our code, on the same thread: the
garbage collector calls `__del__` and callbacks of weak references, a signal handler runs
between two bytecodes, a logging handler is called by whatever logs. If that code sends a
message, the send finds locks that its own thread holds further up the stack, with data half
changed. Waiting for such a lock would be for ever; taking it twice would break the data.
Neither is needed, because a send returns before the message is handled:

- **Sends** (tell, publish, put, reminders, timers, everything that returns a future) are
  handed over: they are queued, and carried out when the outer call has left the lock.
- **What returns an object at once** (spawn, refs) uses only operations that the interpreter
  does in one step, such as `dict.setdefault`, so it is right at any point.
- **What has to wait for an answer** (`.result()`, `close`, blocking twins) raises
  `WouldDeadlock` while its thread holds a lock. What has to answer at once (an append to a
  log returns its offset, a flow's `put` has credit) raises it while its thread holds the lock
  that it needs; see `enter`.

"Inside" needs no mark of its own, so it costs nothing where nobody looks: all locks come from
`callboard.locks` and know their owner. A send asks two questions:

1. *Does this thread hold the lock that I need?* Then it is inside: it hands over. The answer
   is one look at the lock.
2. *Is the lock held by another thread?* Usually it is free in a moment. But that thread may be
   interrupted, and wait for a lock that this one holds: one of ours, or one of the program, as
   that of a logging handler. So a send waits for a moment only (`PATIENCE`), and hands over if
   the lock is not free by then. Only the runner, which holds no lock, carries such calls out.

The queue is a `deque`: its `append`, `popleft` and `len` are one step each, run no Python code
and take no lock. Its calls are carried out in order, each in the context in which it was made.
The first call stays in the queue while it is carried out, and whatever is sent meanwhile goes
behind it, so that messages of one sender keep their order. The runner of the node gets a call
as well that looks into the queue, so nothing stays there if the outer call fails. The queue is
bounded; what does not fit is refused, which counts it as a dead letter.
"""

from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, Protocol

from callboard import locks
from callboard.base_error import CallboardError

#: Seconds that a send waits for a lock before it looks whether its thread holds another one.
PATIENCE: Final = 0.02

#: Seconds that a call which has to answer waits for a lock. Another thread that holds one for
#: so long waits for its disk, or for a lock of the program that this thread may hold.
LONGEST: Final = 60.0

#: Calls that may wait in one queue.
CALLS_LIMIT: Final = 10_000


class WouldDeadlock(CallboardError, RuntimeError):
    """A wait that could never end: in a handler, or inside another call of callboard.

    In a handler, await the future instead.
    """


class TooManyCalls(RuntimeError):
    """More calls were handed over than a queue holds."""


def take(guard: locks.Lock) -> bool:
    """Take a lock for a send; return False if this thread must not wait for it."""
    if locks.is_owned(guard):
        return False
    return guard.acquire(blocking=False) or wait(guard)


def wait(guard: locks.Lock) -> bool:
    """Wait for a moment for a lock that another thread holds; return whether it was taken.

    Never longer: that thread may be in a finalizer which waits for a lock of the program, such
    as that of a logging handler, and this thread may hold that one.
    """
    return guard.acquire(timeout=PATIENCE)


def enter(
    guard: locks.Lock,
    call: str,
    error: type[WouldDeadlock] = WouldDeadlock,
    longest: float = LONGEST,
) -> None:
    """Take a lock for a call that has to answer, so that it cannot be handed over.

    Args:
        guard: the lock; the caller releases it.
        call: what was called, for the error's text.
        error: what is raised.
        longest: seconds to wait for another thread; -1 for no limit, on threads of our own.

    Raises:
        WouldDeadlock: this thread holds the lock further up its stack, or another thread has
            held it for too long.
    """
    if locks.is_owned(guard):
        refuse_inside(call, error)
    if not guard.acquire(timeout=longest):
        held = f"another thread has been in such a call for {longest:.0f} s"
        msg = f"{call}: {held}: it waits for its disk, or for a lock that this thread holds"
        raise error(msg)


def refuse_inside(call: str, error: type[WouldDeadlock] = WouldDeadlock) -> NoReturn:
    """Raise for a call that has to answer, and is made inside another one.

    Raises:
        WouldDeadlock: always.
    """
    where = "a finalizer, signal handler or logging handler"
    msg = f"{call} in {where} inside another call of it; nothing was done: call it later"
    raise error(msg)


class Counters(Protocol):
    """What counts handed-over calls, besides their queue: that of a node."""

    handed_over: int


class HandOver:
    """The queue of calls that found a lock held by their own thread."""

    __slots__ = ("_counters", "_guard", "_post", "_turn", "calls", "handed")

    def __init__(
        self,
        guard: locks.Lock,
        post: Callable[[Callable[[], object]], object],
        counters: Counters | None = None,
    ) -> None:
        """Make an empty queue.

        Args:
            guard: the lock that its calls need.
            post: calls a function soon on a thread that holds no lock.
            counters: of the node, which count the calls of all its queues.
        """
        self._guard, self._post, self._counters = guard, post, counters
        self._turn = locks.Turn()
        #: What waits: the context, the call, and what is called with the error if it fails.
        self.calls: deque[
            tuple[Context, Callable[[], object], Callable[[BaseException], object]]
        ] = deque()
        #: How many calls were handed over so far.
        self.handed = 0

    def add(
        self, call: Callable[[], object], refuse: Callable[[BaseException], object]
    ) -> None:
        """Queue a call.

        Args:
            call: takes the lock itself; it is called when the thread has left it.
            refuse: called with the error if the call fails, or does not fit.
        """
        if len(self.calls) >= CALLS_LIMIT:
            text = f"{CALLS_LIMIT:,} calls wait that were made inside calls of callboard"
            refuse(TooManyCalls(text))
            return
        self.handed += 1
        if self._counters is not None:
            self._counters.handed_over += 1
        self.calls.append((copy_context(), call, refuse))
        self._post(self.carry_out)

    def carry_out(self) -> None:
        """Make the calls that wait, unless this thread holds a lock, or another makes them."""
        calls = self.calls
        while calls and not locks.holds_any() and self._turn.take():
            try:
                for _ in range(len(calls)):
                    context, call, refuse = calls[0]
                    try:
                        context.run(call)
                    except BaseException as error:  # noqa: BLE001  # its sender has gone on
                        refuse(error)
                    calls.popleft()
            finally:
                self._turn.end()


def nothing(_: Any) -> None:
    """Stand where a call that fails has nobody to be told."""
