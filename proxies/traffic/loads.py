"""What goes to one node together: the messages, or the answers, of one turn.

A frame for each message costs its header, its entry in the accounts, a call of the link and a
look at the other end. What one turn of the runner sends to a node goes in few frames instead: a
**load** is gathered, and sent when the turn ends, as what is written to links is. So nothing
waits for a timer, and what is alone goes when it would have gone. Whatever else is sent to the
node, by any thread, goes behind the load: the order is as it was without. A load that grows is
sent early, so that the other node begins while the turn goes on. In the accounts each message
counts as if it went alone.

The lock of the routes guards all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

from callboard.actors.asking.reply import Reply

#: Bytes after which the first load of a turn to a node is sent, and twice as many each time.
FIRST_LOAD: Final = 1_024

#: Nothing is carried where a message may be no larger than this: a carrier is one, too.
LEAST_LIMIT: Final = 4_096


class Load(Protocol):
    """What was gathered for a node."""

    #: Its bytes, and with how many it is sent before the turn is over.
    size: int
    early_at: int

    def send(self) -> None:
        """Send what was gathered, and be empty; the lock of the routes is held."""


class AnswerLoad:
    """Answers to a node, each with the id of its ask."""

    __slots__ = ("_send", "answers", "early_at", "size")

    def __init__(
        self, send: Callable[[list[tuple[int, bytes]]], object], early_at: int
    ) -> None:
        """Make an empty one; `send` takes the answers."""
        self._send = send
        self.answers: list[tuple[int, bytes]] = []
        self.size, self.early_at = 0, early_at

    def send(self) -> None:
        """Send the answers, and be empty."""
        answers, self.answers, self.size = self.answers, [], 0
        self._send(answers)


class Carrier(Reply):
    """Stands for the asks that one message carries, where that is refused as a whole.

    Each of them has an answer of its own; this has one only if none of them was taken.
    """

    __slots__ = ("_ids", "_pending", "expects", "message_id")

    expects: Literal[True]
    message_id: int

    #: Each of the asks has its own.
    deadline: Final = None

    def __init__(self, ids: Sequence[int], pending: dict[int, tuple[Any, bytes]]) -> None:
        """Make one of asks that are pending; who asks may send again later, by another id.

        It knows but the ids, so that who has an answer is not kept in memory.
        """
        self.expects = True
        self._ids = ids
        self._pending = pending

    @property
    def sent_id(self) -> int:
        """The message id under which the ask left this node; 0 if it did not."""
        return self.message_id

    def unanswered(self) -> list[tuple[int, Any]]:
        """Return the asks that have no answer, each with its id."""
        found = ((number, self._pending.get(number)) for number in self._ids)
        return [(number, ask[0]) for number, ask in found if ask is not None]

    @property
    def is_done(self) -> bool:
        """Whether nobody waits for an answer any more."""
        # As nearly always all are answered, which takes no look at each.
        are_answered = self._pending.keys().isdisjoint(self._ids)
        return are_answered or all(asker.is_done for _, asker in self.unanswered())

    def set_result(self, _: Any) -> bool:
        """An answer to all of them is none."""
        return False

    def set_exception(self, error: BaseException) -> bool:
        """Fail all asks that have no answer."""
        for message_id, asker in self.unanswered():
            del self._pending[message_id]
            asker.set_exception(error)
        return True

    def fail_unsent(self, error: BaseException) -> None:
        """Fail all of them as what never left this node."""
        for message_id, asker in self.unanswered():
            del self._pending[message_id]
            asker.message_id = 0
            asker.set_exception(error)

    def mark_handled(self) -> None:
        """The answers will come later."""
