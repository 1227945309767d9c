"""Batches of one turn: messages, or answers, that leave for the same node together.

A separate frame for each message costs a header, an entry in the accounts, a call of the link
and a decoding step at the receiver. Instead, the messages that one turn of the runner sends to
a node are gathered in a batch, which is sent when the turn ends, before the links write. No
timer is involved, so a single message leaves as early as it would without batching.

Order is kept: anything else that is sent to the node, from any thread, first sends the open
batch. A batch that grows is sent before the end of the turn, so that the receiver starts early.
In the accounts each message counts separately.

The lock of the routes guards all batches.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

from callboard.actors.asking.reply import Reply

#: Bytes after which the first batch of a turn is sent; the threshold doubles with each batch.
FIRST_LOAD: Final = 1_024

#: Batching is off below this message limit, because a batch is itself a message.
LEAST_LIMIT: Final = 4_096


class Load(Protocol):
    """A batch of messages or answers for one node."""

    #: Bytes gathered, and the number of bytes at which the batch is sent before the turn ends.
    size: int
    early_at: int

    def send(self) -> None:
        """Send the gathered messages and empty the batch; the lock of the routes is held."""


class AnswerLoad:
    """Answers to one node, each with the id of its ask."""

    __slots__ = ("_send", "answers", "early_at", "size")

    def __init__(
        self, send: Callable[[list[tuple[int, bytes]]], object], early_at: int
    ) -> None:
        """Create an empty batch; `send` is called with its answers."""
        self._send = send
        self.answers: list[tuple[int, bytes]] = []
        self.size, self.early_at = 0, early_at

    def send(self) -> None:
        """Send the answers and empty the batch."""
        answers, self.answers, self.size = self.answers, [], 0
        self._send(answers)


class Carrier(Reply):
    """Reply to a batch as a whole: fails all asks in it if the receiver refuses the batch.

    An accepted batch as such gets no answer; each ask in it is answered separately.
    """

    __slots__ = ("_ids", "_pending", "expects", "message_id")

    expects: Literal[True]
    message_id: int

    #: Each ask has its own deadline.
    deadline: Final = None

    def __init__(self, ids: Sequence[int], pending: dict[int, tuple[Any, bytes]]) -> None:
        """Create the reply for pending asks, by their message ids.

        It keeps only the ids, so that answered asks can be freed. An asker may also have sent
        its message again under another id by then.
        """
        self.expects = True
        self._ids = ids
        self._pending = pending

    @property
    def sent_id(self) -> int:
        """Message id under which the batch left this node; 0 before that."""
        return self.message_id

    def unanswered(self) -> list[tuple[int, Any]]:
        """Return the asks without an answer, each with its id."""
        asks = ((number, self._pending.get(number)) for number in self._ids)
        return [(number, ask[0]) for number, ask in asks if ask is not None]

    @property
    def is_done(self) -> bool:
        """Whether all asks in the batch are answered or given up."""
        # Usually all are answered, and a set operation shows that without checking each ask.
        are_answered = self._pending.keys().isdisjoint(self._ids)
        return are_answered or all(asker.is_done for _, asker in self.unanswered())

    def set_result(self, _: Any) -> bool:
        """Ignore a value: only single asks are answered."""
        return False

    def set_exception(self, error: BaseException) -> bool:
        """Fail all asks without an answer."""
        for message_id, asker in self.unanswered():
            del self._pending[message_id]
            asker.set_exception(error)
        return True

    def fail_unsent(self, error: BaseException) -> None:
        """Fail all asks as messages that never left this node."""
        for message_id, asker in self.unanswered():
            del self._pending[message_id]
            asker.message_id = 0
            asker.set_exception(error)

    def mark_handled(self) -> None:
        """Do nothing: each ask is answered separately."""
