"""A coroutine handler that is under way.

The runner drives it: each step runs until the coroutine awaits something that is not there, and
the task asks to be woken by it. To asyncio's own parts (timeouts, task groups, libraries) a
handler looks like the current task of a running loop.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Any, Protocol

from callboard.actors.errors import WouldDeadlock
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef, Asker, Sender
from callboard.actors.runner.loop import current_task_set
from callboard.actors.runner.runner import Runner
from callboard.support.dataclass import dataclass


class TaskOwner(Protocol):
    """What a coroutine handler uses of its actor's cell."""

    scheduled: bool

    #: The runner that drives the handler.
    runner: Runner

    @property
    def ref(self) -> ActorRef[Any]:
        """The actor's ref."""

    #: The actor's ref if one was made.
    known_ref: ActorRef[Any] | None

    def run(self) -> None:
        """Do one turn's share of work."""

    def answer(self, sender: Asker, value: Any, /) -> None:
        """Pass a handler's result on."""

    def resume(self, task: "ConcurrentTask", /) -> None:
        """Give a concurrent handler its step when the actor comes to it."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class HandlerTask:
    """One invocation of a coroutine handler."""

    cell: TaskOwner
    #: Of the coroutine; to look it up for each step would cost as much as twenty attributes.
    send: Callable[[None], Any]
    sender: Sender | None
    message: Any = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    waiting_for: Any = None
    ready: bool = False
    throw: BaseException | None = None
    #: Whether nobody waits for what it does any more.
    is_given_up: bool = False
    _cancels: int = 0

    @property
    def coroutine(self) -> Coroutine[Any, Any, Any]:
        """The handler itself."""
        return self.send.__self__  # type: ignore[attr-defined,no-any-return]

    def step(self) -> bool:
        """Run to the next await. Returns False when the handler is done.

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
                    self.sender.set_exception(cancelled)  # it is counted there, no more
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
        """Wait for something of asyncio's: None means one turn, else a future-like object."""
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
        """Go on: what was awaited is done. Late wake-ups for an earlier await do nothing."""
        if awaited is self.waiting_for and not self.ready:
            self.ready = True
            cell = self.cell
            if not cell.scheduled:  # as `cell.schedule()`, without the calls: each ask wakes
                cell.scheduled = True
                runner = cell.runner
                runner.ready.append(cell)
                if runner.sleeping:
                    runner.wake()

    # What asyncio's timeouts, task groups and libraries ask of the current task.

    def cancel(self, msg: object = None) -> bool:
        """Raise `CancelledError` at the await where the handler stands.

        What it awaits of asyncio's (a task, a `gather`) is cancelled too, as by asyncio's own
        tasks; the answer to an ask can have other waiters, and is left alone.
        """
        self._cancels += 1
        awaited = self.waiting_for
        if _is_foreign(awaited) and not self.ready and awaited.cancel(msg):
            return True  # its end wakes the handler
        self.throw = asyncio.CancelledError(*(() if msg is None else (msg,)))
        self.wake(awaited)
        return True

    def give_up(self) -> None:
        """Cancel the handler because its asker has gone; the actor goes on."""
        if not self.is_given_up:
            self.is_given_up = True
            self.cancel("nobody waits for the answer any more")

    def uncancel(self) -> int:
        """Take one request to cancel back; returns how many are left."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def cancelling(self) -> int:
        """Return how many requests to cancel there are."""
        return self._cancels

    def done(self) -> bool:
        """A handler that can ask is not done."""
        return False

    def get_coro(self) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of the handler."""
        return self.coroutine

    def get_name(self) -> str:
        """Return the text of the actor's ref."""
        return str(self.cell.ref)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that drives the handler."""
        return self.cell.runner.loop

    def abandon(self) -> None:
        """End the handler where it stands; its `finally` blocks run, but may not await."""
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
        """Go on, as soon as the actor comes to it."""
        if awaited is self.waiting_for and not self.ready:
            self.ready = True
            self.cell.resume(self)


def _is_foreign(awaited: Any) -> bool:
    """Return whether something awaited is not one of our futures."""
    return awaited is not None and awaited.__class__ is not Future
