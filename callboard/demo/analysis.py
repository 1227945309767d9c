"""The parent's side of the analysis: starts the Spark process, and displays its results."""

import html
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from callboard.commitlog import LogError, LogReader, Record
from callboard.commitlog.disk import open_plain
from callboard.demo.line import start_child
from callboard.demo.story import ANALYSIS, DemoOptions
from callboard.support.text import printable

#: Environment variable that `make run` sets to "awaited" while it downloads Spark.
AWAITED: Final = "CALLBOARD_SPARK"

BARS: Final = "▁▂▃▄▅▆▇█"
#: Columns of the chart in a terminal.
WIDTH: Final = 64

SIZE: Final = (960, 360)
_MARGIN: Final = 24


def _filled(cells: list[str]) -> list[str]:
    """Return a row in which each value is repeated until the next one."""
    last, filled = " ", []
    for cell in cells:
        last = last if cell == " " else cell
        filled.append(last)
    return filled


class _Scale:
    """Maps times and values to coordinates."""

    def __init__(self, levels: Sequence[tuple[float, float]], width: int, height: int) -> None:
        times, values = [time for time, _ in levels], [value for _, value in levels]
        self.first, self.seconds = min(times), max(max(times) - min(times), 1e-9)
        self.low, self.high = min(values), max(values)
        self._width, self._height = width, height

    def place(self, time: float, value: float) -> tuple[int, int]:
        """Return column and height of a point, both within the surface."""
        across = min(max((time - self.first) / self.seconds, 0.0), 1.0)
        span = max(self.high - self.low, 1e-9)
        up = min(max((value - self.low) / span, 0.0), 1.0)
        return round(across * self._width), round(up * self._height)


#: Minimum seconds of a story with Spark, whose first results take about fifteen seconds.
SHORTEST: Final = 20.0

METRIC: Final = "/metrics/A/cpu"

_SECOND: Final = 10**9
_END_LIMIT: Final = 10.0


@dataclass(slots=True)
class AnalysisResult:
    """The result of the analysis.

    Attributes:
        missing: why there is no result; empty if there is one.
        levels: times in seconds, and levels of one metric.
        quantiles: the start, the median and the 99th percentile of each window.
        strange: times of the anomalies of that metric.
        picture: the path of a page with the chart.
        title: title of the chart.
    """

    missing: str = ""
    levels: list[tuple[float, float]] = field(default_factory=list)
    quantiles: list[tuple[float, float, float]] = field(default_factory=list)
    strange: list[float] = field(default_factory=list)
    picture: str = ""
    title: str = METRIC

    def lines(self) -> list[str]:
        """Return the chart as lines of text."""
        if not self.levels:
            return [f"{self.title}: no records"]
        scale = _Scale(self.levels, WIDTH - 1, len(BARS) - 1)
        rows = {
            "level": self.levels,
            "p50": [(start, median) for start, median, _ in self.quantiles],
            "p99": [(start, high) for start, _, high in self.quantiles],
        }
        lines = [f"{self.title}: {scale.low:.0f} to {scale.high:.0f}, {scale.seconds:.0f} s"]
        for name, points in rows.items():
            cells = [" "] * WIDTH
            for time, value in points:
                x, y = scale.place(time, value)
                cells[x] = BARS[y]
            if name != "level":
                cells = _filled(cells)
            lines.append(f"{name:>9} {''.join(cells)}")
        marks = [" "] * WIDTH
        for time in self.strange:
            marks[scale.place(time, scale.low)[0]] = "!"
        lines.append(f"{'anomalies':>9} {''.join(marks)} {len(self.strange)}")
        return lines

    def page(self) -> str:
        """Return the chart as an HTML page.

        The level is gray, the median blue, the 99th percentile orange; anomalies are red dots.
        """
        width, height = SIZE
        drawing = "\n".join(self._shapes(width, height) if self.levels else [])
        name = html.escape(self.title)
        return (
            f'<!doctype html><meta charset="utf-8"><title>{name}</title><h1>{name}</h1>\n'
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n'
            f"{drawing}\n</svg>\n"
        )

    def _shapes(self, width: int, height: int) -> Iterator[str]:
        """Yield the curves and dots of the page."""
        scale = _Scale(self.levels, width - 2 * _MARGIN, height - 2 * _MARGIN)

        def point(time: float, value: float) -> tuple[int, int]:
            x, y = scale.place(time, value)
            return _MARGIN + x, height - _MARGIN - y

        def curve(points: Iterable[tuple[float, float]], color: str) -> str:
            coordinates = " ".join("{},{}".format(*point(*pair)) for pair in points)
            return f'<polyline points="{coordinates}" stroke="{color}" fill="none"/>'

        yield curve(self.levels, "#8ca0b4")
        ends = [start for start, _, _ in self.quantiles[1:]] + [self.levels[-1][0]]
        for (start, median, high), end in zip(self.quantiles, ends, strict=False):
            for value, color in ((median, "#145ac8"), (high, "#e68c14")):
                yield curve([(start, value), (end, value)], color)
        level_at = dict(self.levels)
        for time in self.strange:
            x, y = point(time, level_at.get(time, scale.low))
            yield f'<circle cx="{x}" cy="{y}" r="4" fill="#d21e28"/>'

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "missing": self.missing,
            "windows": len(self.quantiles),
            "anomalies": len(self.strange),
            "picture": self.picture,
        }

    def print(self) -> None:
        """Print the chart for the terminal, and the path of its page."""
        if self.missing:
            print(printable(f"no analysis with Spark: {self.missing}"), flush=True)  # noqa: T201
            return
        text = "\n".join(
            [*self.lines(), f"chart: {self.picture or 'its file is not ours to write'}"]
        )
        print(printable(text, allowed="\n"), flush=True)  # noqa: T201


