"""Commits of events of 80 bytes to the state of entities, each durable before it is reported.

Grouped: 1,000 entities have one pending event each; events that arrive during a transaction
are in the next one. The peer is SQLite alone with the same durability (WAL, synchronous=FULL)
and one transaction for each event, as in a library that saves each aggregate separately.
"""

import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from callboard.entity.state.client import ThreadedStateClient
from callboard.entity.state.interface import NewEvent, SlotBatch
from callboard.entity.state.sqlite import SqliteState

EVENTS = 200_000
ALONE = 5_000
ENTITIES = 1_000
SLOTS = 256
BODY = '{"item": "' + "x" * 68 + '"}'


def grouped(share: float = 1.0) -> float:
    """Return events for each second, from 1,000 entities at once."""
    rounds = max(1, int(EVENTS * share) // ENTITIES)
    with tempfile.TemporaryDirectory() as folder:
        state = SqliteState(Path(folder) / "state.db", "w")
        state.claim("Cart", dict.fromkeys(range(SLOTS), 1))
        client = ThreadedStateClient(state, lambda callback, *args: callback(*args))
        ended, left = threading.Event(), [ENTITIES]

        def committed(entity: int, number: int, _: Any = None) -> None:
            if number == rounds:
                left[0] -= 1
                if not left[0]:
                    ended.set()
                return
            event = NewEvent(f"k-{entity}", number + 1, "shop.ItemAdded", 1, BODY)
            batch = SlotBatch(("Cart", entity % SLOTS), 1, [event])
            client.commit(batch, lambda done: committed(entity, number + 1, done))

        started = time.perf_counter()
        for entity in range(ENTITIES):
            committed(entity, 0)
        ended.wait()
        taken = time.perf_counter() - started
        check(state.last_position("Cart"), rounds * ENTITIES)
        client.close()
    return rounds * ENTITIES / taken


def sqlite_alone(share: float = 1.0) -> float:
    """Return events for each second, with a transaction for each."""
    events = max(100, int(ALONE * share))
    with tempfile.TemporaryDirectory() as folder:
        table = sqlite3.connect(Path(folder) / "state.db", isolation_level=None)
        table.execute("pragma journal_mode=wal")
        table.execute("pragma synchronous=full")
        table.execute("create table events (key text, number integer, body text)")
        table.execute("create unique index of_key on events (key, number)")
        started = time.perf_counter()
        for number in range(events):
            row = (f"k-{number % ENTITIES}", number, BODY)
            table.execute("insert into events values (?, ?, ?)", row)
        taken = time.perf_counter() - started
        check(table.execute("select count(*) from events").fetchone()[0], events)
        table.close()
    return events / taken


MEASURE = Measure(
    title="committing events of 80 bytes, each durable",
    unit="events/s",
    subjects=(
        Subject("callboard, 1,000 entities", grouped),
        Subject("SQLite, one by one", sqlite_alone, against="callboard, 1,000 entities"),
    ),
)
