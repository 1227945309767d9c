"""The answer to an ask, before it is there.

A future is a result slot. It costs no lock until a thread waits for it, can be awaited from a
handler and from any asyncio loop, and can be waited for with `.result(timeout)`.

States: pending → done, once; the first answer wins, and every later one is dropped.
Completion stores the outcome before it looks for waiters; a waiter registers before it looks at
the outcome. So one of the two always sees the other, on any interleaving of threads.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Generator
from contextvars import Context, ContextVar
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, runtime_checkable
from weakref import ref

from callboard import locks
from callboard.actors.asking.reply import Reply
from callboard.actors.errors import AskTimeout, ResultTimeout, WouldBlock, WouldDeadlock
from callboard.actors.seconds import limit as checked_limit
from callboard.support.dataclass import dataclass
from callboard.support.reentry import PATIENCE
from callboard.support.text import logged, safe_repr

log = logging.getLogger("callboard.actors")

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

#: The deadline of an ask that has failed because its time was over; compared by identity.
EXPIRED: Final = float("-inf")

#: Guards every future's list of callbacks; held for a few operations.
_CALLBACKS = locks.lock("callbacks of futures", 970)


_INSIDE: Final = (
    ".result() in a finalizer or a signal handler that runs inside a call of callboard would "
    "wait for ever; add a callback, or wait elsewhere"
)


class Awaiter(Protocol):
    """A coroutine handler that awaits futures."""

    def wake(self, awaited: Any, /) -> None:
        """Go on, since what was awaited is done."""


class ReplyAddresses(Protocol[R_co]):
    """Gives one-shot addresses to askers."""

    def reply_ref(self, asker: "Future[Any]", /) -> R_co:
        """Return an address that answers the asker."""


@runtime_checkable
class GuardedLoop(Protocol):
    """An event loop that knows whether its thread may wait for an actor."""

    def refuse_wait(self, asked: object) -> bool:
        """Raise if a wait would never end; returns whether the thread may block."""


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

    #: As the sender of a message, a future wants the answer.
    expects: Literal[True]

    #: Whether there is an outcome.
    is_done: bool
    #: The message id under which the ask left this node; unset until it does.
    message_id: int

    #: Seconds that the ask was given; set together with `deadline`.
    timeout: float

    _blocking: bool
    _error: BaseException | None
    _value: T

    def __init__(self, asked: object = None, deadline: float | None = None) -> None:
        """Make a pending future; `asked` is the ref whose answer it stands for."""
        self.asked = asked
        self.is_done = False
        self.expects = True
        self.deadline = deadline
        self._callbacks: list[Callable[[Future[T]], object]] | None = None
        self._task: Awaiter | None = None

    @property
    def _asyncio_future_blocking(self) -> bool:
        """The flag by which asyncio's tasks know futures, and that one is awaited just now."""
        try:
            return self._blocking
        except AttributeError:  # setting it in each future would cost every ask
            return False

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self._blocking = value

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        try:
            return self.message_id
        except AttributeError:  # setting it in each future would cost every ask
            return 0

    def done(self) -> bool:
        """Return whether there is a result, an error, or a cancellation."""
        return self.is_done

    def cancelled(self) -> bool:
        """Return whether `cancel` came before an answer."""
        return isinstance(self._error, asyncio.CancelledError) if self.is_done else False

    def cancel(self, msg: object = None) -> bool:
        """Give the ask up; returns False when it was done.

        A message that waits is not handled any more, and a coroutine handler that works on it
        is cancelled at its next await, on other nodes too, unless it is marked with
        `@handler(cancellable=False)`. Who waits gets a `CancelledError`: asyncio's where it is
        awaited, that of `concurrent.futures` on a thread.
        """
        cancelled = self.set_exception(asyncio.CancelledError(*(() if msg is None else (msg,))))
        if cancelled:
            self.give_up()
        return cancelled

    def give_up(self) -> None:
        """Let the actor asked stop working on the answer, which nobody waits for."""
        self.deadline = EXPIRED
        target = getattr(self.asked, "target", None)
        if target is not None:
            target.give_up(self)

    def set_result(self, value: T) -> bool:
        """Store the answer and wake the waiters; False (and no effect) when there was one."""
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
        """Store an error as the outcome; False (and no effect) when there was an outcome."""
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
        """Return the error of the future, or None where there is a result.

        Args:
            timeout: seconds to wait, as for `result`; without it the future has to be done.

        Raises:
            ResultTimeout: it is not done, or not in time.
            CancelledError: it was cancelled, as `result` raises it.
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
            timeout: seconds to wait; None waits as long as the ask itself may take.

        Raises:
            InvalidSeconds: the timeout is not a time.
            ResultTimeout: the time ran out; the ask goes on.
            WouldDeadlock: called in a handler on a future that is not done, or in a finalizer
                or signal handler that runs inside a call of callboard.
            WouldBlock: called on the thread of a running event loop.
            CancelledError: it was cancelled; that of `concurrent.futures`, or asyncio's in a
                coroutine.
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

        To cancel it cancels this one. It does not know actors: in a handler its `result()`
        waits for ever, where that of this one raises `WouldDeadlock`.
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
        """Return what `asyncio.gather` raises where this future was cancelled."""
        return self._error

    def _cancelled_here(self) -> BaseException:
        """Return the error of a cancelled future as the code that runs here expects it."""
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is not None:
            return asyncio.CancelledError(*self._error.args)  # type: ignore[union-attr]
        return concurrent.futures.CancelledError(*self._error.args)  # type: ignore[union-attr]

    def add_done_callback(
        self, callback: Callable[["Future[T]"], object], *, context: Context | None = None
    ) -> None:
        """Call `callback(future)` once it is done, at once if it is.

        On the thread of a running event loop (asyncio's tasks, `gather`, `wait_for` …) the call
        is handed to that loop; elsewhere it runs on whichever thread completes the future and
        has to be quick.
        """
        loop = asyncio._get_running_loop()
        self.on_done(callback if loop is None else _HandOver(loop, callback, context))

    def remove_done_callback(self, callback: Callable[["Future[T]"], object]) -> int:
        """Remove a callback that has not run; returns how many were removed."""
        with _CALLBACKS:
            before = self._callbacks or []
            kept = [known for known in before if known != callback]
            self._callbacks = kept or None
            return len(before) - len(kept)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop: a future belongs to whichever loop awaits it."""
        return asyncio.get_running_loop()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            self._blocking = True  # as asyncio's tasks want it
            try:
                yield self
            except concurrent.futures.CancelledError:  # asyncio's is raised
                pass
        if self._error is not None:
            raise self._error
        return self._value

    def __repr__(self) -> str:
        state = "pending"
        if self.is_done:
            state = safe_repr(self._value if self._error is None else self._error)
        what = "" if self.asked is None else f" of {self.asked}"
        return f"<Future{what}: {state}>"

    def mark_handled(self) -> None:
        """The answer will come later: nothing to note here."""

    def reference(self, runtime: ReplyAddresses[R_co]) -> R_co:
        """As the sender of a message: a one-shot address that answers this future."""
        return runtime.reply_ref(self)

    def expire(self) -> None:
        """Fail with `AskTimeout`: the ask's own time is over.

        A target that has not sent the message yet says by another error that nothing happened.
        """
        text = f"{self.asked} did not answer within {self.timeout:g} s"
        error_of_unsent = getattr(getattr(self.asked, "target", None), "error_of_unsent", None)
        error = None if error_of_unsent is None else error_of_unsent(self)
        if self.set_exception(AskTimeout(text) if error is None else error):
            self.give_up()

    def await_by(self, task: Awaiter) -> None:
        """Register the handler that awaits this future (one at a time; more use callbacks)."""
        if self._task is None:
            self._task = task
            if self.is_done:
                task.wake(self)
        else:
            self.on_done(task.wake)

    def on_done(self, callback: Callable[["Future[T]"], object]) -> None:
        """Call `callback(future)` on the thread that completes it; at once if it is done."""
        with _CALLBACKS:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
        if self.is_done:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        """Call all waiters, each once."""
        with _CALLBACKS:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except BaseException as error:  # noqa: BLE001  # not the answering actor's trouble
                logged(log, "a callback of %s failed", safe_repr(self), error=error)

    def _wait(self, timeout: float | None) -> None:
        """Block this thread until the future is done or the time is over."""
        timeout = checked_limit(timeout)
        refuse_endless_wait(self.asked)
        wait = waiting.get()
        if wait is not None:
            wait(self, timeout)
            return
        if self.deadline is not None:
            # The waiting thread keeps the ask's own deadline too, so that it is exact.
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
            # The look at all locks is not worth its time where the answer comes soon.
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
            msg = f"no answer from {self.asked} within {timeout:g} s; the ask goes on"
            raise ResultTimeout(msg)


class AskList(Protocol):
    """Where asks are put, so that their time can end."""

    def append(self, future: "Future[Any]", /) -> None:
        """Add an ask."""


class Pause(Future[None]):
    """A time that passes; it tells when nobody awaits it."""

    __slots__ = ("_unawaited",)

    def __init__(self, unawaited: Callable[[], object]) -> None:
        """Make a pending pause; `unawaited` is called if it is dropped so."""
        super().__init__()
        self._unawaited = unawaited

    @staticmethod
    def end(pause: "ref[Pause]") -> None:
        """Wake who awaits a pause, if it is still there."""
        found = pause()
        if found is not None:
            found.set_result(None)

    def __del__(self) -> None:
        """Look whether somebody waited, or gave it up."""
        if not self.is_done and self._callbacks is None and self._task is None:
            self._unawaited()


def refuse_endless_wait(asked: object = None) -> None:
    """Refuse to let this thread wait for an actor that would then not go on itself.

    Args:
        asked: the ref of the actor, if it is known.

    Raises:
        WouldDeadlock: it is the thread of a node, in a handler.
        WouldBlock: an event loop runs on it.
    """
    loop = asyncio._get_running_loop()
    if loop is not None and not (isinstance(loop, GuardedLoop) and loop.refuse_wait(asked)):
        msg = ".result() would block the running event loop; await the future instead"
        raise WouldBlock(msg)


#: In a simulation, what `.result(timeout)` calls instead of blocking: nothing would happen
#: there while a thread sleeps.
waiting: ContextVar[Callable[[Future[Any], float | None], None] | None] = ContextVar(
    "callboard_waiting", default=None
)


@dataclass(slots=True, eq=False)
class _HandOver:
    """Calls a callback of a future on the thread of the event loop that it belongs to."""

    loop: asyncio.AbstractEventLoop
    callback: Callable[[Future[Any]], object]
    context: Context | None

    __hash__ = None  # type: ignore[assignment]  # equal to the callback that it stands for

    def __call__(self, future: "Future[Any]") -> None:
        try:
            self.loop.call_soon_threadsafe(self.callback, future, context=self.context)
        except RuntimeError:  # the loop is closed: no waiter is left there
            pass

    def __eq__(self, other: object) -> bool:
        return self.callback == other
