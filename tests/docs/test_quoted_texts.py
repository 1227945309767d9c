"""Errors and log lines that pages quote are written in the sources in the same words.

Programs of pages are run, and so compared with what they print. These are the texts in other
blocks: lines of a log, and mistakes of a configuration.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.prose import DOCS, ROOT

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^```(?:text|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LOGGED = re.compile(r" (?:WARNING|INFO|ERROR) \[[^]]*\] callboard[\w.]*: (.*)")
REPORTED = re.compile(r"callboard: [\w.]+\.toml: (.*)")
#: Where a text is put together from others.
SEAM = re.compile(r"[:;] ")
#: Three words and more, and no setting such as `limits.links = 0`.
COUNTED = re.compile(r"\S+ (?!= )\S+ \S+")
#: Parts of texts that pydantic writes.
OF_PYDANTIC = {"input should be greater than 0"}


def quoted_parts() -> list[str]:
    """Return the parts with three words and more of the texts that pages quote."""
    parts = []
    for page in sorted(DOCS.glob("*.md")):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                if match := LOGGED.search(line) or REPORTED.match(line):
                    parts += [part for part in SEAM.split(match[1]) if COUNTED.match(part)]
    return parts


def literals(code: ast.AST) -> Iterator[str]:
    """Yield the texts in a program, with NUL in the place of each value."""
    for node in ast.walk(code):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                piece.value if isinstance(piece, ast.Constant) else "\0"
                for piece in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[-\d.,]*[a-z]", "\0", node.value)


@cache
def written_parts() -> frozenset[str]:
    """Return the parts of all texts in the sources, with NUL in the place of each value."""
    return frozenset(
        part
        for folder in ("actors", "basp", "proxies", "callboard")
        for path in (ROOT / folder).rglob("*.py")
        for text in literals(ast.parse(path.read_text(encoding="utf-8")))
        for part in SEAM.split(text)
    )


def is_written(part: str) -> bool:
    """Return whether a text of the sources makes this part, with a third of its characters."""
    for text in written_parts():
        pieces = text.split("\0")
        if 3 * sum(map(len, pieces)) < len(part) or not all(piece in part for piece in pieces):
            continue
        if re.fullmatch(".+".join(map(re.escape, pieces)), part):
            return True
    return False


def test_a_quoted_text_is_in_the_sources_in_the_same_words():
    parts = [part for part in quoted_parts() if part not in OF_PYDANTIC]

    assert len(parts) > 5
    assert [part for part in parts if not is_written(part)] == []
