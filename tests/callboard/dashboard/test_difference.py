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
def test_a_patch_turns_the_old_value_into_the_new_one(old, new):
    assert patched(old, difference(old, new)) == new


@given(OBJECTS)
def test_an_unchanged_value_has_no_patch(value):
    assert difference(value, value) == {}


def test_a_patch_holds_only_changed_fields():
    old = {"rows": {"x": {"depth": 1, "name": "n"}, "y": {"depth": 2}}}
    new = {"rows": {"x": {"depth": 3, "name": "n"}}}

    assert difference(old, new) == {"rows": {"x": {"depth": 3}, "y": None}}


def test_a_value_that_became_null_is_sent_as_removed():
    assert difference({"a": 1}, {"a": None}) == {"a": None}
    assert difference({}, {"a": None}) == {}


def test_a_counter_is_sent_only_with_other_changes_of_its_row():
    old = {"x": {"age": 1, "depth": 0}, "y": {"age": 1, "depth": 0}}
    new = {"x": {"age": 2, "depth": 1}, "y": {"age": 2, "depth": 0}}

    assert difference(old, new, {"age"}) == {"x": {"age": 2, "depth": 1}}
    assert difference(old, new)["y"] == {"age": 2}
