"""Machines of entities that are wrong on purpose, and how soon lives find them.

    python -m tests.simulation.wrong_entities --lives 1000 [NAME…]

Each is a small change of one class. The command lives seeds until one breaks a rule, and prints
how many that took, and which rule it was.
"""

import argparse
import logging
import sys
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from callboard.entity.proofs import FenceProofs
from callboard.entity.router import TypeRouter
from callboard.entity.state.interface import Committed, SlotBatch
from callboard.entity.unit_of_work import DeferredReply, Emission
from callboard.lease.driver import LeaseDriver
from callboard.lease.errors import StateCorrupt
from callboard.simulation.databases.model_database import (
    ModelClient,
    RowLock,
    Script,
    is_written_twice,
    types_of,
)
from tests.simulation.batch import live_one


def _exists_check(client: ModelClient, batches: Sequence[SlotBatch]) -> Script:
    """Read the fences at the start of the commit, and lock none of them."""
    wanted, fenced, failed = client.sorted_out(batches)
    yield RowLock(("writer", client.writer), may_stall=True)
    for type_name in types_of(wanted):
        yield RowLock(("type", type_name), may_stall=True)
    good = []
    for batch in wanted:  # numbers are unique in the database
        if is_written_twice(client.database.tables, batch):
            failed[batch.slot] = StateCorrupt(f"{batch.slot}: an event of that number is there")
        else:
            good.append(batch)
    write, positions = client.written(good)
    return write, Committed(fenced, failed, positions)


def _no_check_on_reads(proofs: FenceProofs, _: int, emission: Emission | DeferredReply) -> None:
    """Answer at once, as an owner that has not heard of another one does."""
    proofs._host.runtime.post(emission.release)


def _serial_positions(client: ModelClient, batches: Sequence[SlotBatch]) -> Script:
    """Take positions from a sequence, and write the events under them later."""
    for batch in batches:
        yield RowLock(("fence", *batch.slot), is_shared=True, may_stall=True)
    good, fenced, failed = client.sorted_out(batches)
    sequences: dict[str, int] = vars(client.database).setdefault("sequences", {})
    before = {name: sequences.get(name, 0) for name in types_of(good)}
    for batch in good:
        name = batch.slot[0]
        if batch.events:
            sequences[name] = sequences.get(name, 0) + len(batch.events)
    positions = {name: sequences[name] for name in before}
    yield RowLock(("writer", client.writer), may_stall=True)
    write, _ = client.written(good)

    def written(contents: Any) -> None:
        tables = contents.tables
        highest = {name: tables.positions.get(name, 0) for name in before}
        counts = {name: len(tables.journals.get(name, ())) for name in before}
        tables.positions |= before
        write(contents)
        for name in before:
            tables.positions[name] = max(highest[name], tables.positions[name])
            journal = tables.journals[name]
            added = journal[counts[name] :] if len(journal) > counts[name] else []
            del journal[counts[name] :]
            for event in added:
                insort(journal, event, key=attrgetter("position"))

    return written, Committed(fenced, failed, positions)


def _no_marker(router: TypeRouter, slot: int, node: bytes) -> None:
    """Send new messages to the new owner, without notifying the former one."""
    router._marker_passed(slot, node)


def _stale_votes(driver: LeaseDriver) -> set[str]:
    """Return whose counters were ever seen to rise."""
    return set(driver._risen)


def _never_over(driver: LeaseDriver) -> bool:
    """Return whether a lease was ever held and never reported as killed."""
    machine = driver._machine
    return machine.valid_until > 0.0 and not machine.is_killed


@dataclass(frozen=True)
class WrongMachine:
    """A machine with a planted bug.

    Attributes:
        name: description of the bug.
        owner: the class whose method is replaced.
        method: its name.
        wrong: the replacement.
        kind: the lives that find it.
        seeds: some of them that did.
    """

    name: str
    owner: type
    method: str
    wrong: Callable[..., Any]
    kind: str = "entities"
    seeds: tuple[int, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have it for a while."""
        right = vars(self.owner)[self.method]
        setattr(self.owner, self.method, self.wrong)
        try:
            yield
        finally:
            setattr(self.owner, self.method, right)

    def search(self, seeds: Iterable[int]) -> tuple[int, int, Exception] | None:
        """Live seeds until one breaks a rule; returns how many, which one, and the rule."""
        with self.planted():
            for count, seed in enumerate(seeds, 1):
                error = live_one(self.kind, seed, shrinks=False).error
                if error is not None:
                    return count, seed, error
        return None


WRONG_MACHINES: Final = (
    WrongMachine("exists check", ModelClient, "_commit_script", _exists_check, seeds=(161,)),
    WrongMachine("no check on reads", FenceProofs, "prove", _no_check_on_reads, seeds=(23,)),
    WrongMachine(
        "serial positions", ModelClient, "_commit_script", _serial_positions, seeds=(21,)
    ),
    WrongMachine("no marker", TypeRouter, "_mark", _no_marker, "moves", (132,)),
    WrongMachine("stale votes", LeaseDriver, "risen", _stale_votes, seeds=(99,)),
    WrongMachine("no look at the lease", LeaseDriver, "is_valid", _never_over, "leases", (12,)),
)


def main() -> int:
    """Search for each bug, and print a table; return 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.wrong_entities")
    parser.add_argument("--lives", type=int, default=1000, help="lives for each, at most")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "names", nargs="*", help=", ".join(each.name for each in WRONG_MACHINES)
    )
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    missed = 0
    for machine in WRONG_MACHINES:
        if given.names and machine.name not in given.names:
            continue
        began = time.process_time()
        found = machine.search(range(given.first, given.first + given.lives))
        seconds = time.process_time() - began
        missed += found is None
        told = f"not found by {given.lives} lives"
        if found is not None:
            count, seed, error = found
            rule = f"{type(error).__name__}: {error}".splitlines()[0]
            told = f"found by life {count} (--life {machine.kind}, seed {seed}): {rule:.160}"
        print(f"{machine.name}: {told}; {seconds:.1f} s of CPU", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
