"""How far queries are: for people, for programs, and for monitoring."""

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
from callboard.support.private_file import make_folder

#: The folder of a log of results that holds what its queries need.
QUERIES: Final = "queries"

STATUS: Final = "status.json"

#: A run on another machine that was not seen for so long may have died.
_SILENCE: Final = timedelta(minutes=1)

#: How the topics of progress and status begin.
TOPICS: Final = "$spark/"

#: What damaged files raise; missing ones are looked for first.
_UNREADABLE: Final = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Progress:
    """One micro-batch of a query that is done.

    Attributes:
        query: Its name.
        batch: The number of the batch.
        rows: Records that it read.
        rate: Records a second.
        seconds: How long it took.
        offset: The place in the log behind it.
        end: The end of the log at that time.
        watermark: The event time before which nothing is waited for, or "".
        at: When it was done, by the clock of the driver.
        dropped: Records that came too late for its windows.
        undecodable: Those that did not decode, and were left out.
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
        """Records that wait in the log."""
        return max(0, self.end - self.offset)

    @classmethod
    def parse(cls, name: str, told: dict[str, Any]) -> "Progress":
        """Read what Spark tells of a batch, as JSON."""
        sources = told.get("sources") or [{}]
        place = _offset(sources[0].get("endOffset"))
        return cls(
            query=name,
            batch=told["batchId"],
            rows=told.get("numInputRows", 0),
            rate=round(told.get("processedRowsPerSecond") or 0.0, 1),
            seconds=(told.get("durationMs") or {}).get("triggerExecution", 0) / 1000,
            offset=place,
            end=max(place, _offset(sources[0].get("latestOffset"))),
            watermark=(told.get("eventTime") or {}).get("watermark", ""),
            at=told.get("timestamp", ""),
            dropped=sum(
                each.get("numRowsDroppedByWatermark", 0)
                for each in told.get("stateOperators") or ()
            ),
            undecodable=_counted(told),
        )

    def as_message(self) -> dict[str, Any]:
        """Return what is published and printed."""
        return {**asdict(self), "lag": self.lag}

    @property
    def topic(self) -> str:
        """The topic that it is published on."""
        return f"{TOPICS}{self.query}/progress"


def _counted(told: dict[str, Any]) -> int:
    """Return how many records were left out, which `inputs` lets Spark count."""
    counts = (told.get("observedMetrics") or {}).get("callboard") or {}
    return int(counts.get("undecodable") or 0)


def _offset(told: Any) -> int:
    """Return the offset in what Spark tells of a place; 0 where there is none."""
    if isinstance(told, str):
        told = json.loads(told)
    return int(told["offset"]) if isinstance(told, dict) and "offset" in told else 0


@dataclass(frozen=True, slots=True)
class Delay:
    """How far a query is behind its log.

    Attributes:
        end: The end of the log.
        seconds: From the record that is next to the newest one, by their times; 0 if it has
            read all, None if that is not known.
        event_seconds: From the watermark to the newest record, in event time; None where
            nothing is waited for.
    """

    end: int
    seconds: float | None
    event_seconds: float | None = None

    @classmethod
    def measure(cls, log: LogReader, offset: int, watermark: str = "") -> "Delay":
        """Look at a log.

        Args:
            log: The log that is read.
            offset: The next record of the query.
            watermark: That of its last batch, or "".

        Raises:
            LogError: the log cannot be read.
        """
        end = log.end
        newest = _time_at(log, end - 1)
        following = _time_at(log, max(offset, log.start)) if offset < end else newest
        seconds = max(0.0, newest - following)
        event = None
        with suppress(ValueError):
            at = datetime.fromisoformat(watermark).timestamp()
            event = max(0.0, newest - at) if at > 0 else None
        return cls(end, round(seconds, 3), None if event is None else round(event, 3))


def _time_at(log: LogReader, offset: int) -> float:
    """Return the time of a record in seconds since 1970; 0 if it is not there."""
    records = log.readv(offset, 1).records if offset >= 0 else []
    return records[0].time / 1e9 if records else 0.0


@dataclass(frozen=True, slots=True)
class Handed:
    """What became of results that are messages, in one run.

    Attributes:
        handed: Somebody took them.
        unheard: Nobody did.
        lost: Retention removed them before, or they are damaged.
        waiting: They stand in the log of results behind the place of the bridge.
        under_way: Of those handed, so many that not all who take them have confirmed.
    """

    handed: int = 0
    unheard: int = 0
    lost: int = 0
    waiting: int = 0
    under_way: int = 0

    @property
    def results(self) -> int:
        """All of them."""
        return self.handed + self.unheard + self.lost + self.waiting

    @property
    def text(self) -> str:
        """All of them in words, which add up."""
        return (
            f"{self.results:,} results = {self.handed:,} handed + {self.unheard:,} unheard"
            f" + {self.lost:,} lost + {self.waiting:,} waiting"
            f"; of those handed {self.taken:,} taken + {self.under_way:,} under way"
        )

    @property
    def taken(self) -> int:
        """Those that all nodes have confirmed that take them."""
        return self.handed - self.under_way


@dataclass(frozen=True, slots=True)
class Status:
    """What a log of results tells of one of its queries.

    Attributes:
        query: Its name.
        log: The directory it reads.
        pid: The process that ran it last.
        host: The machine of that.
        started: When it was started.
        ended: How it ended; "" while it runs, as far as it could tell.
        rows: Records that this run has read.
        dropped: Those of them that came too late for windows.
        last: Its last batch.
        undecodable: Those of them that became dead letters, or were left out without a log for
            them; None if nobody counts.
        delay: How far it was behind its log at the last look.
        handed: What became of results that are messages; None if they are none.
        updated: When it was looked at last.
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
    handed: Handed | None = None
    updated: str = ""

    @classmethod
    def parse(cls, told: dict[str, Any]) -> "Status":
        """Read what a status file or a message tells."""
        kinds = (("last", Progress), ("delay", Delay), ("handed", Handed))
        parts = {name: kind(**told[name]) for name, kind in kinds if told.get(name)}
        return cls(**{**told, **parts})

    def as_message(self) -> dict[str, Any]:
        """Return what is stored and published; what an older callboard had is always there."""
        told = asdict(self)
        for name in ("undecodable", "delay", "handed"):
            if told[name] is None:
                del told[name]
        if self.handed and not self.handed.under_way:
            del told["handed"]["under_way"]
        if not self.updated:
            del told["updated"]
        if self.last and not self.last.undecodable:
            del told["last"]["undecodable"]
        return told

    @property
    def topic(self) -> str:
        """The topic that it is published on while the query runs."""
        return f"{TOPICS}{self.query}/status"

    @property
    def offset(self) -> int:
        """The place in the log behind the last batch."""
        return self.last.offset if self.last else 0

    @property
    def lag(self) -> int:
        """Records that wait in the log."""
        if self.delay is not None:
            return max(0, self.delay.end - self.offset)
        return self.last.lag if self.last else 0

    @property
    def state(self) -> str:
        """Return how it is: runs, stopped, done, failed or died; silent on another machine."""
        if self.ended:
            return self.ended
        if self.host != socket.gethostname() and self.updated:
            age = datetime.now(UTC) - datetime.fromisoformat(self.updated)
            return "silent" if age > _SILENCE else "runs"
        if self.host == socket.gethostname() and not _is_alive(self.pid):
            return "died"
        return "runs"


