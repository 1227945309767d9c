"""The search for losses through all orders of events after one failure."""

import copy

import pytest

from basp.routing import Router
from tests.basp.routing_simulation import distances, node


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
