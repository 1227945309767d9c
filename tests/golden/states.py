"""States of entities and leases in SQLite: their tables, and the rows in them.

A file of SQLite has another layout with another release of it, so its bytes are only read. What
is compared are its rows as statements, the database's clock and random ids taken out.
"""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from callboard.entity.state.backends import open_leases, open_state
from callboard.entity.state.interface import (
    EntitySnapshot,
    Fence,
    JobState,
    JobStatus,
    NewEvent,
    RowChanges,
    SlotBatch,
    StoredJob,
    StoredReminder,
)
from callboard.lease.leases import LeaseValue
from tests.callboard.entity.state.stores import reminders_of
from tests.golden.sample import Folder, Sample

CART, QUEUE = "shop.Cart", "queue:mail"
CLAIMED = {3: 2, 255: 7}
EVENTS = [
    NewEvent("u-17", 1, "shop.Added", 1, '{"item":"tea"}'),
    NewEvent("u-17", 2, "shop.Added", 2, '{"item":"ä"}'),
]
REMINDER = StoredReminder("u-17", "pay", 2**40, 60_000, '"now"')
JOB = StoredJob("mail", 1, JobState(), 0, '{"to":"ann"}')
TAKEN = JobState(JobStatus.TAKEN, 0, 1, "taker", 30_000, "")
DELAYED = StoredJob("mail", 2, JobState(JobStatus.DELAYED, 2**41, 2, "", 0, "why"), 0, "1")

#: Results of the database's clock and of `uuid4`, which differ each time.
CHANGING = re.compile(r"\b1[5-9]\d{11}\b|'[0-9a-f]{32}'|'[0-9a-f-]{36}'")


def make(path: Path) -> None:
    state = open_state(f"sqlite:{path / 'state.db'}", "writer")
    assert not state.claim(CART, CLAIMED)
    assert not state.claim(QUEUE, {0: 1})
    rows = RowChanges({("u-17", "pay"): REMINDER, ("u-17", "gone"): None}, {})
    snapshot = EntitySnapshot("u-17", 2, 4, '{"items":["tea","ä"]}')
    jobs = RowChanges({}, {("mail", 1): JOB, ("mail", 2): DELAYED})
    committed = state.commit(
        [
            SlotBatch((CART, 3), 2, EVENTS, [snapshot], rows=rows),
            SlotBatch((QUEUE, 0), 1, rows=jobs),
        ]
    )
    assert not committed.fenced
    assert not committed.failed
    state.commit([SlotBatch((QUEUE, 0), 1, rows=RowChanges({}, {("mail", 1): TAKEN}))])
    state.set_attempts(CART, [REMINDER], 2)
    reader = state.open_reader(CART, "billing")
    assert state.move_reader(CART, "billing", reader.epoch, 1)
    state.close()


def look(path: Path) -> list[Any]:
    state = open_state(f"sqlite:{path / 'state.db'}", "other")
    found = [
        [(e.position, e.key, e.number, e.kind, e.body) for e in state.journal(CART)],
        state.recover(CART, "u-17", 4).snapshot,
        sorted(state.fences([(CART, 3), (CART, 255), (QUEUE, 0)]).items()),
        reminders_of(state, CART, "u-17"),
        sorted(state.job_counts(QUEUE, "mail").items()),
        [job._replace(time_ms=0) for job in state.jobs(QUEUE, "mail", JobStatus.DELAYED)],
        sorted(state.kinds(CART)),
    ]
    state.close()
    return found


FENCES = [
    ((QUEUE, 0), Fence(1, "writer")),
    ((CART, 3), Fence(2, "writer")),
    ((CART, 255), Fence(7, "writer")),
]
JOURNAL = [(n, e.key, e.number, e.kind, e.body) for n, e in enumerate(EVENTS, 1)]
FOUND = [
    JOURNAL,
    EntitySnapshot("u-17", 2, 4, '{"items":["tea","ä"]}'),
    FENCES,
    [REMINDER._replace(attempts=2)],
    [(JobStatus.DELAYED, 1), (JobStatus.TAKEN, 1)],
    [DELAYED],
    [("shop.Added", 1), ("shop.Added", 2)],
]


def go_on(path: Path) -> list[Any]:
    state = open_state(f"sqlite:{path / 'state.db'}", "writer")
    third = NewEvent("u-18", 1, "shop.Added", 2, "3")
    state.commit([SlotBatch((CART, 255), 7, [third])])
    state.close()
    return [[*JOURNAL, (3, "u-18", 1, "shop.Added", "3")], *FOUND[1:]]


def make_leases(path: Path) -> None:
    leases = open_leases(f"sqlite:{path / 'leases.db'}", "writer")
    assert leases.write("shop.Cart", LeaseValue("writer", 5, '{"x":1}'), 0)
    assert leases.write("shop.Cart", LeaseValue("writer", 6, '{"x":2}'), 1)
    assert leases.write("queue:mail", LeaseValue("other", 1, ""), 0)
    leases.close()


def look_leases(path: Path) -> list[Any]:
    leases = open_leases(f"sqlite:{path / 'leases.db'}", "another")
    found = [leases.read("shop.Cart"), leases.read("queue:mail"), leases.read("none")]
    leases.close()
    return found


LEASES = [(LeaseValue("writer", 6, '{"x":2}'), 2), (LeaseValue("other", 1, ""), 1), (None, 0)]


def go_on_leases(path: Path) -> list[Any]:
    leases = open_leases(f"sqlite:{path / 'leases.db'}", "writer")
    assert leases.write("none", LeaseValue("writer", 1, "t"), 0)
    leases.close()
    return [*LEASES[:2], (LeaseValue("writer", 1, "t"), 1)]


def dump(name: str) -> Callable[[Callable[[Path], None]], bytes]:
    """Return what writes the rows of a database as statements."""

    def write(maker: Callable[[Path], None]) -> bytes:
        with TemporaryDirectory() as folder:
            maker(Path(folder))
            connection = sqlite3.connect(Path(folder) / name)
            text = "\n".join(connection.iterdump())
            connection.close()
        return CHANGING.sub("?", text).encode()

    return write


def tables(data: bytes) -> set[str]:
    return set(re.findall(r'CREATE TABLE "?(\w+)', data.decode()))


STATE_TABLES = {
    "callboard_events", "callboard_events_of_key", "callboard_fences", "callboard_indexed",
    "callboard_jobs", "callboard_kinds", "callboard_readers", "callboard_reminders",
    "callboard_snapshots", "callboard_state", "callboard_types", "callboard_writers",
}  # fmt: skip
SAMPLES = {
    "rows of a state": Sample(make, dump("state.db"), tables, STATE_TABLES),
    "rows of leases": Sample(
        make_leases, dump("leases.db-leases"), tables, {"callboard_leases"}
    ),
}
DATABASE = (".db", ".db-leases")
FOLDERS = {
    "state": Folder(make, look, FOUND, go_on, foreign=DATABASE),
    "leases": Folder(make_leases, look_leases, LEASES, go_on_leases, foreign=DATABASE),
}


def missing() -> set[str]:
    """Return tables without rows."""
    filled = dump("state.db")(make).decode()
    inserted = set(re.findall(r'INSERT INTO "?(\w+)', filled))
    return STATE_TABLES - inserted - {"callboard_writers"}  # only PostgreSQL fills it
