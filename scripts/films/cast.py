"""Recordings of terminals, in version 2 of asciinema's format: its player plays them too."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from scripts.films.terminal import Row, Terminal

__all__ = ["Cast", "Frame", "thinned"]

Frame = tuple[float, list[Row]]
"""When a picture begins, in seconds, and its lines."""

_CODES: Final = {"b": 1, "d": 2, "r": 7} | {
    color: 30 + number
    for number, color in enumerate(
        ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
    )
}
#: A dashboard's token is secret, and differs from run to run.
_SECRET: Final = re.compile(r"token=[\w-]+")


@dataclass(frozen=True)
class Cast:
    """The output of a program to a terminal, with times.

    Attributes:
        columns: width of the terminal.
        rows: its height.
        title: name of the recording.
        events: seconds since the start, and the text written then.
    """

    columns: int
    rows: int
    title: str
    events: tuple[tuple[float, str], ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file."""
        head, *events = (json.loads(line) for line in path.read_text().splitlines())
        told = tuple((seconds, text) for seconds, kind, text in events if kind == "o")
        return cls(head["width"], head["height"], head["title"], told)

    def write(self, path: Path) -> None:
        """Write a file."""
        head = {
            "version": 2,
            "width": self.columns,
            "height": self.rows,
            "title": self.title,
        }
        lines = [head, *([seconds, "o", text] for seconds, text in self.events)]
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def frames(self) -> Iterator[Frame]:
        """Yield a picture for each event."""
        terminal = Terminal(self.columns, self.rows)
        for seconds, text in self.events:
            terminal.feed(text)
            yield seconds, terminal.shown()


def thinned(cast: Cast, interval: float, longest: float, after: str = "") -> Cast:
    """Return a recording with at most one picture per interval, of lines that changed only.

    Args:
        cast: the recording.
        interval: seconds between two pictures.
        longest: seconds that nothing may happen; a longer rest is shortened to it.
        after: text that must appear first; earlier pictures are omitted, except for the first.
    """
    before: list[Row] = [()] * cast.rows
    events: list[tuple[float, str]] = []
    last = now = 0.0
    first, *others = cast.frames()
    shows = (number for number, (_, rows) in enumerate(others) if after in _text(rows))
    frames = [first, *others[next(shows, 0) :]]
    for number, (seconds, rows) in enumerate(frames):
        following = frames[number + 1][0] if number + 1 < len(frames) else float("inf")
        if following // interval == seconds // interval:
            continue
        changed = "".join(
            _written(number, row)
            for number, (old, row) in enumerate(zip(before, rows, strict=True), 1)
            if old != row
        )
        if changed:
            now += min(seconds - last, longest)
            last = seconds
            events.append((round(now, 2), changed))
            before = rows
    return Cast(cast.columns, cast.rows, cast.title, tuple(events))


def _text(rows: list[Row]) -> str:
    return "\n".join("".join(run.text for run in row) for row in rows)


def _written(number: int, row: Row) -> str:
    """Return what writes a line at its place."""
    parts = [f"\x1b[{number};1H\x1b[0m\x1b[K"]
    for run in row:
        codes = ";".join(str(_CODES[word]) for word in run.look.split())
        text = _SECRET.sub("token=…", run.text)
        parts.append(f"\x1b[{number};{run.column + 1}H\x1b[0m")
        parts.append(f"\x1b[{codes}m{text}" if codes else text)
    return "".join(parts)
