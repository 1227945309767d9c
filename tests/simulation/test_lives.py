"""Some random lives of clusters on every change; `make simulate` lives as many as one likes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.simulation import cluster_test
from tests.simulation.credit_life import live_credit
from tests.simulation.leaf_life import live_with_a_leaf
from tests.simulation.life import FAULTS, live_nodes
from tests.simulation.traitor_life import live_with_a_traitor

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@cluster_test(seeds=range(5000, 5012), faults=FAULTS)
def test_random_lives_break_no_rule(cluster):
    live_nodes.scenario(cluster)


@cluster_test(seeds=range(5012, 5024), faults=FAULTS)
def test_further_random_lives_break_no_rule(cluster):
    live_nodes.scenario(cluster)


@cluster_test(seeds=range(24))
def test_lives_with_a_traitor_break_no_rule(cluster):
    live_with_a_traitor.scenario(cluster)


@cluster_test(seeds=range(12))
def test_lives_with_a_hostile_leaf_break_no_rule(cluster):
    live_with_a_leaf.scenario(cluster)


@cluster_test(seeds=range(8), faults=FAULTS)
def test_lives_with_small_mailboxes_break_no_rule(cluster):
    live_credit.scenario(cluster)


def _events_of(seed: int, hash_seed: str) -> bytes:
    program = (
        "import json; from tests.simulation.life import live_nodes; test = live_nodes.test; "
        f"run = test.live({seed}, test.faults_of({seed}), {{}}); "
        "print(json.dumps(run.cluster.trace.lines()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    return done.stdout


def test_a_seed_gives_the_same_events_in_any_process():
    one, other = (_events_of(5001, hash_seed) for hash_seed in ("1", "2"))

    assert len(one) > 10_000
    assert one == other
