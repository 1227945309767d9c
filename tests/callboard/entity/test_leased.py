"""Entities that one node at a time may run: without state, or with `takeover="lease"`."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from callboard import Entity, Node, handler
from callboard.errors import CallboardError, EntityUnavailable
from callboard.simulation import Cluster, cluster_test
from callboard.simulation.runner import runner_of
from tests.simulation.entity_faults import LEASE_FAULTS
from tests.simulation.entity_life import link_again, passed

LEASES = "postgresql://simulated/leases"


@dataclass
class Runs:
    """What ran when, of one cluster: (key, who runs, its count), in order."""

    all: list[tuple[str, object, int]] = field(default_factory=list)


class Ticket(Entity):
    """Counts in memory."""

    name = "leased.Ticket"

    def __init__(self, runs: Runs) -> None:
        self.count = 0
        self.runs = runs

    def run_once(self) -> int:
        self.count += 1
        self.runs.all.append((self.key, id(self), self.count))
        return self.count

    @handler
    def on_seconds(self, seconds: float) -> int:
        return self.run_once()

    @handler
    async def on_text(self, text: str) -> int:
        self.run_once()
        await self.sleep(float(text))
        return self.run_once()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


@pytest.fixture
def runs() -> Runs:
    return Runs()


def hosts(cluster: Cluster, runs: Runs, **options: Any) -> tuple[Node, Node, Node, str]:
    """Three nodes of which two host tickets, and a key of the first one."""
    one, other, asker = cluster(3, topology="mesh")
    for node in (one, other):
        node.host(Ticket.with_options(**options), runs, leases=LEASES)
    keys = [f"k-{number}" for number in range(60)]
    asker.entity(Ticket, keys[0]).ask(0.0).result(5)
    cluster.advance(3.0)  # each of the two has its share by now
    asker.entity(Ticket, keys[0]).ask(0.0).result(5)
    key = next(k for k in keys[1:] if asker.entity(Ticket, k).node_id == one.node_id)
    return one, other, asker, key


@pytest.mark.slow
def test_without_its_lease_a_node_refuses_asks_and_goes_on_when_it_is_valid_again(
    cluster: Cluster, runs: Runs
) -> None:
    *_, asker, key = hosts(cluster, runs)
    ticket = asker.entity(Ticket, key)
    assert ticket.ask(0.0).result(5) == 1
    database = cluster.database(LEASES)
    database.down()
    cluster.advance(1.5)
    assert ticket.ask(0.0).result(5) == 2
    long = ticket.ask("1.0", timeout=30.0)
    cluster.advance(2.0)
    with pytest.raises(EntityUnavailable, match="lease .* has run out"):
        ticket.ask(0.0).result(5)
    ticket.tell(0.0)
    cluster.advance(5.0)
    assert runs.all[-1] == (key, runs.all[-2][1], 3)  # neither the rest nor what was told ran
    database.up()
    assert long.result(30.0) == 4
    assert ticket.ask(0.0).result(5) == 6


@pytest.mark.slow
def test_a_node_that_lost_its_slots_runs_nothing_before_it_hears_of_that(
    cluster: Cluster, runs: Runs
) -> None:
    one, other, asker, key = hosts(cluster, runs)
    ticket = one.entity(Ticket, key)
    assert ticket.ask(0.0).result(5) == 1
    cluster.database(LEASES).cut(runner_of(one))
    for _ in range(60):
        ticket.tell(0.0)
        cluster.advance(0.1)
    assert asker.entity(Ticket, key).ask(0.0).result(5) >= 1
    assert one_at_a_time(runs)
    cluster.database(LEASES).mend(runner_of(one))
    cluster.advance(5.0)
    assert one.entity(Ticket, key).ask(0.0).result(5) >= 1
    assert one_at_a_time(runs)


@pytest.mark.slow
@pytest.mark.parametrize("removed_at", [1.0, 4.0, 6.0])
def test_a_row_of_a_lease_that_somebody_removes_lets_no_two_run(
    cluster: Cluster, runs: Runs, removed_at: float
) -> None:
    """Of a node that still holds it, that is silent, or that has been replaced."""
    one, _, asker, key = hosts(cluster, runs)
    database, ticket = cluster.database(LEASES), one.entity(Ticket, key)
    assert ticket.ask(0.0).result(5) == 1
    database.cut(runner_of(one))
    cluster.clock.plan(
        removed_at, lambda: database._contents.leases.pop(f"lease/{one._entities.writer}")
    )
    for _ in range(70):
        ticket.tell(0.0)
        cluster.advance(0.1)
    assert asker.entity(Ticket, key).ask(0.0, timeout=20.0).result(20) >= 1
    database.mend(runner_of(one))
    for _ in range(50):
        ticket.tell(0.0)
        cluster.advance(0.1)
    assert one.entity(Ticket, key).ask(0.0).result(5) >= 1
    assert one_at_a_time(runs)
    assert database._contents.leases[f"lease/{one._entities.writer}"][0].text == "held"


def test_a_node_without_its_lease_closes(cluster: Cluster, runs: Runs) -> None:
    one, _, asker, key = hosts(cluster, runs)
    asker.entity(Ticket, key).tell("60.0")
    cluster.advance(0.5)
    cluster.database(LEASES).down()
    cluster.advance(3.0)
    one.entity(Ticket, key).tell(0.0)
    cluster.advance(1.0)
    began = cluster.now
    one.close()
    assert cluster.now - began < 15.0


@pytest.mark.slow
@cluster_test(seeds=[0, 1, 14, 19, 25, 32], faults=LEASE_FAULTS)
def test_of_entities_without_state_one_runs_at_a_time(cluster: Cluster) -> None:
    live(cluster)


def live(cluster: Cluster) -> None:
    """Let all nodes send to a few keys under faults; what ran is judged in the end."""
    runs = Runs()
    kind = Ticket.with_options(idle=None)

    def host(node: Node) -> None:
        async def join() -> None:
            while True:
                try:
                    await node.ahost(kind, runs, leases=LEASES)
                except CallboardError:
                    await passed(node, 0.05)
                else:
                    return

        node._start(join())

    nodes = cluster(3, topology="mesh")
    for node in nodes:
        host(node)

    def begin_again(node: Node) -> None:
        link_again(cluster, node)
        host(node)

    cluster.restarted = begin_again
    for _, chance in cluster.steps(80, 8.0):
        send(cluster, chance)
    cluster.calm()
    cluster.advance(10.0)
    for node in cluster.machines():
        assert node.entity(Ticket, "k-0").ask(0.0).result(5) >= 1
    assert one_at_a_time(runs)


def send(cluster: Cluster, chance: random.Random) -> None:
    """Let each node that runs tell and ask a ticket."""
    for node in cluster.machines():
        if cluster.is_running(node) and not cluster.is_paused(node):
            ticket = node.entity(Ticket, f"k-{chance.randrange(3)}")
            ticket.tell(chance.choice((0.0, 0.0, 0.0, "0.05")))
            ticket.ask(0.0, timeout=5.0).on_done(lambda done: done.exception())


def one_at_a_time(runs: Runs) -> bool:
    """Return whether no activation ran after a later one of its key had."""
    newest: dict[str, list[object]] = {}
    for key, who, _ in runs.all:
        seen = newest.setdefault(key, [])
        if who in seen[:-1]:
            return False
        if not seen or seen[-1] != who:
            seen.append(who)
    return True
