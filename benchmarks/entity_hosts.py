"""Processes that host entities, and actors that ask them.

`main` is called in each process with `STATE [--join ADDRESS] [--takeover lease|fast]`: it hosts
the type on a node until stdin closes, and prints the node's address once it is a member. Others
may spawn senders there.
"""

import argparse
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from benchmarks.processes import BUILD, serving
from callboard import Actor, ActorRef, Entity, Node, Query, event, handler, message
from callboard.entity.machine.table import slot_of
from callboard.entity.state.interface import EntityState, NewEvent, SlotBatch
from callboard.entity.state.schema import STEPS
from callboard.entity.state.sqlite import SqliteState

LIMIT = 120.0
"""Seconds for one measure."""

WINDOW = 100
"""Asks that a sender has outstanding."""

TEXT = "x" * 68
"""With it the JSON of an event has 80 bytes."""

NAME, KIND = "bench.Tally", "bench.Noted"
FILLED_AT_ONCE = 2_000

PROGRAM = "from benchmarks.entity_hosts import main; main()"


@message("bench.Note")
@dataclass(frozen=True)
class Note:
    """A command: persist an event."""

    text: str


@message(KIND)
@dataclass(frozen=True)
class Noted:
    """An event."""

    text: str


@message("bench.Count")
@dataclass(frozen=True)
class Count(Query[int]):
    """A question that changes nothing."""


class Tally(Entity):
    """Counts notes."""

    name = NAME
    snapshot_every = 10**9

    def __init__(self) -> None:
        self.count = 0

    @handler
    def on_note(self, note: Note) -> int:
        """Persist one event."""
        self.persist(Noted(note.text))
        return self.count

    @event
    def on_noted(self, noted: Noted) -> None:
        """Count it."""
        self.count += 1

    @handler(read_only=True)
    def on_count(self, question: Count) -> int:
        """Answer with the count."""
        return self.count


class Sender(Actor):
    """Asks entities in turn and keeps a window of asks outstanding."""

    def __init__(self, keys: Sequence[str], question: Note | Count) -> None:
        self.keys = keys
        self.question = question

    @handler
    async def on_times(self, times: int) -> int:
        """Ask `count` times; return the number of answers."""
        assert self.node is not None
        refs = [self.node.entity(Tally, key) for key in self.keys]
        window: deque = deque()
        for number in range(times):
            if len(window) == WINDOW:
                await window.popleft()
            window.append(refs[number % len(refs)].ask(self.question))
        for answer in window:
            await answer
        return times


def host_program(state: str, *options: str) -> list[str]:
    """Return the command of a process that hosts the type."""
    return [sys.executable, "-c", PROGRAM, state, *options]


@contextmanager
def hosting(state: str, count: int, takeover: str = "fast") -> Iterator[list[str]]:
    """Start processes that host the type; return their addresses."""
    with ExitStack() as stack:
        addresses: list[str] = []
        for _ in range(count):
            joins = [part for address in addresses for part in ("--join", address)]
            program = host_program(state, *joins, "--takeover", takeover)
            _, address = stack.enter_context(serving(program))
            addresses.append(address)
        yield addresses


def copy_filled(folder: Path, keys: int) -> str:
    """Put a file there with an event of each key, `k-0` and so on; return the state's URL.

    It is written once, in the folder of what benchmarks build: a million take a while.
    """
    made = BUILD.parent / f"entities-{len(STEPS)}-{keys}.db"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as beside:
            new = Path(beside, "state.db")
            fill(new, {f"k-{number}": 1 for number in range(keys)})
            new.rename(made)
    shutil.copyfile(made, folder / "state.db")
    return f"sqlite:{folder}/state.db"


def fill(file: Path, events: dict[str, int]) -> None:
    """Write a file with events of each key, as an earlier process would leave it."""
    fill_state(SqliteState(file, "filler"), events)


def fill_state(state: EntityState, events: dict[str, int]) -> None:
    """Write events of each key to a state, and close it."""
    state.claim(NAME, dict.fromkeys({slot_of(key) for key in events}, 0))
    body = f'{{"text":"{TEXT}"}}'
    batches: dict[int, list[NewEvent]] = {}
    size = 0
    for key, count in events.items():
        for number in range(1, count + 1):
            batches.setdefault(slot_of(key), []).append(NewEvent(key, number, KIND, 1, body))
            size += 1
            if size == FILLED_AT_ONCE:
                commit(state, batches)
                size = 0
    commit(state, batches)
    state.close()


def commit(state: EntityState, batches: dict[int, list[NewEvent]]) -> None:
    """Write the collected events."""
    done = state.commit([SlotBatch((NAME, slot), 0, each) for slot, each in batches.items()])
    assert not done.fenced, done
    assert not done.failed, done
    batches.clear()


def ref_of(node: Node, key: str) -> ActorRef[Tally]:
    """Return the ref of an entity."""
    return node.entity(Tally, key)


def main(arguments: Sequence[str] | None = None) -> None:
    """Host until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", help="its URL")
    parser.add_argument("--join", action="append", default=[])
    parser.add_argument("--takeover", default="fast")
    options = parser.parse_args(arguments)
    takeover = cast(Literal["fast", "lease"], options.takeover)
    with Node(spawnable={"sender": Sender}) as node:
        node.listen("127.0.0.1", 0)
        for address in options.join:
            node.connect(address)
        node.host(Tally.with_options(takeover=takeover), state=options.state)
        print(node.address, flush=True)
        sys.stdin.read()
