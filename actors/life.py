"""How an actor ends: killed, failed, stopped, or with its parent, and what that does to others.

When the actor ends, whatever is in the mailbox or comes later goes to the dead letters: asks
fail at once with `ActorDown`, tells are counted.
"""

import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.answers import Answering, Asker, Sender
from actors.errors import ActorDown, RemoteError
from actors.exit_reason import ExitReason
from actors.monitors import LIFE
from actors.signals import ChildDown, Down, LinkExit, Resume, Stop, Urgent

if TYPE_CHECKING:
    from actors.aside import Aside
    from actors.cell import Cell
    from actors.dispatch import DispatchTable
    from actors.runner import Runner
    from actors.task import HandlerTask


class Mortal(Answering):
    """The part of a cell that ends."""

    __slots__ = (
        "_end",
        "_mailbox",
        "aside",
        "attention",
        "children",
        "handled",
        "parent",
        "runner",
        "running",
        "scheduled",
        "table",
        "task",
    )

    runner: "Runner"
    running: bool
    scheduled: bool
    table: "DispatchTable"
    task: "HandlerTask | None"
    parent: "Cell | None"
    children: "dict[Cell, None] | None"
    #: Messages that handlers were called for.
    handled: int
    #: True when there may be a reason not to handle the next message: an end, other handlers …
    attention: bool
    #: What only few actors need.
    aside: "Aside | None"
    _end: tuple[ExitReason, str] | None
    _mailbox: "deque[tuple[Any, Sender | None]] | None"

    @property
    def end(self) -> tuple[ExitReason, str] | None:
        """Why the actor is to end as soon as its handler returns."""
        return self._end

    @end.setter
    def end(self, reason: tuple[ExitReason, str] | None) -> None:
        self._end = reason
        self.attention = True

    def run(self) -> None:
        """Do one turn's share of work."""
        raise NotImplementedError

    def schedule(self) -> None:
        """Put the cell into the run queue unless it is there."""
        if not self.scheduled:
            self.scheduled = True
            self.runner.schedule(self)

    def stop(self) -> None:
        """End normally, behind all messages that are in the mailbox already."""
        self.post(Stop(), None)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End before the next message; a handler that awaits is cancelled."""
        if self.end is None:
            self.end = (reason, detail)
        self.schedule()

    def failed(self, error: BaseException, sender: Sender | None) -> None:
        """End the actor because its handler raised; an asker is told what."""
        reason = ExitReason.NORMAL if isinstance(error, SystemExit) else ExitReason.ERROR
        trace = "".join(traceback.format_exception(error))
        name, said = type(error).__qualname__, _text_of(error)
        text = f"{name}: {said}"
        if sender is not None and sender.expects:
            sender.set_exception(RemoteError(name, said, trace))
        if reason is ExitReason.ERROR:
            self.runtime.note_failure(self, text, error)
        self.end = self.end or (reason, text if reason is ExitReason.ERROR else "")

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End: fail what waits for an answer, end children, tell who watches."""
        cancelled = self._cancel_tasks()
        with LIFE:
            self.reason, self.detail = reason, detail
            watchers, self._watchers = self._watchers, None
        self.runtime.forget(self)
        gone = ActorDown(f"{self.ref} ended ({reason}) before it answered", reason, detail)
        for asker in [*cancelled, *(self._promises or ())]:
            asker.set_exception(gone)
        self._promises = self.promised = self.sender = None
        children, self.children = self.children, None
        for child in children or ():
            self.end_child(child)
        for unlink in (self._links or {}).values():
            unlink()
        for monitor in list(self._monitors or ()):
            monitor.cancel()
        self._links = self._monitors = None
        if self.aside is not None:
            self._clear(self.aside)
        down = Down(self.ref, reason, detail)
        if self.parent is not None:  # first: who hears of the end may ask the supervisor
            self.parent.child_ended(self, down)  # type: ignore[arg-type]  # all are cells
        for watcher in (watchers or {}).values():
            watcher(down)
        self.actor = None

    def _cancel_tasks(self) -> list[Asker]:
        """Cancel the handlers that are under way; return who waits for their answers."""
        tasks = [] if self.task is None else [self.task]
        self.task = None
        if self.aside is not None:
            tasks += self.aside.tasks
            self.aside.tasks = {}
        for task in tasks:
            self._abandon(task)
        return [
            task.sender for task in tasks if task.sender is not None and task.sender.expects
        ]

    def _clear(self, aside: "Aside") -> None:
        for reminder in list(aside.reminders):
            reminder.cancel()
        aside.blocked_by = None
        stashed, aside.stash = aside.stash, []
        if self._mailbox is not None:
            self._mailbox.extendleft(reversed(stashed))  # they are dead letters with the rest

    def abort(self, reason: ExitReason, detail: str) -> None:
        """End an actor whose `__init__` raised; on the thread that called it."""
        self.terminate(reason, detail)
        self.running = False
        if self._mailbox:
            self.scheduled = True
            self.runner.schedule(self)

    def _abandon(self, task: "HandlerTask") -> None:
        try:
            task.abandon()
        except BaseException as error:  # noqa: BLE001  # the actor ends all the same
            self.runtime.note_failure(self, f"while it was cancelled: {_text_of(error)}", error)

    def end_child(self, child: "Cell") -> None:
        """End a child because this actor ended."""
        child.kill(ExitReason.SHUTDOWN)

    def child_ended(self, child: "Cell", down: Down) -> None:
        """A child ended: forget it, and tell an actor that supervises."""
        if self.children is not None:
            self.children.pop(child, None)
        if self.reason is None and ChildDown in self.table.declared:
            self.post(ChildDown(down.ref, down.reason, down.detail), None)

    def drain(self) -> None:
        """Send what waits in the mailbox of an ended actor to the dead letters."""
        mailbox = self._mailbox
        while mailbox:
            message, sender = mailbox.popleft()
            if isinstance(message, Stop | LinkExit | Resume):
                continue
            if isinstance(message, Urgent):
                if self.aside is None or not self.aside.urgent:
                    continue
                message, sender = self.aside.urgent.popleft()
            if sender is not None and sender.expects:
                sender.set_exception(
                    ActorDown(
                        f"{self.ref} ended ({self.reason})", self.reason or "", self.detail
                    )
                )
            self.runtime.dead_letter(self.ref, message, sender)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a user's __str__ must not keep its actor from ending
        return "<its text could not be made>"
