"""The future of an ask.

A future stores one result or error. It needs no lock until a thread waits for it: its
completion first sets `is_done` and then reads the callbacks, a waiter first adds its callback
and then reads `is_done`, and the interpreter's global lock keeps this order for all threads. A
handler or any asyncio loop can await it, and a thread can wait with `.result(timeout)`.

States: pending → done, once. The first outcome is stored, and every later one is dropped.
Completion stores the outcome before it reads the waiters, and a waiter registers before it
reads the outcome. So on any interleaving of threads at least one of them sees the other.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Generator
from contextvars import Context, ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)
from weakref import ref

from callboard import locks
from callboard.actors.asking.reply import Reply
from callboard.actors.errors import AskTimeout, ResultTimeout, WouldBlock, WouldDeadlock
from callboard.arguments import limit as checked_limit
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass
from callboard.support.reentry import PATIENCE
from callboard.support.text import logged, safe_repr

_log = logging.getLogger("callboard.actors")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as OptionalTypeVar  # known to every checker

    T = OptionalTypeVar("T", default=Any)
else:
    T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

#: The deadline of an ask that has expired; compared by identity.
EXPIRED: Final = float("-inf")

#: Guards every future's list of callbacks; held for a few operations.
_CALLBACKS = locks.lock("callbacks of futures", 970)


_INSIDE: Final = (
    ".result() in a finalizer or a signal handler that runs inside a call of callboard would "
    "wait forever; add a callback, or wait elsewhere"
)


class Awaiter(Protocol):
    """A coroutine handler that awaits futures."""

    def wake(self, awaited: Any, /) -> None:
        """Resume, because the awaited future is done."""


class ReplyAddresses(Protocol[R_co]):
    """Creates one-shot addresses for askers."""

    def reply_ref(self, asker: "Future", /) -> R_co:
        """Return an address that answers the asker."""


class AskTarget(Protocol):
    """The target of an ask, as its future uses it."""

    def give_up(self, asker: "Future", /) -> None:
        """Stop working on an ask whose caller no longer waits."""

    def error_of_unsent(self, asker: "Future", /) -> BaseException | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""


class Asked:
    """Base class of refs, to which asks are sent."""

    __slots__ = ()

    target: AskTarget


@runtime_checkable
class GuardedLoop(Protocol):
    """An event loop that can tell whether its thread may wait for an actor."""

    def refuse_wait(self, awaited: object) -> bool:
        """Raise if a wait would never end; return whether the thread may block."""


class Future(Reply, Generic[T]):
    """The outcome of `ask`, `call` or `monitor`, now or later."""

    __slots__ = (
        "__weakref__",
        "_blocking",
        "_callbacks",
        "_error",
        "_task",
        "_value",
        "asked",
        "deadline",
        "is_done",
        "expects",
        "message_id",
        "timeout",
    )

    #: Whether a handler that awaits it is idle: it waits for work, such as a job of a queue.
    is_idle: ClassVar[bool] = False

    #: True, as a future wants a reply; False for an actor that sends a message.
    expects: Literal[True]

    #: Whether there is an outcome.
    is_done: bool
    #: The message id under which the ask left this node; unset until it does.
    message_id: int

    #: The timeout of the ask in seconds; set together with `deadline`.
    timeout: float

    _blocking: bool
    _error: BaseException | None
    _value: T

    def __init__(self, asked: object = None, deadline: float | None = None) -> None:
        """Create a pending future; `asked` is the ref that the answer comes from."""
        self.asked = asked
        self.is_done = False
        self.expects = True
        self.deadline = deadline
        self._callbacks: list[Callable[[Future[T]], object]] | None = None
        self._task: Awaiter | None = None

    @property
    def _asyncio_future_blocking(self) -> bool:
        """The flag with which asyncio recognizes futures; True while one is being awaited."""
        try:
            return self._blocking
        except AttributeError:  # unset in most futures: setting it would slow down every ask
            return False

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self._blocking = value

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        try:
            return self.message_id
        except AttributeError:  # unset in most futures: setting it would slow down every ask
            return 0

    def done(self) -> bool:
        """Return whether there is a result, an error, or a cancellation."""
        return self.is_done

    def cancelled(self) -> bool:
        """Return whether the future was cancelled before an answer arrived."""
        return isinstance(self._error, asyncio.CancelledError) if self.is_done else False

    def cancel(self, msg: object = None) -> bool:
        """Cancel the ask; return False if it was already done.

        A message that still waits in a mailbox is not handled. A coroutine handler that works
        on the ask is cancelled at its next await, on other nodes too, unless it is marked with
        `@handler(cancellable=False)`. Code that awaits the future receives
        `asyncio.CancelledError`, and a thread that waits in `result` receives
        `concurrent.futures.CancelledError`.
        """
        cancelled = self.set_exception(asyncio.CancelledError(*(() if msg is None else (msg,))))
        if cancelled:
            self.give_up()
        return cancelled

    def give_up(self) -> None:
        """Ask the actor to stop working on the answer, because no caller waits for it."""
        self.deadline = EXPIRED
        if isinstance(self.asked, Asked):
            self.asked.target.give_up(self)

    def set_result(self, value: T) -> bool:
        """Store the answer and wake the waiters; return False, without effect, if done."""
        if self.is_done:
            return False
        self._value = value
        self._error = None
        self.is_done = True
        if self._task is not None:
            self._task.wake(self)
        if self._callbacks is not None:
            self._run_callbacks()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Store an error and wake the waiters; return False, without effect, if done."""
        if self.is_done:
            return False
        self._error = error
        self.is_done = True
        if self._task is not None:
            self._task.wake(self)
        if self._callbacks is not None:
            self._run_callbacks()
        return True

    def exception(self, timeout: float | None = 0.0) -> BaseException | None:
        """Return the error of the future, or None if it has a result.

        Args:
            timeout: seconds to wait, as for `result`; by default the future has to be done.

        Raises:
            ResultTimeout: the future is not done, or not in time.
            CancelledError: the future was cancelled, as for `result`.
        """
        if not self.is_done:
            if timeout == 0.0:
                msg = "the future is not done; wait with .result(timeout) or await it"
                raise ResultTimeout(msg)
            self._wait(timeout)
        if isinstance(self._error, asyncio.CancelledError):
            raise self._cancelled_here()
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer and return it, or raise its error.

        Args:
            timeout: seconds to wait; None waits until the ask itself ends.

        Raises:
            InvalidSeconds: the timeout is not a number of seconds.
            ResultTimeout: the timeout passed; the ask continues.
            WouldDeadlock: called in a handler on a pending future, or in a finalizer or signal
                handler that runs inside a call of callboard.
            WouldBlock: called on the thread of a running event loop.
            CancelledError: the future was cancelled; the error is that of `concurrent.futures`,
                or asyncio's in a coroutine.
        """
        if not self.is_done:
            self._wait(timeout)
        if self._error is not None:
            if isinstance(self._error, asyncio.CancelledError):
                raise self._cancelled_here()
            raise self._error
        return self._value

    def as_concurrent(self) -> "concurrent.futures.Future[T]":
        """Return a future of `concurrent.futures` with the same outcome.

        Cancelling the returned future cancels this one. In a handler, `result()` of the
        returned future waits forever, whereas `result()` of this future raises `WouldDeadlock`.
        """
        twin: concurrent.futures.Future[T] = concurrent.futures.Future()

        def settle(_: "Future[T]") -> None:
            if self.cancelled():
                twin.cancel()
            if not twin.set_running_or_notify_cancel():
                return
            if self._error is None:
                twin.set_result(self._value)
            else:
                twin.set_exception(self._error)

        self.on_done(settle)
        twin.add_done_callback(lambda _: self.cancel() if twin.cancelled() else None)
        return twin

    def _make_cancelled_error(self) -> BaseException | None:
        """Return the error that `asyncio.gather` raises for this cancelled future."""
        return self._error

    def _cancelled_here(self) -> BaseException:
        """Return the kind of `CancelledError` that the calling code expects."""
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is not None:
            return asyncio.CancelledError(*self._error.args)  # type: ignore[union-attr]
        return concurrent.futures.CancelledError(*self._error.args)  # type: ignore[union-attr]

    def add_done_callback(
        self, callback: Callable[["Future[T]"], object], *, context: Context | None = None
    ) -> None:
        """Call `callback(future)` when the future is done, or immediately if it is.

        On the thread of a running event loop (asyncio's tasks, `gather`, `wait_for` …) the
        callback runs on that loop. Elsewhere it runs on the thread that completes the future,
        and must be quick.
        """
        loop = asyncio._get_running_loop()
        self.on_done(callback if loop is None else _HandOver(loop, callback, context))

    def remove_done_callback(self, callback: Callable[["Future[T]"], object]) -> int:
        """Remove a callback that has not run; return the number of removed ones."""
        with _CALLBACKS:
            registered = self._callbacks or []
            rest = [other for other in registered if other != callback]
            self._callbacks = rest or None
            return len(registered) - len(rest)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop: a future belongs to the loop that awaits it."""
        return asyncio.get_running_loop()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            self._blocking = True  # asyncio's tasks require it
            try:
                yield self
            except concurrent.futures.CancelledError:  # asyncio's error is raised instead
                pass
        if self._error is not None:
            raise self._error
        return self._value

    def __repr__(self) -> str:
        state = "pending"
        if self.is_done:
            state = safe_repr(self._value if self._error is None else self._error)
        source = "" if self.asked is None else f" of {self.asked}"
        return f"<Future{source}: {state}>"

    def mark_handled(self) -> None:
        """Do nothing, as a pending future needs no record of this."""

    def reference(self, runtime: ReplyAddresses[R_co]) -> R_co:
        """Return a one-shot address that answers this future, for `self.sender`."""
        return runtime.reply_ref(self)

    def expire(self) -> None:
        """Fail with `AskTimeout`, because the deadline of the ask has passed.

        If the message was never sent, for instance because no path to the node was found, the
        target provides an error that says so.
        """
        text = f"{self.asked} did not answer within {self.timeout:g} s"
        address = self.asked
        error = None
        if isinstance(address, Asked):
            error = address.target.error_of_unsent(self)
        if self.set_exception(AskTimeout(text) if error is None else error):
            self.give_up()

    def await_by(self, task: Awaiter) -> None:
        """Register a handler that awaits this future.

        The first handler is stored in an attribute, which is fast; others become callbacks.
        """
        if self._task is None:
            self._task = task
            if self.is_done:
                task.wake(self)
        else:
            self.on_done(task.wake)

    def on_done(self, callback: Callable[["Future[T]"], object]) -> None:
        """Call `callback(future)` on the completing thread, or now if the future is done."""
        with _CALLBACKS:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
        if self.is_done:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        """Call and remove all callbacks."""
        with _CALLBACKS:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except BaseException as error:  # noqa: BLE001  # must not fail the answering actor
                logged(_log, "a callback of %s failed", safe_repr(self), error=error)

    def _wait(self, timeout: float | None) -> None:
        """Block this thread until the future is done or the timeout has passed."""
        timeout = checked_limit(timeout)
        refuse_endless_wait(self.asked)
        wait = waiting.get()
        if wait is not None:
            wait(self, timeout)
            return
        if self.deadline is not None:
            # This thread also watches the deadline of the ask: it is more precise than the
            # node.
            left = self.deadline - time.monotonic()
            own = timeout is None or left <= timeout
            limit = left if own else timeout
        else:
            own, limit = False, timeout
        woken = threading.Lock()
        woken.acquire()

        def wake(_: "Future[T]") -> None:
            woken.release()

        self.on_done(wake)
        seconds = -1 if limit is None else min(max(limit, 0.0), threading.TIMEOUT_MAX)
        if seconds < 0 or seconds > PATIENCE:
            # `holds_any` checks all locks, which is worth its time only for a long wait.
            if woken.acquire(timeout=PATIENCE):
                return
            if locks.holds_any():
                self.remove_done_callback(wake)
                raise WouldDeadlock(_INSIDE)
            seconds = -1 if seconds < 0 else seconds - PATIENCE
        if woken.acquire(timeout=seconds):
            return
        self.remove_done_callback(wake)
        if own:
            self.expire()
        elif not self.is_done:
            msg = f"no answer from {self.asked} within {timeout:g} s; the ask continues"
            raise ResultTimeout(msg)


class AskList(Protocol):
    """The list of recent asks, whose deadlines have to be watched."""

    def append(self, future: "Future", /) -> None:
        """Add an ask."""


class Pause(Future[None]):
    """The future of `sleep`, which reports if it was never awaited."""

    __slots__ = ("_unawaited",)

    def __init__(self, unawaited: Action) -> None:
        """Create a pending pause; `unawaited` is called if it is dropped without an await."""
        super().__init__()
        self._unawaited = unawaited

    @staticmethod
    def end(pause: "ref[Pause]") -> None:
        """Complete a pause, if it still exists."""
        pending = pause()
        if pending is not None:
            pending.set_result(None)

    def __del__(self) -> None:
        """Report that the pause was neither awaited nor cancelled."""
        if not self.is_done and self._callbacks is None and self._task is None:
            self._unawaited()


def refuse_endless_wait(awaited: object = None) -> None:
    """Raise an error if this thread must not wait for an answer.

    Args:
        awaited: the ref of the actor, if it is known.

    Raises:
        WouldDeadlock: this is a handler on the thread of a node.
        WouldBlock: an event loop runs on this thread.
    """
    loop = asyncio._get_running_loop()
    if loop is not None and not (isinstance(loop, GuardedLoop) and loop.refuse_wait(awaited)):
        msg = ".result() would block the running event loop; await the future instead"
        raise WouldBlock(msg)


#: In a simulation, the function that `.result(timeout)` calls instead of blocking: simulated
#: time stands still while a thread sleeps.
waiting: ContextVar[Callable[[Future, float | None], None] | None] = ContextVar(
    "callboard_waiting", default=None
)


@dataclass(slots=True, eq=False)
class _HandOver:
    """Calls a callback of a future on the event loop that it belongs to."""

    loop: asyncio.AbstractEventLoop
    callback: Callable[[Future], object]
    context: Context | None

    __hash__ = None  # type: ignore[assignment]  # compares equal to its callback

    def __call__(self, future: "Future") -> None:
        try:
            self.loop.call_soon_threadsafe(self.callback, future, context=self.context)
        except RuntimeError:  # the loop is closed, so it has no waiter
            pass

    def __eq__(self, other: object) -> bool:
        return self.callback == other
