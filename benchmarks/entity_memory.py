"""The memory of entities on their host: active ones, and ones that were put away.

A file of SQLite holds an event of 80 bytes for each of 1,000,000 keys; this process hosts the
type and asks 50,000 of them, a thousand at a time. All figures are of resident memory, after
a garbage collection and 2,000 earlier asks.

- a key: the difference to a process with a file of one key, per key.
- an entity: the growth of the process, per asked entity.
- one put away: the further growth, per entity, while twice as many other entities were asked
  and passivated. The interpreter reuses freed memory, so this shows whether an entity that was
  put away has freed its memory.
"""

import gc
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.entity_hosts import LIMIT, Count, Tally, copy_filled, ref_of
from benchmarks.idle import resident
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from callboard import Node

KEYS = 1_000_000
AWAKE = 50_000
WARM_UP = 2_000
AT_ONCE = 1_000

What = Literal["a key", "an entity", "one put away"]


def taken(share: float = 1.0, *, what: What) -> float:
    """Return bytes for each."""
    count, awake = max(10_000, int(KEYS * share)), max(5_000, int(AWAKE * share))
    keys = [f"k-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as folder:
        alone = with_one_key(copy_filled(Path(small), 1))
        state = copy_filled(Path(folder), count)
        if what == "a key":
            return (with_one_key(state) - alone) / count
        with Node() as node:
            node.host(Tally, state=state)
            ask(node, keys[:WARM_UP])
            put_away(node, keys[:WARM_UP])
            before = collected()
            first, second, third = (keys[place::3][-awake:] for place in range(3))
            ask(node, first)
            check(node.entity_stats()[0].active, awake)
            grown = collected()
            if what == "an entity":
                return (grown - before) / awake
            put_away(node, first)
            for others in (second, third):
                ask(node, others)
                put_away(node, others)
            return (collected() - grown) / (2 * awake)


def with_one_key(state: str) -> int:
    """Return the memory with a host that has been asked one key."""
    with Node() as node:
        node.host(Tally, state=state)
        ask(node, ["k-0"])
        return collected()


def ask(node: Node, keys: list[str]) -> None:
    """Wake entities."""
    for start in range(0, len(keys), AT_ONCE):
        asked = keys[start : start + AT_ONCE]
        answers = [ref_of(node, key).ask(Count(), timeout=LIMIT) for key in asked]
        for answer in answers:
            check(answer.result(LIMIT), 1)


def put_away(node: Node, keys: list[str]) -> None:
    """Passivate entities, as happens to idle ones."""
    for key in keys:
        ref_of(node, key).stop()
    end = time.monotonic() + LIMIT
    while node.entity_stats()[0].active:
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def collected() -> int:
    """Return the resident memory without garbage."""
    gc.collect()
    return resident()


MEASURE = Measure(
    title="memory of entities, with 1,000,000 keys in the state",
    unit="bytes",
    more_is_better=False,
    subjects=(
        Subject("a key", partial(taken, what="a key")),
        Subject("an entity that is awake", partial(taken, what="an entity")),
        Subject("one that was put away", partial(taken, what="one put away")),
    ),
    limit=240.0,
)
