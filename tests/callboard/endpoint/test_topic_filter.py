"""Filters of topics: the fewest prefixes, beside a list that is searched from end to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.endpoint import topic_filter
from callboard.endpoint.errors import InvalidTopic
from callboard.endpoint.topic import Topic
from callboard.endpoint.topic_filter import TopicFilter

TOPICS = st.text("ab/\U0010ffff", max_size=6)
LISTS = st.lists(TOPICS, max_size=8)


@given(LISTS, TOPICS)
def test_a_filter_takes_what_one_of_its_prefixes_takes(prefixes, topic):
    assert TopicFilter(prefixes).matches(topic) == any(map(topic.startswith, prefixes))


@given(LISTS)
def test_no_prefix_of_a_filter_covers_another(prefixes):
    kept = TopicFilter(prefixes).topics

    assert not any(a != b and a.startswith(b) for a in kept for b in kept)
    assert list(kept) == sorted(set(kept))
    assert set(kept) <= set(prefixes)


@given(LISTS, LISTS, TOPICS)
def test_a_union_takes_what_one_of_both_takes(one, other, topic):
    a, b = TopicFilter(one), TopicFilter(other)

    assert a.union(b).matches(topic) == (a.matches(topic) or b.matches(topic))
    assert a.union(b) == b.union(a) == TopicFilter(one + other)
    assert a.union(b).covers(a)
    assert hash(a.union(b)) == hash(b.union(a))


@given(LISTS, LISTS)
def test_covering_and_overlapping_agree_with_the_definition(one, other):
    a, b = TopicFilter(one), TopicFilter(other)

    assert a.covers(b) == (a.union(b) == a)
    assert a.overlaps(b) == any(p.startswith(q) or q.startswith(p) for p in one for q in other)


def test_a_less_specific_topic_removes_covered_ones():
    seen = TopicFilter(["/a/b", "/a/c", "/d"])

    assert seen.extended("/a").topics == ("/a", "/d")
    assert seen.extended("/d/x", Topic("/d")) is seen


@given(LISTS)
def test_a_filter_comes_back_from_the_wire(prefixes):
    seen = TopicFilter(prefixes)

    assert TopicFilter.from_wire(seen.to_wire()) == seen
    assert (len(seen), list(seen)) == (len(seen.to_wire()), seen.to_wire())


@pytest.mark.parametrize("value", [None, "/a", {"/a": 1}, [5], ["/a", None], ["\ud800"]])
def test_what_is_no_list_of_topics_is_refused(value):
    with pytest.raises(InvalidTopic):
        TopicFilter.from_wire(value)


def test_the_length_of_a_filter_is_bounded(monkeypatch):
    monkeypatch.setattr(topic_filter, "FILTER_LIMIT", 2)

    assert TopicFilter.from_wire(["/a", "/b"])
    with pytest.raises(InvalidTopic, match="3 topics exceeds the limit of 2"):
        TopicFilter.from_wire(["/a", "/b", "/c"])
