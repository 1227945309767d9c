"""The subscribers of a topic: the table that every published message is looked up in.

A topic of length L can only be taken by prefixes of it, so a look-up asks a dictionary once
for each *length* among the subscribed prefixes that is at most L. What it costs depends on
the topic and the variety of lengths, not on the number of subscriptions. Publishers use few
topics again and again, so results are kept until a subscription changes.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from callboard.endpoint.machine.topic import Topic, checked_topic

S = TypeVar("S")
_Subscribers = tuple[S, ...] | dict[S, None]

#: Results that are kept; a publisher with ever new topics empties them at this number.
_KEPT: Final = 4096
#: Subscribers of one prefix that stand in a tuple, which takes a quarter of a dictionary.
_FEW: Final = 8


class SubscriptionTable(Generic[S]):
    """Subscribers by prefix; `S` is whatever stands for a subscriber, and is hashable.

    >>> table = SubscriptionTable[str]()
    >>> table.add("/a", "one"), table.add("/a/b", "two"), table.add("/a/b", "one")
    (True, True, True)
    >>> table.match("/a/b/c")
    ('one', 'two')
    """

    def __init__(self) -> None:
        # In the order they came, in which they are served.
        self._by_prefix: dict[str, _Subscribers[S]] = {}
        self._prefixes: dict[S, dict[str, None]] = {}
        self._lengths: Counter[int] = Counter()
        self._ordered_lengths: tuple[int, ...] = ()
        self._matched: dict[str, tuple[S, ...]] = {}

    def add(self, prefix: Topic | str, subscriber: S) -> bool:
        """Subscribe; False when it was subscribed to that prefix already."""
        text = checked_topic(prefix)
        known = self._by_prefix.get(text)
        if known is None:
            self._by_prefix[text] = (subscriber,)
            self._count_length(len(text), 1)
        elif subscriber in known:
            return False
        elif isinstance(known, dict):
            known[subscriber] = None
        elif len(known) < _FEW:
            self._by_prefix[text] = (*known, subscriber)
        else:
            self._by_prefix[text] = dict.fromkeys((*known, subscriber))
        self._prefixes.setdefault(subscriber, {})[text] = None
        self._matched.clear()
        return True

    def remove(self, prefix: Topic | str, subscriber: S) -> bool:
        """Unsubscribe from one prefix; False when it was not subscribed to it."""
        text = checked_topic(prefix)
        known = self._by_prefix.get(text)
        if known is None or subscriber not in known:
            return False
        if isinstance(known, dict):
            del known[subscriber]
        else:
            self._by_prefix[text] = known = tuple(each for each in known if each != subscriber)
        if not known:
            del self._by_prefix[text]
            self._count_length(len(text), -1)
        mine = self._prefixes[subscriber]
        del mine[text]
        if not mine:
            del self._prefixes[subscriber]
        self._matched.clear()
        return True

    def match(self, topic: str) -> tuple[S, ...]:
        """Return who takes the topic, each once, first those of the shortest prefix."""
        found = self._matched.get(topic)
        if found is None:
            found = tuple(dict.fromkeys(self._found(topic)))
            if len(self._matched) >= _KEPT:
                self._matched.clear()
            self._matched[topic] = found
        return found

    def prefixes(self, subscriber: S) -> tuple[str, ...]:
        """Return the prefixes of one subscriber, in the order they came."""
        return tuple(self._prefixes.get(subscriber, ()))

    def prefixes_of(self, topic: str) -> list[str]:
        """Return the prefixes of a topic that have subscribers, the shortest first."""
        starts = (topic[:size] for size in self._ordered_lengths if size <= len(topic))
        return [start for start in starts if start in self._by_prefix]

    def taken_by_others(self, subscriber: S) -> Iterator[str]:
        """Yield the prefixes that somebody else is subscribed to."""
        for prefix, known in self._by_prefix.items():
            if len(known) > 1 or subscriber not in known:
                yield prefix

    def taken_by(self, kind: type) -> set[str]:
        """Return the prefixes of all subscribers of a type; from any thread."""
        prefixes = list(self._prefixes.items())
        return {
            prefix
            for each, taken in prefixes
            if isinstance(each, kind)
            for prefix in list(taken)
        }

    def __len__(self) -> int:
        return sum(map(len, self._prefixes.values()))

    def _found(self, topic: str) -> Iterator[S]:
        """Yield the subscribers of all prefixes of a topic, the shortest first."""
        length = len(topic)
        by_prefix = self._by_prefix
        for size in self._ordered_lengths:
            if size > length:
                return
            found = by_prefix.get(topic[:size])
            if found:
                yield from found

    def _count_length(self, length: int, change: int) -> None:
        """Keep the ordered lengths of the prefixes there are."""
        before = self._lengths[length]
        self._lengths[length] = before + change
        if before + change == 0:
            del self._lengths[length]
        if 0 in (before, before + change):
            self._ordered_lengths = tuple(sorted(self._lengths))