class StatusFile:
    """Keeps the status of a query beside its checkpoint.

    Attributes:
        status: As it was written.
    """

    def __init__(self, folder: Path, query: str, log: str) -> None:
        """Begin a run, of which the last batch is that of the run before."""
        self._lock = locks.lock("progress of a query", 280)
        self._path = folder / STATUS
        make_folder(folder)
        last = None
        with suppress(InvalidSetting, FileNotFoundError):
            last = _read(self._path).last
        self.status = Status(query, log, os.getpid(), socket.gethostname(), _now(), last=last)
        self._write()

    def add(self, progress: Progress) -> None:
        """Take up a batch."""
        with self._lock:
            before = self.status
            rows, dropped = before.rows + progress.rows, before.dropped + progress.dropped
            self.status = replace(before, rows=rows, dropped=dropped, last=progress)
            if progress.undecodable:
                bad = (before.undecodable or 0) + progress.undecodable
                self.status = replace(self.status, undecodable=bad)
            self._write()

    def look(
        self,
        delay: Delay | None = None,
        undecodable: int | None = None,
        handed: Handed | None = None,
    ) -> None:
        """Take up what is seen beside batches."""
        looked: dict[str, Any] = {"delay": delay, "handed": handed}
        if undecodable is not None:
            looked["undecodable"] = undecodable
        with self._lock:
            self.status = replace(self.status, **looked, updated=_now())
            self._write()

    def end(self, how: str) -> None:
        """Say how it ended: stopped, done or failed."""
        with self._lock:
            self.status = replace(self.status, ended=how)
            self._write()

    def _write(self) -> None:
        """Replace the status file in one step."""
        replace_plain(self._path, json.dumps(self.status.as_message()).encode())


