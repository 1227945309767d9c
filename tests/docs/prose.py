"""The Markdown pages of the project, and what they say in code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts),
]
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class Line(NamedTuple):
    """A line of a page that is not inside a code block."""

    page: str
    number: int
    text: str


def prose_lines(page: Path) -> Iterator[Line]:
    """Yield the lines of a page, without its code blocks."""
    name = page.relative_to(ROOT).as_posix()
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if fence:
            fence = "" if text == fence else fence
        elif text.startswith("```"):
            fence = "`" * (len(text) - len(text.lstrip("`")))
        else:
            yield Line(name, number, line)


def code_spans() -> list[tuple[str, str]]:
    """Return each page's name with each piece of code in its prose, such as `node.links()`."""
    spans = []
    for page in PAGES:
        prose = "\n".join(line.text for line in prose_lines(page))
        name = page.relative_to(ROOT).as_posix()
        spans += [(name, re.sub(r"\s+", " ", span)) for span in SPAN.findall(prose)]
    return spans
