"""No node is lost that could be reached, and each that is lost is lost soon."""

import copy
import heapq
import itertools
import random
from collections import defaultdict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basp.diffusion import Diffusion
from basp.node_id import NodeId
from basp.routing import Router
from basp.routing_update import PATH_LIMIT, PathVector, Statement, read_update

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

    def __init__(self, size, chance):
        self.chance = chance
        self.nodes = [node(i) for i in range(size)]
        self.routers = {n: Router(n) for n in self.nodes}
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
        for destination in changes.lost:
            self.lost.append((self.now, me, destination))
            self.check_lost(me, destination)

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
        if self.ends.get((receiver, sender)) == life:
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
        # What the first end sends must not come before the second one is up.
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
        return [tuple(link) for link in self.up_since]

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
            self.run(self.now)  # the first end is down at once, so nobody cuts it again
        elif ends == 0:
            self.connect(a, b)
            self.run(self.now + 0.06)  # both ends are up before anybody cuts it

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


def random_edges(size, chance):
    """A tree, so that all are connected, and some more links."""
    edges = {(chance.randrange(i), i) for i in range(1, size)}
    more = [pair for pair in itertools.combinations(range(size), 2) if pair not in edges]
    return sorted(edges) + chance.sample(more, chance.randint(0, len(more)))


seeds = st.integers(0, 2**32)


@given(st.integers(3, 8), seeds)
@settings(max_examples=150, deadline=None)
def test_any_changes_end_in_shortest_paths_and_nothing_is_lost_that_is_in_reach(size, seed):
    chance = random.Random(seed)
    simulation = Simulation(size, chance)
    for _ in range(chance.randrange(5, 60)):
        simulation.toggle(*chance.sample(simulation.nodes, 2))
        simulation.run(simulation.now + chance.choice([0, 0.1, 0.5, 2, 30]))

    simulation.run()
    simulation.check()


@given(st.integers(3, 8), seeds)
@settings(max_examples=150, deadline=None)
def test_what_failures_cut_off_is_lost_everywhere_and_soon(size, seed):
    chance = random.Random(seed)
    simulation = simulate(size, random_edges(size, chance), seed)
    before = {n: router.reachable for n, router in simulation.routers.items()}
    links = chance.sample(simulation.links(), chance.randint(1, len(simulation.links())))
    if chance.random() < 0.5:  # a node dies instead
        links = [link for link in simulation.links() if simulation.nodes[0] in link]
    for a, b in links:
        simulation.cut(a, b)
    simulation.run(simulation.now + 0.5)
    last_failure = simulation.now
    simulation.run()

    simulation.check()
    lost = {(me, destination) for _, me, destination in simulation.lost}
    assert len(lost) == len(simulation.lost), "reported twice"
    for me, router in simulation.routers.items():
        assert {d for n, d in lost if n == me} == before[me] - router.reachable
    latest = max((time for time, *_ in simulation.lost), default=0)
    assert latest <= last_failure + 2 * (simulation.diameter() + 2) * SLOWEST


@given(st.integers(3, 8), seeds)
@settings(max_examples=150, deadline=None)
def test_a_graph_that_stays_connected_without_a_link_loses_nothing(size, seed):
    chance = random.Random(seed)
    ring = {tuple(sorted((i, (i + 1) % size))) for i in range(size)}
    edges = sorted(ring | set(random_edges(size, chance)[: chance.randrange(size)]))
    simulation = simulate(size, edges, seed)
    for _ in range(3):
        a, b = chance.choice(simulation.links())
        simulation.cut(a, b)
        simulation.run()
        simulation.check()
        assert simulation.lost == []
        simulation.connect(a, b)
        simulation.run()


def test_a_node_that_dies_in_a_clique_is_lost_without_trying_all_dead_paths():
    simulation = simulate(8, itertools.combinations(range(8), 2))
    simulation.messages, start = 0, simulation.now
    for i in range(7):
        simulation.cut(node(i), node(7), late=0)
    simulation.run()

    assert {(me, d) for _, me, d in simulation.lost if me != node(7)} == {
        (node(i), node(7)) for i in range(7)
    }
    assert max(time for time, *_ in simulation.lost) <= start + 2 * SLOWEST
    assert simulation.messages < 7 * 6 * 25


