"""How an actor changes what it does with messages: other handlers, a stash, what is urgent.

All of it costs an actor that uses none of it one flag, `attention`: it ends the run of messages
after the current one, and the cell looks for the reason where it is out of the way.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from actors.aside import Aside
from actors.errors import MailboxFull
from actors.future import Future
from actors.life import Mortal
from actors.mailbox import BoundedMailbox, Mailbox
from actors.monitors import LIFE
from actors.signals import Urgent

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.cell import Cell

STASH_LIMIT: Final = 10_000
"""Messages that one actor may put aside: a stash that only grows is never unstashed."""

LONGEST_CHAIN: Final = 100
"""Actors that may wait for one another before it counts as a circle."""

_URGENT: Final = Urgent()

Handlers = type | Mapping[type, Callable[[Any], Any]] | object
"""What `become` takes: a class with handlers, functions by message type, or an object."""


class Behaving(Mortal):
    """The part of a cell that changes its behavior."""

    __slots__ = ()

    def open_mailbox(self) -> deque[tuple[Any, "Sender | None"]]:
        """Return the mailbox, made on first use."""
        with LIFE:  # two first messages may come at once
            if self._mailbox is None:
                self._mailbox = deque()
            return self._mailbox

    def bound_mailbox(self, bounds: Mailbox) -> None:
        """Give the mailbox bounds; what waits in it already has been accepted."""
        bounded = BoundedMailbox(self, bounds)  # type: ignore[arg-type]  # all are cells
        with LIFE:
            bounded.extendleft(reversed(self._mailbox or ()))
            self._mailbox = bounded

    def open_aside(self) -> Aside:
        """Return the rarely used state, made on first use."""
        if self.aside is None:
            with LIFE:
                if self.aside is None:
                    self.aside = Aside()
        return self.aside

    def become(self, handlers: Handlers) -> None:
        """Handle messages with other handlers from the next one on."""
        self.table = self.runtime.table_of(handlers)
        self.attention = True

    def unbecome(self) -> None:
        """Handle messages with the handlers of the actor's class again."""
        self.become(type(self.actor))

    def stash(self) -> None:
        """Put the current message aside; `keep_stashed` takes it when the handler returns."""
        aside = self.open_aside()
        if len(aside.stash) >= STASH_LIMIT:
            msg = (
                f"{self.ref} has {STASH_LIMIT:,} messages in its stash, the limit; call "
                "unstash_all() before more are put aside"
            )
            raise MailboxFull(msg)
        aside.stashing = self.attention = True
        sender = self.sender
        if sender is not None and sender.expects:
            self.promised = sender  # what the handler returns is not the answer

    def keep_stashed(self, message: Any, sender: "Sender | None") -> None:
        """Take a message into the stash if its handler has asked for it."""
        aside = self.aside
        if aside is not None and aside.stashing:
            aside.stashing = False
            aside.stash.append((message, sender))

    def unstash_all(self) -> None:
        """Put what was stashed at the front of the mailbox, in the order of its arrival."""
        aside = self.aside
        if aside is not None and aside.stash:
            stashed, aside.stash = aside.stash, []
            self.open_mailbox().extendleft(reversed(stashed))

    def post_urgent(self, message: Any, sender: "Sender | None") -> None:
        """Take a message that goes before all normal ones, behind earlier urgent ones."""
        mailbox = self.open_mailbox()
        if isinstance(mailbox, BoundedMailbox) and not mailbox.admit(message, sender):
            return
        self.open_aside().urgent.append((message, sender))
        mailbox.appendleft((_URGENT, None))
        self.schedule()

    # --- full mailboxes of others ---

    def block_on(self, target: "Cell") -> bool:
        """Take no turn until `unblock`; False if `target` waits for this actor in turn."""
        aside = self.open_aside()
        with LIFE:
            if aside.blocked_by is not None or target.waits_for(self):
                return False
            aside.blocked_by = target
        self.attention = True
        return True

    def unblock(self) -> None:
        """Take turns again."""
        if self.aside is not None and self.aside.blocked_by is not None:
            self.aside.blocked_by = None
            self.schedule()

    @property
    def is_paused(self) -> bool:
        """True while no message may be handled: for want of room, or of a task's end."""
        aside = self.aside
        if aside is None:
            return False
        if aside.blocked_by is not None:
            return True
        return aside.is_held and not aside.woken and not aside.urgent

    @property
    def is_blocked(self) -> bool:
        """True while the actor waits for room in another's mailbox."""
        return self.aside is not None and self.aside.blocked_by is not None

    def waits_for(self, other: "Behaving") -> bool:
        """Say whether this actor is `other`, or waits for it, itself or through others."""
        cell: Any = self
        for _ in range(LONGEST_CHAIN):
            if cell is other:
                return True
            if cell.is_blocked:
                cell = cell.aside.blocked_by
            elif cell.task is not None and cell.task.waiting_for.__class__ is Future:
                cell = getattr(cell.task.waiting_for.asked, "target", None)
            else:
                return False
            if not isinstance(cell, Behaving):
                return False
        return True
