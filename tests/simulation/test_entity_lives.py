"""Some random lives of entities on every change."""

from callboard.simulation import Cluster, cluster_test
from tests.simulation.entity_life import CALM_FAULTS, FAULTS, EntityLife


@cluster_test(seeds=range(4), faults=FAULTS)
def test_random_lives_of_entities_break_no_rule(cluster: Cluster) -> None:
    EntityLife(cluster).run()


@cluster_test(seeds=range(4), faults=CALM_FAULTS)
def test_lives_of_entities_that_move_keep_order(cluster: Cluster) -> None:
    EntityLife(cluster, is_calm=True).run()
