import random
from collections import defaultdict, deque

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from callboard.basp.errors import LocalProtocolError, MalformedPayload, RemoteProtocolError
from callboard.basp.node_id import NodeId
from callboard.basp.routing.router import Changes, Router
from callboard.basp.routing.update import (
    PATH_LIMIT,
    Cut,
    PathVector,
    Statement,
    read_update,
)
from callboard.cbor.plain import write_plain
from tests.basp.wire import write_update


def node(number):
    return NodeId(bytes([number + 1]) * 18)


class Network:
    """Routers and FIFO links; the order between links is chance."""

    def __init__(self, size, chance):
        self.chance = chance
        self.nodes = [node(i) for i in range(size)]
        self.routers = {n: Router(n) for n in self.nodes}
        self.queues = {}
        self.known = defaultdict(set)

    def carry_out(self, me, changes):
        for peer, payload in changes.updates:
            self.queues[me, peer].append(payload)
        known = self.known[me]
        assert not known & set(changes.gained)
        assert set(changes.lost) <= known
        known |= set(changes.gained)
        known -= set(changes.lost)
        assert set(changes.moved) <= known
        router = self.routers[me]
        assert router.reachable == set(router.next_hops)
        assert router.reachable.isdisjoint(router.active)
        assert known == router.reachable | router.active

    def toggle(self, a, b):
        if (a, b) in self.queues:
            del self.queues[a, b], self.queues[b, a]
            for me, peer in ((a, b), (b, a)):
                self.carry_out(me, self.routers[me].remove_peer(peer))
        else:
            self.queues[a, b], self.queues[b, a] = deque(), deque()
            for me, peer in ((a, b), (b, a)):
                self.carry_out(me, self.routers[me].add_peer(peer))

    def step(self):
        ready = [pair for pair, queue in self.queues.items() if queue]
        if not ready:
            return False
        sender, receiver = self.chance.choice(ready)
        payload = self.queues[sender, receiver].popleft()
        self.carry_out(receiver, self.routers[receiver].receive(sender, payload))
        return True

    def settle(self):
        for _ in range(200_000):
            if not self.step():
                return
        pytest.fail("the updates never end")

    def distances(self, start):
        found, todo = {start: 0}, deque([start])
        while todo:
            here = todo.popleft()
            for a, b in self.queues:
                if a == here and b not in found:
                    found[b] = found[here] + 1
                    todo.append(b)
        del found[start]
        return found

    def check(self):
        for me, router in self.routers.items():
            expected = {
                n: length for n, length in self.distances(me).items() if length <= PATH_LIMIT
            }
            assert {n: len(router.path(n)) for n in router.reachable} == expected
            assert not router.active
            for destination in expected:
                hops = [me, *router.path(destination)]
                assert router.next_hops[destination] == hops[1]
                assert hops[-1] == destination
                assert len(set(hops)) == len(hops)
                assert all(pair in self.queues for pair in zip(hops, hops[1:], strict=False))


@given(st.integers(2, 9), st.integers(0, 2**32))
@settings(max_examples=60)
def test_routes_are_the_shortest_after_any_changes(size, seed):
    chance = random.Random(seed)
    network = Network(size, chance)
    for _ in range(chance.randrange(1, 40)):
        network.toggle(*chance.sample(network.nodes, 2))
        for _ in range(chance.randrange(6)):
            network.step()

    network.settle()
    network.check()


def line(size):
    network = Network(size, random.Random(1))
    for a, b in zip(network.nodes, network.nodes[1:], strict=False):
        network.toggle(a, b)
    network.settle()
    return network


def test_a_partition_is_noticed_without_counting_to_infinity():
    network = line(6)
    network.toggle(node(0), node(2))
    network.settle()
    network.toggle(node(4), node(5))
    steps = 0
    while network.step():
        steps += 1

    assert steps < 80
    assert node(5) not in network.routers[node(0)].reachable
    network.check()


def test_paths_end_at_the_limit():
    network = line(PATH_LIMIT + 3)

    assert len(network.routers[node(0)].reachable) == PATH_LIMIT
    network.check()


def test_equal_paths_are_chosen_the_same_everywhere():
    network = Network(4, random.Random(3))
    for a, b in ((0, 2), (2, 3), (0, 1), (1, 3)):
        network.toggle(node(a), node(b))
    network.settle()

    assert network.routers[node(0)].path(node(3)) == (node(1), node(3))


