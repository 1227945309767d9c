"""Status of queries: updates for a running query, and reports about other queries."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from callboard.cli.cli_error import CliError
from callboard.cli.options import AccessOptions
from callboard.cli.own_node import TOPIC_NODE
from callboard.commitlog import Cursor, LogError, LogReader
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.progress import (
    TOPICS,
    Delay,
    DeliveryStats,
    Progress,
    QueryStatus,
    StatusFile,
    read_status,
)

if TYPE_CHECKING:
    from callboard.topics.hub import Hub

#: Seconds between updates of a running query's status.
_POLL_SECONDS: Final = 1.0

#: Longest wait for a message from another node, in seconds.
_RECEIVE_SECONDS: Final = 0.1


class LetterCount:
    """Counter of the dead letters that queries add to a log from now on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self._cursor = Cursor(0)
        with suppress(LogError):  # the log is created with its first letter
            self._cursor = Cursor(LogReader(folder).end)

    def of(self, query: str) -> int:
        """Return the number of letters of a query, by its id."""
        with suppress(LogError):
            reading = LogReader(self._folder).read(self._cursor, on_damage=lambda _: None)
            self._counts.update(letter.headers.get("query", "") for letter in reading)
            self._cursor = reading.cursor
        return self._counts[query]


class QueryWatch:
    """Updates the status of a running query each second, in its file and on a topic.

    Attributes:
        query: Id of the query, once it is known.
    """

    def __init__(
        self,
        status: StatusFile,
        log: str,
        *,
        letters: str = "",
        handed: Callable[[], DeliveryStats | None],
        hub: "Hub | None" = None,
    ) -> None:
        """Start updating.

        Args:
            status: The status of the query.
            log: The log that it reads.
            letters: The log of its dead letters, if there is one.
            handed: Returns the delivery counts of results.
            hub: Publishes the status.
        """
        self.query = ""
        self._status = status
        self._log = log
        self._letters = LetterCount(letters) if letters else None
        self._handed = handed
        self._hub = hub
        self._ends = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self, outcome: str = "stopped") -> None:
        """Update once more, and record how the query ended."""
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join()
            self._update()
            self._status.end(outcome)
            self._publish()

    def _run(self) -> None:
        while True:
            self._update()
            self._publish()
            if self._ends.wait(_POLL_SECONDS):
                return

    def _update(self) -> None:
        """Update the measurements; errors of a log are reported by the query itself."""
        now = self._status.status
        delay = delay_of(now, self._log)
        letters = None if self._letters is None else self._letters.of(self.query)
        self._status.record(delay or now.delay, letters, self._handed())

    def _publish(self) -> None:
        if self._hub is not None:
            status = self._status.status
            self._hub.publish_batch((status.topic, row_of(status)))


def delay_of(status: QueryStatus, log: str) -> Delay | None:
    """Return the delay of a query; None if its log cannot be read."""
    with suppress(LogError, InvalidSetting, ValueError):
        watermark = status.last.watermark if status.last else ""
        return Delay.measure(LogReader(log), status.offset, watermark)
    return None


def row_of(status: QueryStatus) -> dict[str, Any]:
    """Return the status of a query as one row of names and values."""
    last = status.last or Progress.parse(status.query, {"batchId": 0})
    delay = status.delay or Delay(last.end, None)
    row = {name: getattr(status, name) for name in _OF_STATUS}
    row |= {name: getattr(last, name) for name in ("batch", "rate", "watermark")}
    row |= {"end": delay.end, "delay": delay.seconds, "event_delay": delay.event_seconds}
    return row | {name: getattr(status.handed, name, None) for name in _OF_RESULTS}


def line_of(row: dict[str, Any]) -> str:
    """Return a row in words."""
    return "".join(text for name, text in _TEXTS if row[name]).format(**row)


_OF_STATUS: Final = (
    *("query", "state", "log", "offset", "lag", "rows", "dropped", "undecodable"),
    *("pid", "host", "started", "updated"),
)
_OF_RESULTS: Final = ("results", "handed", "unheard", "lost", "waiting", "taken", "under_way")
_TEXTS: Final = (
    ("query", "{query}: {state}, batch {batch}, {rows:,} records, {rate:,.0f}/s, {lag:,} wait"),
    ("delay", ", {delay:,.1f} s behind"),
    ("event_delay", ", watermark {event_delay:,.1f} s behind"),
    ("dropped", ", {dropped:,} too late"),
    ("undecodable", ", {undecodable:,} undecodable"),
    ("results", ", results: {handed:,} handed, {unheard:,} unheard, {lost:,} lost"),
    ("results", ", {waiting:,} waiting"),
    ("under_way", ", {under_way:,} under way"),
)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return the status rows of a log of results, with the current delays.

    Raises:
        InvalidSetting: a status file is damaged.
    """
    statuses = read_status(folder)
    return [
        row_of(replace(status, delay=delay_of(status, status.log) or status.delay))
        for status in statuses
    ]


def rows_from(address: str, options: AccessOptions, seconds: float) -> list[dict[str, Any]]:
    """Return the status rows of all queries that run in the cluster of a node.

    Raises:
        CliError: no query reports in time.
    """
    from callboard.topics.hub import Hub
    from callboard.topics.message_queue import MessageQueue

    rows: dict[str, dict[str, Any]] = {}
    with options.open_node(TOPIC_NODE) as node:
        hub, queue = Hub.of(node), MessageQueue[Any]()
        hub.add_receiver(queue, (TOPICS,)).result(seconds + 1.0)
        node.connect(address, max(seconds, 1.0))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            item = queue.get(min(_RECEIVE_SECONDS, left))
            if item is not None and item[0].endswith("/status"):
                if not rows:  # every other query reports within this time
                    deadline = min(deadline, time.monotonic() + 1.5 * _POLL_SECONDS)
                rows[item[0]] = item[1]
    if not rows:
        reason = f"no query reported at {address} within {seconds:g} s"
        raise CliError(why=reason, step="start one with --peer or --listen, or pass the folder")
    return [rows[topic] for topic in sorted(rows)]
