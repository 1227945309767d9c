"""How far queries are: for people, for programs, and for monitoring."""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from callboard.commitlog.disk import read_plain, replace_plain
from callboard.figures import Figure, Metric, metrics_of
from callboard.pipeline.errors import InvalidSetting

#: The folder of a log of results that holds what its queries need.
QUERIES: Final = "queries"

STATUS: Final = "status.json"

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
        )

    def as_message(self) -> dict[str, Any]:
        """Return what is published and printed."""
        return {**asdict(self), "lag": self.lag}

    @property
    def topic(self) -> str:
        """The topic that it is published on."""
        return f"$spark/{self.query}/progress"


def _offset(told: Any) -> int:
    """Return the offset in what Spark tells of a place; 0 where there is none."""
    if isinstance(told, str):
        told = json.loads(told)
    return int(told["offset"]) if isinstance(told, dict) and "offset" in told else 0


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

    @property
    def state(self) -> str:
        """Return how it is: runs, stopped, done, failed or died."""
        if self.ended:
            return self.ended
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
        self._path = folder / STATUS
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        last = None
        with suppress(InvalidSetting, FileNotFoundError):
            last = _read(self._path).last
        self.status = Status(query, log, os.getpid(), socket.gethostname(), now, last=last)
        self._write()

    def add(self, progress: Progress) -> None:
        """Take up a batch."""
        before = self.status
        rows, dropped = before.rows + progress.rows, before.dropped + progress.dropped
        self.status = replace(before, rows=rows, dropped=dropped, last=progress)
        self._write()

    def end(self, how: str) -> None:
        """Say how it ended: stopped, done or failed."""
        self.status = replace(self.status, ended=how)
        self._write()

    def _write(self) -> None:
        """Replace the status file in one step."""
        replace_plain(self._path, json.dumps(asdict(self.status)).encode())


def read_status(results: Path) -> list[Status]:
    """Return what a log of results tells of its queries, by their names.

    Raises:
        InvalidSetting: a file of theirs is damaged.
    """
    return [_read(path) for path in sorted((results / QUERIES).glob(f"*/{STATUS}"))]


def _read(path: Path) -> Status:
    """Read the status of one query."""
    try:
        told = json.loads(read_plain(path))
        last = told.pop("last")
        return Status(**told, last=Progress(**last) if last else None)
    except FileNotFoundError:
        raise
    except _UNREADABLE as error:
        what = f"{path} is no status of a query ({error}); remove it, its query writes another"
        raise InvalidSetting(what) from None


def query_metrics(status: Status) -> list[Metric]:
    """Return the figures of a query for monitoring."""
    labels = (("query", status.query),)
    metrics = metrics_of(FIGURES, status, labels)
    return metrics if status.last is None else metrics + metrics_of(LAST, status.last, labels)


#: Of a query's run.
FIGURES: Final[tuple[Figure[Status], ...]] = (
    Figure("callboard_pipeline_rows_total", "Records read.", "rows"),
    Figure("callboard_pipeline_late_total", "Too late for windows.", "dropped"),
    Figure("callboard_pipeline_running", "1 while it runs.", lambda it: it.state == "runs"),
)

#: Of its last batch.
LAST: Final[tuple[Figure[Progress], ...]] = (
    Figure("callboard_pipeline_batch", "Number of the last batch.", "batch"),
    Figure("callboard_pipeline_rows_per_second", "Of that batch.", "rate"),
    Figure("callboard_pipeline_batch_seconds", "Its length.", "seconds"),
    Figure("callboard_pipeline_lag_rows", "Records that wait.", "lag"),
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
