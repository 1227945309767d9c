"""Windows over rows: at one node, and over several."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.parts import RowWindow, cut, key_of, share

ROWS = [{"name": "b", "size": 2}, {"name": "A", "size": 10}, {"name": "c", "size": None}]


@pytest.mark.parametrize(
    ("window", "names"),
    [
        (RowWindow(), ["b", "A", "c"]),
        (RowWindow(sort="name", rising=True), ["A", "b", "c"]),
        (RowWindow(sort="name"), ["c", "b", "A"]),
        (RowWindow(sort="size", rising=True), ["b", "A", "c"]),
        (RowWindow(search="a"), ["A"]),
        (RowWindow(search="10"), ["A"]),
        (RowWindow(sort="name", rising=True, skip=1, limit=1), ["b"]),
        (RowWindow(skip=9), []),
    ],
)
def test_rows_are_searched_sorted_and_cut(window, names):
    assert [row["name"] for row in cut(ROWS, window).rows] == names


def test_all_that_match_are_counted():
    found = cut(ROWS, RowWindow(limit=1, sort="size"))

    assert (len(found.rows), found.count, len(found.keys)) == (1, 3, 3)


@given(
    st.lists(st.lists(st.integers(0, 5) | st.text(max_size=2), max_size=8), max_size=4),
    st.integers(0, 30),
    st.integers(0, 10),
    st.booleans(),
)
def test_a_window_over_nodes_is_that_of_all_their_rows(lists, skip, limit, rising):
    window = RowWindow(sort="x", rising=rising, skip=skip, limit=limit)
    nodes = [
        cut([{"x": each} for each in one], RowWindow(sort="x", rising=rising)) for one in lists
    ]
    everything = [row for node in nodes for row in node.rows]
    whole = cut(everything, window)

    places, turns = share([node.keys for node in nodes], window)

    rows = [iter(n.rows[s : s + c]) for n, (s, c) in zip(nodes, places, strict=True)]
    assert [next(rows[turn]) for turn in turns] == whole.rows


def test_values_of_any_kind_have_an_order():
    values = [None, "b", 3, 1.5, float("nan"), True, "A", [1]]

    assert [key_of(each) for each in sorted(values, key=key_of)]
