"""The parent's side of the analysis: starts the Spark process, and compares its results.

The same log of flights is evaluated by plain Python, which answers at once, and by Spark.
`make analysis` evaluates a kept log on Spark: `python -m callboard.demo.analysis FOLDER`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from callboard.backoff import is_reached
from callboard.commitlog import CommitLog, LogError, LogReader, Record
from callboard.commitlog.disk import open_plain
from callboard.demo.flights import day
from callboard.demo.flights.day import FlightFindings
from callboard.demo.flights.page import page_of
from callboard.demo.line import start_child
from callboard.demo.result_forwarder import SECONDS_FILE
from callboard.demo.story import ANALYSIS, DemoOptions
from callboard.support.text import printable

#: Environment variable that `make run` sets to "awaited" while it downloads Spark.
AWAITED: Final = "CALLBOARD_SPARK"

#: Environment variable with the folder into which `make run` has the log of flights copied.
KEPT: Final = "CALLBOARD_FLIGHTS"

BARS: Final = "▁▂▃▄▅▆▇█"

#: Minimum seconds of a story with flights; Spark's first results take about fifteen seconds.
SHORTEST: Final = 20.0

#: The part of the story in which the day is replayed; the rest is for the last results.
REPLAY_PART: Final = 0.75

#: Seconds that `make analysis` waits for Spark.
_WAIT_LIMIT: Final = 240.0
_END_LIMIT: Final = 10.0


@dataclass(slots=True)
class AnalysisResult:
    """The result of the analysis.

    Attributes:
        missing: the reason for having no flights; empty if there are some.
        plain: the results of plain Python.
        spark: the results of Spark; None without Spark.
        doubled: windows that Spark published twice.
        without_spark: the reason for having no results of Spark; empty if there are some.
        seconds: the time that plain Python needed.
        driver: a text about a driver of Spark that was killed.
        picture: the path of the page.
    """

    missing: str = ""
    plain: FlightFindings = field(default_factory=FlightFindings)
    spark: FlightFindings | None = None
    doubled: int = 0
    without_spark: str = ""
    seconds: float = 0.0
    driver: str = ""
    picture: str = ""

    def lines(self) -> list[str]:
        """Return the results as lines of text."""
        plain, late = self.plain, self.plain.lateness
        if not plain.windows:
            return ["flights: too few were replayed for an hour to be complete"]
        return [
            *(_row(topic, plain) for topic in sorted(plain.landings)),
            f"flights: {plain.records:,} departures and landings, in {len(plain.windows)}"
            f" windows of an hour; {late.late:,} came more than an hour late, at most"
            f" {late.worst / 3600:.1f} hours",
            self._detection(),
            f"plain Python needed {self.seconds:.2f} s for that",
            self._compared(),
        ]

    def _detection(self) -> str:
        """Return how many of the planted anomalies were found."""
        reported, planted = Counter(self.plain.anomalies), Counter(day.planted())
        right = (reported & planted).total()
        return (
            f"anomalies: {right} of {planted.total()} planted ones found (recall"
            f" {right / planted.total():.0%}), {reported.total()} reported (precision"
            f" {right / max(reported.total(), 1):.0%})"
        )

    def _compared(self) -> str:
        """Return how Spark's results compare with those of plain Python."""
        plain, spark = self.plain, self.spark
        if spark is None:
            return f"no analysis with Spark: {self.without_spark}"
        equal = sum(plain.windows.get(window) == row for window, row in spark.windows.items())
        same = (Counter(plain.anomalies) & Counter(spark.anomalies)).total()
        is_equal = plain.records == spark.records
        text = (
            f"Spark: equal: {equal} of {len(plain.windows)} windows, {same} of"
            f" {len(plain.anomalies)} anomalies; {plain.records:,} in"
            f" {'=' if is_equal else '≠'} {spark.records:,} out"
        )
        wrong = len(spark.windows) - equal + len(spark.anomalies) - same + self.doubled
        if wrong:
            text += f"; {wrong} results DIFFER"
        elif len(spark.windows) < len(plain.windows):
            text += "; the other windows were not there in time"
        else:
            text += ", equal to plain Python"
        return f"{text}; {self.driver}" if self.driver else text

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        spark = self.spark or FlightFindings()
        return {
            "missing": self.missing,
            "flights": self.plain.records,
            "windows": len(self.plain.windows),
            "anomalies": len(self.plain.anomalies),
            "spark": {
                "missing": self.without_spark,
                "flights": spark.records,
                "windows": len(spark.windows),
                "doubled": self.doubled,
            },
            "picture": self.picture,
        }

    def print(self) -> None:
        """Print the lines for the terminal, and the path of the page."""
        if self.missing:
            print(printable(f"no analysis: {self.missing}"), flush=True)  # noqa: T201
            return
        page = f"page: {self.picture or 'its file is not ours to write'}"
        print(printable("\n".join([*self.lines(), page]), allowed="\n"), flush=True)  # noqa: T201


