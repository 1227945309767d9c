"""The subscription table, in which every published message is looked up.

Only prefixes of a topic match it, so a look-up needs one dictionary access for each *length* of
subscribed prefixes up to the topic's length. Its cost depends on the number of different
lengths, not on the number of subscriptions. Publishers use few topics again and again, so
results are cached until a subscription changes.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from callboard.topics.machine.topic import Topic, checked_topic

S = TypeVar("S")
_Subscribers = tuple[S, ...] | dict[S, None]

#: Maximum number of cached results; the cache is cleared when a publisher exceeds it.
_CACHE_LIMIT: Final = 4096
#: Maximum number of subscribers in a tuple, which needs a quarter of a dictionary's memory.
_TUPLE_LIMIT: Final = 8


class SubscriptionTable(Generic[S]):
    """Subscribers by prefix; `S` is the hashable type of a subscriber.

    >>> table = SubscriptionTable[str]()
    >>> table.add("/a", "one"), table.add("/a/b", "two"), table.add("/a/b", "one")
    (True, True, True)
    >>> table.match("/a/b/c")
    ('one', 'two')
    """

    def __init__(self) -> None:
        # Subscribers keep the order of their subscriptions: they get messages in this order.
        self._by_prefix: dict[str, _Subscribers[S]] = {}
        self._prefixes: dict[S, dict[str, None]] = {}
        self._lengths: Counter[int] = Counter()
        self._ordered_lengths: tuple[int, ...] = ()
        self._matched: dict[str, tuple[S, ...]] = {}

    def add(self, prefix: Topic | str, subscriber: S) -> bool:
        """Add a subscription; return False if it exists already."""
        text = checked_topic(prefix)
        subscribers = self._by_prefix.get(text)
        if subscribers is None:
            self._by_prefix[text] = (subscriber,)
            self._count_length(len(text), 1)
        elif subscriber in subscribers:
            return False
        elif isinstance(subscribers, dict):
            subscribers[subscriber] = None
        elif len(subscribers) < _TUPLE_LIMIT:
            self._by_prefix[text] = (*subscribers, subscriber)
        else:
            self._by_prefix[text] = dict.fromkeys((*subscribers, subscriber))
        self._prefixes.setdefault(subscriber, {})[text] = None
        self._matched.clear()
        return True

    def remove(self, prefix: Topic | str, subscriber: S) -> bool:
        """Remove a subscription; return False if it does not exist."""
        text = checked_topic(prefix)
        subscribers = self._by_prefix.get(text)
        if subscribers is None or subscriber not in subscribers:
            return False
        if isinstance(subscribers, dict):
            del subscribers[subscriber]
        else:
            subscribers = tuple(other for other in subscribers if other != subscriber)
            self._by_prefix[text] = subscribers
        if not subscribers:
            del self._by_prefix[text]
            self._count_length(len(text), -1)
        prefixes = self._prefixes[subscriber]
        del prefixes[text]
        if not prefixes:
            del self._prefixes[subscriber]
        self._matched.clear()
        return True

    def match(self, topic: str) -> tuple[S, ...]:
        """Return the subscribers of a topic without duplicates, the shortest prefix first."""
        subscribers = self._matched.get(topic)
        if subscribers is None:
            subscribers = tuple(dict.fromkeys(self._search(topic)))
            if len(self._matched) >= _CACHE_LIMIT:
                self._matched.clear()
            self._matched[topic] = subscribers
        return subscribers

    def prefixes(self, subscriber: S) -> tuple[str, ...]:
        """Return the prefixes of one subscriber, in the order of its subscriptions."""
        return tuple(self._prefixes.get(subscriber, ()))

    def prefixes_of(self, topic: str) -> list[str]:
        """Return the prefixes of a topic that have subscribers, the shortest first."""
        starts = (topic[:size] for size in self._ordered_lengths if size <= len(topic))
        return [start for start in starts if start in self._by_prefix]

    def taken_by_others(self, subscriber: S) -> Iterator[str]:
        """Yield the prefixes with at least one other subscriber."""
        for prefix, subscribers in self._by_prefix.items():
            if len(subscribers) > 1 or subscriber not in subscribers:
                yield prefix

    def taken_by(self, kind: type) -> set[str]:
        """Return the prefixes of all subscribers of a type. Can be called from any thread."""
        subscriptions = list(self._prefixes.items())
        return {
            prefix
            for subscriber, prefixes in subscriptions
            if isinstance(subscriber, kind)
            for prefix in list(prefixes)
        }

    def __len__(self) -> int:
        return sum(map(len, self._prefixes.values()))

    def _search(self, topic: str) -> Iterator[S]:
        """Yield the subscribers of all prefixes of a topic, the shortest prefix first."""
        length = len(topic)
        by_prefix = self._by_prefix
        for size in self._ordered_lengths:
            if size > length:
                return
            subscribers = by_prefix.get(topic[:size])
            if subscribers:
                yield from subscribers

    def _count_length(self, length: int, change: int) -> None:
        """Count a prefix that was added or removed by its length."""
        old = self._lengths[length]
        self._lengths[length] = old + change
        if old + change == 0:
            del self._lengths[length]
        if 0 in (old, old + change):
            self._ordered_lengths = tuple(sorted(self._lengths))
