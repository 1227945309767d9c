"""Bounded queues that drop items beyond their limits, and the policies for such items.

`BoundedQueue` is for queues whose senders never wait. Where senders wait for room, the bounds
and the waiting senders are a `BackPressure` of `callboard.kernel.queue`.
"""

import sys
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
    """A queue with limits in messages and bytes, which drops items that do not fit.

    An item is one message, or a run of several ones. One thread may append items while another
    one removes them.

    Attributes:
        items: the items, the oldest first, each with its size in bytes and its messages.
        dropped: number of dropped messages.
    """

    def __init__(self, limit: int, byte_limit: int = sys.maxsize) -> None:
        """Start empty, with the maximum number of messages and of their bytes."""
        self.items: deque[tuple[T, int, int]] = deque()
        self.dropped = 0
        self._limit, self._byte_limit = limit, byte_limit
        # Two totals of each, because two threads change them. With one total, `+=` of a thread
        # could overwrite the change of the other one, and the queue would look full for ever.
        self._bytes_added = self._bytes_removed = 0
        self._messages_added = self._messages_removed = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def messages(self) -> int:
        """Messages of the items."""
        return self._messages_added - self._messages_removed

    @property
    def bytes(self) -> int:
        """Bytes of the items."""
        return self._bytes_added - self._bytes_removed

    @property
    def first(self) -> T:
        """The oldest item."""
        return self.items[0][0]

    def fits(self, size: int, messages: int = 1) -> bool:
        """Return whether an item fits."""
        return self.messages + messages <= self._limit and self.bytes + size <= self._byte_limit

    def append(self, item: T, size: int, messages: int = 1) -> None:
        """Append an item. The limits may be exceeded until `trim`."""
        self._bytes_added += size
        self._messages_added += messages
        self.items.append((item, size, messages))

    def extend(self, items: Sequence[T], size: int) -> None:
        """Append messages of equal size. The limits may be exceeded until `trim`."""
        self._bytes_added += size * len(items)
        self._messages_added += len(items)
        self.items.extend([(item, size, 1) for item in items])

    def try_append(self, item: T, size: int, messages: int = 1) -> bool:
        """Append an item if it fits, or drop it; return whether it was appended."""
        if self.fits(size, messages):
            self.append(item, size, messages)
            return True
        self.dropped += messages
        return False

    def popleft(self) -> T:
        """Remove and return the oldest item."""
        item, size, messages = self.items.popleft()
        self._bytes_removed += size
        self._messages_removed += messages
        return item

    def drop(self, policy: str = Overflow.DROP_OLDEST) -> int:
        """Drop one item; returns the number of its messages.

        Args:
            policy: `DROP_OLDEST`; any other policy drops the newest item.
        """
        pop = self.items.popleft if policy == Overflow.DROP_OLDEST else self.items.pop
        _, size, messages = pop()
        self._bytes_removed += size
        self._messages_removed += messages
        self.dropped += messages
        return messages

    def trim(self, policy: str = Overflow.DROP_OLDEST, *, minimum: int = 0) -> int:
        """Drop the oldest or newest items beyond the limits; returns their messages.

        Args:
            policy: `DROP_OLDEST`; any other policy drops the newest items.
            minimum: number of items that stay, even if they exceed the limits.
        """
        count = 0
        while len(self.items) > minimum and not self.fits(0, 0):
            count += self.drop(policy)
        return count

    def clear(self) -> list[T]:
        """Remove and return all items."""
        return [self.popleft() for _ in range(len(self.items))]