def _row(topic: str, findings: FlightFindings) -> str:
    """Return the median delays of an airport as bars, one for each hour."""
    medians = [window.p50 for (name, _), window in findings.windows.items() if name == topic]
    low, high = min(medians, default=0.0), max(medians, default=0.0)
    span = max(high - low, 1.0)
    bars = "".join(BARS[round((median - low) / span * (len(BARS) - 1))] for median in medians)
    airport = topic.removeprefix(day.FLIGHTS)
    return f"{airport} {bars} median delay of each hour, {low:.0f} to {high:.0f} minutes"


class Analysis:
    """Spark's process; as a context manager, it ends the process."""

    def __init__(self, options: DemoOptions, folder: Path | None = None) -> None:
        """Create the analysis; `folder` has a log of flights already."""
        self._missing = "" if folder else _why_missing(options)
        self._without_spark = _why_without_spark()
        self._options = options
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        #: When the driver is to be killed, was killed, and was back, in monotonic seconds.
        self._kill_from = self._killed_at = self._back_at = 0.0
        self._expected = 0
        #: Texts about the driver that were not displayed yet.
        self.news: list[str] = []

    def __enter__(self) -> Self:
        """Start the process, if Spark is available."""
        os.environ.pop(ANALYSIS, None)
        if self._missing:
            return self
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="callboard-demo-spark-", ignore_cleanup_errors=True
            )
            self._folder = Path(self._temporary.name)
            os.environ[ANALYSIS] = str(self._folder)  # read by the nodes
            CommitLog(self._folder / "flights", sync="none").close()  # Spark may read it first
            (self._folder / SECONDS_FILE).write_text(str(self._options.seconds * REPLAY_PART))
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        os.environ.pop(ANALYSIS, None)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _start(self) -> None:
        """Start the driver of Spark, if there is one."""
        if self._without_spark:
            return
        assert self._folder is not None
        (self._folder / "state.json").unlink(missing_ok=True)
        with (self._folder / "spark.txt").open("ab") as output:
            folders = {"TMPDIR": str(self._folder), "SPARK_LOCAL_DIRS": str(self._folder)}
            self._process = start_child(
                "analysis_process", str(self._folder), errors=output, output=output, **folders
            )

    def kill(self) -> None:
        """Kill the driver of Spark as soon as its queries have read flights."""
        self._kill_from = time.monotonic()

    def state(self) -> dict[str, Any]:
        """Return the last state of the process; empty without one. Restart a killed driver."""
        state = self._read_state()
        if self._process is None or not state:
            return {}
        if self._kill_from and not self._killed_at and state.get("rows"):
            self._killed_at = time.monotonic()
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._end()
            self._start()
            self.news.append("the driver of Spark is killed (SIGKILL), and started again")
        elif self._killed_at and not self._back_at and state["state"] == "runs":
            self._back_at = time.monotonic()
            self.news.append("the driver of Spark continues from its checkpoints")
        return state

    def _read_state(self) -> dict[str, Any]:
        """Return the state that the process has written; empty without Spark."""
        if self._folder is None or self._without_spark:
            return {}
        try:
            state: dict[str, Any] = json.loads((self._folder / "state.json").read_text())
        except (FileNotFoundError, ValueError):
            return {"state": "starts again" if self._killed_at else "starts"}
        return state

    @property
    def is_running(self) -> bool:
        """Whether further results are possible."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_complete(self) -> bool:
        """Whether Spark has published all results of the whole day."""
        assert self._folder is not None
        try:
            if not self._expected:
                log = LogReader(self._folder / "flights")
                if log.end < len(day.load_flights()):
                    return False
                plain = day.evaluate(log)
                self._expected = 2 * len(plain.windows) + len(plain.anomalies)
            return LogReader(self._folder / "results").end >= self._expected
        except LogError:
            return False

    def finish(self) -> AnalysisResult:
        """End the process, and return its results and those of plain Python."""
        reason = self._read_state().get("why", "")
        self._end()
        if self._folder is None:
            return AnalysisResult(missing=self._missing)
        folder, started = self._folder, time.perf_counter()
        result = AnalysisResult(plain=day.evaluate(_records(folder / "flights")))
        result.seconds = time.perf_counter() - started
        if results := _records(folder / "results"):
            result.spark, result.doubled = day.results_of_spark(results)
        late = "it had no result in time, because the machine is busy"
        if KEPT in os.environ:
            late += "; make analysis computes it"
        result.without_spark = "" if results else self._without_spark or reason or late
        if self._back_at:
            lost = self._back_at - self._killed_at
            result.driver = f"its driver was killed, and continued after {lost:.0f} s"
        picture = Path(tempfile.gettempdir()) / "callboard-demo.html"
        with suppress(OSError):  # the path may be a link, or a file of another user
            with open(picture, "w", encoding="utf-8", opener=open_plain) as file:
                file.write(page_of(result.plain, result.lines()))
            result.picture = str(picture)
        if (target := os.environ.get(KEPT)) and not self._options.as_json:
            with suppress(OSError):  # it was kept before
                shutil.copytree(folder / "flights", Path(target) / "flights")
        return result

    def _end(self) -> None:
        """End the process by closing its input, or kill it after a time limit."""
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children are in its group
            process.wait()


def _why_missing(options: DemoOptions) -> str:
    """Return why no flights are replayed; empty if they are."""
    if options.forever:
        return "a day of flights needs a story with an end"
    return f"the story is shorter than {SHORTEST:g} s" if options.seconds < SHORTEST else ""


def _why_without_spark() -> str:
    """Return why there is no Spark; empty if there is."""
    if os.environ.get(AWAITED) == "awaited":  # it may be partly installed
        return "it is being downloaded; make analysis computes the same with it"
    if find_spec("pyspark") is None:
        return "it is not installed: pip install 'callboard[spark]'"
    return ""


def _records(folder: Path) -> list[Record]:
    """Return the records of a log; empty without a log."""
    try:
        return list(LogReader(folder))
    except LogError:
        return []


def main(folder: Path) -> int:
    """Evaluate a kept log of flights on Spark; return the exit code."""
    if not (folder / "flights").is_dir():
        print("there are no flights yet; replay them with: make run")  # noqa: T201
        return 1
    with tempfile.TemporaryDirectory(prefix="callboard-demo-spark-") as temporary:
        copy = Path(temporary)
        shutil.copytree(folder / "flights", copy / "flights")
        with Analysis(DemoOptions(), copy) as analysis:
            is_reached(
                lambda: analysis.is_complete or not analysis.is_running, 0.2, _WAIT_LIMIT
            )
            result = analysis.finish()
    result.print()
    return 1 if result.without_spark else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
