"""Progress of queries, for people, programs and monitoring."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from callboard import locks
from callboard.commitlog import LogReader
from callboard.commitlog.disk import read_plain, replace_plain
from callboard.figures import Figure, Metric, Samples, by_label, figures_of, metrics_of
from callboard.pipeline.errors import InvalidSetting
from callboard.support.files.private_file import make_folder

#: Folder for files of the queries, inside a log of results.
QUERIES: Final = "queries"

STATUS: Final = "status.json"

#: Age of a status after which a run on another machine counts as silent.
_SILENCE: Final = timedelta(minutes=1)

#: Prefix of the topics for progress and status.
TOPICS: Final = "$spark/"

#: Errors of reading a damaged status file.
_UNREADABLE: Final = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Progress:
    """A completed micro-batch of a query.

    Attributes:
        query: Name of the query.
        batch: Number of the batch.
        rows: Records that it read.
        rate: Records per second.
        seconds: Duration.
        offset: The offset after it in the log.
        end: The end of the log at that time.
        watermark: Event time before which later records are dropped, or "".
        at: Time of completion, by the driver's clock.
        dropped: Records that were too late for their windows.
        undecodable: Records that did not decode and were skipped.
    """

    query: str
    batch: int
    rows: int
    rate: float
    seconds: float
    offset: int
    end: int
    watermark: str
    at: str
    dropped: int = 0
    undecodable: int = 0

    @property
    def lag(self) -> int:
        """Unread records in the log."""
        return max(0, self.end - self.offset)

    @classmethod
    def parse(cls, name: str, report: dict[str, Any]) -> "Progress":
        """Parse Spark's progress report of a batch."""
        sources = report.get("sources") or [{}]
        offset = _offset(sources[0].get("endOffset"))
        return cls(
            query=name,
            batch=report["batchId"],
            rows=report.get("numInputRows", 0),
            rate=round(report.get("processedRowsPerSecond") or 0.0, 1),
            seconds=(report.get("durationMs") or {}).get("triggerExecution", 0) / 1000,
            offset=offset,
            end=max(offset, _offset(sources[0].get("latestOffset"))),
            watermark=(report.get("eventTime") or {}).get("watermark", ""),
            at=report.get("timestamp", ""),
            dropped=sum(
                operator.get("numRowsDroppedByWatermark", 0)
                for operator in report.get("stateOperators") or ()
            ),
            undecodable=_counted(report),
        )

    def as_message(self) -> dict[str, Any]:
        """Return the values to publish and print."""
        return {**asdict(self), "lag": self.lag}

    @property
    def topic(self) -> str:
        """The topic for publishing it."""
        return f"{TOPICS}{self.query}/progress"


def _counted(report: dict[str, Any]) -> int:
    """Return the number of skipped records, from the counter of `inputs`."""
    counts = (report.get("observedMetrics") or {}).get("callboard") or {}
    return int(counts.get("undecodable") or 0)


def _offset(position: Any) -> int:
    """Return the offset in one of Spark's positions; 0 if there is none."""
    if isinstance(position, str):
        position = json.loads(position)
    return int(position["offset"]) if isinstance(position, dict) and "offset" in position else 0


@dataclass(frozen=True, slots=True)
class Delay:
    """Distance of a query from the end of its log.

    Attributes:
        end: The end of the log.
        seconds: Time between the next record and the newest one; 0 if all are read, None if it
            is not known.
        event_seconds: Event time from the watermark to the newest record; None without a
            watermark.
    """

    end: int
    seconds: float | None
    event_seconds: float | None = None

    @classmethod
    def measure(cls, log: LogReader, offset: int, watermark: str = "") -> "Delay":
        """Measure the delay of a query.

        Args:
            log: The log that it reads.
            offset: Its next record.
            watermark: Watermark of its last batch, or "".

        Raises:
            LogError: the log cannot be read.
        """
        end = log.end
        newest = _time_at(log, end - 1)
        next_time = _time_at(log, max(offset, log.start)) if offset < end else newest
        seconds = max(0.0, newest - next_time)
        event = None
        with suppress(ValueError):
            watermark_time = datetime.fromisoformat(watermark).timestamp()
            event = max(0.0, newest - watermark_time) if watermark_time > 0 else None
        return cls(end, round(seconds, 3), None if event is None else round(event, 3))


def _time_at(log: LogReader, offset: int) -> float:
    """Return the time of a record in seconds since 1970; 0 if it is missing."""
    records = log.readv(offset, 1).records if offset >= 0 else []
    return records[0].time / 1e9 if records else 0.0


