"""Topics: joining, prefixes, reserved names."""

import pytest

from callboard.model.errors import InvalidTopic
from callboard.topics.machine.topic import (
    STORE_EVENTS,
    TOPIC_LIMIT,
    Topic,
    clone_topic,
    is_local,
    is_reserved,
    master_topic,
)


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("a", "b", "a/b"),
        ("a/", "/b", "a//b"),
        ("a/", "b", "a//b"),
        ("", "b", "b"),
        ("", "/b", "/b"),
        ("a", "", "a"),
        ("/", "b", "//b"),
        ("a//", "//b", "a////b"),
        ("a", "b/", "a/b"),
        ("/a//", "", "/a/"),
        ("/", "", ""),
    ],
)
def test_topics_join_as_the_real_broker_joins_them(left, right, joined):
    """The right column was printed by version 1.4."""
    assert (Topic(left) / Topic(right)).string() == joined
    assert Topic(left) / right == Topic(joined)


def test_a_topic_can_grow_in_place():
    topic = Topic("/a")
    topic /= Topic("b")

    assert (str(topic), repr(topic), hash(topic)) == ("/a/b", "/a/b", hash(Topic("/a/b")))
    assert Topic("/a") < topic
    assert topic != "/a/b"


def test_a_subscription_is_a_plain_prefix():
    assert Topic("/foo").prefix_of(Topic("/foo/bar"))
    assert Topic("/foo").prefix_of(Topic("/foobar"))
    assert Topic("").prefix_of(Topic("x"))
    assert not Topic("/foo/").prefix_of(Topic("/foo"))


def test_reserved_topics_are_those_of_broker():
    assert STORE_EVENTS == "<$>/local/data/store-events"
    assert master_topic("names") == "names/<$>/data/master"
    assert clone_topic("names") == "names/<$>/data/clone"
    assert all(map(is_reserved, [STORE_EVENTS, "<$>", master_topic("x")]))
    assert not any(map(is_reserved, ["", "/a", "/a<$>/b", "/<$", "<$>x"]))
    assert is_local(STORE_EVENTS)
    assert not is_local(master_topic("x"))


def test_a_topic_has_at_most_the_bytes_that_the_wire_can_tell():
    assert Topic("é" * (TOPIC_LIMIT // 2)).string()
    for text in ("x" * (TOPIC_LIMIT + 1), "é" * (TOPIC_LIMIT // 2 + 1)):
        with pytest.raises(InvalidTopic, match="exceeds the limit of 65,535"):
            Topic(text)


@pytest.mark.parametrize("text", ["\ud800", b"/a", None, 5])
def test_other_values_are_no_topic(text):
    with pytest.raises(InvalidTopic):
        Topic(text)
