"""A batch of lives, for a process of its own: what spawned processes import."""

import logging
from pathlib import Path

from callboard.simulation.dump import Dump
from tests.simulation.life import Life

ROOT = Path(__file__).parents[2]

BUILD = ROOT / "build"
"""Where the events of lives that broke a rule are left."""


def live(batch: tuple[int, int]) -> tuple[tuple[int, int], list[str], float]:
    """Live a batch of seeds; returns it, what failed, and virtual seconds."""
    logging.getLogger("callboard").propagate = False
    failures, seconds = [], 0.0
    for seed in range(*batch):
        life = Life(seed)
        try:
            life.run()
        except Exception as error:  # noqa: BLE001  # any crash is a finding
            dump_of(life).write(BUILD)
            failures.append(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"  replay: python -m tests.simulation --seeds {seed}"
            )
        seconds += life.cluster.now
    return batch, failures, seconds


def dump_of(life: Life) -> Dump:
    """Return the events of a life."""
    return Dump(life.seed, "tests.simulation", life.cluster.trace.lines())
