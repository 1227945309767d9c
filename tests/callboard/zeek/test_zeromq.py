"""The node of a ZeroMQ cluster without sockets: messages, subscriptions, members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.model.data import Data
from callboard.model.encoding import data_to_cbor
from callboard.model.errors import InvalidOption
from callboard.model.scalar import Count
from callboard.zeek.value import value_to_bytes
from callboard.zeek.zeromq import (
    BINARY,
    ID_LIMIT,
    ID_TOPIC,
    JSON,
    BackendHello,
    ClusterHello,
    NodeChange,
    ZeroMqNode,
)

VALUE = Data([Count(1), Count(1), ["ping", ["a", Count(7), 4.5]]])
CONTENT, PAYLOAD = data_to_cbor(VALUE), value_to_bytes(VALUE)
BIN = BINARY.encode()


def linked(node):
    """Let a node's mark come back."""
    node.take_subscriptions([[node.mark()[0]]])
    assert node.linked
    return node


def message(topic=b"zeek.cluster.worker", sender=b"other", form=BIN, payload=PAYLOAD):
    return [topic, sender, form, payload]


@pytest.mark.parametrize("form", [BINARY, JSON])
def test_what_is_packed_is_taken_by_others_and_not_by_oneself(form):
    one, other = ZeroMqNode("one", form=form), ZeroMqNode("other")
    parts = one.pack("zeek.cluster.worker", CONTENT)

    assert parts[:3] == [b"zeek.cluster.worker", b"one", form.encode()]
    assert form == JSON or parts[3] == PAYLOAD
    assert other.take([parts]) == [("zeek.cluster.worker", CONTENT)]
    assert (one.take([parts]), one.own, one.unreadable) == ([], 1, 0)


def test_nodes_of_the_own_overlay_are_asked_for_once_until_they_change():
    asked = []
    node = ZeroMqNode("me", lambda sender: asked.append(sender) or sender == b"ours")

    assert node.take([message(sender=b"ours"), message(), message(sender=b"ours")]) == [
        ("zeek.cluster.worker", CONTENT)
    ]
    assert (asked, node.own) == ([b"ours", b"other"], 2)
    node.forget_senders()
    node.take([message()])
    assert asked == [b"ours", b"other", b"other"]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "4 parts, not 0"),
        ([b"t", b"s", BIN], "4 parts, not 3"),
        ([*message(), b""], "4 parts, not 5"),
        (message(topic=b"\xff"), "not UTF-8"),
        (message(topic=b"x" * 65_536), "exceeds the limit"),
        (message(sender=bytes(ID_LIMIT + 1)), "exceeds the limit"),
        (message(topic=b"a/<$>/b"), "is reserved for endpoints"),
        (message(form=b"zeek-bin-v1"), "unknown"),
        (message(payload=PAYLOAD[:-1]), ""),
        (message(payload=PAYLOAD + b"x"), ""),
        (message(payload=b"\x0e\x01" * 200), ""),
        (message(form=JSON.encode(), payload=b"[]"), ""),
        (message(form=JSON.encode(), payload=b"\xff"), ""),
        (message(form=JSON.encode(), payload=b'{"@data-type":"count","data":-1}'), ""),
    ],
)
def test_what_is_no_message_is_counted_and_the_next_one_is_taken(parts, why):
    node = ZeroMqNode("me")

    assert node.take([parts, message()]) == [("zeek.cluster.worker", CONTENT)]
    assert (node.unreadable, why in node.why) == (1, True)
    assert node.why


def test_a_prefix_is_wanted_elsewhere_unless_only_this_node_asked_for_it():
    node = linked(ZeroMqNode("me"))
    frames = node.want(["a.", "b."])
    assert frames == [b"\1a.", b"\1b."]
    node.take_subscriptions([[each] for each in frames])
    assert node.peer_topics() == ()

    node.take_subscriptions([[b"\1b."], [b"\1c."]])
    assert [node.is_wanted(topic) for topic in ("a.x", "b.x", "c.x", "c")] == [
        False, True, True, False,
    ]  # fmt: skip
    node.take_subscriptions([[b"\0b."], [b"\0c."]])
    assert node.peer_topics() == ()


