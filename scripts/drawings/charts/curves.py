"""Curves: throughput, and below it memory, over the sizes of one scale.

All axes are logarithmic; each figure is a line, named above its plot.
"""

from collections.abc import Callable, Sequence
from math import ceil, floor, log, log10
from typing import Any, Final

from scripts.drawings.charts.caption import surroundings
from scripts.drawings.charts.numbers import binary, decimal, short
from scripts.drawings.picture import Picture
from scripts.drawings.picture import short as place

__all__ = ["draw"]

LEFT, PLOT_WIDTH, PLOT_HEIGHT = 70, 436, 150
COLORS: Final = 4
"""Lines of a plot, at most."""
LINES: Final = 6
"""Spaces between the lines of the grid, at most, unless the figures go very far."""
DECIMAL_STEPS: Final = (10, 100, 1000)
BINARY_STEPS: Final = (2, 4, 32, 1024)

Points = Sequence[dict[str, float]]


def draw(report: dict[str, Any], name: str) -> str:
    """Return the chart of one scale of a report.

    A scale has a title, what its sizes count, whether these are written in powers of 1024, and
    points: figures by their names, and `size`. Names that end with `/s` are throughput, those
    that begin with `bytes of` memory. One that is missing at a size is left out.
    """
    scale = report["scales"][name]
    points: Points = scale["points"]
    names = list(dict.fromkeys(each for point in points for each in point if each != "size"))
    picture = Picture(f"{scale['title']}: throughput and memory at each size")
    picture.text(8, 20, f"*{scale['title']}")
    y = 44.0
    for label, shown, unit in (
        (
            "throughput: for each second",
            [each for each in names if each.endswith("/s")],
            decimal,
        ),
        ("memory: bytes", [each for each in names if each.startswith("bytes of ")], binary),
    ):
        if shown:
            picture.text(8, y, label)
            y = _plot(picture, y + 8, scale, shown[:COLORS], unit) + 30
    caption = f"Both axes are logarithmic; each size was measured once. {surroundings(report)}"
    picture.caption(y - 4, f"~{caption}")
    return picture.svg()


def _plot(
    picture: Picture,
    y: float,
    scale: dict[str, Any],
    names: Sequence[str],
    unit: Callable[[float], str],
) -> float:
    """Draw some figures over the sizes, and return where the plot ends."""
    points: Points = scale["points"]
    for number, name in enumerate(names):
        label = name.removesuffix("/s").removeprefix("bytes of ")
        picture.add(f'<circle class="f{number}" r="4" cx="14" cy="{y + 10:g}"/>', y)
        picture.text(24, y + 14.5, f"~{label}")
        y += 18
    top = y + 12
    bottom = top + PLOT_HEIGHT
    sizes = [point["size"] for point in points]
    across = _axis(log10(min(sizes)), log10(max(sizes)), LEFT, PLOT_WIDTH)
    figures = [point[name] for point in points for name in names if point.get(name, 0) > 0]
    grid = grid_lines(figures or [1.0], BINARY_STEPS if unit is binary else DECIMAL_STEPS)
    down = _axis(log10(grid[-1]), log10(grid[0]), top, PLOT_HEIGHT)
    for height in grid:
        at = down(log10(height))
        picture.add(f'<path class="grid" d="M{LEFT} {place(at)}h{PLOT_WIDTH}"/>', bottom)
        picture.text(LEFT - 6, at + 4.5, f"~{unit(height)}", "end")
    for size in sizes:
        told = short(size, scale["is_binary"]).removesuffix("B").strip()
        inside = min(across(log10(size)), 500)  # all of the last one stands on the sheet
        picture.text(inside, bottom + 17, f"~{told}", "middle")
    picture.text(LEFT + PLOT_WIDTH, bottom + 34, f"~{scale['size']}", "end")
    for number, name in enumerate(names):
        corners = [
            (across(log10(point["size"])), down(log10(point[name])))
            for point in points
            if point.get(name, 0) > 0
        ]
        line = " ".join(f"{place(x)},{place(at)}" for x, at in corners)
        picture.add(f'<polyline class="curve s{number}" points="{line}"/>', bottom)
        for x, at in corners:
            picture.add(
                f'<circle class="f{number}" r="3" cx="{place(x)}" cy="{place(at)}"/>', bottom
            )
    return bottom + 34


def grid_lines(figures: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return powers around all figures, of the smallest base that needs few of them."""
    lowest, highest = min(figures), max(figures)
    for base in steps:
        low, high = _powers(lowest, highest, base)
        if high - low <= LINES:
            return [float(base) ** power for power in range(low, high + 1)]
    low, high = _powers(lowest, highest, steps[-1])
    return [float(steps[-1]) ** power for power in range(low, high + 1)]


def _powers(lowest: float, highest: float, base: int) -> tuple[int, int]:
    """Return the powers of a base below and above all figures."""
    low = floor(round(log(lowest, base), 9))
    return low, max(ceil(round(log(highest, base), 9)), low + 1)


def _axis(first: float, last: float, begin: float, length: int) -> Callable[[float], float]:
    """Return where on the picture a place between `first` and `last` is."""
    width = (last - first) or 1.0
    return lambda place: begin + length * (place - first) / width
