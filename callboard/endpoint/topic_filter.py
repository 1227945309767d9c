"""Which topics somebody takes, as the fewest prefixes that say so.

No prefix of a filter starts with another one, so in sorted order the only prefix that can
take a topic is the last one not behind it: whatever stood between the two would start with
that prefix, and is covered. One binary search decides, however long the filter is.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

from callboard.endpoint.errors import InvalidTopic
from callboard.endpoint.topic import Topic, checked_topic

__all__ = ["FILTER_LIMIT", "TopicFilter"]

#: Prefixes that one endpoint may announce; more than that is a defect or an attack.
FILTER_LIMIT: Final = 1 << 18


class TopicFilter:
    """An immutable filter of topics.

    >>> seen = TopicFilter(["/a/b", "/a", "/c"])
    >>> seen.topics, seen.matches("/a/x"), seen.matches("/b")
    (('/a', '/c'), True, False)

    Raises:
        InvalidTopic: one of the prefixes is no topic.
    """

    __slots__ = ("_topics",)

    def __init__(self, topics: Iterable[Topic | str] = ()) -> None:
        self._topics = _fewest(sorted(map(checked_topic, topics)))

    @property
    def topics(self) -> tuple[str, ...]:
        """The prefixes, sorted."""
        return self._topics

    def matches(self, topic: str) -> bool:
        """Tell whether the filter takes this topic; O(log n) for n prefixes."""
        place = bisect_right(self._topics, topic)
        return place > 0 and topic.startswith(self._topics[place - 1])

    def covers(self, other: "TopicFilter") -> bool:
        """Tell whether this filter takes every topic that `other` takes."""
        return all(map(self.matches, other.topics))

    def overlaps(self, other: "TopicFilter") -> bool:
        """Tell whether some topic is taken by both."""
        return any(map(self.matches, other.topics)) or any(map(other.matches, self._topics))

    def extended(self, *topics: Topic | str) -> "TopicFilter":
        """Return a filter that takes these topics too; itself, where it does already."""
        fresh = [topic for topic in map(checked_topic, topics) if not self.matches(topic)]
        return TopicFilter((*self._topics, *fresh)) if fresh else self

    def union(self, *others: "TopicFilter") -> "TopicFilter":
        """Return the filter that takes what one of them takes."""
        return self.extended(*(topic for other in others for topic in other.topics))

    def to_wire(self) -> list[str]:
        """Return the filter as a list of strings, as handshakes and updates carry it."""
        return list(self._topics)

    @classmethod
    def from_wire(cls, value: Any) -> Self:
        """Read what a peer sent as its filter.

        Raises:
            InvalidTopic: no list of topics, or longer than `FILTER_LIMIT`.
        """
        if not isinstance(value, list):
            msg = f"a filter is a list of topics, not {type(value).__name__}"
            raise InvalidTopic(msg)
        if len(value) > FILTER_LIMIT:
            msg = f"a filter of {len(value):,} topics exceeds the limit of {FILTER_LIMIT:,}"
            raise InvalidTopic(msg)
        return cls(value)

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __eq__(self, other: object) -> bool:
        return (
            self._topics == other._topics if isinstance(other, TopicFilter) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._topics)

    def __repr__(self) -> str:
        return f"TopicFilter({list(self._topics)!r})"


def _fewest(ordered: list[str]) -> tuple[str, ...]:
    """Drop each prefix that starts with one before it; covered ones follow their cover."""
    kept: list[str] = []
    for topic in ordered:
        if not kept or not topic.startswith(kept[-1]):
            kept.append(topic)
    return tuple(kept)
