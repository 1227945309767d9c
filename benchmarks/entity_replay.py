"""Recovery of one entity from events of 80 bytes, without a snapshot.

The time ends with the first answer of its key, after all its events were read from SQLite.
The peer reads an aggregate of fewer events; the rates compare, because both are linear.
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
