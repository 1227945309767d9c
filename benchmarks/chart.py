"""The chart of all results, an SVG written by hand: one group of bars for each measure.

Bars are linear within a measure, so lengths may be compared there and only there. The picture
follows the reader's light or dark theme.
"""

from collections.abc import Sequence
from html import escape
from statistics import median

from benchmarks.results import Result, Taken, spoken

WIDTH, LABEL, BAR, ROW, HEADING = 760, 220, 400, 22, 44

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 14px }
  .ours { fill: #2563eb }
  .peer { fill: #9aa4b2 }
  @media (prefers-color-scheme: dark) { text { fill: #d0d7de } .peer { fill: #59636e } }
"""


def draw(results: Sequence[Result]) -> str:
    """Return the chart of all results that have figures."""
    parts: list[str] = []
    top = 0
    for result in results:
        shown = [taken for taken in result.taken if taken.figures]
        if not shown:
            continue
        parts.append(group(result, shown, top))
        top += HEADING + ROW * len(shown)
    top += 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" '
        f'width="{WIDTH}" height="{top}" role="img">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def group(result: Result, shown: Sequence[Taken], top: int) -> str:
    """Draw one measure."""
    measure = result.measure
    better = "more is better" if measure.more_is_better else "less is better"
    heading = escape(f"{measure.title} ({measure.unit}, {better})")
    lines = [f'<text class="title" x="8" y="{top + 30}">{heading}</text>']
    longest = max(median(taken.figures) for taken in shown)
    for row, taken in enumerate(shown):
        lines.append(bar(taken, top + HEADING + row * ROW, longest))
    return "\n".join(lines)


def bar(taken: Taken, y: int, longest: float) -> str:
    """Draw one bar with its name before it and its figure behind it."""
    figure = median(taken.figures)
    length = max(1.0, BAR * figure / longest)
    name = escape(taken.subject.name)
    kind = "peer" if taken.subject.against else "ours"
    return (
        f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{name}</text>'
        f'<rect class="{kind}" x="{LABEL}" y="{y + 2}" '
        f'width="{length:.1f}" height="{ROW - 6}"/>'
        f'<text x="{LABEL + length + 8:.1f}" y="{y + 14}">{spoken(figure)}</text>'
    )
