"""The table of subscriptions, beside a plain list of pairs."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from callboard.topics.machine import subscriptions
from callboard.topics.machine.subscriptions import SubscriptionTable

TOPICS = st.text("ab/", max_size=4)
SUBSCRIBERS = st.integers(0, 3)


class Beside(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = SubscriptionTable()
        self.pairs = []

    @rule(prefix=TOPICS, who=SUBSCRIBERS)
    def add(self, prefix, who):
        assert self.table.add(prefix, who) == ((prefix, who) not in self.pairs)
        if (prefix, who) not in self.pairs:
            self.pairs.append((prefix, who))

    @rule(prefix=TOPICS, who=SUBSCRIBERS)
    def remove(self, prefix, who):
        assert self.table.remove(prefix, who) == ((prefix, who) in self.pairs)
        self.pairs = [pair for pair in self.pairs if pair != (prefix, who)]

    @rule(topic=TOPICS)
    def match(self, topic):
        found = self.table.match(topic)

        assert sorted(found) == sorted({w for p, w in self.pairs if topic.startswith(p)})
        assert self.table.match(topic) == found

    @invariant()
    def counts_and_prefixes_agree(self):
        assert len(self.table) == len(self.pairs)
        for who in range(4):
            assert list(self.table.prefixes(who)) == [p for p, w in self.pairs if w == who]


TestBesideAList = Beside.TestCase
TestBesideAList.settings = settings(max_examples=60, stateful_step_count=30)


class CountingDict(dict):
    def __init__(self, *args):
        super().__init__(*args)
        self.looked_up = 0

    def get(self, key, default=None):
        self.looked_up += 1
        return super().get(key, default)


def test_a_look_up_does_not_search_the_subscriptions():
    """What it asks for depends on the topic: 10 prefixes or 100,000 make no difference."""
    asked = []
    for count in (10, 100_000):
        table = SubscriptionTable()
        for number in range(count):
            table.add(f"/sensors/{number % 10}/{number:06}", number)
        table._by_prefix = CountingDict(table._by_prefix)
        assert table.match("/sensors/3/000003/load") == (3,)
        asked.append(table._by_prefix.looked_up)

    assert asked == [1, 1]


def test_kept_results_are_bounded(monkeypatch):
    monkeypatch.setattr(subscriptions, "_CACHE_LIMIT", 3)
    table = SubscriptionTable()
    table.add("/", "all")

    found = [table.match(f"/{number}") for number in range(10)]

    assert found == [("all",)] * 10
    assert len(table._matched) <= 3


@given(st.permutations(["/a", "/a/b", ""]))
def test_subscribers_of_shorter_prefixes_come_first(prefixes):
    table = SubscriptionTable()
    for prefix in prefixes:
        table.add(prefix, prefix)

    assert table.match("/a/b") == ("", "/a", "/a/b")


def test_many_subscribers_of_one_prefix_are_served_in_the_order_they_came():
    table = SubscriptionTable()
    many = list(range(subscriptions._TUPLE_LIMIT + 5))
    assert all(table.add("/a", who) for who in many)
    assert not any(table.add("/a", who) for who in many)
    assert table.match("/a/b") == tuple(many)

    for who in (0, 7, 9):
        assert table.remove("/a", who)
        many.remove(who)
    assert not table.remove("/a", 7)
    assert table.match("/a/b") == tuple(many)
    assert all(table.remove("/a", who) for who in many)
    assert (table.match("/a/b"), len(table)) == ((), 0)
