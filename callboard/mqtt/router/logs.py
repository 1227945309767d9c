"""Logs: the logs that a message goes to, the retained messages, and the shelf.

A message is appended to the log of each filter that matches its topic. Requests that waited
there are then `woken`; `Delivery` processes them.

Shelved messages are read back from the journal between two turns. A connection that reaches a
segment which is not in memory is paused (Fetching), and the turn names the segment; the driver
reads it and passes it to `Delivery.arrived`. Recently fetched segments stay in memory, because
a reader reads one window at a time. When the journal is compacted, the records of shelved
messages stay where they are, so they are written only once. The records between them also stay,
until the journal is too large.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from callboard.mqtt.router.datalog import UNWRITTEN, DataLog, Segment, Shelf
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import JournalRecord, Published, Received, Shelved
from callboard.mqtt.router.retained import Head, Heads, RetainedMessages
from callboard.mqtt.router.session import (
    RECEIVED_BYTES,
    Connection,
    DataRequest,
    FilterLog,
    Session,
)
from callboard.mqtt.wire.errors import ProtocolViolation
from callboard.mqtt.wire.field import read_text
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import FilterTree, has_wildcard, is_valid_topic, matches

#: Topics whose routes are cached; bounded because clients choose the topics.
CACHED_TOPICS: Final = 65_536

#: The most bytes of cached routes.
CACHED_BYTES: Final = 32 << 20

#: Bytes of fetched segments in memory: enough for 32 readers to read each segment once.
MOST_FETCHED: Final = 32 << 20

#: Runs in one record of shelved runs, which must fit into the journal.
PART: Final = 50_000


OnSwollen = Callable[[FilterLog, Session | None], None]


class TopicRoute(NamedTuple):
    """The destinations of messages of one topic."""

    logs: tuple[FilterLog, ...]
    filters: tuple[str, ...]
    #: Whether only links within the process may publish: `$SYS`.
    is_reserved: bool


class Logs:
    """All logs, by filter and by topic, and the retained messages.

    Attributes:
        effects: the effects of the current turn.
        number: the number of the router's next message.
        routes: the routes by topic as it is encoded in packets; a cache.
        woken: requests with something to read that are not in a tracker yet.
        unblocked: requests of full windows with messages of QoS 0 that can be sent.
        on_swollen: called with a log that is half full after an append, and the publisher.
        retained: the last messages of topics.
        appended: total bytes of appended messages, including Python's objects.
    """

    on_swollen: OnSwollen

    def __init__(
        self, effects: Effects, make_stamp: Callable[[], int] = lambda: 0, origin: bytes = b""
    ) -> None:
        self.effects = effects
        self.number = self.appended = 0
        self.routes: dict[bytes, TopicRoute] = {}
        self._routes_weight = 0
        self.woken: list[DataRequest] = []
        self.unblocked: list[DataRequest] = []
        self.retained = RetainedMessages(effects, Heads(make_stamp, origin))
        #: Logs of filters without wildcards, which are topics; then logs of all other filters.
        self._literal: dict[str, FilterLog] = {}
        self._wild: FilterTree[FilterLog] = FilterTree()
        self._fetching: dict[Segment, dict[Connection, None]] = {}
        self._fetched: deque[tuple[Segment, int]] = deque()
        self._fetched_weight = 0

    def __len__(self) -> int:
        return len(self._literal) + len(self._wild)

    def __iter__(self) -> Iterator[FilterLog]:
        # Copies, because figures are read on other threads.
        yield from list(self._literal.values())
        yield from list(self._wild.values.values())

    def get(self, topic_filter: str) -> FilterLog | None:
        """Return the log of a plain filter, if it has readers."""
        return self._literal.get(topic_filter) or self._wild.values.get(topic_filter)

    def open(self, topic_filter: str) -> FilterLog:
        """Return the log of a plain filter; create it, and update cached routes, if needed."""
        log = self.get(topic_filter)
        if log is None:
            limits = self.effects.limits
            sizes = limits.segment_bytes, limits.segment_count
            for custom in reversed(limits.custom_segments):
                name = custom.topic_filter
                if name == topic_filter or matches(topic_filter, name):
                    sizes = custom.segment_bytes, custom.segment_count
            has_shelves = self.effects.is_durable and limits.journal_bytes > 0
            log = DataLog(topic_filter, *sizes, has_shelves=has_shelves)
            if has_wildcard(topic_filter):
                self._wild.set(topic_filter, log)
            else:
                self._literal[topic_filter] = log
            self._forget(topic_filter)
        return log

    def drop_reader(self, log: FilterLog) -> None:
        """Remove a reader of a log; a log without readers ends."""
        log.readers -= 1
        if log.readers:
            return
        topic_filter = log.topic_filter
        if self._literal.pop(topic_filter, None) is None:
            self._wild.remove(topic_filter)
        self._forget(topic_filter)

    def _forget(self, topic_filter: str) -> None:
        """Drop the cached routes that a filter may change."""
        if has_wildcard(topic_filter):
            self.routes.clear()
        else:
            self.routes.pop(topic_filter.encode(), None)

    def route(self, topic: bytes) -> TopicRoute:
        """Return the destinations of a topic.

        Raises:
            MalformedPacket: the topic is not UTF-8, or contains U+0000.
            ProtocolViolation: the text is not a topic.
        """
        route = self.routes.get(topic)
        if route is not None:
            return route
        name = read_text(topic)
        if not is_valid_topic(name):
            message = f"{topic[:80]!r} is not a topic that can be published to"
            # An empty topic needs an alias, and there is none (MQTT 5, 3.3.2.1).
            reason = ReasonCode.TOPIC_NAME_INVALID if topic else ReasonCode.PROTOCOL_ERROR
            raise ProtocolViolation(message, reason)
        logs = self._wild.match(name) if self._wild else []
        literal = self._literal.get(name)
        if literal is not None:
            logs.append(literal)
        is_reserved = name.startswith("$SYS/") or name == "$SYS"
        route = TopicRoute(tuple(logs), tuple(log.topic_filter for log in logs), is_reserved)
        self._routes_weight += 200 + 2 * len(topic) + 16 * len(logs)
        if len(self.routes) >= CACHED_TOPICS or self._routes_weight > CACHED_BYTES:
            self.routes.clear()
            self._routes_weight = 0
        self.routes[topic] = route
        return route

    # --- messages ---

    def append(  # noqa: C901  (calls cost too much here)
        self,
        run: MessageRun,
        route: TopicRoute,
        publisher: Session | None = None,
        received: tuple[int, ...] = (),
    ) -> None:
        """Append messages to the logs of all filters that match, and wake the waiting readers.

        Args:
            run: the messages.
            route: the route of their topic.
            publisher: their session.
            received: identifiers of its QoS 2 messages.
        """
        run.number = self.number
        count = run.count
        self.number += count
        run.filters = route.filters
        effects = self.effects
        meters = effects.meters
        meters.published += count
        meters.published_bytes += count * run.size
        self.appended += run.weight
        if run.retain:
            self.retained.replace(run)
        is_awaited = False
        for log in route.logs:
            segment = log.segments[-1]
            if segment.runs:
                log.append(run)
            else:  # like `log.append` for an empty segment, without the call
                segment.runs.append(run)
                segment.starts.append(log.end)  # type: ignore[attr-defined]  # a list
                segment.weight += run.weight
                log.end += count
                log.last = run
            if log.is_swollen:
                self.on_swollen(log, publisher)
            if log.waiters:
                self.woken += log.waiters
                log.waiters.clear()
            if not run.qos:
                log.plain_end = log.end
                if log.blocked is not None:
                    self.unblocked += log.blocked
                    log.blocked = None
            if log.durable_readers:
                is_awaited = True
        sender = ""
        if received and publisher is not None:
            self.appended += RECEIVED_BYTES * len(received)
            sender = publisher.client_id if publisher.is_durable else ""
        if is_awaited and run.qos:
            run.place = UNWRITTEN
            effects.records.append(Published(run, sender, received if sender else ()))
        elif sender:
            effects.records.append(Received(sender, received))

    def take_retained(self, key: bytes, head: Head, run: MessageRun | None) -> bool:
        """Apply a write of another router; return False if its message does not fit."""
        if run is not None:
            run.number = self.number
            self.number += 1
        return self.retained.take(key, head, run)

    # --- the shelf ---

    def fetch(self, log: FilterLog, segment: Segment, connection: Connection) -> None:
        """Make a connection wait for a shelved segment to be fetched."""
        if segment not in self._fetching:
            self._fetching[segment] = {}
            self.effects.fetches.append((log, segment))
        self._fetching[segment][connection] = None

    def put_back(self, segment: Segment, runs: list[MessageRun]) -> list[Connection]:
        """Restore the messages of a fetched segment; missing ones are lost.

        Returns the connections that waited for them.
        """
        segment.drop_unreadable({run.place - 1 for run in runs})
        if runs:
            weight = sum(run.weight for run in runs)
            segment.runs = runs
            self._fetched.append((segment, weight))
            self._fetched_weight += weight
            while self._fetched_weight > MOST_FETCHED and len(self._fetched) > 1:
                oldest, weight = self._fetched.popleft()
                oldest.runs = []
                self._fetched_weight -= weight
        return list(self._fetching.pop(segment))

    def drop_read(self, unread: dict[FilterLog, int]) -> None:
        """Drop shelved messages that all readers have read."""
        for log in self:
            if log.shelved:
                log.drop_shelved(unread.get(log, log.end))

    def drop_older(self, place: int) -> None:
        """Drop shelved segments that begin before a journal position.

        The journal is too large.
        """
        for log in self:
            while log.shelved and any(p < place for p in log.segments[0].places()[:1]):
                log.drop_shelved(log.segments[1].base)

    def shelved(self) -> Iterable[Shelved]:
        """Return the snapshot records of shelved segments."""
        for log in self:
            for index in range(log.shelved):
                segment = log.segments[index]
                shelf = segment.shelf
                assert shelf is not None
                borders = [
                    segment.base,
                    *segment.starts[PART::PART],
                    log.segments[index + 1].base,
                ]
                for part, (base, end) in enumerate(pairwise(borders)):
                    runs = slice(part * PART, (part + 1) * PART)
                    starts = [start - base for start in segment.starts[runs]]
                    columns = Shelf(*(column[runs] for column in shelf))
                    yield Shelved(log.topic_filter, end - base, starts, columns)

    def oldest_place(self, otherwise: int) -> int:
        """Return the journal position of the oldest shelved message."""
        shelved = (segment for log in self for segment in log.segments[: log.shelved])
        places = (place for segment in shelved for place in segment.places()[:1])
        return min((otherwise, *places))

    def move_places(self, before: int, written: list[JournalRecord]) -> None:
        """Update journal positions after a snapshot; earlier records are removed.

        One message may be in memory twice, fetched for one filter and appended for another. It
        is written once.
        """
        places = {
            (record.run.number, record.run.count): record.run.place
            for record in written
            if isinstance(record, Published)
        }
        for log in self:
            for segment in log.segments[log.shelved :]:
                for run in segment.runs:
                    if 0 < run.place <= before:
                        run.place = places.get((run.number, run.count), 0)