def test_changes_list_gained_moved_and_lost_nodes():
    me, b, c, d = (node(i) for i in range(4))
    router = Router(me)
    changes = router.add_peer(b)
    assert (changes.gained, changes.updates) == ([b], [])
    changes = router.add_peer(c)
    assert changes.gained == [c]
    assert [peer for peer, _ in changes.updates] == [b, c]
    assert read_update(me, changes.updates[0][1])[0][0].path == (me, c)

    via = write_update([PathVector((c, d), (1, 1))], [])
    assert router.receive(c, via).gained == [d]
    short = write_update([PathVector((b, d), (1, 1))], [])
    assert router.receive(b, short).moved == [d]
    assert router.receive(b, write_update([], [d])).moved == [d]
    changes = router.remove_peer(c)
    assert (changes.lost, router.active) == ([], {c, d})
    assert router.remove_peer(c).lost == []
    none = write_update([], [], [], [Statement(b, 9, {me}, {c}, {d})])
    assert router.receive(b, none).lost == [c, d]
    assert router.active == set()
    assert router.receive(c, via).gained == []
    assert router.path(d) == ()
    assert d not in router.next_hops
    assert set(router._received) == {b}


def test_vectors_through_ourselves_withdraw():
    me, b, d = (node(i) for i in range(3))
    router = Router(me)
    router.add_peer(b)
    router.receive(b, write_update([PathVector((b, d), (1, 1))], []))

    loop = write_update([PathVector((b, me, d), (1, 1, 1))], [])

    router.receive(b, loop)

    assert router.active == {d}
    assert d not in router.next_hops


def test_late_vectors_are_ignored_by_their_stamps():
    me, b, d = (node(i) for i in range(3))
    router = Router(me)
    router.add_peer(b)
    router.receive(b, write_update([PathVector((b, d), (5, 5))], []))
    router.receive(b, write_update([PathVector((b, d), (5, 4))], []))

    assert router._received[b][d].stamps == (5, 5)


def test_a_neighbor_is_added_once_and_is_not_oneself():
    router = Router(node(0))
    router.add_peer(node(1))
    for wrong in (node(0), node(1)):
        with pytest.raises(LocalProtocolError):
            router.add_peer(wrong)


N = bytes(range(18))


@pytest.mark.parametrize(
    "content",
    [
        5, [], [[]], [[], [], {}], [[], [], [], 5], [{}, []],
        [[], [b"short"]], [[], ["x" * 18]], [[5], []],
        [[[[N], 5]], []], [[[[N], [1, 2]]], []], [[[[], []]], []], [[[["x"], [1]]], []],
        [[[[N], [-1]]], []], [[[[N], [True]]], []], [[[[N, N], [1, 1]]], []],
        [[[[bytes(18)], [1]]], []], [[[[N] * 17, [1] * 17]], []],
        [[], [N] * 65_537],
        [[], [], [5]], [[], [], [[N, N]]], [[], [], [[N, N, -1]]], [[], [], [[N, "x", 1]]],
        [[], [], [], [5]], [[], [], [], [[N, 1]]], [[], [], [], [[N, -1, [], [], [], []]]],
        [[], [], [], [], 5], [[], [], [], [], ["x"]], [[[[N], [1]]], [], [], [], [5]],
        [[[[N], [1]]], [], [], [], ["x" * 257]],
        [[], [], [], [[N, 1, [], [], [], ["x"]]]], [[], [], [], [[N, 1, [], [], [], 5]]],
    ],
)  # fmt: skip
def test_malformed_updates_are_refused(content):
    with pytest.raises(MalformedPayload, match="routing update of node"):
        read_update(NodeId(N), write_plain(content))


def test_updates_are_read_as_they_were_written():
    me, b, c = (node(i) for i in range(3))
    update = (
        [PathVector((me, b), (1, 2))],
        [c],
        [Cut(b, c, 2**64 - 1)],
        [Statement(c, 7, frozenset({me, b}), frozenset({b}), frozenset({c}), frozenset({me}))],
        ["see"],
    )

    assert read_update(me, write_update(*update)) == update


def test_other_releases_may_leave_out_and_append_items():
    me = node(0)
    assert read_update(me, write_plain([[], [me]])) == ([], [me], [], [], [])
    assert read_update(me, write_plain([[], [me], [], [], [], "new", 5])) == (
        [],
        [me],
        [],
        [],
        [],
    )


def test_older_paths_over_a_cut_link_are_refused_from_all_neighbors():
    me, b, c, x, d = (node(i) for i in range(5))
    router = Router(me)
    router.add_peer(b)
    router.add_peer(c)
    router.receive(b, write_update([PathVector((b, x, d), (1, 4, 1))], []))

    changes = router.receive(c, write_update([], [], [Cut(x, d, 5)]))
    assert router.active == {d}
    assert [peer for peer, _ in changes.updates] == [b, c]
    assert [read_update(me, payload).cuts for _, payload in changes.updates] == [
        [Cut(x, d, 5)],
        [],
    ]
    assert router.receive(b, write_update([], [], [Cut(x, d, 5)])).updates == []

    router.receive(c, write_update([PathVector((c, x, d), (1, 4, 1))], []))
    assert router.active == {d}
    changes = router.receive(c, write_update([PathVector((c, x, d), (1, 6, 1))], []))
    assert (changes.moved, router.active) == ([d], set())


