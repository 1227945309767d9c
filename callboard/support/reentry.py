"""Re-entrant sends: calls of callboard from inside its own calls.

Python code of a program may run between any two steps of our code, on the same thread: the
garbage collector calls `__del__` and callbacks of weak references, a signal handler runs
between two bytecodes, and log statements call logging handlers. If such code sends a message,
its own thread may hold the locks for the send further up the stack, with half-changed data.
Waiting for such a lock would never end; acquiring it twice would corrupt the data. Neither is
necessary, because a send returns before its message is handled:

- **Sends** (tell, publish, put, reminders, timers, all calls that return a future) are handed
  over: they are queued, and executed when the outer call has released the lock.
- **Calls that return an object at once** (spawn, refs) use only atomic operations of the
  interpreter, such as `dict.setdefault`, so they are correct at any point.
- **Calls that wait for an answer** (`.result()`, `close`, blocking twins) raise
  `WouldDeadlock` while their thread holds a lock. Calls that must return a result at once (an
  append to a log returns its offset, a flow's `put` returns its credit) raise it while their
  thread holds the lock that they need; see `enter`.

A call needs no flag to detect that it is inside another one, so calls have no additional cost:
all locks come from `callboard.locks` and know their owner. A send has two checks:

1. *Does this thread hold the lock?* Then the send is inside another call, and is handed over.
2. *Does another thread hold the lock?* Usually it is free soon. But that thread may have been
   interrupted, and wait for a lock that this one holds: one of ours, or one of the program,
   such as that of a logging handler. Therefore a send waits only for `PATIENCE`, and is then
   handed over. Only the runner executes such calls, because it holds no lock.

The queue is a `deque`: `append`, `popleft` and `len` are atomic, run no Python code and use no
lock. Its calls are executed in order, each in the context in which it was made. The first call
stays in the queue during its execution, and other sends are queued after it, so messages of
one sender keep their order. The runner of the node also gets a call that checks the queue, so
no call is forgotten if the outer call fails. The size of the queue is limited; a call that does
not fit is refused, and its message counts as a dead letter.
"""

from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, Protocol

from callboard import locks
from callboard.base_error import CallboardError

#: Seconds that a send waits for a lock before it is handed over.
PATIENCE: Final = 0.02

#: Seconds that a call which must return a result waits for a lock. A thread that holds a lock
#: for longer waits for its disk, or for a lock of the program that this thread may hold.
LONGEST: Final = 60.0

#: Calls in one queue.
CALLS_LIMIT: Final = 10_000


class WouldBlock(CallboardError, RuntimeError):
    """A blocking call on the thread of a running event loop; use its awaitable twin."""


class WouldDeadlock(CallboardError, RuntimeError):
    """A call would wait forever: in a handler, or inside another call of callboard.

    In a handler, await the future instead.
    """


class TooManyCalls(RuntimeError):
    """More calls were handed over than a queue holds."""


def take(guard: locks.Lock) -> bool:
    """Acquire a lock for a send; return False if this thread must not wait for it."""
    if locks.is_owned(guard):
        return False
    return guard.acquire(blocking=False) or wait(guard)


def wait(guard: locks.Lock) -> bool:
    """Wait up to `PATIENCE` for a lock; return whether it was acquired.

    A longer wait could be a deadlock: the other thread may be in a finalizer that waits for a
    lock of the program, such as that of a logging handler, which this thread may hold.
    """
    return guard.acquire(timeout=PATIENCE)


def enter(
    guard: locks.Lock,
    call: str,
    error: type[WouldDeadlock] = WouldDeadlock,
    longest: float = LONGEST,
) -> None:
    """Acquire a lock for a call that must return a result and so cannot be handed over.

    Args:
        guard: the lock; the caller releases it.
        call: name of the call, for the text of the error.
        error: class of the error.
        longest: seconds to wait for another thread; -1 for no limit, on our own threads.

    Raises:
        WouldDeadlock: this thread holds the lock further up its stack, or another thread has
            held it for too long.
    """
    if locks.is_owned(guard):
        refuse_inside(call, error)
    if not guard.acquire(timeout=longest):
        cause = f"another thread has held the lock of this call for {longest:.0f} s"
        msg = (
            f"{call}: {cause}: that thread waits for its disk, or for a lock that this thread "
            "holds"
        )
        raise error(msg)


def refuse_inside(call: str, error: type[WouldDeadlock] = WouldDeadlock) -> NoReturn:
    """Raise for a call that must return a result but is inside another one.

    Raises:
        WouldDeadlock: always.
    """
    caller = "a finalizer, signal handler or logging handler"
    msg = (
        f"{call} was called in {caller} that interrupted another call of the same object, so "
        "nothing was done; make the call later"
    )
    raise error(msg)


class Counters(Protocol):
    """The counters of a node that include its handed-over calls."""

    handed_over: int


class HandOver:
    """The queue of handed-over calls for one lock."""

    __slots__ = ("_counters", "_guard", "_post", "_turn", "calls", "handed")

    def __init__(
        self,
        guard: locks.Lock,
        post: Callable[[Callable[[], object]], object],
        counters: Counters | None = None,
    ) -> None:
        """Create an empty queue.

        Args:
            guard: the lock that its calls need.
            post: schedules a function on a thread that holds no lock.
            counters: counters of the node, for the calls of all its queues.
        """
        self._guard, self._post, self._counters = guard, post, counters
        self._turn = locks.Turn()
        #: Queued calls: the context, the call, and a function for the error if it fails.
        self.calls: deque[
            tuple[Context, Callable[[], object], Callable[[BaseException], object]]
        ] = deque()
        #: Number of calls that were handed over so far.
        self.handed = 0

    def add(
        self, call: Callable[[], object], refuse: Callable[[BaseException], object]
    ) -> None:
        """Queue a call.

        Args:
            call: acquires the lock itself; executed after the thread has released the lock.
            refuse: called with the error if the call fails, or if the queue is full.
        """
        if len(self.calls) >= CALLS_LIMIT:
            text = f"{CALLS_LIMIT:,} calls are queued that were made inside calls of callboard"
            refuse(TooManyCalls(text))
            return
        self.handed += 1
        if self._counters is not None:
            self._counters.handed_over += 1
        self.calls.append((copy_context(), call, refuse))
        self._post(self.carry_out)

    def carry_out(self) -> None:
        """Execute the queued calls, unless this thread holds a lock or another one does it."""
        calls = self.calls
        while calls and not locks.holds_any() and self._turn.take():
            try:
                for _ in range(len(calls)):
                    context, call, refuse = calls[0]
                    try:
                        context.run(call)
                    except BaseException as error:  # noqa: BLE001  # the sender has returned
                        refuse(error)
                    calls.popleft()
            finally:
                self._turn.end()


def nothing(_: Any) -> None:
    """Ignore the error of a call: a `refuse` for calls without a receiver of errors."""
