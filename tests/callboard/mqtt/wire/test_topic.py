"""Topics and filters, MQTT 5.0 section 4.7."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.mqtt.wire.topic import (
    FilterTree,
    TopicTree,
    is_valid_filter,
    is_valid_topic,
    matches,
    overlap,
    split_share,
)

LEVELS = st.sampled_from(["", "a", "b", "$x", "long name"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(is_valid_topic)
FILTERS = (
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=0, max_size=4)
    .flatmap(lambda levels: st.sampled_from([levels, [*levels, "#"]]))
    .map("/".join)
    .filter(is_valid_filter)
)


@pytest.mark.parametrize(
    ("topic", "topic_filter", "expected"),
    [
        ("sport/tennis/player1", "sport/tennis/player1/#", True),
        ("sport/tennis/player1/ranking", "sport/tennis/player1/#", True),
        ("sport", "sport/#", True),
        ("sport/tennis", "sport/tennis/+", False),
        ("/finance", "+/+", True),
        ("/finance", "/+", True),
        ("/finance", "+", False),
        ("$SYS/uptime", "#", False),
        ("$SYS/uptime", "+/uptime", False),
        ("$SYS/uptime", "$SYS/#", True),
        ("a/$b", "a/+", True),
        ("ACCOUNTS", "Accounts", False),
    ],
)
def test_filters_match_as_the_standard_requires(topic, topic_filter, expected) -> None:
    tree: FilterTree[str] = FilterTree()
    tree.set(topic_filter, "found")

    assert matches(topic, topic_filter) is expected
    assert tree.match(topic) == (["found"] if expected else [])


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a/#/b",
        "a#",
        "a+",
        "+a/b",
        "a\0b",
        "$share/g",
        "$share//a",
        "$share/g/",
        "$share/+/a",
    ],
)
def test_malformed_filters_are_distinguished(topic_filter) -> None:
    assert not is_valid_filter(topic_filter)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "a" * 65_536, "/" * 200])
def test_empty_long_and_deep_names_and_wildcards_are_not_topics(topic) -> None:
    assert not is_valid_topic(topic)


def test_a_shared_filter_has_a_group_and_a_plain_filter() -> None:
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("a/#") == ("", "a/#")
    assert is_valid_filter("$share/g/#")


@given(st.sets(FILTERS, max_size=8), st.lists(TOPICS, max_size=6))
def test_trees_match_the_same_topics_as_plain_matching(filters, topics) -> None:
    tree: FilterTree[str] = FilterTree()
    names: TopicTree[str] = TopicTree()
    for topic_filter in filters:
        tree.set(topic_filter, topic_filter)
    for topic in topics:
        names.set(topic, topic)

    for topic in topics:
        assert sorted(tree.match(topic)) == sorted(f for f in filters if matches(topic, f))
    for topic_filter in filters:
        expected = {topic for topic in topics if matches(topic, topic_filter)}
        assert sorted(names.match(topic_filter)) == sorted(expected)


@given(st.lists(FILTERS, max_size=8), st.lists(TOPICS, max_size=6))
def test_trees_are_empty_when_all_filters_are_removed(filters, topics) -> None:
    tree: FilterTree[str] = FilterTree()
    names: TopicTree[str] = TopicTree()
    for topic_filter in filters:
        tree.set(topic_filter, topic_filter)
    for topic in topics:
        names.set(topic, topic)

    for topic_filter in filters:
        tree.remove(topic_filter)
    for topic in topics:
        names.remove(topic)

    assert (len(tree), len(names)) == (0, 0)
    assert not tree._root.below
    assert not names._root.below


@given(FILTERS, FILTERS, TOPICS)
def test_filters_overlap_where_a_topic_matches_both(one, other, topic) -> None:
    if matches(topic, one) and matches(topic, other):
        assert overlap(one, other)
    assert overlap(one, other) is overlap(other, one)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/+", "+/b", True),
        ("a", "a/#", True),
        ("a/b", "a", False),
        ("a/+", "b/#", False),
        ("+/b", "a/c", False),
    ],
)
def test_overlapping_filters_are_reported(one, other, expected) -> None:
    assert overlap(one, other) is expected
