"""The picture of one scale, an SVG written by hand: throughput on its left, memory right.

All axes are logarithmic; a line for each figure, named above its plot. The picture follows the
reader's light or dark theme.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log, log10
from typing import Final

__all__ = ["draw", "short"]

WIDTH: Final = 760
PLOT_WIDTH, PLOT_HEIGHT, TOP = 290, 170, 112
LEFTS: Final = (62, 448)
HEIGHT: Final = TOP + PLOT_HEIGHT + 48
COLORS: Final = ("a", "b", "c", "d")
LINES: Final = 6
"""Spaces between the lines of the grid, at most, unless the figures go very far."""
DECIMAL_STEPS: Final = (10, 100, 1000)
BINARY_STEPS: Final = (2, 4, 32, 1024)

STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title, .head { font-weight: 600 } .title { font-size: 14px }
  .axis { fill: #57606a }
  polyline { fill: none; stroke-width: 2 }
  .grid { stroke: #d0d7de }
  .a { stroke: #2563eb } .b { stroke: #c2410c } .c { stroke: #15803d } .d { stroke: #9333ea }
  circle.a { fill: #2563eb } circle.b { fill: #c2410c }
  circle.c { fill: #15803d } circle.d { fill: #9333ea }
  @media (prefers-color-scheme: dark) {
    text { fill: #d0d7de } .axis { fill: #9198a1 } .grid { stroke: #3d444d }
  }
"""

Points = Sequence[dict[str, float]]


def draw(title: str, size: str, points: Points, *, is_binary: bool = False) -> str:
    """Return the picture of one scale.

    Args:
        title: what grows.
        size: what a size counts.
        points: figures by their names, and `size`; names that end with `/s` are throughput,
            those that begin with `bytes of` memory. One that is missing at a size is left out.
        is_binary: sizes are written in powers of 1024.
    """
    names = list(dict.fromkeys(name for point in points for name in point if name != "size"))
    throughput = [name for name in names if name.endswith("/s")]
    memory = [name for name in names if name.startswith("bytes of ")]
    parts = [f'<text class="title" x="8" y="20">{escape(title)}</text>']
    for left, label, shown, unit in (
        (LEFTS[0], "throughput, for each second", throughput, decimal),
        (LEFTS[1], "memory", memory, binary),
    ):
        parts.append(f'<text class="head" x="{left}" y="42">{label}</text>')
        parts += plot(left, size, shown, points, unit, is_binary=is_binary)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def plot(
    left: int,
    size: str,
    names: Sequence[str],
    points: Points,
    unit: Callable[[float], str],
    *,
    is_binary: bool,
) -> Iterator[str]:
    """Draw some figures over the sizes."""
    sizes = [point["size"] for point in points]
    across = axis(log10(min(sizes)), log10(max(sizes)), left, PLOT_WIDTH)
    figures = [point[name] for point in points for name in names if point.get(name, 0) > 0]
    grid = grid_lines(figures or [1.0], BINARY_STEPS if unit is binary else DECIMAL_STEPS)
    down = axis(log10(grid[-1]), log10(grid[0]), TOP, PLOT_HEIGHT)
    for line in grid:
        y = down(log10(line))
        yield f'<path class="grid" d="M{left} {y:.1f}h{PLOT_WIDTH}"/>'
        yield text(left - 6, y + 4, unit(line), "end")
    for at in sizes:
        shown = short(at, is_binary).removesuffix("B").strip()
        yield text(across(log10(at)), TOP + PLOT_HEIGHT + 18, shown, "middle")
    yield text(left + PLOT_WIDTH, TOP + PLOT_HEIGHT + 36, size, "end")
    for number, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        y = 60 + 15 * number
        yield f'<circle class="{color}" r="4" cx="{left + 4}" cy="{y - 4}"/>'
        yield text(left + 14, y, name.removesuffix("/s").removeprefix("bytes of "), "start")
        corners = [
            (across(log10(point["size"])), down(log10(point[name])))
            for point in points
            if point.get(name, 0) > 0
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        yield f'<polyline class="{color}" points="{line}"/>'
        for x, y in corners:
            yield f'<circle class="{color}" r="3" cx="{x:.1f}" cy="{y:.1f}"/>'


def grid_lines(figures: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return powers around all figures, of the smallest base that needs few of them."""
    for base in steps:
        low = floor(round(log(min(figures), base), 9))
        high = max(ceil(round(log(max(figures), base), 9)), low + 1)
        if high - low <= LINES or base == steps[-1]:
            break
    return [float(base) ** power for power in range(low, high + 1)]


def axis(first: float, last: float, begin: int, length: int) -> Callable[[float], float]:
    """Return where on the picture a place between `first` and `last` is."""
    width = (last - first) or 1.0
    return lambda place: begin + length * (place - first) / width


def text(x: float, y: float, content: str, anchor: str) -> str:
    """Write beside an axis."""
    return (
        f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )


def short(number: float, is_binary: bool = False) -> str:  # noqa: FBT001, FBT002
    """Write a number in few characters: 300, 10 k, or 4 KiB."""
    return binary(number) if is_binary else decimal(number)


def decimal(number: float) -> str:
    """Write a number in powers of 1,000."""
    return scaled(number, 1000, ("", " k", " M", " G", " T"))


def binary(number: float) -> str:
    """Write a number of bytes in powers of 1,024."""
    return scaled(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def scaled(number: float, step: int, units: Sequence[str]) -> str:
    """Write a number with the largest unit that leaves 1 or more."""
    for unit in units[:-1]:
        if number < step * 0.9995:
            return f"{number:.3g}{unit}"
        number /= step
    return f"{number:.3g}{units[-1]}"
