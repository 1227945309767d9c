"""Routers in a simulated network, with an oracle that sees all links."""

import heapq
import itertools
import random
from collections import defaultdict, deque

import pytest

from callboard.basp.node_id import NodeId
from callboard.basp.routing.router import Router
from callboard.basp.routing.update import PATH_LIMIT, read_update

SLOWEST = 1.0


def node(number):
    return NodeId(bytes([number + 1]) * 18)


def distances(start, edges):
    near = defaultdict(set)
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    found, todo = {start: 0}, deque([start])
    while todo:
        here = todo.popleft()
        for there in near[here] - found.keys():
            found[there] = found[here] + 1
            todo.append(there)
    return found


class Simulation:
    """Routers on a clock; each direction of a link has a delay, its ends change by themselves.

    The oracle sees the links: a node reported lost must have been cut off at some time since
    the computation began, which is when the oldest of the closed statements was made, or when
    nothing was under way at last. These times are counted in events: some are simultaneous.
    """

    def __init__(self, size, chance, portion=None):
        self.chance = chance
        self.nodes = [node(i) for i in range(size)]
        self.routers = {n: Router(n, portion) for n in self.nodes}
        self.portion = portion
        self.planned = set()
        self.now = 0.0
        self.step = 0
        self.events = []
        self.count = itertools.count()
        self.delays = {}
        self.ends = {}  # (node, peer): number of this life of the link, while its end is up
        self.up_since = {}  # {a, b}: since when both ends are up
        self.lives = itertools.count()
        self.under_way = 0
        self.quiet_since = 0
        self.stated_at = {}
        self.lost = []  # (time, node, destination)
        self.cut_off = set()  # (node, destination) since it was reported lost
        self.messages = 0

    def at(self, delay, action):
        heapq.heappush(self.events, (self.now + delay, next(self.count), action))

    def carry_out(self, me, changes):
        for peer, payload in changes.updates:
            assert read_update(me, payload)
            self.under_way += 1
            self.messages += 1
            life = self.ends[me, peer]
            self.at(
                self.delays[me, peer],
                lambda p=peer, x=payload, n=life: self.arrive(me, p, x, n),
            )
        said = self.routers[me]._diffusion.statements.get(me)
        if said is not None:
            self.stated_at.setdefault((me, said.stamp), self.step)
        self.cut_off.difference_update((me, destination) for destination in changes.gained)
        for destination in changes.lost:
            assert (me, destination) not in self.cut_off, "reported twice"
            self.cut_off.add((me, destination))
            self.lost.append((self.now, me, destination))
            self.check_lost(me, destination)
        self.plan(me)

    def plan(self, me):
        """Schedule the next conclusion of a router; more updates may arrive before it."""
        if self.routers[me].is_behind and me not in self.planned:
            self.planned.add(me)
            self.change(self.chance.choice([0, 0.05, 0.5]), lambda: self.recompute(me))

    def recompute(self, me):
        self.planned.remove(me)
        self.carry_out(me, self.routers[me].recompute())

    def check_lost(self, me, destination):
        statements = self.routers[me]._diffusion.statements
        members, todo = {me}, [me]
        while todo:
            said = statements[todo.pop()]
            if destination not in said.beyond:
                assert destination in said.seeking | said.missing
                todo += said.neighbors - members
                members |= said.neighbors
        start = min(self.stated_at[m, statements[m].stamp] for m in members)
        start = max(start, self.quiet_since)
        steady = [tuple(link) for link, since in self.up_since.items() if since <= start]
        length = distances(me, steady).get(destination, PATH_LIMIT + 1)
        assert length > PATH_LIMIT, "lost, though links lead there"

    def arrive(self, sender, receiver, payload, life):
        self.under_way -= 1
        if self.ends.get((receiver, sender)) != life:
            return
        if self.portion is not None:
            self.routers[receiver].take(sender, read_update(sender, payload))
            self.plan(receiver)
        else:
            self.carry_out(receiver, self.routers[receiver].receive(sender, payload))

    def change(self, delay, action):
        """Do something that counts as under way until it is done."""
        self.under_way += 1

        def act():
            self.under_way -= 1
            action()

        self.at(delay, act)

    def connect(self, a, b):
        life = next(self.lives)
        # Frames of the first end must not arrive before the second end is up.
        for pair in ((a, b), (b, a)):
            self.delays[pair] = self.chance.choice([0.1, 0.5, 1.0]) * SLOWEST
        self.change(0, lambda: self.end_up(a, b, life))
        self.change(self.chance.choice([0, 0.05]), lambda: self.end_up(b, a, life))

    def end_up(self, me, peer, life):
        self.ends[me, peer] = life
        if self.ends.get((peer, me)) == life:
            self.up_since[frozenset((me, peer))] = self.step
        self.carry_out(me, self.routers[me].add_peer(peer))

    def cut(self, a, b, late=0.5):
        first, second = self.chance.sample([(a, b), (b, a)], 2)
        self.change(0, lambda: self.end_down(*first))
        self.change(self.chance.choice([0, late]), lambda: self.end_down(*second))

    def end_down(self, me, peer):
        del self.ends[me, peer]
        self.up_since.pop(frozenset((me, peer)), None)
        self.carry_out(me, self.routers[me].remove_peer(peer))

    def run(self, until=float("inf")):
        for _ in range(500_000):
            if not self.events or self.events[0][0] > until:
                break
            self.now, _, action = heapq.heappop(self.events)
            self.step += 1
            action()
            if not self.under_way:
                self.quiet_since = self.step
        else:
            pytest.fail("the updates never end")
        if until < float("inf"):
            self.now = until

    def links(self):
        return [tuple(sorted(link)) for link in self.up_since]  # the same in each process

    def check(self):
        for me, router in self.routers.items():
            found = distances(me, self.links())
            del found[me]
            expected = {n: length for n, length in found.items() if length <= PATH_LIMIT}
            assert {n: len(router.path(n)) for n in router.reachable} == expected
            assert set(router.next_hops) == set(expected)
            assert router.active == set()

    def toggle(self, a, b):
        ends = ((a, b) in self.ends) + ((b, a) in self.ends)
        if ends == 2 and frozenset((a, b)) in self.up_since:
            self.cut(a, b)
            self.run(self.now)  # the first end is down at once, so the link is not cut again
        elif ends == 0:
            self.connect(a, b)
            self.run(self.now + 0.06)  # both ends are up before the link can be cut

    def diameter(self):
        return max(max(distances(n, self.links()).values()) for n in self.nodes)


def simulate(size, edges, seed=1):
    simulation = Simulation(size, random.Random(seed))
    for a, b in edges:
        simulation.connect(node(a), node(b))
    simulation.run()
    simulation.check()
    assert simulation.lost == []
    return simulation