def test_behind_a_cut_a_prefix_of_both_counts_as_wanted_elsewhere():
    node = linked(ZeroMqNode("me"))
    node.take_subscriptions([[each] for each in node.want(["a."])])

    node.lost()
    assert not node.linked
    node.take_subscriptions([[b"\0a."], [b"\1a."]])

    assert node.is_wanted("a.x")


def test_wishes_are_told_as_what_is_new_and_then_what_is_gone():
    node = ZeroMqNode("me", member="m")

    assert node.want(["b.", "a."]) == [
        b"\1a.", b"\1b.", b"\1zeek.cluster.node.m.", b"\1zeek.cluster.nodeid.me.",
    ]  # fmt: skip
    assert node.want(["b.", "c."]) == [b"\1c.", b"\0a."]
    assert node.want(["b.", "c."]) == []


def test_only_the_newest_mark_says_that_all_was_heard():
    node = ZeroMqNode("me")
    (first,), second = node.mark(), node.mark()
    assert second == [first.replace(b".1.", b".2."), b"\0" + first[1:]]

    node.take_subscriptions([[first], [b"\1callboard.door.other.2."]])
    assert not node.linked
    node.take_subscriptions([[second[0]]])
    assert node.settled
    node.mark()
    assert (node.linked, node.settled) == (True, False)


@pytest.mark.parametrize(
    "parts", [[b""], [b"\2x"], [b"x"], [b"\1a", b"b"], [b"\1\xff"], [b"\1" + b"x" * 65_536]]
)
def test_what_is_no_subscription_is_counted(parts):
    node = ZeroMqNode("me")
    node.take_subscriptions([parts, [b"\1a"]])
    assert (node.unreadable, node.peer_topics()) == (1, ("a",))


def test_a_prefix_may_end_within_a_character():
    node = ZeroMqNode("me")
    node.take_subscriptions([[b"\1" + "aé".encode()[:-1]]])
    assert node.is_wanted("aé")


def test_more_prefixes_than_are_kept_want_everything(monkeypatch):
    monkeypatch.setattr("callboard.zeek.zeromq.PREFIX_LIMIT", 3)
    node = ZeroMqNode("me")
    node.take_subscriptions([[b"\1%d" % n] for n in range(4)])
    assert node.is_wanted("z")


def test_more_characters_of_prefixes_than_are_kept_want_everything():
    node = ZeroMqNode("me")
    long = [b"\1%04d" % n + bytes(60_000) for n in range(100)]
    node.take_subscriptions([[frame] for frame in long])
    assert node.is_wanted("z")
    assert sum(map(len, node.peer_topics())) <= 4 << 20
    few = ZeroMqNode("me")
    for frame in long:
        few.take_subscriptions([[frame], [b"\0" + frame[1:]]])
    assert not few.is_wanted("z")


def test_long_topics_are_taken_and_not_kept():
    node = ZeroMqNode("me")
    assert len(node.take([message(topic=b"%d" % n + b"x" * 60_000) for n in range(3)])) == 3
    assert len(node._topics) == 0


def wire(*nodes):
    """Carry subscriptions and answers between members until nothing is left to say."""
    for node in nodes:
        for other in nodes:
            other.take_subscriptions([[frame] for frame in node.want([])])
    while any(node.answers for node in nodes):
        for node in nodes:
            answers, node.answers = node.answers, []
            for parts in (node.pack(*answer) for answer in answers):
                for other in nodes:
                    if parts[0] == f"{ID_TOPIC}{other.id}.".encode():
                        assert other.take([parts]) == []


def test_members_see_each_other_come_and_go():
    one, two = ZeroMqNode("id-1", member="one"), ZeroMqNode("id-2", member="two")
    frames = {node: [[each] for each in node.want([])] for node in (one, two)}
    for node in (one, two):
        for each in frames.values():
            node.take_subscriptions(each)
    wire(one, two)

    assert (one.nodes, two.nodes) == ({"id-2": "two"}, {"id-1": "one"})
    assert one.changes == [NodeChange("two", "id-2", is_up=True)]
    one.take_subscriptions([[b"\0zeek.cluster.nodeid.id-2."]])
    assert (one.nodes, one.changes[1:]) == ({}, [NodeChange("two", "id-2", is_up=False)])


