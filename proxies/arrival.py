"""Where a message from another node came from, as its receiver's cell sees it.

A message counts as delivered when its handler is done with it, not when it reaches the
mailbox: what waits in the mailbox of a node that dies is then reported lost by its sender.
"""

from typing import TYPE_CHECKING, Any, Final

from actors.errors import ActorDown, AskTimeout, MailboxFull

if TYPE_CHECKING:
    from actors.reference import ActorRef
    from actors.runtime import Runtime
    from basp.accounting import Arrivals
    from proxies.outgoing import Outgoing


_UNHANDLED: Final = (ActorDown, AskTimeout, MailboxFull)
"""Errors of messages that no handler has seen."""


class RemoteTeller:
    """An actor elsewhere that told; number 0 is somebody outside of any actor."""

    __slots__ = ("_arrivals", "_node", "_number")

    expects: Final = True  # of the outcome, only that there was one
    only_counts: Final = True
    done_: Final = True
    deadline: Final = None

    def __init__(self, node: bytes, number: int, arrivals: "Arrivals") -> None:
        self._node = node
        self._number = number
        self._arrivals = arrivals

    @property
    def node(self) -> bytes:
        """The id of its node."""
        return self._node

    def set_result(self, _: Any) -> bool:
        """Count the message as delivered."""
        self._arrivals.delivered += 1
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Count the message: as a dead letter if no handler has seen it."""
        if isinstance(error, _UNHANDLED):
            self._arrivals.dead_letters += 1
        else:
            self._arrivals.delivered += 1
        return True

    def owed(self) -> None:
        """The handler is done; nobody waits for an answer."""
        self._arrivals.delivered += 1

    def reference(self, runtime: "Runtime") -> "ActorRef[Any] | None":
        """Return the sender's ref."""
        return runtime.ref_to(self._node, self._number) if self._number else None


class RemoteAsker:
    """Somebody on another node who waits for an answer."""

    __slots__ = (
        "_arrivals",
        "_counted",
        "_node",
        "_number",
        "_outgoing",
        "deadline",
        "done_",
        "message_id",
    )

    expects: Final = True

    #: When the asker's time is over; None if it did not say.
    deadline: float | None

    def __init__(
        self,
        outgoing: "Outgoing",
        node: bytes,
        number: int,
        message_id: int,
        arrivals: "Arrivals",
    ) -> None:
        self._outgoing = outgoing
        self._node = node
        self._number = number
        self.message_id = message_id
        self._arrivals = arrivals
        self._counted = False
        self.done_ = False
        self.deadline = None

    def set_result(self, value: Any) -> bool:
        """Send the answer."""
        if self.done_:
            return False
        self.done_ = True
        if not self._counted:  # as `owed`, without the call: each answer comes here
            self._counted = True
            self._arrivals.delivered += 1
        self._outgoing.respond(self._node, self._number, self.message_id, value)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Send the error."""
        if self.done_:
            return False
        self.done_ = True
        if isinstance(error, _UNHANDLED) and not self._counted:
            self._counted = True
            self._arrivals.dead_letters += 1
        self.owed()
        self._outgoing.respond_error(self._node, self._number, self.message_id, error)
        return True

    def owed(self) -> None:
        """The message was handled; its answer may come later."""
        if not self._counted:
            self._counted = True
            self._arrivals.delivered += 1

    def reference(self, runtime: "Runtime") -> "ActorRef[Any]":
        """Return a one-shot address that answers the ask."""
        return runtime.reply_ref(self)
