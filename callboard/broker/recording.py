"""Recordings: messages on topics, stored in a log by a thread.

    core actor ──take_from──> waiting runs ──thread──> CommitLog

The node's thread only queues runs. Above a first limit, publishers are slowed down: threads of
this node block, and links are read less, so that publishers on other nodes block as well.
Messages above a second limit are not recorded; a record on the topic `LOST_TOPIC` marks the gap
with the number of missing messages.
"""

import datetime
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

import cbor2

from callboard.arguments import limit
from callboard.backoff import Backoff, retrying
from callboard.bounded_queue import BoundedQueue
from callboard.closing import Closing, refuse_loop, twin
from callboard.commitlog import CommitLog, LogCorrupt, LogError
from callboard.commitlog.batch import MAX_RECORD
from callboard.commitlog.columns import Cbor
from callboard.kernel.errors import CallboardError
from callboard.kernel.topology import node_id_text
from callboard.model.scalar import Count
from callboard.topics.events import NotRecorded
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, RunReceiver
from callboard.topics.machine.topic import RESERVED, checked_topic
from callboard.topics.origin import origin_of_log

log = logging.getLogger("callboard.recording")

#: Topic of records that mark gaps; their payload is the number of missing messages.
LOST_TOPIC: Final = f"{RESERVED}/recording/lost"

#: Waiting messages and bytes above which publishers are slowed down.
MARK: Final = (16_384, 16 << 20)

#: Waiting messages and bytes above which messages are lost: a stuck disk must not exhaust the
#: memory.
LIMIT: Final = (262_144, 64 << 20)

#: Seconds for which reading of a link pauses above `MARK`; up to four times that near `LIMIT`.
PAUSE: Final = 0.05

#: Preferred number of messages in a batch of the log.
BATCH: Final = 8192

#: Seconds until the next attempt after a disk error; doubled each time up to the second value.
RETRY: Final = (0.1, 4.0)

#: Seconds between checks whether the node has ended.
POLL_SECONDS: Final = 1.0

#: Timeout for the core to pass on published messages at the end, in seconds.
STOP_LIMIT: Final = 5.0


class RecordedRun(NamedTuple):
    """Messages that arrived together.

    Attributes:
        sender: the node that published them.
        time: the time of arrival, in nanoseconds since 1970.
        items: topics and values.
        size: bytes.
        lost: messages lost before these.
    """

    sender: bytes
    time: int
    items: list[Item]
    size: int
    lost: int = 0


