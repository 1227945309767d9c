"""The tables of `docs/performance.md` are those of the JSON beside it."""

import json

import pytest

from benchmarks import page

RESULTS, GROWTH = (json.loads(file.read_text()) for file in (page.RESULTS, page.GROWTH))


def test_the_page_shows_the_published_figures():
    text = page.PAGE.read_text()
    assert page.rewritten(text, RESULTS, GROWTH) == text, "run: python -m benchmarks.page"


def test_every_ratio_has_a_line_and_what_has_no_peer_has_none():
    lines = list(page.peers(RESULTS["measures"]))
    ratios = [
        each["ratio"]
        for measure in RESULTS["measures"].values()
        for each in measure["subjects"]
    ]
    assert len(lines) == 2 + sum(ratio is not None for ratio in ratios)
    assert all(line.count("|") == 8 for line in lines)


def test_every_scale_is_published_to_its_largest_size():
    for scale in GROWTH["scales"].values():
        assert scale["troubles"] == []
        assert len(scale["points"]) > 3


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="begin peers -->"):
        page.rewritten("# Nothing", RESULTS, GROWTH)
