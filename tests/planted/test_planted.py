"""Planted bugs are found, made small, and printed as a test that fails; what is right passes.

`make planted` looks for them from any start, as a tester would; here are those
that a few seeds show.
"""

import re
import sys

import pytest

from callboard.simulation import bad_fsync, crash, kill, swarm
from callboard.simulation.cluster_test import ClusterTest
from tests.planted import services
from tests.planted.plants import PLANTS

pytestmark = pytest.mark.slow

#: Bugs of which one in some ten seeds tells; the others cost a run of minutes.
SOON = (
    "lost update",
    "double delivery",
    "forgotten fsync",
    "order after reconnect",
    "timer across a pause",
    "lost will",
    "unbounded retry",
    "missed monitor",
    "half a transfer after a restart",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(sys.modules[ClusterTest.__module__], "SHRINK_SECONDS", 1.0)


@pytest.mark.filterwarnings("ignore:.*never reached:UserWarning")
@pytest.mark.parametrize(
    "plant", [each for each in PLANTS if each.name in SOON], ids=lambda plant: plant.name
)
def test_a_planted_bug_is_found_and_its_program_fails(plant):
    test = ClusterTest(plant.scenario, range(200), swarm(), twice=False)

    with plant.planted():
        run = test.run(plant.name, {})
        assert run is not None
        assert type(run.error) is plant.error
        assert len(run.smallest) + len(run.steps or ()) <= 25
        program = run.program(plant.scenario)
        assert f"def test_seed_{run.seed}(cluster):" in program
        again = replayed(program, plant.scenario)
        with pytest.raises(plant.error):
            again()

    again()
    assert test.run(plant.name, {}, only=run.seed) is None


@pytest.mark.filterwarnings("ignore:.*never reached:UserWarning")
@pytest.mark.parametrize(
    "faults",
    [
        [crash(1, at=18, lasts=0.8), bad_fsync(0, at=18, lasts=2, part=0.9)],
        [kill(2, at=0.002), kill(1, at=0.06, lasts=0.5), kill(0, at=0.76, lasts=2)],
    ],
    ids=["a router that ends", "a will before there is a reader"],
)
def test_a_will_is_published_whatever_ends(faults):
    assert ClusterTest(services.wills, [5000581], faults, twice=False).run("wills", {}) is None


def replayed(program, scenario):
    """Return what the test of a printed program does, without pytest."""
    name = scenario.__module__
    seen = {}

    def kept(**options):
        seen.update(options)
        return lambda function: function

    lines = program.replace(f"import {name}\n", "")
    lines = re.sub(r"\bcluster_test, |, cluster_test\b", "", lines, count=1)
    lines = lines.replace("from callboard.simulation import cluster_test\n", "")
    names = {"cluster_test": kept, name.partition(".")[0]: sys.modules[name.partition(".")[0]]}
    exec(lines, names)
    test = ClusterTest(
        scenario, seen["seeds"], seen["faults"], twice=False, steps=seen.get("steps")
    )

    def live():
        run = test.live(seen["seeds"][0], seen["faults"], {})
        if run.error is not None:
            raise run.error

    return live
