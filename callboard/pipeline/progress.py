"""How far queries are: for people, for programs, and for monitoring."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from callboard.exposition import Metric, counter, gauge

QUERIES: Final = "queries"
"""The folder of a log of results that holds what its queries need."""

STATUS: Final = "status.json"


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
    """Keeps the status of a query beside its checkpoint."""

    def __init__(self, folder: Path, query: str, log: str) -> None:
        """Begin a run."""
        self._path = folder / STATUS
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._status = Status(query, log, os.getpid(), socket.gethostname(), now)
        self._write()

    @property
    def status(self) -> Status:
        """The status as it was written."""
        return self._status

    def add(self, progress: Progress) -> None:
        """Take up a batch."""
        before = self._status
        self._status = replace(
            before,
            rows=before.rows + progress.rows,
            dropped=before.dropped + progress.dropped,
            last=progress,
        )
        self._write()

    def end(self, how: str) -> None:
        """Say how it ended: stopped, done or failed."""
        self._status = replace(self._status, ended=how)
        self._write()

    def _write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self._status)))
        temporary.rename(self._path)


def read_status(results: Path) -> list[Status]:
    """Return what a log of results tells of its queries, by their names."""
    found = []
    for path in sorted((results / QUERIES).glob(f"*/{STATUS}")):
        told = json.loads(path.read_text())
        last = told.pop("last")
        found.append(Status(**told, last=Progress(**last) if last else None))
    return found


def read_offset(results: Path, query: str) -> int:
    """Return the place of a query in its log, by its checkpoint."""
    folder = results / QUERIES / query / "checkpoint"
    done = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdecimal()]
    if not done:
        return 0
    try:
        plan = (folder / "offsets" / str(max(done))).read_text()
    except FileNotFoundError:
        return 0
    return _offset(plan.strip().splitlines()[-1])


def metrics_of(status: Status) -> list[Metric]:
    """Return the figures of a query for monitoring."""
    labels = (("query", status.query),)
    metrics = [
        counter("callboard_pipeline_rows_total", "Records read.", status.rows, labels),
        counter(
            "callboard_pipeline_late_total", "Too late for windows.", status.dropped, labels
        ),
        gauge("callboard_pipeline_running", "1 while it runs.", status.state == "runs", labels),
    ]
    if status.last is not None:
        last = status.last
        metrics += [
            gauge("callboard_pipeline_batch", "Number of the last batch.", last.batch, labels),
            gauge("callboard_pipeline_rows_per_second", "Of that batch.", last.rate, labels),
            gauge("callboard_pipeline_batch_seconds", "Its length.", last.seconds, labels),
            gauge("callboard_pipeline_lag_rows", "Records that wait.", last.lag, labels),
        ]
    return metrics


def listener(name: str, tell: Callable[[Progress], None]) -> Any:
    """Return what Spark calls for each batch of its queries; `tell` gets those of one name."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
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

    return Listener()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
