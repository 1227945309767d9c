"""The tables of `docs/performance.md` are those of the JSON beside it."""

import json

import pytest

from benchmarks import page

RESULTS, GROWTH = (json.loads(file.read_text()) for file in (page.RESULTS, page.GROWTH))


def test_the_page_shows_the_published_figures():
    text = page.PAGE.read_text()
    assert page.rewritten(text, RESULTS, GROWTH) == text, "run: python -m benchmarks.page"


def test_every_ratio_has_a_line_and_so_has_what_no_peer_was_measured_beside():
    def subject(name, against, median, ratio):
        return {"name": name, "against": against, "median": median, "ratio": ratio}

    subjects = [
        subject("callboard, one", None, 10.0, None),
        subject("callboard, two", None, 20.0, None),
        subject("callboard, three", None, None, None),
        subject("CAF", "callboard, one", 5.0, 2.0),
        subject("xoscar", "callboard, one", 4.0, 2.5),
        subject("missing", "callboard, two", None, None),
    ]
    lines = page.peers({"asks": {"title": "asks", "unit": "1/s", "subjects": subjects}})
    assert list(lines)[2:] == [
        "| asks, two | 1/s | 20 |  |  |  | `asks` |",
        "| asks, one | 1/s | 10 | CAF | 5 | 2x | `asks` |",
        "| asks, one | 1/s | 10 | xoscar | 4 | 2.5x | `asks` |",
    ]


def test_every_scale_is_published_to_its_largest_size():
    for scale in GROWTH["scales"].values():
        assert scale["troubles"] == []
        assert len(scale["points"]) > 3


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="begin peers -->"):
        page.rewritten("# Nothing", RESULTS, GROWTH)
