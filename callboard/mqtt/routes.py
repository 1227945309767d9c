"""Which logs a message goes to: the logs of all filters, and a cache by topic."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from callboard.mqtt.datalog import DataLog
from callboard.mqtt.errors import ProtocolViolation
from callboard.mqtt.limits import Limits
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.topic import FilterTree, has_wildcard, is_valid_topic, matches

CACHED_TOPICS: Final = 65_536
"""Topics whose logs are known without a look; clients choose topics, so there is a bound."""


class Route(NamedTuple):
    """Where messages of one topic go."""

    logs: tuple[DataLog, ...]
    filters: tuple[str, ...]
    #: Whether only links within the process may publish there: `$SYS`.
    is_reserved: bool


class Routes:
    """All logs, by filter and by topic."""

    def __init__(self, limits: Limits, *, has_journal: bool = False) -> None:
        #: Those of logs that are made from here on.
        self.limits = limits
        self._has_journal = has_journal
        #: Logs of filters without wildcards, which are topics, and of those with.
        self._literal: dict[str, DataLog] = {}
        self._wild: dict[str, DataLog] = {}
        self._tree: FilterTree[DataLog] = FilterTree()
        #: By topic as it stands in packets.
        self.cache: dict[bytes, Route] = {}

    def __len__(self) -> int:
        return len(self._literal) + len(self._wild)

    def __iter__(self) -> Iterator[DataLog]:
        yield from self._literal.values()
        yield from self._wild.values()

    def get(self, topic_filter: str) -> DataLog | None:
        """Return the log of a plain filter, if anybody reads it."""
        return self._literal.get(topic_filter) or self._wild.get(topic_filter)

    def open(self, topic_filter: str) -> DataLog:
        """Return the log of a plain filter, made if needed; cached routes learn of it."""
        log = self.get(topic_filter)
        if log is None:
            held = next(
                (
                    custom
                    for custom in self.limits.custom_segments
                    if custom.topic_filter == topic_filter
                    or matches(topic_filter, custom.topic_filter)
                ),
                self.limits,
            )
            log = DataLog(
                topic_filter,
                held.segment_bytes,
                held.segment_count,
                has_shelves=self._has_journal and self.limits.journal_bytes > 0,
            )
            if has_wildcard(topic_filter):
                self._wild[topic_filter] = log
                self._tree.add(topic_filter, log)
            else:
                self._literal[topic_filter] = log
            self._forget(topic_filter)
        return log

    def close(self, log: DataLog) -> None:
        """Remove a log that nobody reads any more."""
        topic_filter = log.topic_filter
        if self._literal.pop(topic_filter, None) is None:
            del self._wild[topic_filter]
            self._tree.remove(topic_filter)
        self._forget(topic_filter)

    def _forget(self, topic_filter: str) -> None:
        if has_wildcard(topic_filter):
            self.cache.clear()
        else:
            self.cache.pop(topic_filter.encode(), None)

    def find(self, topic: bytes) -> Route:
        """Return the route of a topic that is not in the cache, and put it there.

        Raises:
            ProtocolViolation: it is no topic.
        """
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            name = ""
        if not is_valid_topic(name):
            msg = f"{topic[:80]!r} is no topic that can be published on"
            raise ProtocolViolation(msg, ReasonCode.TOPIC_NAME_INVALID)
        logs = self._tree.match(name) if self._wild else []
        literal = self._literal.get(name)
        if literal is not None:
            logs.append(literal)
        is_reserved = name.startswith("$SYS/") or name == "$SYS"
        route = Route(tuple(logs), tuple(log.topic_filter for log in logs), is_reserved)
        if len(self.cache) >= CACHED_TOPICS:
            self.cache.clear()
        self.cache[topic] = route
        return route