class Recording(Closing, RunReceiver):
    """Records messages on topics in a log, until it is closed. Created by an endpoint.

    Each message is a record with its topic, time of arrival, the id of the publishing node as
    sender, and the value. An existing log is continued at its end.

    Attributes:
        topics: Prefixes of the recorded topics.
        folder: The directory of the log.
        start: Offset of the first record of this recording.
        resumed: Time of the last earlier record in nanoseconds, or None.
        recorded: Messages that this recording has appended to the log.
        error: The current disk error; "" if there is none.
    """

    def __init__(
        self,
        hub: Hub,
        topics: tuple[str, ...],
        make_log: Callable[[], CommitLog],
        closed: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """Do not call this; use `Endpoint.record`."""
        self.topics = tuple(map(checked_topic, topics))
        self.recorded = 0
        self.error = ""
        self._hub, self._make_log, self._on_closed = hub, make_log, closed
        self._log = make_log()
        self.folder = Path(self._log.folder)
        self.start = self._log.end
        self.resumed = _latest_time(self._log)
        #: The runs that are not written, and the events of waiting calls. The node's thread
        #: appends to it; the writer removes items when they are written, so that `waiting`
        #: counts them until then.
        self._runs = BoundedQueue[RecordedRun | threading.Event](*LIMIT)
        #: Refused messages that no record mentions yet; of the node's thread.
        self._gap = 0
        #: Messages that could not be written; of the writer's thread.
        self._dropped = 0
        self._is_holding = self._is_closed = False
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="callboard-recording")
        self._thread.daemon = True  # a program that does not close it can still exit
        self._thread.start()
        origin = origin_of_log(self.folder)
        hub.add_receiver(self, self.topics, sees_own=True, publisher=origin)

    def __repr__(self) -> str:
        return f"<Recording of {', '.join(self.topics)} in {self.folder}>"

    # --- on the node's thread ---

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Queue a run for writing."""
        count = len(items)
        waiting, octets = self._runs.messages + count, self._runs.bytes + size
        if waiting > MARK[0] or octets > MARK[1]:
            if not self._runs.fits(size, count):
                self._refuse(count)
                return
            # Set before the append: the writer that takes the run must then see it, or it would
            # never release the publishers.
            self._is_holding = True
            fullness = max(waiting / LIMIT[0], octets / LIMIT[1])
            self._hub.hold(self, sender, PAUSE * (1 + 3 * fullness))
        gap, self._gap = self._gap, 0
        self._runs.append(RecordedRun(sender, time.time_ns(), items, size, gap), size, count)
        self._wake.set()

    def _refuse(self, count: int) -> None:
        if not self._gap:
            log.warning("recording into %s is too slow: messages are lost", self._log.folder)
        self._gap += count
        self._runs.dropped += count
        self._report_lost(count)

    def _drop(self, count: int) -> None:
        """Count messages that cannot be written; on the writer's thread."""
        self._dropped += count
        self._report_lost(count)

    def _report_lost(self, count: int) -> None:
        if count:
            self._hub.node.context.report(NotRecorded(self._log.folder, count))

    # --- inspection ---

    @property
    def end(self) -> int:
        """The offset after the newest record."""
        return self._log.end

    @property
    def durable(self) -> int:
        """The offset after the last durable record."""
        return self._log.durable

    @property
    def lost(self) -> int:
        """Messages that are not in the log: the disk was too slow, or failed."""
        return self._runs.dropped + self._dropped

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not written yet."""
        return self._runs.messages

    # --- waiting ---

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all earlier messages are durable.

        Returns False after `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            LogFailed: the disk fails.
        """
        timeout = limit(timeout)
        refuse_loop("flush()", "recording.aflush()")
        self._take_published(STOP_LIMIT if timeout is None else timeout)
        if not self._reach(timeout):
            return False
        self._log.flush()
        return True

    aflush = twin(flush)

    # --- the end ---

    def close(self) -> None:
        """Write and sync all earlier messages, and close the log. Idempotent.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        if self._is_closed:
            return
        refuse_loop("close()", "recording.aclose()")
        self._is_closed = True
        self._take_published(STOP_LIMIT)
        removed = self._hub.remove_receiver(self)
        if not self._hub.runtime.is_runner_thread():
            with suppress(CallboardError):  # the node has ended
                removed.result(STOP_LIMIT)
        # A message for which the disk fails again is lost.
        if self._gap:
            own = self._hub.node.node_id
            self._append_empty(RecordedRun(own, time.time_ns(), [], 0, self._gap))
        self._ended.set()
        self._wake.set()
        self._thread.join()
        self._hub.relax(self)
        self._on_closed(self)

    def _take_published(self, timeout: float) -> None:
        """Wait until the core has passed on published messages, if that cannot block."""
        with suppress(CallboardError):
            self._hub.flushed(timeout)

    def _reach(self, timeout: float | None) -> bool:
        """Wait until all queued runs are in the log; return False after `timeout` seconds."""
        marker = threading.Event()
        self._append_empty(marker)
        self._wake.set()
        return not self._thread.is_alive() or marker.wait(timeout)

    def _append_empty(self, item: "RecordedRun | threading.Event") -> None:
        """Append an item without messages; from any thread.

        `append` would add to the queue's totals, which only the node's thread may do.
        """
        self._runs.items.append((item, 0, 0))

    # --- on the writer's thread ---

    def _run(self) -> None:
        while self._runs or not self._ended.is_set():
            runs, marker = self._collect()
            if runs:
                self._write(runs)
            if marker is not None:
                self._runs.popleft()
                marker.set()
            if not self._runs and not self._ended.is_set():
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()
                if self._hub.node.context.is_closed:
                    self._ended.set()
        try:
            self._log.close()
        except LogError as error:
            self._report(error)

    def _collect(self) -> tuple[list[RecordedRun], threading.Event | None]:
        """Return runs to write as one batch, and a marker if one follows."""
        runs: list[RecordedRun] = []
        count = octets = 0
        # The items stay in the queue until they are written. Only this thread removes items, so
        # their places do not change.
        while len(runs) < len(self._runs) and count < BATCH and octets < MAX_RECORD:
            run = self._runs.items[len(runs)][0]
            if isinstance(run, threading.Event):
                return runs, run
            runs.append(run)
            count += len(run.items)
            octets += run.size
        return runs, None

    def _write(self, runs: list[RecordedRun]) -> None:
        """Write runs as one batch, and release publishers when few messages wait."""
        rows = Rows([], [], [], [])
        for run in runs:
            if run.lost:
                rows.add(run, [(LOST_TOPIC, run.lost)])
            items = run.items
            if any(RESERVED in topic for topic, _ in items):
                items = [item for item in items if self._wants(item[0])]
            rows.add(run, items)
        if max(map(len, rows.payloads), default=0) > MAX_RECORD:
            self._drop(rows.drop_large())
        if rows.payloads:
            self._store(rows)
        for _ in runs:
            self._runs.popleft()
        if self._is_holding and self.waiting <= MARK[0] // 2:
            self._is_holding = False
            self._hub.relax(self)

    def _store(self, rows: "Rows") -> None:
        """Append rows; retry after disk errors until the recording ends."""
        payloads, topics, senders, times = rows
        count = len(payloads) - topics.count(LOST_TOPIC)
        backoff = Backoff(*RETRY)
        for _ in retrying(backoff, stop=self._ended):
            if backoff.attempts:
                self._open_again()
            try:
                self._log.append_batch(payloads, topic=topics, sender=senders, time=times)
            except LogError as error:
                self._report(error)
            else:
                self.recorded += count
                if self.error:
                    log.warning("recording into %s works again", self._log.folder)
                    self.error = ""
                return
        self._drop(count)

    def _open_again(self) -> None:
        """Reopen the log: after some errors it accepts nothing until then."""
        end = self._log.end
        try:
            with suppress(LogError):
                self._log.close()
            self._log = self._make_log()
        except LogError as error:
            self._report(error)
            return
        cut = max(0, end - self._log.end)  # records that were not durable
        self.recorded -= cut
        self._drop(cut)

    def _report(self, error: LogError) -> None:
        if not self.error:
            log.error("recording: %s", error)
        self.error = str(error)

    def _wants(self, topic: str) -> bool:
        """Return whether a topic is recorded; a reserved topic must be selected explicitly."""
        by_name = [prefix for prefix in self.topics if RESERVED in prefix]
        return RESERVED not in topic or topic.startswith(tuple(by_name))


class Rows(NamedTuple):
    """Records for the log, by column."""

    payloads: list[Cbor]
    topics: list[str]
    senders: list[str]
    times: list[int]

    def add(self, run: RecordedRun, items: list[Item]) -> None:
        """Add messages of a run."""
        self.payloads.extend([_encoded(value) for _, value in items])
        self.topics.extend([topic for topic, _ in items])
        self.senders.extend([node_id_text(run.sender)] * len(items))
        self.times.extend([run.time] * len(items))

    def drop_large(self) -> int:
        """Remove records that are too large for a log; return their number."""
        fits = [len(payload) <= MAX_RECORD for payload in self.payloads]
        columns: tuple[list[Any], ...] = self
        for column in columns:
            column[:] = compress(column, fits)
        return fits.count(False)


def _encoded(value: Any) -> Cbor:
    return Cbor(cbor2.dumps(value, default=_encode_special))


def _encode_special(encoder: cbor2.CBOREncoder, value: Any) -> None:
    """Encode types unknown to CBOR with types that Spark and SQL know."""
    match value:
        case Count():
            encoder.encode(int(value))
        case datetime.timedelta():
            encoder.encode(value.total_seconds())
        case _:  # ports and enum values
            encoder.encode(str(value))


def _latest_time(log: CommitLog) -> int | None:
    """Return the time of the last record; None if it is missing or damaged."""
    with suppress(LogCorrupt):
        last = next(log.read(max(log.start, log.end - 1)), None)
        return None if last is None else last.time
    return None
