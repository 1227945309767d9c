"""Updates of any size are concluded on in portions."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, PayloadTooHeavy
from callboard.basp.node_id import NO_NODE, NodeId
from callboard.basp.routing import diffusion, router
from callboard.basp.routing.router import NODES_LIMIT, PORTION, Router
from callboard.basp.routing.update import (
    LARGE_UPDATE,
    Cut,
    PathVector,
    Statement,
    read_parts,
    read_update,
)
from callboard.cbor.plain import read_plain, write_plain
from tests.basp.routing.test_diffusion import random_edges
from tests.basp.routing_simulation import Simulation, node
from tests.basp.wire import write_update

ME, HOSTILE, HONEST = map(node, range(3))


def crowd(first, count):
    """Return ids of nodes that there are not."""
    return [NodeId(number.to_bytes(18, "big")) for number in range(first, first + count)]


def telling(peer, ids):
    return read_update(peer, write_update([PathVector((peer, one), (1, 1)) for one in ids], []))


def rest_of(one):
    """Conclude on all that there is, and return the changes."""
    changes = []
    while one.is_behind:
        changes.append(one.recompute())
        assert len(changes) < 10_000
    return changes


@pytest.fixture
def flooded():
    """A router with two neighbors, one of which announced thousands of nodes."""
    made = Router(ME, PORTION)
    for peer in (HOSTILE, HONEST):
        made.add_peer(peer)
    rest_of(made)
    made.take(HOSTILE, telling(HOSTILE, crowd(1, 10_000)))
    return made


@pytest.mark.slow
def test_a_conclusion_handles_one_portion_of_a_large_update(flooded):
    told = rest_of(flooded)
    flooded.take(HOSTILE, read_update(HOSTILE, write_update([], crowd(1, 10_000))))
    taken_back = rest_of(flooded)
    closed = Statement(HOSTILE, 9, frozenset({ME}), missing=frozenset(crowd(1, 10_000)))
    end = Statement(HONEST, 9, frozenset({ME}), missing=frozenset(crowd(1, 10_000)))
    for peer, said in ((HOSTILE, closed), (HONEST, end)):
        flooded.take(peer, read_update(peer, write_update([], [], [], [said])))
    lost = rest_of(flooded)

    assert sum(len(changes.gained) for changes in told) == 10_000
    assert sum(len(changes.sought) for changes in taken_back) == 10_000
    assert sum(len(changes.lost) for changes in lost) == 10_000
    for changes in told + taken_back + lost:
        assert max(len(changes.gained), len(changes.sought), len(changes.lost)) <= PORTION
        for peer, payload in changes.updates:
            assert peer == HOSTILE or len(read_update(ME, payload).announced) <= PORTION
            assert len(payload) < 300_000


def test_the_update_of_another_neighbor_is_in_the_next_portion(flooded):
    flooded.recompute()
    flooded.take(HONEST, telling(HONEST, [node(7)]))

    changes = flooded.recompute()

    assert node(7) in changes.gained
    assert len(changes.gained) <= PORTION


def test_a_path_withdrawn_before_its_turn_is_not_announced(flooded):
    flooded.recompute()
    flooded.take(HOSTILE, read_update(HOSTILE, write_update([], crowd(1, 10_000))))
    changes = rest_of(flooded)

    assert sum(len(one.gained) for one in changes) == 0
    told = [read_update(ME, payload) for one in changes for _, payload in one.updates]
    assert sum(len(update.announced) for update in told) == 0
    assert flooded.names == {}


@pytest.mark.slow
def test_names_of_nodes_withdrawn_before_their_turn_are_dropped(flooded):
    vectors = [PathVector((HOSTILE, one), (1, 1)) for one in crowd(20_000, 3_000)]
    named = write_update(vectors, [], names=["x"] * 3_000)
    flooded.take(HOSTILE, read_update(HOSTILE, named))
    flooded.take(HOSTILE, read_update(HOSTILE, write_update([], crowd(20_000, 3_000))))
    rest_of(flooded)

    assert flooded.names == {}


@pytest.mark.slow
def test_the_number_of_known_and_pending_nodes_is_limited(flooded):
    for first in range(10_001, 60_000, 5_000):
        flooded.take(HOSTILE, telling(HOSTILE, crowd(first, 5_000)))
        flooded.take(HONEST, telling(HONEST, crowd(first + 100_000, 5_000)))
        waiting = sum(map(len, flooded._pending.values()))
        assert waiting <= NODES_LIMIT
    rest_of(flooded)

    assert len(flooded.reachable) <= NODES_LIMIT
    assert sum(map(len, flooded._received.values())) <= NODES_LIMIT


@pytest.mark.slow
def test_withdrawals_of_unknown_paths_need_no_conclusion(flooded):
    rest_of(flooded)
    flooded.take(HONEST, read_update(HONEST, write_update([], crowd(500_000, 3_000))))

    assert flooded._pending == {}


@pytest.mark.slow
def test_a_portion_is_smaller_with_many_neighbors():
    hub = Router(ME, PORTION)
    for peer in crowd(1, 400):
        hub.add_peer(peer)
        rest_of(hub)
    hub.take(crowd(1, 1)[0], telling(crowd(1, 1)[0], crowd(1_000, 400)))

    changes = hub.recompute()

    assert 1 <= len(changes.gained) * 400 <= router._ANNOUNCEMENTS


@pytest.mark.slow
def test_a_new_neighbor_receives_a_large_table_in_portions(flooded):
    rest_of(flooded)
    fresh = node(9)
    first = flooded.add_peer(fresh)
    more = rest_of(flooded)

    told = [
        [vector.path[-1] for vector in read_update(ME, payload).announced]
        for one in [first, *more]
        for peer, payload in one.updates
        if peer == fresh
    ]
    assert max(map(len, told)) <= 2 * PORTION
    assert sorted(sum(told, [])) == sorted(flooded.reachable - {fresh})


def test_a_search_for_lost_nodes_is_of_so_many_steps(monkeypatch):
    monkeypatch.setattr(diffusion, "SEARCH_STEPS", 50)
    search = diffusion.Diffusion(ME)
    ring, sought = crowd(1, 40), crowd(1_000, 30)
    search.active.update(sought)
    for one, other in zip([ME, *ring], [*ring, ME], strict=True):
        search.statements[one] = Statement(
            one, 1, frozenset({other}), missing=frozenset(sought)
        )

    portions = [search.find_lost(1_000)]
    while search.is_behind:
        portions.append(search.find_lost(1_000))

    assert sorted(sum(portions, [])) == sought
    assert max(map(len, portions)) <= 3


def test_a_large_update_is_read_completely_in_parts():
    vectors = [PathVector((HOSTILE, one), (1, 1)) for one in crowd(1, 2_000)]
    cuts = [Cut(one, HOSTILE, 1) for one in crowd(1, 1_000)]
    said = [Statement(one, 2, frozenset(crowd(1, 20))) for one in crowd(1, 50)]
    update = (vectors, crowd(5_000, 700), cuts, said, ["x" * 9] * 2_000)
    payload = write_update(*update)
    parts = list(read_parts(HOSTILE, payload))

    assert len(payload) > LARGE_UPDATE
    assert parts.count(None) > 10
    assert max(len(part[0]) for part in parts if part is not None) <= 512
    assert read_update(HOSTILE, payload) == update


def test_the_placeholder_node_id_cannot_be_announced():
    """A frame to this id would end the link to the honest node that it is sent over."""
    for content in ([[], [NO_NODE]], [[[[HOSTILE, NO_NODE], [1, 1]]], []]):
        with pytest.raises(MalformedPayload):
            read_update(HOSTILE, write_plain(content))


def test_control_payloads_that_take_long_to_read_are_refused():
    with pytest.raises(PayloadTooHeavy):
        read_plain(b"\x9a\x00\x20\x00\x00" + b"\x80" * (2 << 20))


@pytest.mark.slow
@given(st.integers(3, 8), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_late_conclusions_in_portions_have_the_same_result(size, portion, seed):
    chance = random.Random(seed)
    simulation = Simulation(size, chance, portion)
    for a, b in random_edges(size, chance):
        simulation.connect(node(a), node(b))
    simulation.run()
    simulation.check()
    assert simulation.lost == []
    for _ in range(chance.randrange(5, 40)):
        simulation.toggle(*chance.sample(simulation.nodes, 2))
        simulation.run(simulation.now + chance.choice([0, 0.1, 0.5, 2, 30]))

    simulation.run()
    simulation.check()
