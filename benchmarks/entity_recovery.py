"""From SIGKILL of all hosts until entities answer again, with 1,000,000 keys in the state.

Two processes host the type; both are killed, and another one is started at once. A further
process asks 100 keys, each again and again with a timeout of 0.25 s: the time is that from
before the kill until the last of them has answered, so it includes the start of a process and
its imports.

- same machine: a file of SQLite, where the system proves that the owners are dead.
- leases only: PostgreSQL, where nothing proves it, as between machines; the leases of the
killed nodes must expire, because there is no other host to vote.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from benchmarks import postgresql
from benchmarks.entity_hosts import (
    LIMIT,
    Count,
    copy_filled,
    fill_state,
    host_program,
    ref_of,
)
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from benchmarks.processes import serving
from callboard import Node
from callboard.entity.state.backends import open_state
from callboard.errors import AskTimeout, EntityUnavailable, OutcomeUnknown

KEYS = 1_000_000
ASKED = 100
HOSTS = 2
PATIENCE = 0.25
RISEN = 2.5
"""Seconds until all have seen the others' leases rise."""


def same_machine(share: float = 1.0) -> float:
    """Return the seconds on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        count = keys_of(share)
        return recovered(copy_filled(Path(folder), count), count)


def leases_only(share: float = 1.0) -> float:
    """Return the seconds on PostgreSQL."""
    with postgresql.database() as url:
        count = keys_of(share)
        fill_state(open_state(url, uuid4().hex), {f"k-{n}": 1 for n in range(count)})
        return recovered(url, count)


def keys_of(share: float) -> int:
    """Return how many keys there are."""
    return max(10_000, int(KEYS * share))


def recovered(state: str, count: int) -> float:
    """Kill all hosts, and return the seconds until other ones answer."""
    keys = [f"k-{number}" for number in range(0, count, count // ASKED)][:ASKED]
    with Node() as node, ExitStack() as stack:
        node.listen("127.0.0.1", 0)
        command = host_program(state, "--join", node.address)
        hosts = [stack.enter_context(serving(command))[0] for _ in range(HOSTS)]
        until_answered(node, keys)
        time.sleep(RISEN)
        began = time.perf_counter()
        for host in hosts:
            host.kill()
        stack.enter_context(serving(command))
        until_answered(node, keys)
        return time.perf_counter() - began


def until_answered(node: Node, keys: list[str]) -> None:
    """Ask keys until each has answered."""
    end = time.perf_counter() + LIMIT
    while keys:
        asks = [(key, ref_of(node, key).ask(Count(), timeout=PATIENCE)) for key in keys]
        keys = []
        for key, ask in asks:
            try:
                check(ask.result(LIMIT), 1)
            except (EntityUnavailable, OutcomeUnknown, AskTimeout):
                keys.append(key)
        if time.perf_counter() > end:
            raise TimeoutError


MEASURE = Measure(
    title="all hosts killed until entities answer",
    unit="s",
    more_is_better=False,
    subjects=(
        Subject("same machine, SQLite", same_machine),
        Subject("leases only, PostgreSQL", leases_only, postgresql.prepare),
    ),
    limit=300.0,
)
