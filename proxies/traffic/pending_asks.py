"""The asks to other nodes that have no answer yet.

An ask that leaves this node gets a message id, which its answer repeats. A batch of asks has an
id of its own, with which the other node can refuse the whole batch. Otherwise it answers each
ask in the batch.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from callboard.actors.values import Answer
from callboard.basp.header import MESSAGE_ID_MASK


class SentAsk(Protocol):
    """The asker of a message that left this node."""

    #: The id of the message; 0 if it did not leave.
    message_id: int

    @property
    def deadline(self) -> float | None:
        """When the ask expires; None if never."""

    @property
    def is_done(self) -> bool:
        """Whether the ask has an outcome."""

    def set_result(self, value: Answer, /) -> bool:
        """Accept the answer; return False if there was an outcome."""

    def set_exception(self, error: BaseException, /) -> bool:
        """Accept an error as the outcome; return False if there was one."""


class PendingAsks:
    """The pending asks and batches of one node. They are added with the lock of the routes."""

    __slots__ = ("_awake_by", "_ids", "batches", "by_id")

    def __init__(self, awake_by: Callable[[float], object]) -> None:
        """Start without asks.

        Args:
            awake_by: called with a time at which the runner has to check deadlines of asks.
        """
        self._awake_by, self._ids = awake_by, itertools.count(1)
        #: By message id: the asker, and the node that the ask was sent to.
        self.by_id: Final[dict[int, tuple[SentAsk, bytes]]] = {}
        #: By message id of a batch: its node, and the ids of the asks in it. Only ids are kept,
        #: so that answered asks can be freed, and because an asker may send its message again
        #: under another id.
        self.batches: Final[dict[int, tuple[bytes, Sequence[int]]]] = {}

    def add(self, asker: SentAsk, node: bytes) -> int:
        """Register an ask, and return its message id."""
        pending, batches, ids = self.by_id, self.batches, self._ids
        message_id = next(ids) & MESSAGE_ID_MASK
        while not message_id or message_id in pending or message_id in batches:
            message_id = next(ids) & MESSAGE_ID_MASK
        asker.message_id = message_id
        pending[message_id] = (asker, node)
        if asker.deadline is not None:
            self._awake_by(asker.deadline)
        return message_id

    def add_batch(self, asks: Sequence[int], node: bytes) -> int:
        """Register a batch of asks, by their ids, and return its message id."""
        message_id = 0
        while not message_id or message_id in self.by_id or message_id in self.batches:
            message_id = next(self._ids) & MESSAGE_ID_MASK
        self.batches[message_id] = node, asks
        return message_id

    def pop_batch(self, message_id: int, node: bytes) -> Sequence[int] | None:
        """Remove a batch that was sent to a node; return the ids of its asks, or None."""
        sent_to, asks = self.batches.get(message_id, (b"", ()))
        if sent_to != node:
            return None
        self.batches.pop(message_id, None)
        return asks

    # --- ends without an answer ---

    def fail_asks(
        self, ids: Sequence[int], error: BaseException, *, has_left: bool = True
    ) -> None:
        """Fail some asks, except those that were answered before."""
        for message_id in ids:
            asker, _ = self.by_id.pop(message_id, (None, b""))
            if asker is not None:
                if not has_left:
                    asker.message_id = 0
                asker.set_exception(error)

    def fail(self, error: BaseException, node: bytes | None = None) -> None:
        """Fail all asks, or those to one node."""
        for message_id, (asker, sent_to) in list(self.by_id.items()):
            if node is None or sent_to == node:
                self.by_id.pop(message_id, None)
                asker.set_exception(error)

    def forget_done(self) -> None:
        """Remove asks that have ended, and batches in which every ask has ended."""
        for message_id, (asker, _) in list(self.by_id.items()):
            if asker.is_done:
                self.by_id.pop(message_id, None)
        for message_id, (_, asks) in list(self.batches.items()):
            if self.by_id.keys().isdisjoint(asks):
                self.batches.pop(message_id, None)

    @property
    def count(self) -> int:
        """Number of asks without an outcome."""
        return sum(not asker.is_done for asker, _ in list(self.by_id.values()))
