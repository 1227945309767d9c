"""No node is lost that could be reached, and each that is lost is lost soon."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callboard.basp.routing import diffusion
from callboard.basp.routing.diffusion import Diffusion
from callboard.basp.routing.router import Router
from callboard.basp.routing.update import PATH_LIMIT, PathVector, Statement
from tests.basp.routing_simulation import SLOWEST, Simulation, node, simulate


def random_edges(size, chance):
    """A tree, so that all are connected, and some more links."""
    edges = {(chance.randrange(i), i) for i in range(1, size)}
    more = [pair for pair in itertools.combinations(range(size), 2) if pair not in edges]
    return sorted(edges) + chance.sample(more, chance.randint(0, len(more)))


seeds = st.integers(0, 2**32)


@pytest.mark.slow
@given(st.integers(3, 8), seeds)
@settings(max_examples=60, deadline=None)
def test_after_any_changes_paths_are_shortest_and_no_reachable_node_is_lost(size, seed):
    chance = random.Random(seed)
    simulation = Simulation(size, chance)
    for _ in range(chance.randrange(5, 60)):
        simulation.toggle(*chance.sample(simulation.nodes, 2))
        simulation.run(simulation.now + chance.choice([0, 0.1, 0.5, 2, 30]))

    simulation.run()
    simulation.check()


@pytest.mark.slow
@given(st.integers(3, 8), seeds)
@example(size=7, seed=156)
@example(size=8, seed=1228)
@settings(max_examples=60, deadline=None)
def test_unreachable_nodes_are_lost_everywhere_and_soon(size, seed):
    """A lost node may become reachable once more for a short time, as the examples show.

    Closed statements overtake a slow link, on which an older path is still in transit. This
    path is accepted: the cut that would refuse it arrived from a neighbor that is not a carrier
    for the node that made the cut, and such cuts may be forged.
    """
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
    assert lost == simulation.cut_off
    for me, router in simulation.routers.items():
        assert {d for n, d in lost if n == me} == before[me] - router.reachable
    latest = max((time for time, *_ in simulation.lost), default=0)
    assert latest <= last_failure + 2 * (simulation.diameter() + 2) * SLOWEST


@pytest.mark.slow
@given(st.integers(3, 8), seeds)
@settings(max_examples=60, deadline=None)
def test_no_node_is_lost_while_the_graph_is_connected(size, seed):
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


def test_a_hub_forwards_statements_of_its_neighbors_in_one_update_to_each():
    simulation = simulate(30, [(0, i) for i in range(1, 30)])
    for dead in (29, 28):  # statements about the first loss do not affect the second
        others = dead - 1
        simulation.messages = 0
        simulation.lost.clear()
        simulation.cut(node(0), node(dead), late=0)
        simulation.run()

        simulation.check()
        lost_by = {me for _, me, d in simulation.lost if d == node(dead)}
        assert lost_by == {node(i) for i in range(dead)}
        # The hub tells of the loss, each answers, the hub sends all answers on.
        assert simulation.messages == 3 * others


def test_a_silent_neighbor_delays_the_others_until_its_link_ends():
    simulation = simulate(5, [(0, i) for i in range(1, 5)])
    simulation.delays[node(4), node(0)] = 1000
    simulation.cut(node(0), node(1), late=0)
    simulation.run(simulation.now + 20)
    rest = [node(i) for i in (0, 2, 3)]
    assert all(simulation.routers[me].active == {node(1)} for me in rest)

    simulation.cut(node(0), node(4), late=0)
    simulation.run(simulation.now + 6 * SLOWEST)

    assert {(me, d) for _, me, d in simulation.lost if me in rest} == {
        (me, d) for me in rest for d in (node(1), node(4))
    }
    assert not any(simulation.routers[me].active for me in rest)


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
    diffusion.record([Statement(b, 1, {me}, {d})], near_b)
    assert diffusion.restate(far | near_b, {b}, 4) == Statement(me, 4, {b}, beyond={d})
    assert diffusion.restate(far | near_b, {b}, 5) is None
    assert diffusion.restate(near | near_b, {b}, 5) == Statement(me, 5, {b})


def test_a_node_that_joins_during_a_search_takes_part():
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


def test_a_search_continues_over_a_new_link_of_a_node_that_knew_of_a_loss():
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


def test_a_node_that_joins_later_receives_earlier_statements():
    simulation = simulate(4, [(0, 1), (1, 2)])
    simulation.cut(node(0), node(1))
    simulation.run()
    simulation.connect(node(0), node(3))
    simulation.connect(node(3), node(1))
    simulation.run()
    simulation.lost.clear()

    simulation.cut(node(0), node(3))
    simulation.run()

    simulation.check()
    assert {me for _, me, d in simulation.lost if d == node(0)} == {node(i) for i in (1, 2, 3)}


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


def test_statements_stop_naming_nodes_that_never_return():
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


def test_the_oldest_statements_of_unreachable_nodes_are_dropped(monkeypatch):
    monkeypatch.setattr(diffusion, "GONE_LIMIT", 2)
    kept = Diffusion(node(0))
    best = {node(1): PathVector((node(1),), (0,))}
    for number in (1, 2, 3):
        kept.record([Statement(node(number), 1)], best)
    kept.record([Statement(node(2), 2)], best)
    kept.record([Statement(node(4), 1)], best)

    assert list(kept.statements) == [node(1), node(2), node(4)]