class Analysis:
    """Spark's process; as a context manager, it ends the process."""

    def __init__(self, options: DemoOptions) -> None:
        self._missing = _why_missing(options)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the process, if Spark is available."""
        os.environ.pop(ANALYSIS, None)
        if self._missing:
            return self
        self._folder = tempfile.TemporaryDirectory(
            prefix="callboard-demo-spark-", ignore_cleanup_errors=True
        )
        folder = os.environ[ANALYSIS] = self._folder.name  # read by the nodes, too
        with (Path(folder) / "spark.txt").open("wb") as output:
            folders = {"TMPDIR": folder, "SPARK_LOCAL_DIRS": folder}
            self._process = start_child(
                "analysis_process", folder, errors=output, output=output, **folders
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        os.environ.pop(ANALYSIS, None)
        if self._folder is not None:
            self._folder.cleanup()

    def state(self) -> dict[str, Any]:
        """Return the last state of the process; empty without one."""
        if self._folder is None:
            return {}
        try:
            state: dict[str, Any] = json.loads(
                Path(self._folder.name, "state.json").read_text()
            )
        except (FileNotFoundError, ValueError):
            return {"state": "starts"}
        return state

    @property
    def is_running(self) -> bool:
        """Whether further results are possible."""
        return self._process is not None and self._process.poll() is None

    def finish(self) -> AnalysisResult:
        """End the process, and return its result."""
        self._end()
        if self._folder is None:
            return AnalysisResult(missing=self._missing)
        if reason := self.state().get("why"):
            return AnalysisResult(missing=reason)
        folder = Path(self._folder.name)
        results = _records(folder / "results")
        if not results:
            return AnalysisResult(missing="it had no result in time; the machine may be busy")
        result = _evaluate(results, _records(folder / "metrics"))
        picture = Path(tempfile.gettempdir()) / "callboard-demo.html"
        with suppress(OSError):  # the path may be a link, or a file of another user
            with open(picture, "w", encoding="utf-8", opener=open_plain) as file:
                file.write(result.page())
            result.picture = str(picture)
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
    """Return why there is no analysis; empty if there is one."""
    if options.forever or options.seconds < SHORTEST:
        return f"the story is shorter than {SHORTEST:g} s" if not options.forever else "no end"
    if os.environ.get(AWAITED) == "awaited":  # it may be partly installed
        return "it is being fetched; the next run has it"
    if find_spec("pyspark") is None:
        return "it is not installed: pip install 'callboard[spark]'"
    return ""


def _evaluate(results: Sequence[Record], metrics: Sequence[Record]) -> AnalysisResult:
    """Compute the chart's data from the logs."""
    windows = {
        record.payload["start"].timestamp(): record.payload
        for record in results
        if record.topic == f"/quantiles{METRIC}"
    }
    return AnalysisResult(
        levels=[
            (record.time / _SECOND, float(record.payload[1]))
            for record in metrics
            if record.topic == METRIC
        ],
        quantiles=[(start, row["p50"], row["p99"]) for start, row in sorted(windows.items())],
        strange=[
            record.time / _SECOND for record in results if record.topic == f"/anomalies{METRIC}"
        ],
    )


def _records(folder: Path) -> list[Record]:
    """Return the records of a log; empty without a log."""
    try:
        return list(LogReader(folder))
    except LogError:
        return []
