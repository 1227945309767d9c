"""Drawing of a schedule: a column for each actor and connection, a line for each step."""

from collections.abc import Mapping, Sequence
from typing import Final

from callboard.simulation.schedules.steps import NOTHING, TIME, Row

#: Maximum columns of a drawing; with more, each line starts with the name instead.
_LANES: Final = 5

_WIDTH: Final = 30

#: Maximum lines of a drawing; earlier steps are left out.
_LINES: Final = 60


def drawing(rows: Sequence[Row]) -> str:
    """Draw the steps in their order; `*` marks deviations from the usual order."""
    rows = [row for row in rows if row.who != NOTHING]
    lanes = {row.who: len(row.who) for row in rows if row.who != TIME}
    for row in rows:
        if row.who in lanes:
            lanes[row.who] = min(_WIDTH, max(lanes[row.who], len(row.what) + 2))
    visible = rows[-_LINES:]
    head = "".join(f"{name:{width + 3}}" for name, width in lanes.items())
    lines = [" " * 18 + head] if len(lanes) <= _LANES else []
    if len(visible) < len(rows):
        lines.append(f"  … {len(rows) - len(visible)} steps before")
    lines += [_line(row, lanes) for row in visible]
    return "\n".join(line.rstrip() for line in lines)


def _line(row: Row, lanes: Mapping[str, int]) -> str:
    """Format a step as a line."""
    mark = "*" if row.is_deviation else " "
    prefix = f"{mark}{row.number:4} {row.when:9.4f} s "
    expected = f"   (before {row.could[0]})" if row.is_deviation else ""
    if row.who == TIME:
        return f"{prefix} --- {row.what} ---{expected}"
    if len(lanes) > _LANES:
        return f"{prefix} {row.who:{_WIDTH}} {row.what}{expected}"
    line = ""
    for name, width in lanes.items():
        text = f"o {row.what}" if name == row.who else "|"
        text = text if len(text) <= width else f"{text[: width - 1]}…"
        line += f"{text:{width + 3}}"
    return f"{prefix} {line.rstrip()}{expected}"
