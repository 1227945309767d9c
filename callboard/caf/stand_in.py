"""The local stand-in of a CAF actor, and the reply to a request of one.

A stand-in has a number on this node, like an actor, so refs to it are ordinary refs: other
nodes reach it over BASP, and monitors, links and topics treat it as an actor of this node. It
has no mailbox and no turns: a message is encoded by the thread that sends it.
"""

import itertools
from collections.abc import Iterable
from typing import Any, Final, Protocol

from callboard.caf.errors import SYSTEM, CafError, SystemError17, exit_error
from callboard.caf.quota import Quota
from callboard.caf.wire.connection import REQUEST_MASK, RESPONSE
from callboard.caf.wire.message import Atom, ExitMessage, TypedMessage
from callboard.caf.wire.reader import CafActor
from callboard.kernel.activation import Cell, DispatchTable, Envelope
from callboard.kernel.actors import ActorRef, Down, ExitReason
from callboard.kernel.errors import (
    ActorDown,
    CallboardError,
    NotSerializable,
    UnexpectedMessage,
)
from callboard.kernel.queue import SendTurn
from callboard.kernel.reply import Asker, Future, Sender

#: Seconds between two attempts of a coroutine to send to a peer that does not read.
ROOM_PAUSE: Final = 0.01

_NO_HANDLERS: Final = DispatchTable.of_functions({})


