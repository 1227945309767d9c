"""Coroutine handlers marked `concurrent`: many under way at once, each going on at its awaits.

A message for such a handler starts a task, and the actor takes the next message as soon as the
task awaits. When what it awaits is there, the task waits in `aside.woken`, and a `Resume` at
the front of the mailbox gives it its step. So steps of tasks are part of the actor's turn like
messages: nothing of the actor ever runs at the same moment, and while an unmarked coroutine
handler awaits, no task takes a step either.

When as many are under way as may be, the next message that would start one is held back, and
with it all behind it but urgent ones, until one has finished. A `Stop` is held back until all
have.
"""

from typing import TYPE_CHECKING, Any, Final

from actors.behavior import Behaving
from actors.future import OVER
from actors.signals import Resume
from actors.task import HandlerTask

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from actors.answers import Sender

_RESUME: Final = Resume()


class ConcurrentTask(HandlerTask):
    """One invocation of a concurrent handler."""

    __slots__ = ("is_promised",)

    is_promised: bool

    def wake(self, awaited: Any) -> None:
        """Go on, as soon as the actor comes to it."""
        if awaited is self.waiting_for and not self.ready:
            self.ready = True
            cell = self.cell
            cell.open_aside().woken.append(self)
            cell.open_mailbox().appendleft((_RESUME, None))
            cell.schedule()


class Interleaving(Behaving):
    """The part of a cell that runs concurrent handlers."""

    __slots__ = ()

    def start_concurrent(
        self,
        coroutine: "Coroutine[Any, Any, Any]",
        sender: "Sender | None",
        message: Any,
    ) -> None:
        """Run a concurrent handler to its first await, or hold its message back."""
        limit: int = self.actor.concurrent_limit
        if not self._finish_down_to(limit - 1, message, sender):
            coroutine.close()
            return
        if sender is not None and sender.expects and sender.deadline is OVER:
            coroutine.close()
            self.drop_expired(message, sender)
            return
        task = ConcurrentTask(self, coroutine, sender, message)  # type: ignore[arg-type]  # a cell
        task.is_promised = False
        self.open_aside().tasks[task] = None
        self._step(task)

    def resume_one(self) -> None:
        """Give the task that was woken first its step."""
        aside = self.open_aside()
        if aside.woken:
            self._step(aside.woken.popleft())

    def may_stop(self, message: Any) -> bool:
        """Say whether no concurrent handler is under way; else the `Stop` is held back."""
        return self._finish_down_to(0, message, None)

    def _finish_down_to(self, most: int, message: Any, sender: "Sender | None") -> bool:
        """Let tasks finish that can; hold the message back if too many are left."""
        aside = self.aside
        if aside is None or len(aside.tasks) <= most:
            return True
        mailbox = self.open_mailbox()
        mailbox.appendleft((message, sender))  # a step may fail: then it is a dead letter
        # Their marks may stand behind the message that was put back, so they are looked for.
        while len(aside.tasks) > most and (aside.woken or aside.urgent):
            self.resume_one()
            self.handle_urgent()
        if len(aside.tasks) > most:
            aside.is_held = self.attention = True
        return False

    def handle_urgent(self) -> None:
        """Handle the oldest message with high priority, if one is left."""
        if self.aside is not None and self.aside.urgent:
            self.dispatch(*self.aside.urgent.popleft())

    def dispatch(self, message: Any, sender: "Sender | None") -> None:
        """Handle one message that did not come out of the mailbox as it is."""
        raise NotImplementedError

    def _step(self, task: ConcurrentTask) -> None:
        aside = self.open_aside()
        if task not in aside.tasks:
            return
        self.sender = task.sender
        if task.is_promised:
            self.promised = task.sender
        goes_on = False
        try:
            goes_on = task.step()
        finally:
            if not goes_on:
                del aside.tasks[task]
        if self.promised is not None and self.promised is task.sender:
            task.is_promised, self.promised = True, None
        if self.attention:
            self.keep_stashed(task.message, task.sender)
