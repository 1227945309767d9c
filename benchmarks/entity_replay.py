"""Recovery of one entity from its events of 80 bytes, without a snapshot.

The time is that of the first answer of its key, with all its events read from a file of SQLite.
The peer reads an aggregate of fewer events, which is its rate as well: both are linear.
"""

import tempfile
import time
from pathlib import Path

from benchmarks.entity_hosts import LIMIT, Count, Tally, fill
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from benchmarks.peers import eventsourcing
from callboard import Node

EVENTS = 1_000_000
FEWER = 100_000


def replayed(share: float = 1.0) -> float:
    """Return events for each second."""
    events = max(1000, int(EVENTS * share))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "state.db")
        fill(file, {"long": events, "short": 1})
        with Node() as node:
            node.host(Tally, state=f"sqlite:{file}")
            check(node.entity(Tally, "short").ask(Count()).result(LIMIT), 1)
            started = time.perf_counter()
            count = node.entity(Tally, "long").ask(Count(), timeout=LIMIT).result(LIMIT)
            taken = time.perf_counter() - started
        check(count, events)
    return events / taken


MEASURE = Measure(
    title="replaying the events of one entity",
    unit="events/s",
    subjects=(
        Subject("callboard, SQLite", replayed),
        Subject(
            "eventsourcing, SQLite",
            lambda share: eventsourcing.replayed(max(1000, int(FEWER * share))),
            eventsourcing.prepare,
            against="callboard, SQLite",
        ),
    ),
    limit=180.0,
)
