"""A sheet on which boxes, arrows and texts are put; it becomes an SVG in light and dark.

Sizes are in pixels. A sheet is at most some 520 wide, so that its text can be read on a phone.
Texts are measured by a table of widths that is on the safe side of common fonts, and one that
does not fit into its box is an error: no picture is written in which a text runs over an edge.

A line of text may begin with a mark: `*` bold, `~` small and soft, `` ` `` code.
"""

from collections.abc import Iterator
from html import escape
from math import hypot
from typing import Final

__all__ = ["DoesNotFitError", "Picture"]

Point = tuple[float, float]

LINE: Final = 18
"""Height of a line of text."""

_LIGHT: Final = (
    "--ink:#1f2328;--soft:#57606a;--line:#6e7781;--box:#f3f5f7;--edge:#afb8c1;"
    "--blue:#0969da;--blue-box:#ddf0ff;--warm:#bc4c00;--warm-box:#ffeede;"
    "--green:#1a7f37;--green-box:#dcf7e3;--grid:#d8dee4;--violet:#8250df"
)
_DARK: Final = (
    "--ink:#e6edf3;--soft:#9da7b1;--line:#8b949e;--box:#1d242c;--edge:#4b535d;"
    "--blue:#58a6ff;--blue-box:#10294a;--warm:#f0883e;--warm-box:#3a2113;"
    "--green:#3fb950;--green-box:#12301c;--grid:#30363d;--violet:#bc8cff"
)
# The first two are for the file alone, the others for a page with its own switch (furo).
_STYLE: Final = f"""
.cb{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{.cb{{{_DARK}}}}}
body[data-theme=light] .cb{{{_LIGHT}}}
body[data-theme=dark] .cb{{{_DARK}}}
.cb text{{font:14px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}}
.cb .b{{font-weight:600}}
.cb .s{{font-size:12.5px;fill:var(--soft)}}
.cb .c{{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
.cb .box{{fill:var(--box);stroke:var(--edge)}}
.cb .blue{{fill:var(--blue-box);stroke:var(--blue)}}
.cb .warm{{fill:var(--warm-box);stroke:var(--warm)}}
.cb .green{{fill:var(--green-box);stroke:var(--green)}}
.cb .group{{fill:none;stroke:var(--edge);stroke-dasharray:5 4}}
.cb .l{{fill:none;stroke:var(--line);stroke-width:1.5}}
.cb .h{{fill:var(--line)}}
.cb .l.blue{{fill:none;stroke:var(--blue)}}
.cb .h.blue{{fill:var(--blue);stroke:none}}
.cb .l.warm{{fill:none;stroke:var(--warm)}}
.cb .h.warm{{fill:var(--warm);stroke:none}}
.cb .l.green{{fill:none;stroke:var(--green)}}
.cb .h.green{{fill:var(--green);stroke:none}}
.cb .dash{{stroke-dasharray:5 4}}
.cb .grid{{stroke:var(--grid);fill:none}}
.cb .range{{stroke:var(--ink);fill:none}}
.cb .s0{{stroke:var(--blue)}} .cb .s1{{stroke:var(--warm)}}
.cb .s2{{stroke:var(--green)}} .cb .s3{{stroke:var(--violet)}}
.cb .curve{{fill:none;stroke-width:2}}
.cb .f0{{fill:var(--blue)}} .cb .f1{{fill:var(--warm)}}
.cb .f2{{fill:var(--green)}} .cb .f3{{fill:var(--violet)}}
.cb .peer{{fill:var(--edge)}}
"""

_MARKS: Final = {"*": "b", "~": "s", "`": "c"}
_NARROW: Final = frozenset("iljtfrI.,:;|!'()[] /")
_WIDE: Final = frozenset("mwMW@%—→←…")


class DoesNotFitError(ValueError):
    """A text is wider than what it stands in."""