@dataclass(frozen=True, slots=True)
class DeliveryStats:
    """Delivery of results as messages, in one run.

    Attributes:
        handed: Results that had a subscriber.
        unheard: Results without a subscriber.
        lost: Results that retention removed first, or that are damaged.
        waiting: Results in the log after the position of the bridge.
        under_way: Of the handed ones, those that not all subscribers' nodes have confirmed.
    """

    handed: int = 0
    unheard: int = 0
    lost: int = 0
    waiting: int = 0
    under_way: int = 0

    @property
    def results(self) -> int:
        """The sum of all results."""
        return self.handed + self.unheard + self.lost + self.waiting

    @property
    def text(self) -> str:
        """The numbers as a sentence; they add up."""
        return (
            f"{self.results:,} results = {self.handed:,} handed + {self.unheard:,} unheard"
            f" + {self.lost:,} lost + {self.waiting:,} waiting"
            f"; of those handed {self.taken:,} taken + {self.under_way:,} under way"
        )

    @property
    def taken(self) -> int:
        """Results that all subscribers' nodes have confirmed."""
        return self.handed - self.under_way


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The status of a query, as stored beside its results.

    Attributes:
        query: Name of the query.
        log: The directory that it reads.
        pid: Process id of the last run.
        host: Host of the last run.
        started: Time of its start.
        ended: How it ended; "" while it runs, or if it could not record its end.
        rows: Records read in this run.
        dropped: Records too late for their windows.
        last: Its last batch.
        undecodable: Records that became dead letters, or were skipped without a log for them;
            None if they are not counted.
        delay: How far it was behind its log at the last update.
        handed: Delivery of results as messages; None if they are not published.
        updated: Time of the last update.
    """

    query: str
    log: str
    pid: int
    host: str
    started: str
    ended: str = ""
    rows: int = 0
    dropped: int = 0
    last: Progress | None = None
    undecodable: int | None = None
    delay: "Delay | None" = None
    handed: DeliveryStats | None = None
    updated: str = ""

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "QueryStatus":
        """Parse a status file or message."""
        kinds = (("last", Progress), ("delay", Delay), ("handed", DeliveryStats))
        parts = {name: kind(**fields[name]) for name, kind in kinds if fields.get(name)}
        return cls(**{**fields, **parts})

    def as_message(self) -> dict[str, Any]:
        """Return the values to store and publish; fields of older releases are always set."""
        fields = asdict(self)
        for name in ("undecodable", "delay", "handed"):
            if fields[name] is None:
                del fields[name]
        if self.handed and not self.handed.under_way:
            del fields["handed"]["under_way"]
        if not self.updated:
            del fields["updated"]
        if self.last and not self.last.undecodable:
            del fields["last"]["undecodable"]
        return fields

    @property
    def text(self) -> str:
        """The numbers of this run for its last line."""
        results = f"; {self.handed.text}" if self.handed else ""
        undecodable = self.undecodable or 0
        return f"{self.rows:,} records, of which {undecodable:,} did not decode{results}"

    @property
    def is_under_way(self) -> bool:
        """Whether results were handed on, but are not confirmed by all subscribers' nodes."""
        return self.handed is not None and self.handed.under_way > 0

    @property
    def topic(self) -> str:
        """The topic for publishing it while the query runs."""
        return f"{TOPICS}{self.query}/status"

    @property
    def offset(self) -> int:
        """The offset after the last batch."""
        return self.last.offset if self.last else 0

    @property
    def lag(self) -> int:
        """Unread records in the log."""
        if self.delay is not None:
            return max(0, self.delay.end - self.offset)
        return self.last.lag if self.last else 0

    @property
    def state(self) -> str:
        """Return the state: runs, stopped, done, failed, died, or silent on another machine."""
        if self.ended:
            return self.ended
        if self.host != socket.gethostname() and self.updated:
            age = datetime.now(UTC) - datetime.fromisoformat(self.updated)
            return "silent" if age > _SILENCE else "runs"
        if self.host == socket.gethostname() and not _is_alive(self.pid):
            return "died"
        return "runs"


