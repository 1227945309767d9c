"""Cells without an actor: what is sent to them goes to a function."""

from collections.abc import Callable
from typing import Any, Final

from actors.answers import Sender
from actors.cell import Cell
from actors.dispatch import DispatchTable
from actors.envelope import Envelope
from actors.exit_reason import ExitReason
from actors.runtime import Runtime

_NO_HANDLERS: Final = DispatchTable(object)

Receiver = Callable[[Any, Sender | None], object]


class Endpoint(Cell):
    """An address that actors of this node and of others can send to.

    The function is called on the thread of the sender, or the runner's for a remote one, and
    must not block.
    """

    __slots__ = ("_receive",)

    def __init__(self, runtime: Runtime, number: int, receive: Receiver) -> None:
        super().__init__(runtime, number, _NO_HANDLERS, None)
        self._receive = receive
        self.running = False

    def post(self, message: Any, sender: Sender | None) -> None:
        """Hand a message to the function; after the end it is a dead letter."""
        if isinstance(message, Envelope):
            message = message.message
        if self.alive:
            self._receive(message, sender)
        else:
            self.runtime.dead_letter(self.ref, message, sender)

    def post_urgent(self, message: Any, sender: Sender | None) -> None:
        """Hand a message to the function: there is nothing that it could overtake."""
        self.post(message, sender)

    def close(self) -> None:
        """End the endpoint; on the calling thread, since no handler can be under way."""
        if self.alive:
            self.abort(ExitReason.NORMAL, "closed")


def open_endpoint(runtime: Runtime, receive: Receiver) -> Endpoint:
    """Open an address of this node; its messages go to `receive(message, sender)`."""
    return runtime.place(lambda number: Endpoint(runtime, number, receive))
