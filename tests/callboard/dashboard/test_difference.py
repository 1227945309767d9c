from hypothesis import given
from hypothesis import strategies as st

from callboard.dashboard.difference import difference, patched

VALUES = st.recursive(
    st.booleans()
    | st.integers(0, 3)
    | st.text(max_size=2)
    | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_new_value_of_the_old_one(old, new):
    assert patched(old, difference(old, new)) == new


@given(OBJECTS)
def test_nothing_is_told_where_nothing_changed(value):
    assert difference(value, value) == {}


def test_only_what_changed_is_told():
    old = {"rows": {"x": {"depth": 1, "name": "n"}, "y": {"depth": 2}}}
    new = {"rows": {"x": {"depth": 3, "name": "n"}}}

    assert difference(old, new) == {"rows": {"x": {"depth": 3}, "y": None}}


def test_null_is_told_as_gone():
    assert difference({"a": 1}, {"a": None}) == {"a": None}
    assert difference({}, {"a": None}) == {}


def test_what_rises_by_itself_is_told_with_what_else_changed():
    old = {"x": {"age": 1, "depth": 0}, "y": {"age": 1, "depth": 0}}
    new = {"x": {"age": 2, "depth": 1}, "y": {"age": 2, "depth": 0}}

    assert difference(old, new, {"age"}) == {"x": {"age": 2, "depth": 1}}
    assert difference(old, new)["y"] == {"age": 2}