class Picture:
    """A sheet that shapes are added to.

    Attributes:
        width: of the sheet.
        title: description of the picture, for readers who cannot see it.
    """

    def __init__(self, title: str, width: int = 520) -> None:
        """Start with an empty sheet."""
        self.width, self.title = width, title
        self._parts: list[str] = []
        self._bottom = 0.0

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """Put a box with centered lines of text.

        Raises:
            DoesNotFitError: a line is wider than the box, or there are too many.
        """
        if len(lines) * LINE > height + 2:
            message = f"{len(lines)} lines do not fit into {height}: {lines}"
            raise DoesNotFitError(message)
        self._rectangle(x, y, width, height, kind)
        top = y + (height - LINE * len(lines)) / 2
        for number, line in enumerate(lines):
            if measured(line) > width - 8:
                message = f"{line!r} takes {measured(line):.0f}, its box has {width - 8}"
                raise DoesNotFitError(message)
            self.text(x + width / 2, top + LINE * number + 13.5, line, "middle")

    def group(self, x: float, y: float, width: float, height: float, label: str) -> None:
        """Put a dashed frame around what stands together, with its name inside the top."""
        self._rectangle(x, y, width, height, "group")
        self.text(x + 10, y + 18, label)

    def text(self, x: float, y: float, line: str, anchor: str = "start") -> None:
        """Write a line; `y` is its baseline.

        Raises:
            DoesNotFitError: it leaves the sheet.
        """
        width = measured(line)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if left < -0.5 or left + width > self.width + 0.5:
            message = f"{line!r} goes from {left:.0f} to {left + width:.0f} of {self.width}"
            raise DoesNotFitError(message)
        content, kind = marked(line)
        attributes = f' class="{kind}"' if kind else ""
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        self._bottom = max(self._bottom, y + 5)
        self._parts.append(
            f'<text x="{short(x)}" y="{short(y)}"{attributes}>{escape(content)}</text>'
        )

    def lines(self, x: float, y: float, *lines: str, anchor: str = "start") -> None:
        """Write lines below each other; `y` is the baseline of the first."""
        for number, line in enumerate(lines):
            self.text(x, y + LINE * number, line, anchor)

    def caption(self, y: float, *paragraphs: str) -> None:
        """Write paragraphs over the whole width, broken into lines; `y` is the first baseline.

        Each line of a paragraph has the mark of its begin.
        """
        for paragraph in paragraphs:
            content, kind = marked(paragraph)
            mark = paragraph[: len(paragraph) - len(content)] if kind else ""
            for line in wrapped(content, self.width - 16, mark):
                self.text(8, y, line)
                y += LINE
            y += 3

    def arrow(self, *points: Point, kind: str = "", both: bool = False) -> None:
        """Draw a line through points, with a head at its end, or at both ends."""
        self.line(*points, kind=kind)
        self._head(points[-2], points[-1], kind)
        if both:
            self._head(points[1], points[0], kind)

    def line(self, *points: Point, kind: str = "") -> None:
        """Draw a line through points."""
        way = "L".join(f"{short(x)} {short(y)}" for x, y in points)
        self.add(f'<path class="{f"l {kind}".strip()}" d="M{way}"/>', max(y for _, y in points))

    def cross(self, x: float, y: float) -> None:
        """Mark a place where something is lost or cut."""
        self.add(
            f'<path class="l warm" d="M{short(x - 6)} {short(y - 6)}l12 12m0 -12l-12 12"/>', y
        )

    def add(self, element: str, bottom: float) -> None:
        """Add an element as it stands, which reaches down to `bottom`."""
        self._parts.append(element)
        self._bottom = max(self._bottom, bottom)

    def behind(self, element: str, bottom: float) -> None:
        """Add an element below all others."""
        self._parts.insert(0, element)
        self._bottom = max(self._bottom, bottom)

    def svg(self) -> str:
        """Return the picture; its height fits its contents."""
        height = round(self._bottom + 8)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cb" width="{self.width}" '
            f'height="{height}" viewBox="0 0 {self.width} {height}" role="img" '
            f'aria-label="{escape(self.title)}">\n'
            f"<style>{_STYLE}</style>\n" + "\n".join(self._parts) + "\n</svg>\n"
        )

    def _rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self.add(
            f'<rect class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(width)}" '
            f'height="{short(height)}" rx="6"/>',
            y + height,
        )

    def _head(self, before: Point, tip: Point, kind: str) -> None:
        length = hypot(tip[0] - before[0], tip[1] - before[1])
        along = ((tip[0] - before[0]) / length, (tip[1] - before[1]) / length)
        corners = [tip]
        for side in (-4.0, 4.0):
            x = tip[0] - 9 * along[0] - side * along[1]
            corners.append((x, tip[1] - 9 * along[1] + side * along[0]))
        points = " ".join(f"{short(x)},{short(y)}" for x, y in corners)
        self.add(f'<polygon class="{f"h {kind}".strip()}" points="{points}"/>', tip[1])


def marked(line: str) -> tuple[str, str]:
    """Return a line without its mark, and the class that the mark stands for."""
    kind = _MARKS.get(line[:1], "")
    return (line[1:], kind) if kind else (line, "")


def measured(line: str) -> float:
    """Return how wide a line is at most, in common fonts."""
    content, kind = marked(line)
    if kind == "c":
        return 7.9 * len(content)
    size = {"s": 12.5, "b": 16.3}.get(kind, 14.0)
    return size * sum(_widths(content))


def short(number: float) -> str:
    """Write a coordinate: at most one decimal."""
    return f"{round(number, 1):g}"


def _widths(content: str) -> Iterator[float]:
    for letter in content:
        if letter in _NARROW:
            yield 0.34
        elif letter in _WIDE:
            yield 0.92
        else:
            yield 0.69 if letter.isupper() else 0.585


def wrapped(words: str, width: float, mark: str) -> list[str]:
    """Break a text into lines that are no wider than `width`."""
    lines = [mark]
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines[-1] != mark else mark + word
        if measured(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(mark + word)
    return lines
