"""Filters are the same at their owners and everywhere else, whatever gets lost on the way."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.errors import MalformedMessage
from callboard.topics.machine.filter_exchange import (
    PART_SIZE,
    REPEAT_AFTER,
    FilterExchange,
    FilterUpdate,
    read_update,
)

NODES = (b"a", b"b", b"c")
LINES = [(a, b) for a in NODES for b in NODES if a != b]
TOPICS = ("/a", "/a/b", "/c", "/d", "")


def an_endpoint(node: bytes) -> bytes:
    return node.ljust(16, b".")


class Net:
    """Three endpoints; messages of a pair keep their order, some are lost."""

    def __init__(self) -> None:
        self.now = 1.0
        self.sides = {node: FilterExchange(an_endpoint(node)) for node in NODES}
        self.seen: dict[tuple[bytes, bytes], set[str]] = {}
        self.lines: dict[tuple[bytes, bytes], deque[FilterUpdate]] = {
            line: deque() for line in LINES
        }

    def send(self, source: bytes, updates: list[tuple[bytes, FilterUpdate]]) -> None:
        for target, update in updates:
            self.lines[source, target].append(read_update(tuple(update)))

    def greet(self, a: bytes, b: bytes) -> None:
        self.send(a, self.sides[a].greet(b, self.now))

    def pass_on(self, source: bytes, target: bytes) -> None:
        update = self.lines[source, target].popleft()
        changes, answers = self.sides[target].receive(source, update, self.now)
        known = self.seen.setdefault((target, source), set())
        for change in changes:
            assert known.isdisjoint(change.added), "a topic was added twice"
            assert known.issuperset(change.removed), "a topic was removed that was not there"
            known |= set(change.added)
            known -= set(change.removed)
        self.send(target, answers)

    def settle(self) -> None:
        for _ in range(4):
            self.now += REPEAT_AFTER
            for node in NODES:
                self.send(node, self.sides[node].tick(self.now))
            while any(self.lines.values()):
                for (source, target), line in self.lines.items():
                    if line:
                        self.pass_on(source, target)


STEPS = st.one_of(
    st.tuples(
        st.just("change"),
        st.sampled_from(NODES),
        st.sets(st.sampled_from(TOPICS)),
        st.sets(st.sampled_from(TOPICS)),
    ),
    st.tuples(st.sampled_from(("pass", "lose", "greet")), st.sampled_from(LINES)),
    st.tuples(st.just("wait"), st.floats(0.1, 3.0)),
)


@given(st.lists(STEPS, max_size=40))
def test_all_know_every_filter_when_losses_end(steps: list[tuple]) -> None:
    net = Net()
    for step in steps:
        match step:
            case ("change", node, added, removed):
                net.send(node, net.sides[node].change(added, removed, net.now))
            case ("pass", line) if net.lines[line]:
                net.pass_on(*line)
            case ("lose", line) if net.lines[line]:
                net.lines[line].popleft()
            case ("greet", line):
                net.greet(*line)
            case ("wait", seconds):
                net.now += seconds
                for node in NODES:
                    net.send(node, net.sides[node].tick(net.now))
    for line in LINES:
        net.greet(*line)

    net.settle()

    for a, b in LINES:
        assert net.sides[a].remotes[b].topics == net.sides[b].topics
        assert net.seen.get((a, b), set()) == net.sides[b].topics
        assert net.sides[a].remotes[b].confirmed == net.sides[a].version


def test_nothing_is_repeated_once_it_is_confirmed() -> None:
    net = Net()
    net.sides[b"a"].change({"/x"}, set(), net.now)
    net.greet(b"a", b"b")
    net.settle()

    net.now += 100 * REPEAT_AFTER

    assert [update for side in net.sides.values() for update in side.tick(net.now)] == []


def test_a_large_filter_comes_in_parts_and_counts_when_the_last_is_there() -> None:
    owner, other = FilterExchange(an_endpoint(b"a")), FilterExchange(an_endpoint(b"b"))
    topics = {f"/t/{i}" for i in range(2 * PART_SIZE + 1)}
    owner.change(topics, set(), 1.0)

    parts = [update for _, update in owner.greet(b"b", 1.0)]

    assert [len(part.added) for part in parts] == [PART_SIZE, PART_SIZE, 1]
    for part in parts[:-1]:
        assert other.receive(b"a", part, 1.0)[0] == []
    (change,), _ = other.receive(b"a", parts[-1], 1.0)
    assert set(change.added) == topics


def test_another_endpoint_on_the_same_node_starts_afresh() -> None:
    first, second = FilterExchange(an_endpoint(b"1")), FilterExchange(an_endpoint(b"2"))
    other = FilterExchange(an_endpoint(b"o"))
    first.change({"/old"}, set(), 1.0)
    second.change({"/new"}, set(), 1.0)
    for _, update in first.greet(b"o", 1.0):
        other.receive(b"n", update, 1.0)

    changes = []
    for _, update in second.greet(b"o", 2.0):
        changes += other.receive(b"n", update, 2.0)[0]

    assert [change.removed for change in changes] == [("/old",), ()]
    assert other.remotes[b"n"].topics == {"/new"}


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        [b"short", True, 1, 0, 0, [], [], True],
        [bytes(16), 1, 1, 0, 0, [], [], True],
        [bytes(16), True, -1, 0, 0, [], [], True],
        [bytes(16), True, 1, 0, 0, [5], [], True],
        [bytes(16), True, 1, 0, 0, ["x" * 5000], [], True],
        [bytes(16), True, 1, 0, 0, "/a", [], True],
    ],
)
def test_what_is_no_update_is_refused(plain: object) -> None:
    with pytest.raises(MalformedMessage):
        read_update(plain)


def _in_parts(version: int, *parts: tuple[str, ...]) -> list[FilterUpdate]:
    last = len(parts) - 1
    return [
        FilterUpdate(an_endpoint(b"b"), True, version, 0, 0, part, (), number == last, number)
        for number, part in enumerate(parts)
    ]


def test_a_whole_filter_whose_middle_was_lost_is_asked_for_again():
    ours = FilterExchange(an_endpoint(b"a"))
    ours.greet(b"b", 1.0)
    first, _lost, last = _in_parts(5, ("/a",), ("/b",), ("/c",))

    assert ours.receive(b"b", first, 1.0) == ([], [])
    changes, ((_, answer),) = ours.receive(b"b", last, 1.0)

    assert changes == []
    assert (answer.seen, answer.base) == (0, 1)  # the whole filter is wanted
    assert ours.remotes[b"b"].topics == set()


def test_parts_of_an_older_version_are_no_part_of_a_newer_filter():
    ours = FilterExchange(an_endpoint(b"a"))
    ours.greet(b"b", 1.0)
    begun, *_lost = _in_parts(5, ("/old",), ("/b",))

    ours.receive(b"b", begun, 1.0)
    for update in _in_parts(6, ("/new",)):
        ours.receive(b"b", update, 1.0)

    assert ours.remotes[b"b"].topics == {"/new"}


def test_parts_without_end_are_refused_at_the_limit(monkeypatch):
    monkeypatch.setattr("callboard.topics.machine.filter_exchange.FILTER_LIMIT", 10)
    ours = FilterExchange(an_endpoint(b"a"))
    parts = _in_parts(5, *[(f"/{number}",) for number in range(20)])

    for update in parts[:10]:
        ours.receive(b"b", update, 1.0)

    with pytest.raises(MalformedMessage, match="more than 10 topics"):
        ours.receive(b"b", parts[10], 1.0)
