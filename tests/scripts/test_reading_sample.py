"""Draws of texts for readers."""

from pathlib import Path, PurePosixPath

import pytest

from scripts.reading_sample import ERRORS, FUNCTIONS, PAGES, draw, error_texts
from scripts.structure.source import SourceFile

ROOT = Path(__file__).parents[2]
NAMES = [f"docs/page-{number}.md" for number in range(9)]


@pytest.fixture(scope="module")
def files() -> list[SourceFile]:
    paths = sorted((ROOT / "basp").rglob("*.py"))
    return [
        SourceFile(PurePosixPath(path.relative_to(ROOT)), path.read_text()) for path in paths
    ]


def sections(text: str) -> dict[str, list[str]]:
    parts = text.split("\n## ")[1:]
    return {part.split("\n", 1)[0]: part.splitlines()[1:] for part in parts}


def test_a_commit_gives_each_reader_the_same_texts_and_each_draw_others(files):
    first = draw(files, NAMES, "c0ffee")

    assert draw(files, NAMES, "c0ffee") == first
    assert sections(draw(files, NAMES, "c0ffee", 2)) != sections(first)
    assert sections(draw(files, NAMES, "decade")) != sections(first)


def test_a_draw_has_thirty_functions_ten_errors_and_three_pages(files):
    parts = sections(draw(files, NAMES, "c0ffee"))

    for title, count in (("Functions", FUNCTIONS), ("Error texts", ERRORS)):
        assert sum(line.startswith("### ") for line in parts[title]) == count
    assert len({line for line in parts["Pages"] if line}) == PAGES


def test_texts_of_errors_are_found_where_they_are_made():
    text = (
        "def check(n):\n    msg = f'{n} is too large'\n    raise ValueError(msg)\n"
        "def end():\n    raise OSError('the disk is full')\n    name = 'no error'\n"
    )

    found = error_texts([SourceFile(PurePosixPath("callboard/sample.py"), text)])
    assert [text for _, text in found] == ["f'{n} is too large'", "'the disk is full'"]
