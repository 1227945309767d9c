"""A running coroutine handler.

The runner drives it: each step runs until the coroutine awaits a result that is not available,
which then wakes the task. For asyncio's own features (timeouts, task groups, libraries), a
handler looks like the current task of a running loop.
"""

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from callboard.actors.errors import WouldDeadlock
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Asker, Sender
from callboard.actors.runner.loop import current_task_set
from callboard.actors.runner.runner import Runner
from callboard.actors.values import Answer, Message
from callboard.support.calls import AnyCoroutine
from callboard.support.dataclass import dataclass


class TaskOwner(Protocol):
    """The interface of an actor's cell for coroutine handlers."""

    scheduled: bool

    #: The runner that drives the handler.
    runner: Runner

    @property
    def ref(self) -> ActorRef:
        """The actor's ref."""

    #: The actor's ref if it has been created.
    known_ref: ActorRef | None

    def run(self) -> None:
        """Run one turn."""

    def answer(self, sender: Asker, value: Answer, /) -> None:
        """Send the result of a handler to its asker."""

    def resume(self, task: "ConcurrentTask", /) -> None:
        """Schedule the next step of a concurrent handler."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class HandlerTask:
    """One invocation of a coroutine handler."""

    cell: TaskOwner
    #: `send` of the coroutine, stored because a lookup per step costs as much as twenty
    #: attributes.
    send: Callable[[None], Any]
    sender: Sender | None
    message: Message = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    waiting_for: Any = None
    ready: bool = False
    throw: BaseException | None = None
    #: Whether the asker no longer waits for the result.
    is_given_up: bool = False
    _cancels: int = 0

    @property
    def coroutine(self) -> AnyCoroutine:
        """The handler itself."""
        return self.send.__self__  # type: ignore[attr-defined,no-any-return]

    def step(self) -> bool:
        """Run to the next await; return False when the handler is done.

        Raises whatever the handler raises.
        """
        cell = self.cell
        while True:
            self.ready = False
            self.waiting_for = None
            current_task_set(cell.runner.loop, self)
            try:
                if self.throw is None:
                    awaited = self.context.run(self.send, None)
                else:
                    error, self.throw = self.throw, None
                    awaited = self.context.run(self.coroutine.throw, error)
            except StopIteration as stop:
                if self.sender is not None and self.sender.expects:
                    cell.answer(self.sender, stop.value)
                return False
            except asyncio.CancelledError as cancelled:
                if not self.is_given_up:
                    raise
                if self.sender is not None and self.sender.expects:
                    self.sender.set_exception(cancelled)  # counts the message as handled
                return False
            if awaited.__class__ is Future:
                if awaited.asked is not None and awaited.asked is cell.known_ref:
                    text = f"{cell.ref} awaits its own answer; call the method directly"
                    self.throw = WouldDeadlock(text)
                    continue
                self.waiting_for = awaited
                awaited.await_by(self)
            else:
                self._await_foreign(awaited)
            return True

    def _await_foreign(self, awaited: Any) -> None:
        """Wait for an awaitable of asyncio: None yields one turn, else it is future-like."""
        if awaited is None:
            self.wake(None)
        elif getattr(awaited, "_asyncio_future_blocking", None) is None:
            self.throw = RuntimeError(
                f"a handler of {self.cell.ref} awaited {awaited!r}, which no event loop knows"
            )
            self.wake(None)
        else:
            awaited._asyncio_future_blocking = False
            self.waiting_for = awaited
            awaited.add_done_callback(self.wake)

    def wake(self, awaited: Any) -> None:
        """Resume after the awaited result arrived; ignore late wake-ups of earlier awaits."""
        if awaited is self.waiting_for and not self.ready:
            self.ready = True
            cell = self.cell
            # A copy of `cell.schedule()`, because every ask wakes a task.
            if not cell.scheduled:
                cell.scheduled = True
                runner = cell.runner
                runner.ready.append(cell)
                if runner.sleeping:
                    runner.wake()

    # The interface of tasks that asyncio's timeouts, task groups and libraries use.

    def cancel(self, msg: object = None) -> bool:
        """Raise `CancelledError` at the current await of the handler.

        If the handler awaits a future of asyncio (a task, a `gather`), that future is cancelled
        too, as in asyncio's tasks. If it awaits the answer to an ask, the ask is not cancelled,
        because other code may wait for the answer as well.
        """
        self._cancels += 1
        awaited = self.waiting_for
        if _is_foreign(awaited) and not self.ready and awaited.cancel(msg):
            return True  # the cancelled future wakes the handler
        self.throw = asyncio.CancelledError(*(() if msg is None else (msg,)))
        self.wake(awaited)
        return True

    def give_up(self) -> None:
        """Cancel the handler because its asker no longer waits; the actor continues."""
        if not self.is_given_up:
            self.is_given_up = True
            self.cancel("the asker no longer waits for the answer")

    def uncancel(self) -> int:
        """Revoke one request to cancel; return the number of remaining ones."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def cancelling(self) -> int:
        """Return the number of requests to cancel."""
        return self._cancels

    def done(self) -> bool:
        """Return False: code that calls this runs in the handler, which is not done."""
        return False

    def get_coro(self) -> AnyCoroutine:
        """Return the coroutine of the handler."""
        return self.coroutine

    def get_name(self) -> str:
        """Return the text of the actor's ref."""
        return str(self.cell.ref)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that drives the handler."""
        return self.cell.runner.loop

    def abandon(self) -> None:
        """End the handler at its current await; its `finally` blocks run, but cannot await."""
        if _is_foreign(self.waiting_for):
            self.waiting_for.cancel()
        try:
            self.context.run(self.coroutine.throw, asyncio.CancelledError("the actor ended"))
        except (StopIteration, asyncio.CancelledError):
            return
        finally:
            self.coroutine.close()


class ConcurrentTask(HandlerTask):
    """One invocation of a concurrent handler."""

    __slots__ = ("is_promised",)

    is_promised: bool

    def wake(self, awaited: Any) -> None:
        """Resume in a coming turn of the actor."""
        if awaited is self.waiting_for and not self.ready:
            self.ready = True
            self.cell.resume(self)


def _is_foreign(awaited: Any) -> bool:
    """Return whether an awaited object is not one of our futures."""
    return awaited is not None and awaited.__class__ is not Future
