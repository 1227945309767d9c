"""Some random lives of clusters on every change; `make simulate` lives as many as one likes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.credit_life import CreditLife
from tests.simulation.leaf_life import LeafLife
from tests.simulation.life import Life
from tests.simulation.traitor_life import TraitorLife

ROOT = Path(__file__).parents[2]

#: Seeds that found something once: a dial that timed out after it had succeeded.
FOUND_SOMETHING = (1001, 1012, 1124, 1217)

#: Ends of epochs that a traitor forged, and were still known; a pair that heals while quiet.
TRAITORS_THAT_DID = (3503, 3893, 4369, 4794)

SEEDS = range(5000, 5020)


@pytest.mark.parametrize("seed", FOUND_SOMETHING)
def test_seeds_that_found_something_once_are_fine(seed):
    Life(seed).run()


@pytest.mark.parametrize("first", SEEDS[::5])
def test_random_lives_break_no_rule(first):
    for seed in range(first, first + 5):
        Life(seed).run()


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_lives_with_a_traitor_break_no_rule(first):
    for seed in range(first, first + 10):
        TraitorLife(seed).run()


@pytest.mark.parametrize("first", range(0, 12, 6))
def test_lives_with_a_hostile_leaf_break_no_rule(first):
    for seed in range(first, first + 6):
        LeafLife(seed).run()


@pytest.mark.parametrize("first", range(0, 12, 6))
def test_lives_with_small_mailboxes_break_no_rule(first):
    for seed in range(first, first + 6):
        CreditLife(seed).run()


@pytest.mark.parametrize("seed", TRAITORS_THAT_DID)
def test_traitors_that_did_something_once_do_it_no_more(seed):
    TraitorLife(seed).run()


def _events_of(seed: int, hash_seed: str) -> str:
    program = (
        "import json; from tests.simulation.life import Life; "
        f"print(json.dumps(Life({seed}).run().cluster.trace.lines()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()


def test_a_seed_gives_the_same_events_in_any_process():
    here = json.dumps(Life(5001).run().cluster.trace.lines())

    there = [_events_of(5001, hash_seed).strip() for hash_seed in ("1", "2")]

    assert len(here) > 10_000
    assert there == [here, here]