def test_a_statement_is_renewed_when_it_could_mislead():
    me, b, c, d = (node(i) for i in range(4))
    diffusion = Diffusion(me)
    assert diffusion.restate({}, {b}, 1) is None
    diffusion.active.add(d)
    assert diffusion.restate({}, {b}, 1) == Statement(me, 1, {b}, {d})
    assert diffusion.restate({}, {b}, 2) is None
    assert diffusion.restate({}, {b, c}, 2) == Statement(me, 2, {b, c}, {d})
    diffusion.active.clear()
    assert diffusion.restate({}, {b}, 3) == Statement(me, 3, {b})
    assert diffusion.restate({}, {c}, 4) is None

    far, near = ({d: PathVector((b,) * n, (0,) * n)} for n in (PATH_LIMIT, PATH_LIMIT - 1))
    near_b = {b: PathVector((b,), (0,))}
    diffusion.take([Statement(b, 1, {me}, {d})], near_b)
    assert diffusion.restate(far | near_b, {b}, 4) == Statement(me, 4, {b}, beyond={d})
    assert diffusion.restate(far | near_b, {b}, 5) is None
    assert diffusion.restate(near | near_b, {b}, 5) == Statement(me, 5, {b})


def test_a_node_that_joins_while_others_seek_takes_part():
    simulation = simulate(4, [(0, 1), (1, 2)])
    simulation.delays[node(1), node(2)] = 10
    simulation.cut(node(0), node(1), late=0)
    simulation.run(simulation.now + 1)
    simulation.connect(node(1), node(3))
    simulation.run(simulation.now + 5)
    assert simulation.routers[node(1)].active == {node(0)}
    simulation.run()

    simulation.check()
    assert {(me, d) for _, me, d in simulation.lost if me != node(0)} == {
        (node(1), node(0)),
        (node(2), node(0)),
    }


def test_a_node_that_knew_of_a_loss_and_got_a_new_link_since_is_asked_behind_it():
    """1, 2 and 3 lost 0 once and stated it; since then 0 came back at the other end."""
    simulation = simulate(5, [(0, 1), (1, 2), (2, 3)])
    simulation.cut(node(0), node(1))
    simulation.run()
    simulation.connect(node(0), node(4))
    simulation.connect(node(4), node(3))
    simulation.run()
    simulation.connect(node(0), node(1))
    simulation.run()
    simulation.lost.clear()

    simulation.cut(node(0), node(1))
    simulation.run()

    simulation.check()
    assert simulation.lost == []


def test_nodes_beyond_the_limit_of_paths_are_lost_too():
    """In a ring with a cut they are connected, but further away than paths may be long."""
    size = PATH_LIMIT + 4
    simulation = simulate(size, [(i, (i + 1) % size) for i in range(size)])
    simulation.cut(node(0), node(size - 1))
    simulation.run()

    simulation.check()
    assert {d for _, me, d in simulation.lost if me == node(0)} == {
        node(i) for i in range(PATH_LIMIT + 1, size)
    }


