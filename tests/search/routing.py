"""Routers after one failure: in any order, they report lost nodes as lost, and no others."""

import copy
from collections.abc import Hashable, Iterator
from typing import Any

from callboard.basp.routing.router import Router
from tests.basp.routing_simulation import distances, node
from tests.search.explorer import Model


class World:
    """Routers and the messages between them."""

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
        """Make one move; return the nodes reported lost."""
        if len(move) == 3:
            me, _, peer = move
            self.removals[me] = self.removals[me] - {peer}
            # Frames to this end are lost; frames that it has sent may still arrive.
            self.queues.pop((peer, me), None)
            router = self.routers[me] = copy.deepcopy(self.routers[me])
            return self.carry_out(me, router.remove_peer(peer))
        sender, me = move
        payload, *rest = self.queues[move]
        self.queues[move] = tuple(rest)
        router = self.routers[me] = copy.deepcopy(self.routers[me])
        return self.carry_out(me, router.receive(sender, payload))

    def key(self, number_of):
        return (
            tuple(map(number_of, self.routers.values())),
            tuple(sorted(self.queues.items())),
            tuple((me, frozenset(peers)) for me, peers in self.removals.items()),
        )


def router_state(router):
    """Return all that a router decides by."""
    return (
        {n: sorted(v.items()) for n, v in sorted(router._received.items())},
        {n: sorted(told) for n, told in sorted(router._announced.items())},
        sorted(router._best.items()),
        sorted(router._cuts.items()),
        router._stamp,
        sorted(router.active),
        [
            (n, s.stamp, *map(sorted, (s.neighbors, s.seeking, s.missing)))
            for n, s in sorted(router._diffusion.statements.items())
        ],
    )


LINE = [(0, 1), (1, 2), (2, 3)]
RING = [(0, 1), (1, 2), (2, 3), (0, 3)]
TAILED = [*RING, (3, 4)]


def failures(edges):
    """Yield the links that fail and the node that died, if any."""
    for edge in edges:
        yield edges, [edge], None
    for dead in sorted({n for edge in edges for n in edge}):
        yield edges, [edge for edge in edges if dead in edge], dead


class Routing(Model[tuple[World, frozenset[Any]]]):
    """Links `edges`; `gone` fail, which are all links of node `dead` if there is one."""

    def __init__(
        self, edges: list[tuple[int, int]], gone: list[tuple[int, int]], dead: int | None
    ) -> None:
        self._edges, self._gone, self._dead = edges, gone, dead
        left = [(node(a), node(b)) for a, b in edges if (a, b) not in gone]
        nodes = {node(n) for edge in edges for n in edge}
        self._alive = sorted(nodes if dead is None else nodes - {node(dead)})
        self._found = {n: distances(n, left) for n in self._alive}
        self._lost = {
            (me, other) for me in self._alive for other in nodes if other not in self._found[me]
        }
        # Routers are copied before they change: each needs to be looked at only once.
        self._numbers: dict[int, tuple[Router, int]] = {}

    def start(self) -> tuple[World, frozenset[Any]]:
        world = World(self._edges)
        for edge in self._gone:
            for me, peer in (edge, edge[::-1]):
                if me != self._dead:
                    already = world.removals.get(node(me), frozenset())
                    world.removals[node(me)] = already | {node(peer)}
        return world, frozenset()

    def key(self, state: tuple[World, frozenset[Any]]) -> Hashable:
        return state[0].key(self._number_of), state[1]

    def _number_of(self, router: Router) -> int:
        found = self._numbers.get(id(router))
        if found is None or found[0] is not router:
            number = hash(repr(router_state(router)))
            found = self._numbers[id(router)] = (router, number)
        return found[1]

    def steps(self, state: tuple[World, frozenset[Any]]) -> Iterator[tuple[Any, Any]]:
        world, lost = state
        for move in self._moves(world):
            after = world.fork()
            reports = after.move(move)
            yield move, (after, lost.union(reports))

    def _moves(self, world: World) -> list[Any]:
        return [move for move in world.moves() if move[1] is None or move[1] in self._alive]

    def check(self, state: tuple[World, frozenset[Any]]) -> bool:
        world, lost = state
        assert lost <= self._lost, "a false loss"
        if self._moves(world):
            return False
        assert lost == self._lost, "a loss that nobody noticed"
        for me in self._alive:
            router = world.routers[me]
            assert router.active == set()
            assert {n: len(router.path(n)) for n in router.reachable} == {
                n: length for n, length in self._found[me].items() if n != me
            }
        return True
