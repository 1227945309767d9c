"""Replies to messages from other nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from callboard.actors.asking.reply import Reply
from callboard.actors.errors import ActorDown, AskTimeout, MailboxFull
from callboard.actors.reference import ActorRef, Home
from callboard.actors.values import Answer
from callboard.basp.accounting import Arrivals
from callboard.basp.errors import LocalProtocolError
from callboard.proxies.errors import MessageTooLarge, NotPermitted, NotSerializable
from callboard.proxies.traffic.batches import IN_BATCH
from callboard.proxies.traffic.outgoing import Outgoing

#: Errors of messages that no handler has processed.
_UNHANDLED: Final = (ActorDown, AskTimeout, MailboxFull, NotPermitted)


class RemoteReply(Reply):
    """The reply to messages from another node.

    - **An ask** has a message id. Its outcome is sent once to the asking node. For an ask that
      arrived in a batch, `number` is `IN_BATCH`, so that its answer is sent in a batch, too.
    - **A batch** as a whole has a `count`. It is answered only if it is refused. Otherwise each
      ask in it gets a reply of its own from `entry`, and was counted with the batch.
    - **A message without an answer** has the message id 0. The messages of one sender share a
      reply, which counts each outcome.

    Each message is counted once in the accounts of its node: as delivered, or as a dead letter
    if no handler has processed it.
    """

    __slots__ = (
        "_arrivals",
        "_outgoing",
        "_uncounted",
        "count",
        "deadline",
        "expects",
        "is_done",
        "message_id",
        "node",
        "number",
    )

    expects: Literal[True]
    is_done: bool

    #: The node that the messages came from.
    node: bytes
    #: When the ask expires; None if the asker set no limit.
    deadline: float | None

    def __init__(
        self,
        outgoing: Outgoing,
        arrivals: Arrivals,
        node: bytes,
        number: int,
        message_id: int,
        count: int = 0,
        deadline: float | None = None,
    ) -> None:
        """Create a reply.

        Args:
            outgoing: the sending side of this node.
            arrivals: the counts of messages from the other node.
            node: the node that the messages came from.
            number: the sending actor there; 0 for none and for a batch, or `IN_BATCH`.
            message_id: the id of the ask or batch; 0 if no answer is wanted.
            count: messages of a batch, according to its frame; 0 for a single message.
            deadline: when the ask expires.
        """
        self._outgoing, self._arrivals = outgoing, arrivals
        self.node, self.number, self.message_id = node, number, message_id
        self.count, self.deadline = count, deadline
        #: Messages that are neither delivered nor a dead letter yet.
        self._uncounted = 0 if number == IN_BATCH else count or 1
        self.is_done = not message_id
        self.expects = True

    @property
    def wants_reply(self) -> bool:
        """Whether a caller waits for the outcome; otherwise it is only counted."""
        return self.message_id != 0

    @property
    def origin(self) -> tuple[bytes, int]:
        """Identity of the ask: its node, and its message id there."""
        return self.node, self.message_id

    def reference(self, runtime: Home) -> ActorRef | None:
        """Return a one-shot address that answers the ask, or the sender's ref."""
        if self.message_id:
            return runtime.reply_ref(self)
        return runtime.ref_of(self.node, self.number) if self.number else None

    # --- the outcome ---

    def set_result(self, value: Answer) -> bool:
        """Send the answer, or count the message as delivered if it wants none."""
        if self.is_done:
            if self.message_id:
                return False
            self._arrivals.delivered += 1
            return True
        outgoing = self._outgoing
        if value.__class__ is ActorRef and value.is_local:
            outgoing.announce(self.node, value)
        try:  # not in a method: a call would be slower, and this runs for each answer
            payload = outgoing.codec.encode(value)
            if len(payload) > outgoing.checked_from:
                outgoing.check_size(value, payload)
        except LocalProtocolError as error:
            payload = outgoing.error_payload(NotSerializable(str(error)))
        except MessageTooLarge as error:
            payload = outgoing.error_payload(error)
        self.is_done = True  # the rest is a copy of `_send`
        if self._uncounted:
            self.mark_handled()
        outgoing.batches.answer(self.node, self.number, self.message_id, payload)
        return True

    def encoded(self, value: Answer) -> Callable[[], bool]:
        """Serialize an answer now, and return a function that sends it later.

        Raises:
            NotSerializable: the answer contains something that cannot be serialized.
            MessageTooLarge: the answer is larger than the asker accepts.
        """
        return partial(self._send, self._outgoing.encode(value))

    def set_exception(self, error: BaseException) -> bool:
        """Send the error; count the messages as dead letters if no handler processed them."""
        is_unhandled = isinstance(error, _UNHANDLED)
        if self.is_done:
            if self.message_id:
                return False
            if is_unhandled:
                self._arrivals.dead_letters += 1
            else:
                self._arrivals.delivered += 1
            return True
        if is_unhandled and self._uncounted:
            self._arrivals.dead_letters += self._uncounted
            if isinstance(error, ActorDown):  # the runtime has counted one of the dead letters
                self._outgoing.counters.dead_letters += self._uncounted - 1
            self._uncounted = 0
        return self._send(self._outgoing.error_payload(error))

    def mark_handled(self) -> None:
        """Count the messages as delivered; an answer may be sent later."""
        self._arrivals.delivered += self._uncounted
        if self.message_id:
            self._uncounted = 0

    def _send(self, payload: bytes) -> bool:
        """Send a serialized answer or error; return False if the ask was answered before."""
        if self.is_done:
            return False
        self.is_done = True
        if self._uncounted:
            self.mark_handled()
        batches = self._outgoing.batches
        batches.answer(self.node, self.number, self.message_id, payload)
        return True

    # --- a batch, while it is unpacked ---

    @property
    def entry(self) -> Callable[[int, int, float | None], "RemoteReply"]:
        """A function that creates the reply to one ask of the batch.

        Its arguments are the message id, 0, and the deadline of the ask.

        The ask was counted as delivered with the batch.
        """
        return partial(RemoteReply, self._outgoing, self._arrivals, self.node, IN_BATCH)

    def died(self) -> None:
        """Count one of the delivered messages as a dead letter instead."""
        self._arrivals.delivered -= 1
        self._arrivals.dead_letters += 1

    @property
    def read(self) -> Callable[[bytes], Any]:
        """Decoder of one message; it raises `RemoteProtocolError` or `RunsUserCode`."""
        return self._outgoing.careful.decode_message

    @property
    def read_whole(self) -> Callable[[bytes], Any]:
        """Decoder of one message in a turn of its actor; it may run user code."""
        return self._outgoing.codec.decode_whole
