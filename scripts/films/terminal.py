"""A terminal's screen: the part of ECMA-48 that our programs use."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["Row", "Run", "Terminal"]

_TOKEN: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
_COLORS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MARKS: Final = {1: "b", 2: "d", 7: "r"}
_ALTERNATE: Final = "?1049"


class Run(NamedTuple):
    """Neighboring cells of one look.

    Attributes:
        column: of the first cell.
        text: one letter for each cell.
        look: classes, with spaces between: a color, `b` bold, `d` dim, `r` reversed.
    """

    column: int
    text: str
    look: str


Row = tuple[Run, ...]
"""A line of the screen, without the blanks at its end."""

_Cell = tuple[str, str]
_BLANK: Final[_Cell] = (" ", "")


class Terminal:
    """A screen of a fixed size, with the alternate screen that full-screen programs use."""

    def __init__(self, columns: int, rows: int) -> None:
        """Start with an empty screen."""
        self.columns, self.rows = columns, rows
        self._screen = self._empty()
        self._kept = self._empty()
        self._place = (0, 0)
        self._kept_place = (0, 0)
        self._style: frozenset[str] = frozenset()

    def feed(self, text: str) -> None:
        """Take what a program wrote; a sequence must not be cut in two."""
        for sequence, verb, control, plain in _TOKEN.findall(text):
            if verb:
                self._obey(sequence, verb)
            elif control == "\r":
                self._place = (self._place[0], 0)
            elif control == "\n":
                self._down()
            else:
                for letter in plain:
                    self._put(letter)

    def shown(self) -> list[Row]:
        """Return the lines of the screen."""
        return [tuple(_runs(cells)) for cells in self._screen]

    def _empty(self) -> list[list[_Cell]]:
        return [[_BLANK] * self.columns for _ in range(self.rows)]

    def _put(self, letter: str) -> None:
        row, column = self._place
        if column == self.columns:
            self._place = (row, 0)
            self._down()
            row, column = self._place
        self._screen[row][column] = (letter, " ".join(sorted(self._style)))
        self._place = (row, column + 1)

    def _down(self) -> None:
        row, column = self._place
        if row + 1 < self.rows:
            self._place = (row + 1, column)
        else:
            self._screen = [*self._screen[1:], [_BLANK] * self.columns]

    def _obey(self, sequence: str, verb: str) -> None:
        if verb == "m":
            for code in sequence.split(";"):
                self._paint(int(code or 0))
        elif verb == "H":
            row, column = (int(part) for part in (sequence or "1;1").split(";"))
            self._place = (row - 1, column - 1)
        elif verb == "K":
            row, column = self._place
            self._screen[row][column:] = [_BLANK] * (self.columns - column)
        elif sequence == _ALTERNATE and verb == "h":
            self._kept, self._kept_place = self._screen, self._place
            self._screen = self._empty()
        elif sequence == _ALTERNATE:
            self._screen, self._place = self._kept, self._kept_place

    def _paint(self, code: int) -> None:
        if code == 0:
            self._style = frozenset()
        elif code in _MARKS:
            self._style |= {_MARKS[code]}
        elif 30 <= code < 38:
            self._style = self._style - {*_COLORS} | {_COLORS[code - 30]}


def _runs(cells: list[_Cell]) -> Iterator[Run]:
    """Join neighbors that look alike; blanks between them join anything."""
    end = len(cells)
    while end and cells[end - 1] == _BLANK:
        end -= 1
    begin = 0
    for column in range(1, end + 1):
        if column == end or cells[column][1] != cells[begin][1]:
            text = "".join(letter for letter, _ in cells[begin:column])
            if text.strip() or "r" in cells[begin][1].split():
                yield Run(begin, text, cells[begin][1])
            begin = column