def test_nodes_that_never_come_back_are_not_named_for_ever():
    simulation = simulate(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    for number in range(20, 60):
        mortal = node(number)
        simulation.nodes.append(mortal)
        simulation.routers[mortal] = Router(mortal)
        simulation.connect(node(number % 4), mortal)
        simulation.run()
        simulation.cut(node(number % 4), mortal)
        simulation.run()

    simulation.check()
    for i in range(4):
        said = simulation.routers[node(i)]._diffusion.statements[node(i)]
        assert len(said.seeking | said.missing) <= 4


# --- all orders of events ---


class World:
    """Routers and the messages between them, for the search through all orders."""

    def __init__(self, edges):
        self.edges = {frozenset((node(a), node(b))) for a, b in edges}
        names = sorted({n for edge in self.edges for n in edge})
        self.routers = {n: Router(n) for n in names}
        self.queues = {}
        self.removals = {}  # node: neighbors that it will find gone, in any order
        for a, b in map(sorted, self.edges):
            self.queues[a, b], self.queues[b, a] = (), ()
        for a, b in sorted(self.queues):
            self.carry_out(a, self.routers[a].add_peer(b))
        while moves := self.moves():
            self.move(moves[0])

    def fork(self):
        other = copy.copy(self)
        other.routers, other.queues = dict(self.routers), dict(self.queues)
        other.removals = dict(self.removals)
        return other

    def carry_out(self, me, changes):
        for peer, payload in changes.updates:
            if (me, peer) in self.queues:
                self.queues[me, peer] += (payload,)
        return [(me, destination) for destination in changes.lost]

    def moves(self):
        moves = [pair for pair, queue in self.queues.items() if queue]
        return moves + [
            (me, None, peer) for me, peers in self.removals.items() for peer in peers
        ]

    def move(self, move):
        """Make one move; return what was reported lost."""
        if len(move) == 3:
            me, _, peer = move
            self.removals[me] = self.removals[me] - {peer}
            # What is under way to this end is lost, what it had sent may still arrive.
            self.queues.pop((peer, me), None)
            router = self.routers[me] = copy.deepcopy(self.routers[me])
            return self.carry_out(me, router.remove_peer(peer))
        sender, me = move
        payload, *rest = self.queues[move]
        self.queues[move] = tuple(rest)
        router = self.routers[me] = copy.deepcopy(self.routers[me])
        return self.carry_out(me, router.receive(sender, payload))

    def key(self):
        return (
            tuple(map(router_key, self.routers.values())),
            tuple(sorted(self.queues.items())),
            tuple((me, frozenset(peers)) for me, peers in self.removals.items()),
        )


_keys = {}


def router_key(router):
    """Number a router's state, once: routers are copied before they change."""
    found = _keys.get(id(router))
    if found is None or found[0] is not router:
        state = [
            {n: sorted(v.items()) for n, v in sorted(router._heard.items())},
            {n: sorted(v.items()) for n, v in sorted(router._told.items())},
            sorted(router._best.items()),
            sorted(router._cuts.items()),
            router._stamp,
            sorted(router.active),
            [
                (n, s.stamp, *map(sorted, (s.neighbors, s.seeking, s.missing)))
                for n, s in sorted(router._diffusion.statements.items())
            ],
        ]
        found = _keys[id(router)] = (router, hash(repr(state)))
    return found[1]


LINE = [(0, 1), (1, 2), (2, 3)]
RING = [(0, 1), (1, 2), (2, 3), (0, 3)]
TAILED = [*RING, (3, 4)]


def failures(edges):
    """Yield the links that fail and the node that died, if any."""
    for edge in edges:
        yield edges, [edge], None
    for dead in sorted({n for edge in edges for n in edge}):
        yield edges, [edge for edge in edges if dead in edge], dead


@pytest.mark.parametrize(
    ("edges", "gone", "dead"),
    [case for edges in (LINE, RING, TAILED) for case in failures(edges)],
)
def test_all_orders_of_events_after_a_failure_end_right(edges, gone, dead):
    _keys.clear()
    world = World(edges)
    for edge in gone:
        for me, peer in (edge, edge[::-1]):
            if me != dead:
                already = world.removals.get(node(me), frozenset())
                world.removals[node(me)] = already | {node(peer)}
    left = [(node(a), node(b)) for a, b in edges if (a, b) not in gone]
    alive = [n for n in world.routers if dead is None or n != node(dead)]
    found = {n: distances(n, left) for n in alive}

    seen, todo, ends = set(), [(world, ())], 0
    while todo:
        world, lost = todo.pop()
        moves = [move for move in world.moves() if move[1] is None or move[1] in alive]
        if not moves:
            ends += 1
            assert set(lost) == {
                (me, d) for me in alive for d in world.routers if d not in found[me]
            }
            for me in alive:
                router = world.routers[me]
                assert router.active == set()
                assert {n: len(router.path(n)) for n in router.reachable} == {
                    n: length for n, length in found[me].items() if n != me
                }
        for move in moves:
            after = world.fork()
            reports = after.move(move)
            assert all(d not in found[me] for me, d in reports), "a false loss"
            state = (after.key(), tuple(sorted({*lost, *reports})))
            if hash(state) not in seen:
                seen.add(hash(state))
                todo.append((after, state[1]))
    assert ends
