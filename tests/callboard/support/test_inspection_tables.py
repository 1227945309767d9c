"""Windows over rows: at one node, and over several."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.support.inspection_tables import RowWindow, cut, key_of, share, slices_fit

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
def test_a_page_over_several_nodes_is_a_page_of_all_their_rows(lists, skip, limit, rising):
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


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=3),
    st.integers(0, 20),
    st.integers(1, 8),
    st.booleans(),
    st.data(),
)
def test_sufficient_slices_give_the_same_page_as_whole_lists(lists, skip, limit, rising, data):
    lists = [sorted(each, reverse=not rising) for each in lists]
    window, slices = RowWindow(sort="x", rising=rising, skip=skip, limit=limit), []
    for each in lists:
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(each))] * 2)))
        slices.append((begin, [(0, key) for key in each[begin:end]], len(each)))

    found = slices_fit(slices, window)

    if found is not None:
        places, inside = found
        whole, turns = share([[(0, key) for key in each] for each in lists], window)
        assert [index for index, _ in inside] == turns
        assert [taken for _, taken in places] == [taken for _, taken in whole]
        assert [skip for skip, taken in places if taken] == [s for s, taken in whole if taken]
        assert [lists[index][slices[index][0] + place] for index, place in inside] == [
            lists[index][whole[index][0] + turns[:at].count(index)]
            for at, index in enumerate(turns)
        ]


def test_slices_that_hold_the_window_and_rows_around_it_fit():
    slices = [
        (10, [(0, n) for n in range(10, 20)], 100),
        (5, [(0, n) for n in range(5, 25)], 90),
    ]

    assert slices_fit(slices, RowWindow(sort="x", rising=True, skip=22, limit=6)) is not None
    assert slices_fit(slices, RowWindow(sort="x", rising=True, skip=50, limit=6)) is None
