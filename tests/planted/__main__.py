"""Search for every planted bug from some starts: `python -m tests.planted --starts 5`."""

import argparse
import logging
import os
import time

from callboard.simulation import swarm
from callboard.simulation.cluster_test import ClusterTest
from tests.planted.plant import Plant
from tests.planted.plants import PLANTS


def found(plant: Plant, start: int, seconds: float) -> tuple[float, float, int, int] | None:
    """Search for a bug; return the seconds until it was found and shrunk, and the sizes.

    The sizes are faults and steps in the printed program.
    """
    test = ClusterTest(plant.scenario, 1_000_000, swarm(), twice=False)
    os.environ["CALLBOARD_SECONDS"] = str(seconds)
    begin = time.monotonic()
    with plant.planted():
        run = test.run(f"{plant.name} {start}", {})
    if run is None or run.smallest is None:
        return None
    steps = run.steps if run.steps is not None else range(run.cluster.steps_had)
    took = time.monotonic() - begin
    return test.found_at - begin, took, len(run.smallest), len(steps)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print("| bug | seconds till found | and small | faults | steps of clients |")
    print("|---|---|---|---|---|")
    for plant in PLANTS:
        if given.names and plant.name not in given.names:
            continue
        tries = [found(plant, start, given.seconds) for start in range(given.starts)]
        good = [each for each in tries if each is not None]
        failures = len(tries) - len(good)
        missed = f", {failures} of {len(tries)} missed" if failures else ""
        columns = [f"{min(each):.3g} to {max(each):.3g}" for each in zip(*good, strict=True)]
        print(f"| {plant.name}{missed} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
