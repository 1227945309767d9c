"""Asks across nodes that are repeated, cancelled, or too late: handled once, or stopped."""

import asyncio

import pytest

from callboard import Actor, errors, handler
from callboard.proxies.messages import ABILITIES
from tests.polling import eventually


class Ledger(Actor):
    def __init__(self):
        self.entries = []
        self.cancelled = 0

    @handler
    async def slow(self, msg: float) -> int:
        self.entries.append(msg)
        try:
            await self.sleep(msg)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return len(self.entries)

    @handler
    def last(self, msg: str) -> str:
        self.entries.append(msg)
        self.stop_self()
        return msg


def ledger(cluster, nodes):
    """Return an actor at the last node, and its ref as the first one sees it."""
    ref = nodes[-1].spawn(Ledger)
    return ref.target, nodes[0].ref(str(ref))


@pytest.mark.parametrize("count", [2, 3])
def test_an_ask_whose_answer_is_late_is_handled_once(cluster, count):
    nodes = cluster(count, topology="line")
    cell, there = ledger(cluster, nodes)

    assert there.ask(10.0, timeout=1, retries=30).result(60) == 1

    assert cell.actor.entries == [10.0]
    assert cell.actor.cancelled == 0


@pytest.mark.parametrize("count", [2, 3])
def test_an_ask_whose_path_is_lost_is_handled_once(cluster, count):
    nodes = cluster(count, topology="line")
    cell, there = ledger(cluster, nodes)
    asked = there.ask(3.0, timeout=5, retries=30)
    cluster.run_until(lambda: cell.actor.entries, 5)

    cluster.partition(nodes[-2], nodes[-1])
    cluster.advance(20.0)
    cluster.heal()

    assert asked.result(100) == 1
    assert cell.actor.entries == [3.0]


def test_an_answer_is_kept_of_an_actor_that_ended(cluster):
    a, b = cluster(2)
    cell, there = ledger(cluster, (a, b))
    entries = cell.actor.entries
    cluster.partition(b, a, both=False)  # its answers are lost
    asked = there.ask("bye", timeout=5, retries=30)
    cluster.run_until(lambda: entries, 5)
    cluster.advance(20.0)
    cluster.heal()

    assert asked.result(100) == "bye"
    assert entries == ["bye"]


def test_the_answer_after_a_minute_is_another_one(cluster):
    a, b = cluster(2)
    cell, there = ledger(cluster, (a, b))
    assert there.ask(0.0, timeout=5, retries=3).result(10) == 1
    assert len(b.runtime.kept) == 1

    cluster.advance(61.0)

    assert len(b.runtime.kept) == 0
    assert cell.actor.entries == [0.0]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_handler_elsewhere_stops_with_its_ask(cluster, count, end, retries):
    nodes = cluster(count, topology="line")
    cell, there = ledger(cluster, nodes)
    asked = there.ask(1000.0, timeout=5, retries=retries)
    cluster.run_until(lambda: cell.actor.entries, 5)

    if end == "cancel":
        assert asked.cancel()
    else:
        assert isinstance(asked.exception(100), errors.AskTimeout)
    cluster.advance(1.0)

    assert cell.task is None
    assert cell.actor.entries == [1000.0]
    assert cell.actor.cancelled == 1
    assert there.ask(0.0).result(5) == 2  # the actor goes on


def test_a_message_that_waits_elsewhere_is_not_handled(cluster):
    a, b = cluster(2)
    cell, there = ledger(cluster, (a, b))
    first, second = there.ask(5.0), there.ask(6.0)
    cluster.run_until(lambda: cell.actor.entries, 5)

    second.cancel()

    assert first.result(10) == 1
    cluster.advance(10.0)
    assert cell.actor.entries == [5.0]


@pytest.mark.parametrize("count", [2, 3])
def test_nodes_learn_what_others_can_do(cluster, count):
    nodes = cluster(count, topology="line")
    _, there = ledger(cluster, nodes)
    there.ask(0.0, retries=1).result(5)
    cluster.advance(1.0)

    assert nodes[0]._routes.abilities[nodes[-1].node_id] >= set(ABILITIES)


@pytest.fixture
def old(cluster):
    """Return a node, and one of the release before, which keeps no answers."""
    a, b = cluster(2)
    a._routes.abilities[b.node_id] = frozenset()
    return a, b


def test_a_node_of_the_release_before_gets_no_repeat(cluster, old):
    cell, there = ledger(cluster, old)

    with pytest.raises(errors.AskTimeout):
        there.ask(1000.0, timeout=5, retries=3).result(100)

    assert cell.actor.entries == [1000.0]
    assert cell.depth == 0
    assert cell.actor.cancelled == 0  # nor does it understand that


def test_an_ask_that_never_left_is_repeated_to_any_node(cluster, old):
    a, b = old
    cell, there = ledger(cluster, old)
    cluster.partition(a, b)
    cluster.advance(20.0)
    asked = there.ask(0.0, timeout=5, retries=30)
    cluster.advance(1.0)
    cluster.heal()

    assert asked.result(200) == 1
    assert cell.actor.entries == [0.0]


def test_an_odd_list_of_abilities_is_read_for_what_it_is(cluster):
    a, b = cluster(2)
    routes = a._routes

    for said in (None, 5, "keys", {"keys": 1}, [5, None, ["keys"], "x" * 100]):
        routes.is_able(b.node_id, said)
        assert routes.abilities[b.node_id] == frozenset()
    routes.is_able(b.node_id, [*map(str, range(1000)), "keys"])
    assert len(routes.abilities[b.node_id]) == 64


def test_real_nodes_over_a_socket(make_node):
    a, b = make_node(), make_node()
    b.listen()
    a.connect(b.address)
    ref = b.spawn(Ledger)
    there = a.ref(str(ref))
    actor = ref.target.actor

    assert there.ask(0.0, timeout=20, retries=3).result(20) == 1
    asked = there.ask(1000.0)
    eventually(lambda: len(actor.entries) == 2)
    asked.cancel()

    eventually(lambda: actor.cancelled == 1)
