"""Events of 80 bytes that entities persist, each durable before its ask is answered.

1,000 entities in two processes, one event for each handler. Eight actors ask, each with 100
asks outstanding: four in each of the two processes, so half of their entities are in the
other one; or all of them in a third process, on the same processors. The state is a file of
SQLite, synced for each commit, or a database of PostgreSQL with its defaults. One peer saves an
aggregate for each event in a process of its own, in SQLite with synchronous=FULL. The other
one, casty, has the same senders in the same places, and stores no events: once it keeps only
the newest state, in a file of SQLite that both processes share, and once it keeps that in the
memory of both processes, which no crash of both survives.
"""

import tempfile
import time

from benchmarks import postgresql
from benchmarks.entity_hosts import LIMIT, TEXT, Count, Note, Sender, hosting, ref_of
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from benchmarks.peers import casty, eventsourcing
from callboard import Node

EVENTS = 100_000
ENTITIES = 1_000
SENDERS = 8
HOSTS = 2
ALONE = 5_000
FEWER = 20_000


def persisted(share: float = 1.0) -> float:
    """Return events for each second."""
    return on_sqlite(int(EVENTS * share), are_inside=True)


def from_outside(share: float = 1.0) -> float:
    """Return events for each second; a third process asks."""
    return on_sqlite(int(EVENTS * share), are_inside=False)


def on_sqlite(times: int, *, are_inside: bool) -> float:
    """Return events for each second."""
    with tempfile.TemporaryDirectory() as folder:
        return asked(f"sqlite:{folder}/state.db", times, are_inside=are_inside)


def on_postgresql(share: float = 1.0) -> float:
    """Return events for each second."""
    with postgresql.database() as url:
        return asked(url, int(EVENTS * share), are_inside=True)


def asked(state: str, times: int, *, are_inside: bool) -> float:
    """Return the asks that are answered in a second; all entities are awake before."""
    keys = [f"k-{number}" for number in range(ENTITIES)]
    each = max(1, times // SENDERS)
    with hosting(state, HOSTS) as addresses, Node() as node:
        for address in addresses:
            node.connect(address)
        first = [ref_of(node, key).ask(Note(TEXT), timeout=LIMIT) for key in keys]
        for answer in first:
            answer.result(LIMIT)
        senders = [
            node.spawn(
                Sender,
                keys[125 * place :] + keys[: 125 * place],
                Note(TEXT),
                on=addresses[place % HOSTS] if are_inside else None,
            )
            for place in range(SENDERS)
        ]
        started = time.perf_counter()
        answers = [sender.ask(each, timeout=LIMIT) for sender in senders]
        count = sum(answer.result(LIMIT) for answer in answers)
        taken = time.perf_counter() - started
        counts = [ref_of(node, key).ask(Count(), timeout=LIMIT) for key in keys]
        check(sum(answer.result(LIMIT) for answer in counts), ENTITIES + count)
    return count / taken


MEASURE = Measure(
    title="persisting events of 80 bytes, each durable",
    unit="events/s",
    subjects=(
        Subject("callboard, SQLite", persisted),
        Subject("callboard, SQLite, asked by a third process", from_outside),
        Subject("callboard, PostgreSQL", on_postgresql, postgresql.prepare),
        Subject(
            "eventsourcing, SQLite",
            lambda share: eventsourcing.saved(max(100, int(ALONE * share))),
            eventsourcing.prepare,
            against="callboard, SQLite",
        ),
        Subject(
            "casty, SQLite",
            lambda share: casty.noted("note-durable", max(800, int(FEWER * share))),
            casty.prepare,
            against="callboard, SQLite",
        ),
        Subject(
            "casty, in memory",
            lambda share: casty.noted("note", max(1_600, int(EVENTS * share))),
            casty.prepare,
            against="callboard, SQLite",
        ),
    ),
    limit=180.0,
)
