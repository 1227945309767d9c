"""Search all orders of events: `python -m tests.search [--record] [NAME…]`.

A search visits every state that its configurations can reach. With `--record` the figures go
to `docs/reliability/search.json`.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.search.explorer import Violation, explore
from tests.search.models import SEARCHES

RECORD = Path(__file__).parents[2] / "docs" / "reliability" / "search.json"


def main() -> int:
    """Run the searches; 1 when a state was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.search", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SEARCHES))
    parser.add_argument("--limit", type=int, help="states of one configuration at most")
    parser.add_argument("--record", action="store_true", help="write docs/reliability")
    options = parser.parse_args()
    for name in options.names:
        if name not in SEARCHES:
            parser.error(f"{name!r} is not one of {', '.join(SEARCHES)}")
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    failed = 0
    for name in options.names or SEARCHES:
        total = {"configurations": 0, "states": 0, "steps": 0, "ends": 0, "violations": 0}
        seconds = 0.0
        for model in SEARCHES[name].large:
            try:
                explored = explore(model, options.limit)
            except Violation as violation:
                total["violations"] += 1
                print(f"{name}: {model}: {violation}")
                continue
            total["configurations"] += explored.is_whole
            total["states"] += explored.states
            total["steps"] += explored.steps
            total["ends"] += explored.ends
            seconds += explored.seconds
            print(f"{name}: {explored.states:,} states in {explored.seconds:.1f} s", flush=True)
        known[name] = {**total, "seconds": round(seconds, 1)}
        failed += total["violations"]
    known["states"] = sum(known[name]["states"] for name in SEARCHES if name in known)
    print(f"{known['states']:,} states, {failed} violations")
    if options.record and options.limit is None:
        RECORD.write_text(json.dumps(known, indent=2) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
