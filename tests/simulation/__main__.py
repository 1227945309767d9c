"""Run scenarios by seed: `python -m tests.simulation --seeds 0:1000 [--record]`, or replay one.

Failing seeds are printed with the command that replays them. `--record` adds the range to
`docs/reliability/simulation.json`.
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from tests.simulation.scenario import Scenario, Violation

RECORD = Path(__file__).parents[2] / "docs" / "reliability" / "simulation.json"


def main() -> int:
    """Run the seeds; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FROM:TO, or one number to replay")
    parser.add_argument("--record", action="store_true", help="add the range to the docs")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, after = options.seeds.partition(":")
    seeds = range(int(first), int(after) if after else int(first) + 1)
    started, failed = time.monotonic(), []
    for seed in seeds:
        scenario = Scenario(seed)
        try:
            scenario.run()
        except (Violation, Exception) as error:  # noqa: BLE001  # any crash is a finding
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"  replay: PYTHONHASHSEED=0 python -m tests.simulation --seeds {seed}")
        if len(seeds) == 1:
            print("\n".join(scenario.log))
    seconds = time.monotonic() - started
    print(f"{len(seeds)} seeds, {len(failed)} failed, {len(seeds) / seconds:.1f} a second")
    if options.record and not failed:
        record(seeds.start, seeds.stop)
    return int(bool(failed))


def record(start: int, stop: int) -> None:
    """Add a range of seeds that passed to the published record."""
    RECORD.parent.mkdir(exist_ok=True)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {"ranges": []}
    known["ranges"].append([start, stop])
    known["seeds"] = sum(end - begin for begin, end in known["ranges"])
    RECORD.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
