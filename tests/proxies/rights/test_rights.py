from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.proxies.rights.rights import NAMED, TOPICS, Rights


@pytest.mark.parametrize("right", NAMED)
def test_a_right_is_for_what_its_patterns_match_and_for_nothing_else(right):
    rights = Rights(**{right: ["till-*", "safe"]})

    assert rights.permit(right, "till-7")
    assert rights.permit(right, "safe")
    assert not rights.permit(right, "Safe")
    assert not rights.permit(right, "safes")
    assert not any(rights.permit(other, "safe") for other in NAMED if other != right)


@pytest.mark.parametrize("right", TOPICS)
def test_topics_are_given_by_how_they_begin(right):
    rights = Rights(**{right: ["/sensors"]})

    assert rights.permit_topic(right, "/sensors/cpu")
    assert not rights.permit_topic(right, "/sensor")
    assert not rights.permit_topic(right, "")
    assert not Rights().permit_topic(right, "/sensors")


def test_who_may_write_a_store_may_read_it_but_not_the_other_way_round():
    rights = Rights(stores={"prices": "read", "stock-*": "write"})

    assert rights.permit_store("prices", "read")
    assert not rights.permit_store("prices", "write")
    assert rights.permit_store("stock-1", "read")
    assert rights.permit_store("stock-1", "write")
    assert not rights.permit_store("other", "read")


@given(st.sampled_from(NAMED), st.text())
def test_a_member_may_do_everything_and_nobody_may_do_anything_by_default(right, name):
    assert Rights.member().permit(right, name)
    assert not Rights().permit(right, name)


def test_a_member_is_no_leaf():
    member = Rights.member()

    assert member.is_member
    assert not Rights().is_member
    assert member.permit_topic("publish", "x")
    assert member.permit_store("x", "write")
    assert member.inspect
    assert member.drain
    assert member != Rights()


@pytest.mark.parametrize("right", [*NAMED, *TOPICS, "stores"])
def test_one_text_is_no_list(right):
    with pytest.raises(TypeError, match=right):
        Rights(**{right: "till"})


def test_a_level_that_is_not_known_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'write'"):
        Rights(stores={"prices": "wirte"})


def test_all_rights_are_named():
    rights = {each.name for each in fields(Rights) if each.init}
    assert rights == {*NAMED, *TOPICS, "stores", "inspect", "drain"}