def _now() -> str:
    """Return the time as it is written down."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_status(results: Path) -> list[Status]:
    """Return what a log of results tells of its queries, by their names.

    Raises:
        InvalidSetting: a file of theirs is damaged.
    """
    return [_read(path) for path in sorted((results / QUERIES).glob(f"*/{STATUS}"))]


def _read(path: Path) -> Status:
    """Read the status of one query."""
    try:
        return Status.parse(json.loads(read_plain(path)))
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        what = f"{path} is no status of a query ({error}); remove it, its query writes another"
        raise InvalidSetting(what) from None


def query_metrics(status: Status) -> list[Metric]:
    """Return the figures of a query for monitoring; what is not known is left out."""
    found = metrics_of(FIGURES, status, (("query", status.query),))
    return [metric for metric in found if metric.samples]


def _part(part: str, name: str) -> Callable[[Status], Samples]:
    """Return what reads a figure of a part of a status that may be missing."""

    def read(status: Status) -> Samples:
        value = getattr(getattr(status, part), name, None)
        return [] if value is None else [((), value)]

    return read


def _outcomes(status: Status) -> Samples:
    """Return what became of results that are messages."""
    told = asdict(status.handed) if status.handed else {}
    for name in ("waiting", "under_way"):
        told.pop(name, None)
    return by_label("outcome", told)


FIGURES: Final[tuple[Figure[Status], ...]] = figures_of(
    "callboard_pipeline_",
    (
        ("rows_total", "Records read.", "rows"),
        ("late_total", "Too late for windows.", "dropped"),
        ("undecodable_total", "Records that did not decode.", _part("undecodable", "real")),
        ("lag_rows", "Records that wait in its log.", "lag"),
        ("running", "1 while it runs.", lambda it: it.state == "runs"),
        ("batch", "Number of the last batch.", _part("last", "batch")),
        ("rows_per_second", "Of that batch.", _part("last", "rate")),
        ("batch_seconds", "Its length.", _part("last", "seconds")),
        ("delay_seconds", "From the next record to the newest.", _part("delay", "seconds")),
        ("event_delay_seconds", "To the watermark.", _part("delay", "event_seconds")),
        ("results_total", "Results that are messages, by what became of them.", _outcomes),
        ("results_waiting", "Results that wait.", _part("handed", "waiting")),
        ("results_under_way", "Handed and not confirmed.", _part("handed", "under_way")),
    ),
)


def listener(name: str, tell: Callable[[Progress], None]) -> Any:
    """Return what Spark calls for each batch of its queries; `tell` gets those of one name."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class ProgressListener(StreamingQueryListener):
        """Hands on the progress of one query."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            """Hand on what a batch did."""
            if event.progress.name == name:
                tell(Progress.parse(name, json.loads(event.progress.json)))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            """Do nothing."""

    return ProgressListener()


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
