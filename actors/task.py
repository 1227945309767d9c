"""A coroutine handler that is under way.

The runner drives it: each step runs until the coroutine awaits something that is not there, and
the task asks to be woken by it. To asyncio's own parts (timeouts, task groups, libraries) a
handler looks like the current task of a running loop.
"""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from actors.errors import WouldDeadlock
from actors.future import Future
from actors.loop import current_task_set

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.cell import Cell


class HandlerTask:
    """One invocation of a coroutine handler."""

    __slots__ = (
        "__weakref__",
        "_cancels",
        "_loop",
        "_name",
        "_send",
        "cell",
        "context",
        "coroutine",
        "message",
        "ready",
        "sender",
        "throw",
        "waiting_for",
    )

    def __init__(
        self,
        cell: "Cell",
        coroutine: Coroutine[Any, Any, Any],
        sender: "Sender | None",
        message: Any = None,
    ) -> None:
        self.cell = cell
        self.message = message
        self.coroutine = coroutine
        self._loop = cell.runner.loop
        self._send = coroutine.send
        self.sender = sender
        self.context = contextvars.copy_context()
        self.waiting_for: Any = None
        self.ready = False
        self.throw: BaseException | None = None
        self._cancels = 0

    def step(self) -> bool:
        """Run to the next await. Returns False when the handler is done.

        Raises whatever the handler raises.
        """
        cell = self.cell
        while True:
            self.ready = False
            self.waiting_for = None
            current_task_set(self._loop, self)
            try:
                if self.throw is None:
                    awaited = self.context.run(self._send, None)
                else:
                    error, self.throw = self.throw, None
                    awaited = self.context.run(self.coroutine.throw, error)
            except StopIteration as stop:
                if self.sender is not None and self.sender.expects:
                    cell.answer(self.sender, stop.value)
                return False
            if awaited.__class__ is Future:
                if awaited.asked is not None and awaited.asked is cell._ref:
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


def _is_foreign(awaited: Any) -> bool:
    return awaited is not None and awaited.__class__ is not Future
