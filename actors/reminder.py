"""Messages that an actor sends to itself later: what `self.after` and `self.every` return."""

from typing import TYPE_CHECKING, Any

from actors.errors import MailboxFull

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.timers import Timer


class Reminder:
    """A message on its way through time; it ends with its actor.

    A repeated one keeps its rhythm: it is due at multiples of its period after its start, and
    what a busy node missed is sent once, not once for each period.
    """

    __slots__ = ("_cell", "_due", "_message", "_period", "_timer", "active")

    def __init__(
        self, cell: "Cell", seconds: float, message: Any, period: float | None = None
    ) -> None:
        self._cell = cell
        self._message = message
        self._period = period
        self._due = cell.runner.now() + seconds
        #: True while a message is still to be sent.
        self.active = True
        cell.open_aside().reminders.add(self)
        self._timer: Timer = cell.runner.call_at(self._due, self._fire)

    def cancel(self) -> None:
        """Take the message back; no effect once it was sent for the last time."""
        if self.active:
            self.active = False
            self._timer.cancel()
            self._cell.open_aside().reminders.discard(self)

    def _fire(self) -> None:
        if not self.active:
            return
        cell, message, period = self._cell, self._message, self._period
        if period is None:
            self.active = False
            cell.open_aside().reminders.discard(self)
        else:
            now = cell.runner.now()
            missed = max(0.0, (now - self._due) // period)
            self._due += (missed + 1.0) * period
            self._timer = cell.runner.call_at(self._due, self._fire)
        try:
            cell.post(message, cell)
        except MailboxFull:
            pass  # the mailbox has counted it
