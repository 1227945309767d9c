"""The parent's side of the analysis: starts Spark beside the nodes, and shows what it found."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from callboard.commitlog import LogError, LogReader, Record
from callboard.demo.chart import draw_chart, print_chart
from callboard.demo.options import ANALYSIS, DemoOptions

SHORTEST: Final = 20.0
"""Seconds of a story that Spark has a part in: it takes some fifteen to its first results."""

METRIC: Final = "/metrics/A/cpu"

_SECOND: Final = 10**9
_END_LIMIT: Final = 10.0


@dataclass(slots=True)
class Found:
    """What came out of the analysis.

    Attributes:
        missing: Why there was none; empty if there was one.
        levels: Times in seconds and levels of one metric.
        quantiles: For each window its start, the median and the 99th percentile.
        strange: Times of the anomalies of that metric.
        known: How many anomalies the temperatures have.
        found: How many of the temperatures were taken for anomalies.
        right: How many of these are.
        picture: The chart, as a file.
    """

    missing: str = ""
    levels: list[tuple[float, float]] = field(default_factory=list)
    quantiles: list[tuple[float, float, float]] = field(default_factory=list)
    strange: list[float] = field(default_factory=list)
    known: int = 0
    found: int = 0
    right: int = 0
    picture: str = ""

    @property
    def precision(self) -> float | None:
        """The share of right ones among those that were found."""
        return self.right / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        """The share of known ones that were found."""
        return self.right / self.known if self.known else None

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "missing": self.missing,
            "windows": len(self.quantiles),
            "anomalies": len(self.strange),
            "known": self.known,
            "found": self.found,
            "precision": self.precision,
            "recall": self.recall,
            "picture": self.picture,
        }

    def print(self) -> None:
        """Print the chart for the terminal, and how good the anomalies are."""
        if self.missing:
            print(f"no analysis with Spark: {self.missing}", flush=True)  # noqa: T201
            return
        print_chart(METRIC, self.levels, self.quantiles, self.strange)
        if self.precision is not None and self.recall is not None:
            print(  # noqa: T201
                f"temperatures of San Francisco: {self.found} anomalies found, {self.known} are"
                f" known · precision {self.precision:.2f}, recall {self.recall:.2f}"
            )
        print(f"chart: {self.picture}", flush=True)  # noqa: T201


class Analysis:
    """Spark's process. As a context manager it leaves none behind."""

    def __init__(self, options: DemoOptions) -> None:
        self._missing = _why_missing(options)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, where it can be had."""
        os.environ.pop(ANALYSIS, None)
        if self._missing:
            return self
        self._folder = tempfile.TemporaryDirectory(
            prefix="callboard-demo-spark-", ignore_cleanup_errors=True
        )
        os.environ[ANALYSIS] = self._folder.name  # the nodes see it too
        with (Path(self._folder.name) / "spark.txt").open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603  # this very interpreter, no shell
                [sys.executable, "-m", "callboard.demo.analysis_process", self._folder.name],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=_environment(self._folder.name),
                process_group=0,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        os.environ.pop(ANALYSIS, None)
        if self._folder is not None:
            self._folder.cleanup()

    def state(self) -> dict[str, Any]:
        """Return what the process told last; empty where there is none."""
        if self._folder is None:
            return {}
        try:
            told: dict[str, Any] = json.loads(Path(self._folder.name, "state.json").read_text())
        except (FileNotFoundError, ValueError):
            return {"state": "starts"}
        return told

    @property
    def is_running(self) -> bool:
        """Whether results may still come."""
        return self._process is not None and self._process.poll() is None

    def finish(self) -> Found:
        """End the process, and return what it found."""
        self._end()
        if self._folder is None:
            return Found(missing=self._missing)
        if why := self.state().get("why"):
            return Found(missing=why)
        folder = Path(self._folder.name)
        results = _records(folder / "results")
        if not results:
            return Found(missing="it had no result in time; the machine may be busy")
        found = _evaluate(results, _records(folder / "metrics"))
        picture = Path(tempfile.gettempdir()) / "callboard-demo.png"
        draw_chart(picture, METRIC, found.levels, found.quantiles, found.strange)
        found.picture = str(picture)
        return found

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            _kill_all(process)


def _why_missing(options: DemoOptions) -> str:
    if options.forever or options.seconds < SHORTEST:
        return f"the story is shorter than {SHORTEST:g} s" if not options.forever else "no end"
    if find_spec("pyspark") is None:
        return "it is not installed: pip install 'callboard[spark]'"
    return ""


def _evaluate(results: Sequence[Record], metrics: Sequence[Record]) -> Found:
    """Read the chart's lines out of the logs, and compare anomalies with the known ones."""
    from callboard.pipeline.temperatures import load_temperatures  # late: the nodes go first

    known = {each.time for each in load_temperatures() if each.is_anomaly}
    found = {each.time for each in results if each.topic.startswith("/anomalies/temperatures")}
    windows = {
        each.payload["start"].timestamp(): each.payload
        for each in results
        if each.topic == f"/quantiles{METRIC}"
    }
    return Found(
        levels=[
            (each.time / _SECOND, float(each.payload[1]))
            for each in metrics
            if each.topic == METRIC
        ],
        quantiles=[(start, row["p50"], row["p99"]) for start, row in sorted(windows.items())],
        strange=[
            each.time / _SECOND for each in results if each.topic == f"/anomalies{METRIC}"
        ],
        known=len(known),
        found=len(found),
        right=len(known & found),
    )


def _records(folder: Path) -> list[Record]:
    try:
        return list(LogReader(folder))
    except LogError:
        return []


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of the process: this callboard, and a folder for all its files."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": root if not known else root + os.pathsep + known,
        "TMPDIR": folder,
        "SPARK_LOCAL_DIRS": folder,
    }


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started, which is in its group."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
