"""Recordings: what topics bring, kept in a log by a thread of its own.

    core actor ──take_from──> runs that wait ──thread──> CommitLog

The node's thread only appends runs. Beyond a mark of what waits, publishers are slowed: threads
of this node wait, and links bring less, so that those of other nodes wait as well. What comes
all the same, beyond a limit, is not recorded; where it is missing a record on the topic
`LOST_TOPIC` says how many messages that were.
"""

import datetime
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

import cbor2

from callboard.commitlog import CommitLog, LogCorrupt, LogError
from callboard.commitlog.batch import MAX_RECORD
from callboard.commitlog.columns import Cbor
from callboard.endpoint.events import NotRecorded
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item, RunReceiver
from callboard.endpoint.machine.topic import RESERVED, checked_topic
from callboard.kernel.checks import limit
from callboard.kernel.errors import CallboardError
from callboard.kernel.topology import node_id_text
from callboard.kernel.twins import Closing, on_a_thread, refuse_loop
from callboard.model.scalar import Count

log = logging.getLogger("callboard.recording")

#: Topic of the records that stand where messages are missing; their payload is how many.
LOST_TOPIC: Final = f"{RESERVED}/recording/lost"

#: Messages and bytes that may wait before publishers are slowed.
MARK: Final = (16_384, 16 << 20)

#: Messages and bytes that may wait at all: a disk that stands still must not eat the memory.
LIMIT: Final = (262_144, 64 << 20)

#: Seconds that a link is not read when more than the mark waits; up to four times as many.
PAUSE: Final = 0.05

#: Messages of one batch of the log at least, when so many wait.
BATCH: Final = 8192

#: Seconds before a disk that refused is tried again: they double up to the second number.
RETRY: Final = (0.1, 4.0)

#: Seconds between looks whether the node has ended.
LOOK: Final = 1.0

#: Seconds that the core may take to hand over what was published before the end.
STOP_LIMIT: Final = 5.0


class Run(NamedTuple):
    """Messages that came together.

    Attributes:
        sender: the node that published them.
        time: when they came, nanoseconds since 1970.
        items: topics and values.
        size: bytes.
        lost: messages that were not taken before these.
    """

    sender: bytes
    time: int
    items: list[Item]
    size: int
    lost: int = 0


