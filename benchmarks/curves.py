"""The picture of one scale, an SVG written by hand: a small plot for each figure.

Both axes are logarithmic. The picture follows the reader's light or dark theme.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from benchmarks.results import spoken

WIDTH, HEIGHT, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 760, 210, 90, 40, 620, 130

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 14px }
  .line { fill: none; stroke: #2563eb; stroke-width: 2 }
  .dot { fill: #2563eb }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  @media (prefers-color-scheme: dark) { text { fill: #d0d7de } .grid { stroke: #3d444d } }
"""

Points = Sequence[dict[str, float]]


def draw(title: str, size: str, points: Points) -> str:
    """Return the picture of one scale."""
    names = [name for name in (points[0] if points else {}) if name != "size"]
    height = HEIGHT * len(names)
    plots = [plot(f"{title}: {name}", size, name, points, n) for n, name in enumerate(names)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(plots) + "\n</svg>\n"
    )


def plot(title: str, size: str, name: str, points: Points, place: int) -> str:
    """Draw one figure over the sizes."""
    top = place * HEIGHT + TOP
    shown = [(log10(point["size"]), log10(max(point[name], 1e-9))) for point in points]
    low_x, high_x = shown[0][0], max(shown[-1][0], shown[0][0] + 1)
    low_y = floor(min(y for _, y in shown))
    high_y = max(ceil(max(y for _, y in shown)), low_y + 1)

    def across(x: float) -> float:
        return LEFT + PLOT_WIDTH * (x - low_x) / (high_x - low_x)

    def down(y: float) -> float:
        return top + PLOT_HEIGHT * (high_y - y) / (high_y - low_y)

    lines = [f'<text class="title" x="8" y="{top - 14}">{escape(title)}</text>']
    for power in range(low_y, high_y + 1):
        y = down(power)
        lines.append(
            f'<path class="grid" d="M{LEFT} {y:.1f}h{PLOT_WIDTH}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{spoken(10**power)}</text>'
        )
    for point, (x, _) in zip(points, shown, strict=True):
        lines.append(
            f'<text x="{across(x):.1f}" y="{top + PLOT_HEIGHT + 18}" text-anchor="middle">'
            f"{point['size']:,.0f}</text>"
        )
    corners = [f"{across(x):.1f},{down(y):.1f}" for x, y in shown]
    dots = [
        f'<circle class="dot" r="3" cx="{across(x):.1f}" cy="{down(y):.1f}"/>' for x, y in shown
    ]
    unit = f'<text x="{LEFT + PLOT_WIDTH}" y="{top + PLOT_HEIGHT + 34}" text-anchor="end">'
    line = " ".join(corners)
    lines.append(f'<polyline class="line" points="{line}"/>')
    return "\n".join([*lines, *dots, f"{unit}{escape(size)}</text>"])
