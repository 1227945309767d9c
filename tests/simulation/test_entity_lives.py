"""Some random lives of entities on every change."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from callboard.simulation import Cluster, cluster_test
from tests.simulation.entity_faults import CALM_FAULTS, FAULTS, LEASE_FAULTS
from tests.simulation.entity_life import EntityLife
from tests.simulation.wrong_entities import WRONG_MACHINES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@cluster_test(seeds=range(4), faults=FAULTS)
def test_random_lives_of_entities_break_no_rule(cluster: Cluster) -> None:
    EntityLife(cluster).run()


@cluster_test(seeds=range(4), faults=CALM_FAULTS)
def test_lives_of_entities_that_move_keep_order(cluster: Cluster) -> None:
    EntityLife(cluster, is_calm=True).run()


@cluster_test(seeds=range(4), faults=LEASE_FAULTS)
def test_lives_of_entities_that_wait_for_leases_break_no_rule(cluster: Cluster) -> None:
    EntityLife(cluster, takeover="lease").run()


class LateLife(EntityLife):
    """A value is stored, and acknowledged, while the last values are read."""

    is_late = True

    def _last_read(self, node: Any, key: str) -> list[int]:
        end = super()._last_read(node, key)
        if self.is_late:
            self.is_late = False
            self._append_at_once(node, key, random.Random(0))
            self.cluster.advance(0.2)
        return end


@cluster_test(seeds=range(4))
def test_what_is_stored_while_the_last_values_are_read_breaks_no_rule(cluster: Cluster) -> None:
    life = LateLife(cluster).run()

    assert not life.is_late
    assert life.values in {value for end in life.ends.values() for value in end}


FIND: Final = """
import sys
from tests.simulation.batch import live_one
from tests.simulation.wrong_entities import WRONG_MACHINES

(machine,) = [each for each in WRONG_MACHINES if each.name == sys.argv[1]]
found = machine.search((*machine.seeds, *range(1000)))
assert found, "no life found it"
error = live_one(machine.kind, found[1], shrinks=False).error
assert error is None, error
"""


@pytest.mark.parametrize("name", [machine.name for machine in WRONG_MACHINES])
def test_a_machine_that_is_wrong_is_found_out(name: str) -> None:
    """Its seeds found it once; where one of them has become another life, others do.

    In a process of its own: the rarest is found in one of hundreds of lives, and when garbage
    is collected, which tells other nodes of refs that are gone, decides which.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIND, name], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr[-2000:]
