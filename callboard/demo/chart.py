"""One metric with its quantiles and anomalies: as lines for a terminal, and as a picture."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 64
"""Columns of the chart in a terminal."""

SIZE: Final = (960, 360)
_MARGIN: Final = 24

Color = tuple[int, int, int]
_PAPER: Final[Color] = (255, 255, 255)
_GRID: Final[Color] = (225, 228, 232)
_LEVEL: Final[Color] = (140, 160, 180)
_MEDIAN: Final[Color] = (20, 90, 200)
_HIGH: Final[Color] = (230, 140, 20)
_STRANGE: Final[Color] = (210, 30, 40)

Levels = Sequence[tuple[float, float]]
Quantiles = Sequence[tuple[float, float, float]]


def print_chart(
    title: str, levels: Levels, quantiles: Quantiles, strange: Sequence[float]
) -> None:
    """Print level, median and 99th percentile as bars over time, and where anomalies are."""
    for line in chart_lines(title, levels, quantiles, strange):
        print(line, flush=True)  # noqa: T201


def chart_lines(
    title: str, levels: Levels, quantiles: Quantiles, strange: Sequence[float]
) -> list[str]:
    """Return the chart as lines of text."""
    if not levels:
        return [f"{title}: no records"]
    scale = _Scale(levels, WIDTH - 1, len(BARS) - 1)
    rows = {
        "level": levels,
        "p50": [(start, median) for start, median, _ in quantiles],
        "p99": [(start, high) for start, _, high in quantiles],
    }
    lines = [f"{title}: {scale.low:.0f} to {scale.high:.0f}, {scale.seconds:.0f} s"]
    for name, points in rows.items():
        cells = [" "] * WIDTH
        for time, value in points:
            x, y = scale.place(time, value)
            cells[x] = BARS[y]
        if name != "level":
            cells = _filled(cells)
        lines.append(f"{name:>9} {''.join(cells)}")
    marks = [" "] * WIDTH
    for time in strange:
        marks[scale.place(time, scale.low)[0]] = "!"
    lines.append(f"{'anomalies':>9} {''.join(marks)} {len(strange)}")
    return lines


def draw_chart(
    path: Path, title: str, levels: Levels, quantiles: Quantiles, strange: Sequence[float]
) -> None:
    """Write the chart as a PNG: level gray, median blue, 99th percentile orange, anomalies red.

    The title goes into the file's text, where viewers show it.
    """
    canvas = Canvas(*SIZE)
    width, height = SIZE[0] - 2 * _MARGIN, SIZE[1] - 2 * _MARGIN
    for part in range(5):
        y = _MARGIN + height * part // 4
        canvas.line((_MARGIN, y), (_MARGIN + width, y), _GRID)
    if levels:
        scale = _Scale(levels, width, height)
        ends = [start for start, _, _ in quantiles[1:]] + [levels[-1][0]]
        canvas.curve([_on(canvas, scale, *point) for point in levels], _LEVEL)
        for (start, median, high), end in zip(quantiles, ends, strict=False):
            for value, color in ((median, _MEDIAN), (high, _HIGH)):
                left, right = _on(canvas, scale, start, value), _on(canvas, scale, end, value)
                for shift in (0, 1):
                    canvas.line((left[0], left[1] + shift), (right[0], right[1] + shift), color)
        at = dict(levels)
        for time in strange:
            canvas.dot(_on(canvas, scale, time, at.get(time, scale.low)), _STRANGE)
    path.write_bytes(canvas.png(title))


def _on(canvas: "Canvas", scale: "_Scale", time: float, value: float) -> tuple[int, int]:
    x, y = scale.place(time, value)
    return _MARGIN + x, canvas.height - _MARGIN - y


def _filled(cells: list[str]) -> list[str]:
    """Return a row in which each value stays until the next one."""
    last, found = " ", []
    for cell in cells:
        last = last if cell == " " else cell
        found.append(last)
    return found


class _Scale:
    """Where times and values are on a surface."""

    def __init__(self, levels: Levels, width: int, height: int) -> None:
        times, values = [time for time, _ in levels], [value for _, value in levels]
        self.first, self.seconds = min(times), max(max(times) - min(times), 1e-9)
        self.low, self.high = min(values), max(values)
        self._width, self._height = width, height

    def place(self, time: float, value: float) -> tuple[int, int]:
        """Return column and height of a point, both from 0 and inside."""
        across = min(max((time - self.first) / self.seconds, 0.0), 1.0)
        span = max(self.high - self.low, 1e-9)
        up = min(max((value - self.low) / span, 0.0), 1.0)
        return round(across * self._width), round(up * self._height)


class Canvas:
    """A picture of points with three colors each."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(_PAPER) * width) for _ in range(height)]

    def point(self, x: int, y: int, color: Color) -> None:
        """Color a point; one outside is left out."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self._rows[y][3 * x : 3 * x + 3] = bytes(color)

    def line(self, begin: tuple[int, int], end: tuple[int, int], color: Color) -> None:
        """Draw a straight line."""
        (x0, y0), (x1, y1) = begin, end
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
            self.point(round(x), round(y), color)

    def curve(self, points: Sequence[tuple[int, int]], color: Color) -> None:
        """Draw lines from point to point."""
        for begin, end in zip(points, points[1:], strict=False):
            self.line(begin, end, color)

    def dot(self, center: tuple[int, int], color: Color, size: int = 3) -> None:
        """Draw a filled square around a point."""
        for y in range(-size, size + 1):
            for x in range(-size, size + 1):
                self.point(center[0] + x, center[1] + y, color)

    def png(self, title: str) -> bytes:
        """Return the picture in PNG (https://www.w3.org/TR/png-3/), 8 bits for each color."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        data = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        text = b"Title\0" + title.encode("latin-1", "replace")
        chunks = ((b"IHDR", header), (b"tEXt", text), (b"IDAT", data), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body))
            + kind
            + body
            + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