def test_names_are_announced_with_the_first_path_and_each_later_one():
    me, b, c, d, e = (node(i) for i in range(5))
    router = Router(me)
    router.add_peer(b)
    router.names[c] = "sea"
    router.add_peer(c)
    told = router.receive(c, write_update([PathVector((c, d), (1, 1))], [], names=["day"]))
    [(peer, payload)] = told.updates
    assert (peer, read_update(me, payload).names, router.names[d]) == (b, ["day"], "day")

    *_, (peer, payload) = router.add_peer(e).updates
    assert (peer, read_update(me, payload).names) == (e, ["", "sea", "day"])

    through_us = write_update([PathVector((c, me, b), (1, 1, 1))], [], names=["false"])
    router.receive(c, through_us)
    assert b not in router.names, "a name without a path of use"


def test_a_closed_router_loses_all_nodes_and_sends_no_update():
    me, b, c, d = (node(i) for i in range(4))
    router = Router(me)
    router.add_peer(b)
    router.add_peer(c)
    router.receive(c, write_update([PathVector((c, d), (1, 1))], []))

    changes = router.close()
    assert (sorted(changes.lost), changes.updates) == ([b, c, d], [])
    assert (set(router._received), router.reachable, router.active) == (set(), set(), set())
    assert router.remove_peer(b) == Changes()


@given(st.binary(max_size=80))
def test_any_bytes_are_an_update_or_refused(payload):
    try:
        read_update(NodeId(N), payload)
    except RemoteProtocolError:
        event("refused")


def test_after_a_cut_is_forgotten_announced_paths_are_valid():
    me, peer, far, other = map(node, range(4))
    router = Router(me)
    router.add_peer(peer)
    cuts = [Cut(far, other, 9), Cut(far, peer, 9)]
    router.receive(peer, write_update([PathVector((peer, far), (1, 1))], [], cuts=cuts))
    router.receive(peer, write_update([PathVector((peer, far, other), (1, 2, 1))], []))
    assert (router.reachable, router.cuts_kept) == ({peer, far}, 2)

    assert router.forget_cuts(0) == Changes()
    assert router.forget_cuts(1).gained == [other]
    assert router.forget_cuts(2) == Changes()

    assert router.path(other) == (peer, far, other)


def test_a_withdrawn_path_over_a_cut_link_does_not_return():
    me, peer, far, other = map(node, range(4))
    router = Router(me)
    router.add_peer(peer)
    router.receive(peer, write_update([], [], cuts=[Cut(far, other, 9)]))
    router.receive(peer, write_update([PathVector((peer, far, other), (1, 2, 1))], []))
    router.receive(peer, write_update([], [other]))

    assert router.forget_cuts(1) == Changes()


def numbered(first, count):
    return [NodeId(number.to_bytes(18, "big")) for number in range(first, first + count)]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nodes", "cuts", "statements", "large statements"])
def test_updates_of_a_hostile_neighbor_are_forwarded_within_the_limits(what):
    """Otherwise the next neighbor would end the link to the node that forwarded them."""
    me, it, hostile, second, fresh = [NodeId(bytes([number]) * 18) for number in range(1, 6)]
    router, other, late = Router(me), Router(it), Router(fresh)
    other.add_peer(me)
    late.add_peer(me)
    for peer in (hostile, second, it):
        router.add_peer(peer)
    sent = []
    for turn, peer in enumerate((hostile, second)):
        ids = numbered(1 + turn * 34_000, 34_000)
        if what == "nodes":
            parts = [write_update([PathVector((peer, one), (1, 1)) for one in ids], [])]
            parts.append(write_update([], ids[:2_000]))
        elif what == "cuts":
            parts = [write_update([], [], cuts=[Cut(one, peer, 1) for one in ids])]
        else:
            count, size = (500, 20) if what == "statements" else (2, 30_000)
            vectors = [PathVector((peer, one), (1, 1)) for one in ids[:count]]
            said = [Statement(one, 2, *4 * [frozenset(ids[:size])]) for one in ids[:count]]
            parts = [write_update(vectors, [])]
            parts += [write_update([], [], statements=[one]) for one in said]
        for part in parts:
            sent += [payload for to, payload in router.receive(peer, part).updates if to == it]
    while router.is_behind:
        sent += [payload for to, payload in router.recompute().updates if to == it]

    joins = [payload for to, payload in router.add_peer(fresh).updates if to == fresh]
    for payload in sent:
        other.receive(me, payload)
    for payload in joins:
        late.receive(me, payload)

    assert sent
    assert max(map(len, sent + joins)) < 4 << 20
