"""Draws texts for a reader who has not seen the code: `python -m scripts.reading_sample`.

Prints thirty functions, ten error texts and the names of three pages of the docs. The draw
depends on the hash of the commit alone, so the texts are not chosen, and two readers of one
commit read the same ones. `--draw 2` draws other texts of the same commit.
"""

import argparse
import ast
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.structure.source import ROOMS, SourceFile, tracked_files

FUNCTIONS: Final = 30
ERRORS: Final = 10
PAGES: Final = 3

#: Lines of the shortest function that is drawn: shorter ones say nothing.
_LINES: Final = 6

#: Variables that hold the text of an error until it is raised.
_MESSAGES: Final = ("message", "msg")


def functions(files: list[SourceFile]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each function that can be drawn."""
    for file in files:
        lines = file.text.splitlines()
        for function in file.functions:
            end = function.end_lineno or function.lineno
            if end - function.lineno + 1 >= _LINES:
                text = "\n".join(lines[function.lineno - 1 : end])
                yield f"{file.path}:{function.lineno} {function.name}", text


def error_texts(files: list[SourceFile]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each literal message of an error.

    A message is what `msg` is assigned, or the first argument of an exception that is raised.
    """
    for file in files:
        for node in file.nodes:
            value: ast.expr | None = None
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value if node.targets[0].id in _MESSAGES else None
            elif (
                isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
            ):
                value = node.exc.args[0]
            if isinstance(value, ast.JoinedStr) or (
                isinstance(value, ast.Constant) and isinstance(value.value, str)
            ):
                yield f"{file.path}:{value.lineno}", ast.unparse(value)


def draw(files: list[SourceFile], pages: list[str], commit: str, number: int = 1) -> str:
    """Return the texts that one draw of a commit gives, as Markdown.

    Args:
        files: the sources of the commit.
        pages: the paths of its pages.
        commit: its hash.
        number: which draw.
    """
    chance = random.Random(f"{commit}/{number}")
    parts = [f"# Draw {number} of {commit}"]
    for title, texts, count in (
        ("Functions", list(functions(files)), FUNCTIONS),
        ("Error texts", list(error_texts(files)), ERRORS),
    ):
        parts.append(f"## {title}")
        for place, text in chance.sample(texts, count):
            parts.append(f"### {place}\n\n```python\n{text}\n```")
    parts.append("## Pages")
    parts += [f"- {page}" for page in chance.sample(pages, PAGES)]
    return "\n\n".join(parts)


def main() -> None:
    """Print a draw of the commit that is checked out."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.reading_sample", description=__doc__
    )
    parser.add_argument("--draw", type=int, default=1, metavar="NUMBER")
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
    files = [file for file in tracked_files(root) if file.room in ROOMS]
    pages = sorted(page.relative_to(root).as_posix() for page in (root / "docs").glob("*.md"))
    print(draw(files, pages, commit, options.draw))


if __name__ == "__main__":
    main()
