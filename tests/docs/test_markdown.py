"""Pages can be read and compared as text: their lines are short."""

import re

from tests.docs.prose import PAGES, ROOT, prose_lines

LINE_LIMIT = 100
#: A bullet or number at the begin of a line.
MARKER = re.compile(r"\s*(?:(?:[-*+]|\d+\.) )?")
#: What Markdown cannot break: a table's row, a heading, and one piece of code or address.
UNBREAKABLE = re.compile(r"\||#+ |`[^`]+`[.,:;]?$|\S+$")


def test_a_line_of_prose_has_at_most_100_characters():
    long_lines = [
        f"{line.page}:{line.number}"
        for page in PAGES
        for line in prose_lines(page)
        if len(line.text) > LINE_LIMIT
        and not UNBREAKABLE.match(MARKER.sub("", line.text, count=1))
    ]

    assert len(PAGES) > 100
    assert long_lines == []


def test_the_changes_of_the_next_release_can_be_read_in_five_minutes():
    """The details are on the pages that a line links to. When this fails, shorten others."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("\n## [Unreleased]\n")[2].partition("\n## [")[0]

    assert 0 < len(unreleased.split()) <= 1_500
