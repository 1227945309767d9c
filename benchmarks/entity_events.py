"""Events of 80 bytes that entities persist, each durable before its ask is answered.

1,000 entities in two processes, one event for each handler; a third process asks: 8 actors with
100 asks outstanding each. The state is a file of SQLite, synced for each commit, or a database
of PostgreSQL with its defaults. The peer saves an aggregate for each event in a process of its
own, in SQLite with the same mode. casty does it with actors in two processes and a client, and
stores no events: once it keeps only the newest state, in a file of SQLite that all share, and
once it keeps that in the memory of both processes, which no crash of both survives.
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
ALONE = 5_000
FEWER = 20_000


def persisted(share: float = 1.0) -> float:
    """Return events for each second."""
    with tempfile.TemporaryDirectory() as folder:
        return asked(f"sqlite:{folder}/state.db", Note(TEXT), 2, int(EVENTS * share))


def on_postgresql(share: float = 1.0) -> float:
    """Return events for each second."""
    with postgresql.database() as url:
        return asked(url, Note(TEXT), 2, int(EVENTS * share))


def asked(state: str, question: Note | Count, hosts: int, times: int) -> float:
    """Return the asks that are answered in a second; all entities are awake before."""
    keys = [f"k-{number}" for number in range(ENTITIES)]
    each = max(1, times // SENDERS)
    with hosting(state, hosts) as addresses, Node() as node:
        for address in addresses:
            node.connect(address)
        first = [ref_of(node, key).ask(Note(TEXT), timeout=LIMIT) for key in keys]
        for answer in first:
            answer.result(LIMIT)
        senders = [
            node.spawn(Sender, keys[125 * place :] + keys[: 125 * place], question)
            for place in range(SENDERS)
        ]
        started = time.perf_counter()
        answers = [sender.ask(each, timeout=LIMIT) for sender in senders]
        count = sum(answer.result(LIMIT) for answer in answers)
        taken = time.perf_counter() - started
        counts = [ref_of(node, key).ask(Count(), timeout=LIMIT) for key in keys]
        stored = sum(answer.result(LIMIT) for answer in counts)
        check(stored, ENTITIES + count * isinstance(question, Note))
    return count / taken


MEASURE = Measure(
    title="persisting events of 80 bytes, each durable",
    unit="events/s",
    subjects=(
        Subject("callboard, SQLite", persisted),
        Subject("callboard, PostgreSQL", on_postgresql, postgresql.prepare),
        Subject(
            "eventsourcing, SQLite",
            lambda share: eventsourcing.saved(max(100, int(ALONE * share))),
            eventsourcing.prepare,
            against="callboard, SQLite",
        ),
        Subject(
            "casty, SQLite",
            lambda share: casty.asked("note-durable", 2, max(800, int(FEWER * share))),
            casty.prepare,
            against="callboard, SQLite",
        ),
        Subject(
            "casty, in memory",
            lambda share: casty.asked("note", 2, max(1_600, int(EVENTS * share))),
            casty.prepare,
            against="callboard, SQLite",
        ),
    ),
    limit=180.0,
)
