"""A sequence chart: who tells whom what, from top to bottom."""

from typing import Final

from scripts.drawings.picture import LINE, Picture, measured

__all__ = ["Sequence"]

STEP: Final = 40
"""From one message to the next."""


class Sequence:
    """Lifelines of some parties on a sheet, and messages between them.

    Attributes:
        y: Where the next thing begins.
    """

    def __init__(self, picture: Picture, places: dict[str, float], y: float = 8) -> None:
        """Draw the heads of the parties.

        Args:
            picture: the sheet.
            places: the middle of each party, by its name; the text after a `/` goes on a second
            line.
            y: the top.
        """
        self._picture = picture
        self._places = {name.partition("/")[0]: x for name, x in places.items()}
        height = 16 + LINE * max(name.count("/") + 1 for name in places)
        for name, x in places.items():
            first, *rest = name.split("/")
            lines = [f"*{first}", *(f"~{line}" for line in rest)]
            width = max(96.0, *(measured(line) + 16 for line in lines))
            picture.box(x - width / 2, y, width, height, *lines, kind="blue")
        self._top = y + height
        self.y = self._top + 24

    def message(
        self, sender: str, receiver: str, line: str, *, kind: str = "", is_lost: bool = False
    ) -> None:
        """Draw an arrow from a party to another, with a text above it."""
        begin, end = self._places[sender], self._places[receiver]
        self._picture.text((begin + end) / 2, self.y - 6, line, "middle")
        if is_lost:
            end = begin + 0.62 * (end - begin)
            self._picture.line((begin, self.y), (end, self.y), kind=kind)
            self._picture.cross(end, self.y)
        else:
            side = 2 if end > begin else -2
            self._picture.arrow((begin, self.y), (end - side, self.y), kind=kind)
        self.y += STEP

    def note(self, party: str, *lines: str, kind: str = "box") -> None:
        """Put a box on a lifeline, with what happens there."""
        width = max(measured(line) for line in lines) + 20
        height = LINE * len(lines) + 10
        x = min(max(self._places[party], width / 2 + 1), self._picture.width - width / 2 - 1)
        self.y -= 14
        self._picture.box(x - width / 2, self.y, width, height, *lines, kind=kind)
        self.y += height + 30

    def end(self) -> None:
        """Draw the lifelines, below everything else."""
        for x in self._places.values():
            way = f"M{x:g} {self._top:g}V{self.y - 16:g}"
            self._picture.behind(f'<path class="l dash" d="{way}"/>', self.y - 16)
