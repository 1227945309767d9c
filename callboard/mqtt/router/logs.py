"""Logs: which of them a message goes to, the retained messages, and the shelf.

A message is appended to the log of each filter that matches its topic. Requests that waited
there are `woken`; `Delivery` takes them.

Shelved messages are read back from the journal between two turns. A connection that reaches a
segment which is not in memory is paused (Fetching), and the turn names the segment; the driver
reads it and hands it to `Delivery.arrived`. The segments that were fetched last stay in memory,
since a reader takes one window at a time. When the journal is cut down, records of shelved
messages stay where they are, so they are written once; the records between them stay as well,
until the journal is too large.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from callboard.mqtt.router.datalog import UNWRITTEN, DataLog, Segment, Shelf
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.message import Run
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

#: Topics whose logs are known without a look; clients choose topics, so there is a bound.
CACHED_TOPICS: Final = 65_536

#: Bytes that they take at most.
CACHED_BYTES: Final = 32 << 20

#: Bytes of fetched segments in memory: 32 readers catch up and read no segment twice.
MOST_FETCHED: Final = 32 << 20

#: Runs in one record of shelved ones, which has to fit into the journal.
PART: Final = 50_000


OnSwollen = Callable[[FilterLog, Session | None], None]


class TopicRoute(NamedTuple):
    """Where messages of one topic go."""

    logs: tuple[FilterLog, ...]
    filters: tuple[str, ...]
    #: Whether only links within the process may publish there: `$SYS`.
    is_reserved: bool


class Logs:
    """All logs, by filter and by topic, and the retained messages.

    Attributes:
        effects: of the turn at hand.
        number: of the next message of the router.
        routes: by topic as it stands in packets; a cache.
        woken: requests with something to read that are in no tracker yet.
        on_swollen: called with each log that an append finds half full, and the publisher.
        retained: the last messages of topics.
        appended: bytes of all messages that were appended, with what Python's objects take.
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
        self.retained = RetainedMessages(effects, Heads(make_stamp, origin))
        #: Logs of filters without wildcards, which are topics, and of those with.
        self._literal: dict[str, FilterLog] = {}
        self._wild: FilterTree[FilterLog] = FilterTree()
        self._fetching: dict[Segment, dict[Connection, None]] = {}
        self._fetched: deque[tuple[Segment, int]] = deque()
        self._fetched_weight = 0

    def __len__(self) -> int:
        return len(self._literal) + len(self._wild)

    def __iter__(self) -> Iterator[FilterLog]:
        yield from self._literal.values()
        yield from self._wild.values.values()

    def get(self, topic_filter: str) -> FilterLog | None:
        """Return the log of a plain filter, if anybody reads it."""
        return self._literal.get(topic_filter) or self._wild.values.get(topic_filter)

    def open(self, topic_filter: str) -> FilterLog:
        """Return the log of a plain filter, made if needed; cached routes learn of it."""
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
        """Note that a log has one reader less; the last one ends it."""
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
        """Return where messages of a topic go.

        Raises:
            MalformedPacket: it is no UTF-8, or has U+0000 in it.
            ProtocolViolation: it is no topic.
        """
        known = self.routes.get(topic)
        if known is not None:
            return known
        name = read_text(topic)
        if not is_valid_topic(name):
            message = f"{topic[:80]!r} is no topic that can be published on"
            # An empty one stands for an alias, which is not there (MQTT 5, 3.3.2.1).
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

    def append(
        self,
        run: Run,
        route: TopicRoute,
        publisher: Session | None = None,
        received: tuple[int, ...] = (),
    ) -> None:
        """Append messages to the logs of all filters that match, and wake who waits there.

        Args:
            run: what was published.
            route: where it goes.
            publisher: the session that it came from.
            received: the identifiers of its QoS 2 messages.
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
            else:  # as `log.append` does it with an empty segment
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

    def take_retained(self, key: bytes, head: Head, run: Run | None) -> bool:
        """Take a write of another router; returns False if there is no room for its message."""
        if run is not None:
            run.number = self.number
            self.number += 1
        return self.retained.take(key, head, run)

    # --- the shelf ---

    def fetch(self, log: FilterLog, segment: Segment, connection: Connection) -> None:
        """Let a connection wait for a segment that is on the shelf."""
        if segment not in self._fetching:
            self._fetching[segment] = {}
            self.effects.fetches.append((log, segment))
        self._fetching[segment][connection] = None

    def put_back(self, segment: Segment, runs: list[Run]) -> list[Connection]:
        """Take the messages of a segment; none if they could not be read, so they are lost.

        Returns the connections that waited for it.
        """
        if runs:
            weight = sum(run.weight for run in runs)
            segment.runs = runs
            self._fetched.append((segment, weight))
            self._fetched_weight += weight
            while self._fetched_weight > MOST_FETCHED and len(self._fetched) > 1:
                gone, weight = self._fetched.popleft()
                gone.runs = []
                self._fetched_weight -= weight
        else:
            segment.put_on_shelf((), Shelf((), (), ()))
        return list(self._fetching.pop(segment))

    def drop_read(self, unread: dict[FilterLog, int]) -> None:
        """Drop shelved messages that nobody wants any more."""
        for log in self:
            if log.shelved:
                log.drop_shelved(unread.get(log, log.end))

    def drop_older(self, place: int) -> None:
        """Drop shelved segments with records before one of the journal: it is too large."""
        for log in self:
            while log.shelved and any(each < place for each in log.segments[0].places()[:1]):
                log.drop_shelved(log.segments[1].base)

    def shelved(self) -> Iterable[Shelved]:
        """Return what a snapshot says of shelved segments."""
        for log in self:
            for at in range(log.shelved):
                segment = log.segments[at]
                shelf = segment.shelf
                assert shelf is not None
                borders = [segment.base, *segment.starts[PART::PART], log.segments[at + 1].base]
                for part, (base, end) in enumerate(pairwise(borders)):
                    runs = slice(part * PART, (part + 1) * PART)
                    starts = [start - base for start in segment.starts[runs]]
                    columns = Shelf(*(column[runs] for column in shelf))
                    yield Shelved(log.topic_filter, end - base, starts, columns)

    def oldest_place(self, otherwise: int) -> int:
        """Return the oldest record of the journal that is on a shelf."""
        shelved = (each for log in self for each in log.segments[: log.shelved])
        return min((otherwise, *(place for each in shelved for place in each.places()[:1])))

    def move_places(self, before: int, written: list[JournalRecord]) -> None:
        """Take note of where a snapshot has messages, and that records before it are gone.

        A message may be here twice, read back for one filter and in memory for another; it was
        written once.
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
