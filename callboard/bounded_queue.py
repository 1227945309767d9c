"""Bounded queues, and the policies for items that do not fit."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


class Overflow(StrEnum):
    """Policy of a queue for an item that does not fit; each kind of queue has some of these."""

    #: The producer waits for room.
    WAIT = "wait"
    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"
    #: The producer gets an error.
    FAIL = "fail"
    #: The consumer is disconnected.
    DISCONNECT = "disconnect"


#: Names of the policies of mailboxes and of the queues of modules.
MailboxPolicy = Literal["wait", "drop_newest", "drop_oldest", "fail"]

#: Names of the policies of subscriptions.
SubscriptionPolicy = Literal["drop_oldest", "drop_newest", "wait"]


class BoundedQueue(Generic[T]):
    """A queue with limits in items and bytes, which drops items that do not fit.

    One thread may append items while another one removes them.

    Attributes:
        items: the items, the oldest first, each with its size in bytes.
        dropped: number of dropped items.
    """

    def __init__(self, limit: int, byte_limit: int) -> None:
        """Start empty, with the maximum number of items and of their bytes."""
        self.items: deque[tuple[T, int]] = deque()
        self.dropped = 0
        self._limit, self._byte_limit = limit, byte_limit
        # Two totals, because two threads change them. With one total, `+=` of a thread could
        # overwrite the change of the other one, and the queue would look full for ever.
        self._bytes_added = self._bytes_removed = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def bytes(self) -> int:
        """Bytes of the items."""
        return self._bytes_added - self._bytes_removed

    def append(self, item: T, size: int) -> None:
        """Append an item. The limits may be exceeded until `trim`."""
        self._bytes_added += size
        self.items.append((item, size))

    def extend(self, items: Sequence[T], size: int) -> None:
        """Append items of equal size. The limits may be exceeded until `trim`."""
        self._bytes_added += size * len(items)
        self.items.extend([(item, size) for item in items])

    def try_append(self, item: T, size: int) -> None:
        """Append an item if it fits, or drop it."""
        if len(self.items) >= self._limit or self.bytes + size > self._byte_limit:
            self.dropped += 1
        else:
            self.append(item, size)

    def popleft(self) -> T:
        """Remove and return the oldest item."""
        item, size = self.items.popleft()
        self._bytes_removed += size
        return item

    def trim(self, policy: str = Overflow.DROP_OLDEST, *, minimum: int = 0) -> int:
        """Drop the oldest or newest items beyond the limits; returns their number.

        Args:
            policy: `DROP_OLDEST`; any other policy drops the newest items.
            minimum: number of items that stay, even if they exceed the limit in bytes.
        """
        pop = self.items.popleft if policy == Overflow.DROP_OLDEST else self.items.pop
        count = 0
        while len(self.items) > self._limit or (
            self.bytes > self._byte_limit and len(self.items) > minimum
        ):
            self._bytes_removed += pop()[1]
            count += 1
        self.dropped += count
        return count

    def clear(self) -> list[T]:
        """Remove and return all items."""
        return [self.popleft() for _ in range(len(self.items))]