class Recording(Closing, RunReceiver):
    """Records what topics bring into a log, until it is closed. Made by an endpoint.

    Each message is a record: topic, the time when it came, the id of the node that published
    it as sender, and the value. A recording into a log that exists goes on at its end.

    Attributes:
        topics: What is recorded: every topic that begins with one of these.
        folder: The directory of the log.
        start: The offset of the first record of this recording.
        resumed: Time of the last record that was there before, or None; in nanoseconds.
        recorded: Messages that this recording has put into the log.
        error: Why the disk refuses just now; "" while it does not.
    """

    def __init__(
        self,
        hub: Hub,
        topics: tuple[str, ...],
        make_log: Callable[[], CommitLog],
        closed: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """Use `Endpoint.record`."""
        self.topics = tuple(map(checked_topic, topics))
        self.recorded = 0
        self.error = ""
        self._hub, self._make_log, self._closed_told = hub, make_log, closed
        self._log = make_log()
        self.folder = Path(self._log.folder)
        self.start = self._log.end
        self.resumed = _latest_time(self._log)
        self._runs: deque[Run | threading.Event] = deque()
        # Each of these is changed by one thread only: the node's, then the writer's.
        self._taken, self._taken_bytes, self._gap, self._refused = 0, 0, 0, 0
        self._done, self._done_bytes, self._dropped = 0, 0, 0
        self._is_holding = self._is_closed = False
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="callboard-recording")
        self._thread.daemon = True  # a program that forgets to close still ends
        self._thread.start()
        hub.add_receiver(self, self.topics, sees_own=True)

    def __repr__(self) -> str:
        return f"<Recording of {', '.join(self.topics)} in {self.folder}>"

    # --- the node's side ---

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Let a run wait to be written."""
        waiting = self._taken + len(items) - self._done
        octets = self._taken_bytes + size - self._done_bytes
        if waiting > MARK[0] or octets > MARK[1]:
            if waiting > LIMIT[0] or octets > LIMIT[1]:
                self._refuse(len(items))
                return
            # Before it is appended: the thread that finds it then also finds this.
            self._is_holding = True
            fullness = max(waiting / LIMIT[0], octets / LIMIT[1])
            self._hub.hold(self, sender, PAUSE * (1 + 3 * fullness))
        gap, self._gap = self._gap, 0
        self._taken += len(items)
        self._taken_bytes += size
        self._runs.append(Run(sender, time.time_ns(), items, size, gap))
        self._wake.set()

    def _refuse(self, count: int) -> None:
        if not self._gap:
            log.warning("recording into %s is too slow: messages are lost", self._log.folder)
        self._gap += count
        self._refused += count
        self._tell_missing(count)

    def _drop(self, count: int) -> None:
        """Give up messages that were taken; on the writer's thread."""
        self._dropped += count
        self._tell_missing(count)

    def _tell_missing(self, count: int) -> None:
        if count:
            self._hub.node.context.report(NotRecorded(self._log.folder, count))

    # --- seeing ---

    @property
    def end(self) -> int:
        """The offset behind the newest record."""
        return self._log.end

    @property
    def durable(self) -> int:
        """The offset behind all records that outlive the machine."""
        return self._log.durable

    @property
    def lost(self) -> int:
        """Messages that came and are not in the log: the disk was too slow, or refused."""
        return self._refused + self._dropped

    @property
    def waiting(self) -> int:
        """Messages that came and are not written yet."""
        return self._taken - self._done

    # --- waiting ---

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that came or was published here before is durable.

        Returns False when that was not so within `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            LogFailed: the disk refuses.
        """
        timeout = limit(timeout)
        refuse_loop("flush()", "recording.aflush()")
        self._take_published(STOP_LIMIT if timeout is None else timeout)
        if not self._reach(timeout):
            return False
        self._log.flush()
        return True

    async def aflush(self, timeout: float | None = None) -> bool:
        """Awaitable twin of `flush`."""
        return await on_a_thread(self.flush, timeout)

    # --- the end ---

    def close(self) -> None:
        """Write what came before, make it durable, and close the log. Idempotent.

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
        # What the disk refuses once more is lost.
        if self._gap:
            own = self._hub.node.node_id
            self._runs.append(Run(own, time.time_ns(), [], 0, self._gap))
        self._ended.set()
        self._wake.set()
        self._thread.join()
        self._hub.relax(self)
        self._closed_told(self)

    def _take_published(self, timeout: float) -> None:
        """Let the core hand over what was published; not where its node would stand still."""
        with suppress(CallboardError):
            self._hub.flushed(timeout)

    def _reach(self, timeout: float | None) -> bool:
        """Wait until all that was taken before is in the log; False after `timeout` seconds."""
        marker = threading.Event()
        self._runs.append(marker)
        self._wake.set()
        return not self._thread.is_alive() or marker.wait(timeout)

    # --- the thread ---

    def _run(self) -> None:
        while self._runs or not self._ended.is_set():
            runs, marker = self._collect()
            if runs:
                self._write(runs)
            if marker is not None:
                marker.set()
            if not self._runs and not self._ended.is_set():
                self._wake.wait(LOOK)
                self._wake.clear()
                if self._hub.node.context.is_closed:
                    self._ended.set()
        try:
            self._log.close()
        except LogError as error:
            self._tell(error)

    def _collect(self) -> tuple[list[Run], threading.Event | None]:
        """Return runs that are written as one, and whoever waits for them."""
        runs: list[Run] = []
        count = octets = 0
        while self._runs and count < BATCH and octets < MAX_RECORD:
            run = self._runs.popleft()
            if isinstance(run, threading.Event):
                return runs, run
            runs.append(run)
            count += len(run.items)
            octets += run.size
        return runs, None

    def _write(self, runs: list[Run]) -> None:
        """Write runs as one batch, and let publishers go on when little waits."""
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
        self._done += sum(len(run.items) for run in runs)
        self._done_bytes += sum(run.size for run in runs)
        if self._is_holding and self.waiting <= MARK[0] // 2:
            self._is_holding = False
            self._hub.relax(self)

    def _store(self, rows: "Rows") -> None:
        """Append rows, however long the disk refuses, until the end."""
        payloads, topics, senders, times = rows
        count = len(payloads) - topics.count(LOST_TOPIC)
        pause, longest = RETRY
        while True:
            try:
                self._log.append_batch(payloads, topic=topics, sender=senders, time=times)
            except LogError as error:
                self._tell(error)
            else:
                self.recorded += count
                if self.error:
                    log.warning("recording into %s goes on", self._log.folder)
                    self.error = ""
                return
            if self._ended.wait(pause):
                self._drop(count)
                return
            pause = min(2 * pause, longest)
            self._open_again()

    def _open_again(self) -> None:
        """Open the log again: after some errors it takes nothing before that."""
        end = self._log.end
        try:
            with suppress(LogError):
                self._log.close()
            self._log = self._make_log()
        except LogError as error:
            self._tell(error)
            return
        cut = max(0, end - self._log.end)  # was never durable
        self.recorded -= cut
        self._drop(cut)

    def _tell(self, error: LogError) -> None:
        if not self.error:
            log.error("recording: %s", error)
        self.error = str(error)

    def _wants(self, topic: str) -> bool:
        """Return whether a topic is recorded: those of the endpoints themselves by name."""
        by_name = [wanted for wanted in self.topics if RESERVED in wanted]
        return RESERVED not in topic or topic.startswith(tuple(by_name))


class Rows(NamedTuple):
    """Records on their way into the log, in columns."""

    payloads: list[Cbor]
    topics: list[str]
    senders: list[str]
    times: list[int]

    def add(self, run: Run, items: list[Item]) -> None:
        """Take messages of a run."""
        self.payloads.extend([_encoded(value) for _, value in items])
        self.topics.extend([topic for topic, _ in items])
        self.senders.extend([node_id_text(run.sender)] * len(items))
        self.times.extend([run.time] * len(items))

    def drop_large(self) -> int:
        """Leave out what no log takes; returns how many that are."""
        fits = [len(payload) <= MAX_RECORD for payload in self.payloads]
        columns: tuple[list[Any], ...] = self
        for column in columns:
            column[:] = compress(column, fits)
        return fits.count(False)


def _encoded(value: Any) -> Cbor:
    return Cbor(cbor2.dumps(value, default=_encode_special))


def _encode_special(encoder: cbor2.CBOREncoder, value: Any) -> None:
    """Encode what CBOR has no type for as what Spark and SQL have one for."""
    match value:
        case Count():
            encoder.encode(int(value))
        case datetime.timedelta():
            encoder.encode(value.total_seconds())
        case _:  # ports and enum values
            encoder.encode(str(value))


def _latest_time(log: CommitLog) -> int | None:
    """Return the time of the last record; None if there is none, or it is damaged."""
    with suppress(LogCorrupt):
        last = next(log.read(max(log.start, log.end - 1)), None)
        return None if last is None else last.time
    return None