class StatusFile:
    """The status file of a query, beside its checkpoint.

    Attributes:
        status: The status as last written.
    """

    def __init__(self, folder: Path, query: str, log: str) -> None:
        """Start a run; its last batch is that of the previous run."""
        self._lock = locks.lock("progress of a query", 280)
        self._path = folder / STATUS
        make_folder(folder)
        last = None
        with suppress(InvalidSetting, FileNotFoundError):
            last = _read(self._path).last
        self.status = QueryStatus(
            query, log, os.getpid(), socket.gethostname(), _now(), last=last
        )
        self._write()

    def add(self, progress: Progress) -> None:
        """Record a batch."""
        with self._lock:
            previous = self.status
            rows, dropped = previous.rows + progress.rows, previous.dropped + progress.dropped
            self.status = replace(previous, rows=rows, dropped=dropped, last=progress)
            if progress.undecodable:
                undecodable = (previous.undecodable or 0) + progress.undecodable
                self.status = replace(self.status, undecodable=undecodable)
            self._write()

    def record(
        self,
        delay: Delay | None = None,
        undecodable: int | None = None,
        handed: DeliveryStats | None = None,
    ) -> None:
        """Record measurements made between batches."""
        changes: dict[str, Any] = {"delay": delay, "handed": handed}
        if undecodable is not None:
            changes["undecodable"] = undecodable
        with self._lock:
            self.status = replace(self.status, **changes, updated=_now())
            self._write()

    def end(self, outcome: str) -> None:
        """Record the outcome: stopped, done or failed."""
        with self._lock:
            self.status = replace(self.status, ended=outcome)
            self._write()

    def _write(self) -> None:
        """Replace the status file atomically."""
        replace_plain(self._path, json.dumps(self.status.as_message()).encode())


def _now() -> str:
    """Return the current time in the form of status files."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_status(results: Path) -> list[QueryStatus]:
    """Return the status of all queries of a log of results, by name.

    Raises:
        InvalidSetting: a status file is damaged.
    """
    return [_read(path) for path in sorted((results / QUERIES).glob(f"*/{STATUS}"))]


def _read(path: Path) -> QueryStatus:
    """Read the status of one query."""
    try:
        return QueryStatus.parse(json.loads(read_plain(path)))
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        msg = f"{path} is not a query's status ({error}); remove it, the query writes a new one"
        raise InvalidSetting(msg) from None


def query_metrics(status: QueryStatus) -> list[Metric]:
    """Return the figures of a query; unknown values are omitted."""
    metrics = metrics_of(FIGURES, status, (("query", status.query),))
    return [metric for metric in metrics if metric.samples]


def _part(part: str, name: str) -> Callable[[QueryStatus], Samples]:
    """Return a reader for a figure in an optional part of a status."""

    def read(status: QueryStatus) -> Samples:
        value = getattr(getattr(status, part), name, None)
        return [] if value is None else [((), value)]

    return read


def _outcomes(status: QueryStatus) -> Samples:
    """Return the results by outcome."""
    outcomes = asdict(status.handed) if status.handed else {}
    for name in ("waiting", "under_way"):
        outcomes.pop(name, None)
    return by_label("outcome", outcomes)


FIGURES: Final[tuple[Figure[QueryStatus], ...]] = figures_of(
    "callboard_pipeline_",
    (
        ("rows_total", "Records read.", "rows"),
        ("late_total", "Records too late for windows.", "dropped"),
        ("undecodable_total", "Records that did not decode.", _part("undecodable", "real")),
        ("lag_rows", "Unread records in its log.", "lag"),
        ("running", "1 while it runs.", lambda status: status.state == "runs"),
        ("batch", "Number of the last batch.", _part("last", "batch")),
        ("rows_per_second", "Records per second in the last batch.", _part("last", "rate")),
        ("batch_seconds", "Duration of the last batch.", _part("last", "seconds")),
        ("delay_seconds", "From the next record to the newest.", _part("delay", "seconds")),
        (
            "event_delay_seconds",
            "From the watermark to the newest record.",
            _part("delay", "event_seconds"),
        ),
        ("results_total", "Results as messages, by outcome.", _outcomes),
        ("results_waiting", "Results not yet published.", _part("handed", "waiting")),
        ("results_under_way", "Handed, but not confirmed.", _part("handed", "under_way")),
    ),
)


def listener(name: str, tell: Callable[[Progress], None]) -> Any:
    """Return a listener for Spark that calls `tell` for each batch of one query."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class ProgressListener(StreamingQueryListener):
        """Reports the progress of one query."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            """Report a batch."""
            if event.progress.name == name:
                tell(Progress.parse(name, json.loads(event.progress.json)))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

    return ProgressListener()


def _is_alive(pid: int) -> bool:
    """Return whether a process exists on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
