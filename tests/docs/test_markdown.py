"""Pages can be read and compared as text: their lines are short."""

import re

from tests.docs.prose import PAGES, prose_lines

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
