"""Some random lives of entities on every change."""

import pytest

from callboard.simulation import Cluster, cluster_test
from tests.simulation.batch import live_one
from tests.simulation.entity_faults import CALM_FAULTS, FAULTS, LEASE_FAULTS
from tests.simulation.entity_life import EntityLife
from tests.simulation.wrong_entities import WRONG_MACHINES, WrongMachine


@cluster_test(seeds=range(4), faults=FAULTS)
def test_random_lives_of_entities_break_no_rule(cluster: Cluster) -> None:
    EntityLife(cluster).run()


@cluster_test(seeds=range(4), faults=CALM_FAULTS)
def test_lives_of_entities_that_move_keep_order(cluster: Cluster) -> None:
    EntityLife(cluster, is_calm=True).run()


@cluster_test(seeds=range(4), faults=LEASE_FAULTS)
def test_lives_of_entities_that_wait_for_leases_break_no_rule(cluster: Cluster) -> None:
    EntityLife(cluster, takeover="lease").run()


@pytest.mark.parametrize("machine", WRONG_MACHINES, ids=lambda machine: machine.name)
def test_a_machine_that_is_wrong_is_found_out(machine: WrongMachine) -> None:
    """Its seeds found it once; where one of them has become another life, others do."""
    found = machine.search((*machine.seeds, *range(1000)))

    assert found
    assert live_one(machine.kind, found[1], shrinks=False).error is None