class CafOutlet(Protocol):
    """Sends messages to the node of a CAF actor."""

    context: Any
    runner: Any

    @property
    def has_room(self) -> bool:
        """Whether the connection can hold further messages."""

    def encode(self, message: Any) -> bytes:
        """Serialize a message."""

    def send(
        self, cell: "CafCell", content: bytes, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Send a serialized message; register the sender of an ask."""

    def command(self, cell: "CafCell", message: Any, *, is_link: bool = False) -> None:
        """Send a message of the runtime itself."""

    def down(self, number: int, error: CafError | None) -> None:
        """Handle the end of an actor."""


class CafActorStandIn:
    """The type that inspections show for stand-ins."""

    def handle_thespian_style(self, _: object) -> bool:
        """Return False, as no message is handled here."""
        return False


class CafCell(Cell):
    """The stand-in of one CAF actor."""

    __slots__ = ("awaits_reason", "caf", "is_linked", "outlet", "quota")

    def __init__(
        self, outlet: CafOutlet, number: int, caf: CafActor, quota: Quota | None = None
    ) -> None:
        runtime = outlet.context
        super().__init__(runtime, outlet.runner, number, _NO_HANDLERS, None, runtime.now())
        self.running = False
        self.actor = CafActorStandIn()
        #: Sends messages to the actor's node.
        self.outlet = outlet
        #: The actor.
        self.caf = caf
        #: The limits of the connection whose frame named the actor.
        self.quota = quota
        #: Whether the CAF actor has linked itself with an actor of this node.
        self.is_linked = False
        #: Whether the CAF actor has ended, and the exit message with the reason has not
        #: arrived.
        self.awaits_reason = False

    # --- messages ---

    def post(self, message: Any, sender: Sender | None = None) -> None:
        """Send a message to the actor. Can be called from any thread."""
        self._post(message, sender, is_urgent=False)

    def post_urgent(self, message: Any, sender: Sender | None = None) -> None:
        """Send a message with high priority."""
        self._post(message, sender, is_urgent=True)

    def _post(self, message: Any, sender: Sender | None, *, is_urgent: bool) -> None:
        """Send a message, or refuse it."""
        if message.__class__ is Envelope:
            is_urgent = is_urgent or message.is_urgent
            message = message.message
        if self.reason is not None:
            self.refuse(message, sender)
            return
        try:
            content = self.outlet.encode(message)
            self.outlet.send(self, content, sender, is_urgent=is_urgent)
        except CallboardError as error:
            if sender is None or not sender.expects or not sender.node:
                raise  # the caller is on this node and handles the exception
            sender.set_exception(error)
            self.runtime.dead_letter(self.ref, message, sender)

    async def apost(
        self, message: Any, sender: Sender | None = None, *, is_urgent: bool = False
    ) -> None:
        """Send a message when the connection has room for it."""

        def offer(turn: SendTurn) -> bool:
            if not self.outlet.has_room and self.reason is None:
                turn.pause(self.runtime, ROOM_PAUSE)
                return False
            self._post(message, sender, is_urgent=is_urgent)
            return True

        await SendTurn(self.ref).send(offer)

    def offer(self, message: Any) -> Future[None] | None:
        """Send a message of a topic.

        Without room, return a future that is done when to retry.
        """
        if self.outlet.has_room or self.reason is not None:
            self.post_run((message,))
            return None
        room: Future[None] = Future()
        self.outlet.context.call_later(ROOM_PAUSE, room.set_result, None)
        return room

    def post_run(self, messages: Iterable[Any]) -> None:
        """Send messages of topics, in order; one without a type in CAF is a dead letter."""
        for message in messages:
            try:
                self._post(message, None, is_urgent=False)
            except CallboardError as error:
                text = f"a message of a topic is not sent to {self.ref}: {error}"
                self.outlet.context.warn_once(("caf topic", type(message)), text)
                self.runtime.dead_letter(self.ref, message, None)

    def refuse(self, message: Any, sender: Sender | None) -> None:
        """Fail an ask to an actor that has ended, or count an undeliverable message."""
        if sender is not None and sender.expects:
            sender.set_exception(self.ended_error())
        self.runtime.dead_letter(self.ref, message, sender)

    def ended_error(self) -> ActorDown:
        """Return the error of an ask to the ended actor."""
        text = f"{self.caf.number}@{self.caf.node} ended ({self.reason})"
        return ActorDown(text, self.reason or "", self.detail)

    def give_up(self, origin: Any) -> None:
        """Do nothing: CAF cannot cancel a request, and done asks are removed later."""

    # --- the end ---

    def stop(self) -> None:
        """Ask the actor to end with the reason `user_shutdown`."""
        self._exit(4)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """Ask the CAF actor to end with the reason `kill`.

        If this node is closed, only the stand-in ends.
        """
        if self.runtime.is_closed or reason is ExitReason.SHUTDOWN:
            super().kill(reason, detail)
        else:
            self._exit(5)

    def _exit(self, code: int) -> None:
        """Send an exit message with a code."""
        if self.reason is None:
            self.outlet.command(self, ExitMessage(self.ref, CafError(code, "exit")))

    def link(self, other: ActorRef) -> None:
        """Link the CAF actor to `other`, and report the end of `other` to the CAF node."""
        if self.reason is None:
            self.outlet.command(self, _link_message("link", other), is_link=True)

            other.target.monitor(("caf link", self.number), self.report_exit)

    def report_exit(self, down: Down) -> None:
        """Report the end of a linked actor to this one."""
        error = exit_error(down.reason, down.detail)
        self.outlet.command(self, ExitMessage(down.ref, error))

    def unlink(self, other: ActorRef) -> None:
        """Undo `link`."""
        other.target.demonitor(("caf link", self.number))
        if self.reason is None:
            self.outlet.command(self, _link_message("unlink", other), is_link=True)


def _link_message(verb: str, other: ActorRef) -> TypedMessage:
    """Return the message that links an actor with another one, or undoes it."""
    return TypedMessage(("@atom", "@strong_actor_ptr"), (Atom(verb), other))


def error_of(error: BaseException) -> CafError:
    """Return CAF's error for an exception."""
    if isinstance(error, CafError):
        return error
    codes = (
        (UnexpectedMessage, SystemError17.UNEXPECTED_MESSAGE),
        (ActorDown, SystemError17.REQUEST_RECEIVER_DOWN),
        (TimeoutError, SystemError17.REQUEST_TIMEOUT),
        (NotSerializable, SystemError17.SERIALIZING_BASP_PAYLOAD_FAILED),
    )
    code = next((code for kind, code in codes if isinstance(error, kind)), None)
    if code is None:
        code = SystemError17.RUNTIME_ERROR
    return CafError(code, SYSTEM, str(error)[:4000])


def exception_of(error: CafError, target: object) -> BaseException:
    """Return the exception for an error that answers an ask."""
    if error.category == SYSTEM and error.code == SystemError17.UNEXPECTED_MESSAGE:
        return UnexpectedMessage(f"{target} has no handler for the message ({error})")
    if error.category == SYSTEM and error.code == SystemError17.REQUEST_RECEIVER_DOWN:
        return ActorDown(f"{target} ended before it answered ({error})", "", str(error))
    return error


class CafRequests:
    """The asks to actors of one node that are not answered, by the number of the request.

    Any thread adds asks; the node's thread answers them.
    """

    #: Number of asks from which on done ones are removed.
    PURGED: Final = 1_000

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asks: dict[int, tuple[Asker, CafCell]] = {}
        self._purge_at = self.PURGED

    def add(self, asker: Asker, cell: CafCell) -> int:
        """Register an ask; return the number of its request."""
        number = next(self._numbers) & REQUEST_MASK
        self._asks[number] = asker, cell
        if len(self._asks) >= self._purge_at:
            for key, (other, _) in list(self._asks.items()):
                if other.is_done:
                    self._asks.pop(key, None)
            self._purge_at = max(self.PURGED, 2 * len(self._asks))
        return number

    def pop(self, message_id: int) -> tuple[Asker, CafCell] | None:
        """Return and remove the ask of a response."""
        assert message_id & RESPONSE
        return self._asks.pop(message_id & REQUEST_MASK, None)

    def fail(self, cell: CafCell | None, error: BaseException) -> None:
        """Fail the asks to an actor, or to all actors of the node."""
        for number, (asker, target) in list(self._asks.items()):
            if cell is None or target is cell:
                self._asks.pop(number, None)
                asker.set_exception(error)

    def __len__(self) -> int:
        return len(self._asks)
