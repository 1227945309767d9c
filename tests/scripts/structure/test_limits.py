"""Limits only get stricter."""

import pytest

from scripts.structure.figure import Figure
from scripts.structure.limits import Limits

TEXT = """\
# Why these.
circles = 20 # 0
documented = 0.729 # 0.85
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(TEXT)
    return path


def circles(value):
    return Figure("circles", value, "circles of imports")


def documented(value):
    return Figure("documented", value, "share with a docstring", is_floor=True)


def test_what_is_worse_than_its_limit_fails(path):
    assert Limits(path).failures([circles(21), documented(0.728)]) == [
        "circles: 21, at most 20 (circles of imports)",
        "documented: 0.728, at least 0.729 (share with a docstring)",
    ]


def test_what_is_at_its_limit_or_better_passes(path):
    assert Limits(path).failures([circles(20), documented(0.729)]) == []
    assert Limits(path).failures([circles(19), documented(0.73)]) == []


def test_a_figure_without_a_limit_fails(path):
    assert Limits(path).failures([Figure("sleeps", 0, "sleeps")]) == [
        "sleeps: 0, without a limit in limits.toml"
    ]


def test_a_default_limit_holds_without_a_line_in_the_file(path):
    figure = Figure("wording_store", 1, "places", default_limit=0)
    assert Limits(path).failures([figure]) == ["wording_store: 1, at most 0 (places)"]
    assert Limits(path).failures([Figure("wording_store", 0, "places", default_limit=0)]) == []


def test_what_is_better_is_told_with_the_new_limit(path):
    assert Limits(path).improvements([circles(7), documented(0.8)]) == [
        "circles: 7, the limit 20 can be lowered to it",
        "documented: 0.8, the limit 0.729 can be raised to it",
    ]
    assert Limits(path).improvements([circles(20), documented(0.5)]) == []


def test_tightening_writes_only_what_is_better(path):
    limits = Limits(path)
    limits.tighten([circles(7), documented(0.5)])
    assert path.read_text() == TEXT.replace("20", "7")
    assert limits.improvements([circles(7)]) == []
