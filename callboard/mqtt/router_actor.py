"""The router as an actor: it has a thread, and an event loop that its connections live on.

Whole batches cross its border: links put chunks into their buffers and events into the mailbox
below, and one message lets the actor take a turn. When there is nothing to do, it is parked.
"""

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from actors.actor import Actor
from actors.dispatch import handler
from callboard.mqtt.link import Disconnect, LinkEvent
from callboard.mqtt.limits import Limits
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.record import JournalRecord

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.reminder import Reminder

log = logging.getLogger("callboard.mqtt")


class Turn:
    """Take events, and send to who is ready."""


TURN: Final = Turn()


class Journal(Protocol):
    """Where records go."""

    def restore(self, machine: RouterMachine) -> None:
        """Give an empty machine what the journal holds."""

    def write(self, records: list[JournalRecord], machine: RouterMachine) -> None:
        """Make records durable; all of them are when it returns.

        Raises:
            LogError: the disk refuses.
        """

    def close(self) -> None:
        """Let others write it."""


class Mailbox:
    """Events of links on their way to the router; from any thread."""

    def __init__(self) -> None:
        self.events: deque[LinkEvent] = deque()
        self.is_poked = False
        self._cell: Cell | None = None

    def attach(self, cell: "Cell") -> None:
        """Wake this actor from now on."""
        self._cell = cell
        if self.events:
            self.poke()

    def post(self, event: LinkEvent) -> None:
        """Append an event, and wake the router if it is parked."""
        self.events.append(event)
        if not self.is_poked:
            self.poke()

    def poke(self) -> None:
        """Let the router take a turn."""
        if self._cell is not None:
            self.is_poked = True
            self._cell.post(TURN, None)


def make_client_id() -> str:
    """Return a name for a client that has none, which others cannot guess."""
    return f"auto-{secrets.token_hex(12)}"


class RouterActor(Actor):
    """Runs a `RouterMachine` on a thread of its own; a sync of the disk may hold it up."""

    detached = True
    remote_methods = frozenset()

    def __init__(self, mailbox: Mailbox, limits: Limits, journal: Journal | None) -> None:
        self._runner = self._cell.runner
        self._mailbox = mailbox
        self._journal = journal
        self._reminder: Reminder | None = None
        self._due: float | None = None
        self.machine = RouterMachine(
            limits,
            is_durable=journal is not None,
            make_client_id=make_client_id,
            chance=self._runner.random,
            now=self._runner.now(),
            events=mailbox.events,
        )
        if journal is not None:
            journal.restore(self.machine)
        mailbox.attach(self._cell)

    @handler
    def turn(self, _: Turn) -> None:
        """Run the machine once; what it wants is carried out in its order."""
        mailbox, machine = self._mailbox, self.machine
        mailbox.is_poked = False
        try:
            records, transmits, alerts = machine.run_inner(self._runner.now())
        except Exception:  # one client's packets must not end the router for all
            self._blame()
            mailbox.poke()
            return
        if records and self._journal is not None:
            self._journal.write(records, machine)
        for link, notifications in transmits:
            link.deliver(notifications)
        for alert in alerts:
            self._cell.runtime.emit(alert)
        if not machine.is_idle:
            if not mailbox.is_poked:
                mailbox.poke()
        elif machine.next_deadline != self._due:
            self._arm(machine.next_deadline)

    def _blame(self) -> None:
        """Cut off the client whose event a turn failed with."""
        link = self.machine.at_hand
        log.exception("a turn of the MQTT router failed with %r", link and link.client_id)
        if link is not None and link.connection is not None:
            reason = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            self._mailbox.events.appendleft(Disconnect(link, reason, True, True))

    def _arm(self, due: float | None) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
        self._due = due
        if due is not None:
            self._reminder = self.after(max(due - self._runner.now(), 0.0), TURN)
