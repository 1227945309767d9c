"""Live lives by seed: `python -m tests.simulation --seeds 0:1000 --jobs 2 [--record]`.

`--life nodes` (the default), `traitors`, `leaves`, `credit`, `topics`, `doors`, `channels`,
`stores`, `peerings`, `entities`, `moves`, `leases`, `mqtt`, `mqtt-cluster` or `mqtt-partition`
selects the kind of life. A life that breaks a rule prints its seed and the command to replay
it,
and leaves its events in `build/.callboard/failures/`, those of topics in
`build/topics/.callboard/failures/`, and so on. `--seeds N` lives one life and prints its
events; where such a file of it exists, it says whether the events were the same. A life that
fails also prints a small test that fails as it did. `--record` adds the seeds to
`simulation.json`, `topics.json` and so on in `docs/reliability`; seeds that are recorded
already are skipped.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any

from callboard.simulation.trace import Dump, dump_path
from tests.simulation.batch import LIVES, ROOT, Batch, folder_of, live, live_one
from tests.simulation.record import Record

RECORDS = {
    "nodes": "simulation.json",
    "traitors": "traitors.json",
    "leaves": "leaves.json",
    "credit": "credit.json",
    "topics": "topics.json",
    "doors": "doors.json",
    "channels": "channels.json",
    "stores": "stores.json",
    "peerings": "peerings.json",
    "entities": "entities.json",
    "moves": "moves.json",
    "leases": "leases.json",
    "mqtt": "mqtt.json",
    "mqtt-cluster": "mqtt-cluster.json",
    "mqtt-partition": "mqtt-partition.json",
}
"""Files of `docs/reliability` that hold the seeds of each kind of life."""

MEANINGS = dict.fromkeys(RECORDS, 2)
"""What the seeds of lives mean, where they have meant something else: see `Record`."""

BATCH = 20
"""Seeds that a process lives at a time."""

PROGRESS = 200
"""Lives after which it is printed how far the command is."""


def main() -> int:
    """Live the seeds; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FROM:TO, or one number to replay")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--record", action="store_true", help="add the seeds to the docs")
    parser.add_argument("--life", choices=LIVES, default="nodes", help="the kinds of lives")
    options = parser.parse_args()
    first, _, after = options.seeds.partition(":")
    if not after:
        return replay(options.life, int(first))
    path = ROOT / "docs" / "reliability" / RECORDS[options.life]
    record = Record.read(path, MEANINGS.get(options.life, 1))
    wanted = [(int(first), int(after))]
    ranges = record.missing(*wanted[0]) if options.record else wanted
    batches = [
        Batch(options.life, begin, min(begin + BATCH, end))
        for start, end in ranges
        for begin in range(start, end, BATCH)
    ]
    count = sum(end - begin for _, begin, end in batches)
    started, lived, failed, hours = time.monotonic(), 0, 0, 0.0
    for (_, begin, end), failures, seconds in _results(batches, options.jobs):
        before, lived = lived, lived + end - begin
        failed += len(failures)
        hours += seconds / 3600.0
        for line in failures:
            print(line, flush=True)
        if options.record and not failures:
            record.add(begin, end, seconds / 3600.0)
        if before // PROGRESS < lived // PROGRESS and lived < count:
            print(f"{lived} of {count} lives, {failed} broke a rule", flush=True)
    seconds = time.monotonic() - started
    print(
        f"{lived} lives of {hours:.1f} virtual hours, {failed} broke a rule, "
        f"{lived / max(seconds, 1e-9):.1f} a second"
    )
    return int(bool(failed))


def _results(batches: list[Batch], jobs: int) -> Iterator[Any]:
    if jobs <= 1:
        yield from map(live, batches)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(live, batches)


def replay(kind: str, seed: int) -> int:
    """Run one seed, print its events, and compare them with those of a failure."""
    logging.getLogger("callboard").propagate = False
    known = dump_path(folder_of(kind), seed)
    before = Dump.read(known) if known.exists() else None
    lived = live_one(kind, seed)
    after, error = lived.dump, lived.error
    print("\n".join(after.events))
    print("no rule was broken" if error is None else f"{type(error).__name__}: {error}")
    if lived.program:
        print(lived.program)
    if before is not None:
        print(before.compare(after))
    return int(error is not None)


if __name__ == "__main__":
    sys.exit(main())