def test_who_is_no_member_greets_nobody():
    node = ZeroMqNode("me")
    node.take_subscriptions([[b"\1zeek.cluster.nodeid.other."]])
    assert node.answers == []


@pytest.mark.parametrize(
    ("sender", "hello"),
    [
        (b"other", ClusterHello("n", "somebody")),
        (b"o" * (ID_LIMIT + 1), ClusterHello("n", "o" * (ID_LIMIT + 1))),
    ],
)
def test_a_greeting_in_the_name_of_another_is_counted(sender, hello):
    node = ZeroMqNode("me", member="m")
    payload = value_to_bytes(hello.as_data())
    assert node.take([[b"zeek.cluster.nodeid.me.", sender, BIN, payload]]) == []
    assert (node.nodes, node.unreadable) == ({}, 1)


def test_other_events_to_the_own_id_are_messages():
    node = ZeroMqNode("me", member="m")
    assert node.take([message(topic=b"zeek.cluster.nodeid.me.")]) == [
        ("zeek.cluster.nodeid.me.", CONTENT)
    ]


@pytest.mark.parametrize("wrong", [{"form": "xml"}, {"member": "a b"}, {"member": "é"}])
def test_options_that_mean_nothing_are_told(wrong):
    with pytest.raises(InvalidOption):
        ZeroMqNode("me", **wrong)


BYTES = st.binary(max_size=40)
HELLOS = [
    value_to_bytes(hello.as_data())
    for hello in (BackendHello("n", "other"), ClusterHello("n", "other"))
]
PARTS = st.tuples(
    BYTES | st.sampled_from([b"t", b"zeek.cluster.nodeid.me."]),
    BYTES | st.sampled_from([b"other", b"me"]),
    st.sampled_from([BIN, JSON.encode()]) | BYTES,
    st.sampled_from([PAYLOAD, *HELLOS]) | BYTES,
).map(list)


@given(st.lists(PARTS | st.lists(BYTES, max_size=6), max_size=8))
def test_each_message_is_taken_counted_or_a_greeting(messages):
    node = ZeroMqNode("me", member="m")
    before = len(messages)
    found = node.take(messages)
    greetings = before - len(found) - node.own - node.unreadable
    assert 0 <= greetings <= sum(m[:1] == [b"zeek.cluster.nodeid.me."] for m in messages)


PREFIXES = st.sampled_from(["", "a", "ab", "b", "zeek.cluster.nodeid.x."])


class Filters(RuleBasedStateMachine):
    """One node beside another behind a manager that tells each subscription."""

    def __init__(self):
        super().__init__()
        self.node = ZeroMqNode("me")
        self.mine, self.theirs = set(), set()
        self.node.take_subscriptions([[self.node.mark()[0]]])

    @rule(prefixes=st.sets(PREFIXES))
    def want(self, prefixes):
        for frame in self.node.want(prefixes):
            self.tell(self.mine, frame)

    @rule(prefix=PREFIXES)
    def other_subscribes(self, prefix):
        if prefix not in self.theirs:
            self.tell(self.theirs, b"\1" + prefix.encode())

    @rule(prefix=PREFIXES)
    def other_unsubscribes(self, prefix):
        if prefix in self.theirs:
            self.tell(self.theirs, b"\0" + prefix.encode())

    @rule()
    def cut(self):
        self.node.lost()
        every = [b"\0" + each.encode() for each in self.mine | self.theirs]
        again = [b"\1" + each.encode() for each in self.mine | self.theirs]
        self.node.take_subscriptions([[each] for each in every + again + self.node.mark()[:1]])

    def tell(self, whose, frame):
        prefix = frame[1:].decode()
        if frame[:1] == b"\1":
            whose.add(prefix)
            self.node.take_subscriptions([[frame]])
        else:
            whose.discard(prefix)
            if prefix not in self.mine | self.theirs:
                self.node.take_subscriptions([[frame]])

    @invariant()
    def nothing_that_others_want_is_kept_from_them(self):
        known = set(self.node.peer_topics())
        assert self.theirs <= known <= self.mine | self.theirs


TestFilters = Filters.TestCase
