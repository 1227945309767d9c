"""The first message to an entity that is not awake: its state is read, then it answers.

A file of SQLite holds an event of 80 bytes for each of 1,000,000 keys; two processes host the
type. Keys that were not asked before are asked one after the other, from one of the two: those
whose slot it owns, then those of the other. The figure is the median.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.entity_hosts import LIMIT, Count, Tally, copy_filled, hosting, ref_of
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from callboard import Node

KEYS = 1_000_000
WARM_UP = 200
ASKED = 1_000


def first(share: float = 1.0, *, is_local: bool) -> float:
    """Return the median in milliseconds."""
    keys = [f"k-{number}" for number in range(max(10_000, int(KEYS * share)))]
    with tempfile.TemporaryDirectory() as folder:
        state = copy_filled(Path(folder), len(keys))
        with hosting(state, 1) as (address,), Node() as node:
            node.connect(address)
            node.host(Tally.with_options(takeover="fast"), state=state)
            while not 0 < sum(ref_of(node, key).is_local for key in keys[:1000]) < 1000:
                time.sleep(0.05)  # the slots are still moving
            step = len(keys) // (3 * (WARM_UP + ASKED))
            ours = [key for key in keys[::step] if ref_of(node, key).is_local == is_local]
            return 1e3 * median(
                [answered(node, key) for key in ours[: WARM_UP + ASKED]][WARM_UP:]
            )


def answered(node: Node, key: str) -> float:
    """Return the seconds until an entity has answered."""
    ref = ref_of(node, key)
    started = time.perf_counter()
    count = ref.ask(Count(), timeout=LIMIT).result(LIMIT)
    taken = time.perf_counter() - started
    check(count, 1)
    return taken


MEASURE = Measure(
    title="first answer of an entity that was not awake",
    unit="ms",
    subjects=(
        Subject("on this node", partial(first, is_local=True)),
        Subject("on another node", partial(first, is_local=False)),
    ),
    more_is_better=False,
    limit=180.0,
)
