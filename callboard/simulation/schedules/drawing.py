"""A schedule as a drawing: a column for each actor and way, a line for each step."""

from collections.abc import Mapping, Sequence
from typing import Final

from callboard.simulation.schedules.steps import NOTHING, TIME, Row

#: Columns that a drawing has at most; with more of them, names stand at the begin of lines.
_LANES: Final = 5

_WIDTH: Final = 30

#: Lines of a drawing at most; the steps before the last ones are left out.
_LINES: Final = 60


def drawing(rows: Sequence[Row]) -> str:
    """Return who got what in which order; `*` marks what came before what usually would."""
    rows = [row for row in rows if row.who != NOTHING]
    lanes = {row.who: len(row.who) for row in rows if row.who != TIME}
    for row in rows:
        if row.who in lanes:
            lanes[row.who] = min(_WIDTH, max(lanes[row.who], len(row.what) + 2))
    shown = rows[-_LINES:]
    head = "".join(f"{name:{width + 3}}" for name, width in lanes.items())
    lines = [" " * 18 + head] if len(lanes) <= _LANES else []
    if len(shown) < len(rows):
        lines.append(f"  … {len(rows) - len(shown)} steps before")
    lines += [_line(row, lanes) for row in shown]
    return "\n".join(line.rstrip() for line in lines)


def _line(row: Row, lanes: Mapping[str, int]) -> str:
    """Return the line of a step."""
    mark = "*" if row.is_deviation else " "
    begin = f"{mark}{row.number:4} {row.when:9.4f} s "
    before = f"   (before {row.could[0]})" if row.is_deviation else ""
    if row.who == TIME:
        return f"{begin} --- {row.what} ---{before}"
    if len(lanes) > _LANES:
        return f"{begin} {row.who:{_WIDTH}} {row.what}{before}"
    line = ""
    for name, width in lanes.items():
        text = f"o {row.what}" if name == row.who else "|"
        text = text if len(text) <= width else f"{text[: width - 1]}…"
        line += f"{text:{width + 3}}"
    return f"{begin} {line.rstrip()}{before}"
