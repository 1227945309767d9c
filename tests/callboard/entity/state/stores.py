"""The states that must all behave alike, and batches to commit to them."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import pytest

from callboard.entity.machine.table import SLOTS
from callboard.entity.state.backends import open_state
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    NewEvent,
    SlotBatch,
    StoredReminder,
)
from callboard.entity.state.memory import MemoryState, MemoryTables
from callboard.simulation.clock import Clock
from callboard.simulation.databases.model_database import ModelDatabase
from tests.callboard.entity.state.postgresql_server import running_server

#: Opens the state of a writer; all of one maker share a database.
OpenState = Callable[[str], EntityState]

KINDS = ("memory", "sqlite", "postgresql", "model of sqlite:", "model of postgresql:")


class StillNode:
    """The runner of a node that does nothing but wait for answers."""

    is_paused = closed = has_crashed = False

    @property
    def machine(self) -> object:
        return self

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)


class BlockingModel:
    """The model database as a state whose calls block until virtual time brings the answer."""

    def __init__(
        self, model: ModelDatabase, writer: str, lock: "threading.RLock | None" = None
    ) -> None:
        self.model, self.lock = model, lock or threading.RLock()
        self.runner = StillNode()
        self.client = model.client(writer, self.runner)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(EntityState, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answers: list[Any] = []
            self.client.submit(answers.append, method, *args, **kwargs)
            return self.wait(answers)

        return call

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        answers: list[Any] = []
        for each in batches:
            self.client.commit(each, answers.append)
        fenced, failed, positions = {}, {}, {}
        for _ in batches:
            done = self.wait(answers)
            fenced |= done.fenced
            failed |= done.failed
            positions |= done.positions
        return Committed(fenced, failed, positions)

    def wait(self, answers: list[Any]) -> Any:
        with self.lock:
            run_until(self.model.clock, lambda: bool(answers))
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def run_until(clock: Clock, condition: Callable[[], bool], seconds: float = 100.0) -> None:
    """Advance virtual time until a condition holds."""
    end = clock.now + seconds
    while not condition():
        if not clock.run_due():
            due = clock.next_event_at
            assert due is not None, "nothing will happen any more"
            assert due <= end, f"not within {seconds:g} virtual s"
            clock.now = due


@contextmanager
def database(kind: str, folder: Path) -> Iterator[OpenState]:
    """Create an empty database; connections are closed at the end."""
    if kind == "memory":
        tables = MemoryTables()
        yield lambda writer: MemoryState(writer, tables)
        return
    if kind.startswith("model of "):
        model = ModelDatabase(kind.removeprefix("model of "), Clock(), random.Random(1))
        lock = threading.RLock()
        yield lambda writer: cast("EntityState", BlockingModel(model, writer, lock))
        return
    url = f"sqlite:{folder}/state.db" if kind == "sqlite" else running_server().new_database()
    with ExitStack() as opened:

        def open_one(writer: str) -> EntityState:
            state = open_state(url, writer)
            opened.callback(state.close)
            return state

        yield open_one


@pytest.fixture(params=KINDS)
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenState]:
    """Open states of one empty database, of each kind."""
    with database(request.param, tmp_path) as opened:
        yield opened


def batch(
    slot: int,
    numbers: Sequence[int],
    *,
    key: str = "",
    epoch: int = 1,
    type_name: str = "Cart",
    snapshots: Sequence[EntitySnapshot] = (),
    forget: int = 0,
) -> SlotBatch:
    """Return a batch with events of these numbers; a slot's key is named after it."""
    key = key or f"k-{slot}"
    events = [NewEvent(key, n, "shop.ItemAdded", 1, f'{{"item": "tea {n}"}}') for n in numbers]
    return SlotBatch(
        (type_name, slot), epoch, events, snapshots, {key: forget} if forget else {}
    )


def reminders_of(state: EntityState, type_name: str, key: str) -> list[StoredReminder]:
    """Return the reminders of an entity, parked ones too, ordered by name."""
    due = state.reminders(type_name, range(SLOTS), within_ms=10**12).reminders
    rows = [*due, *state.parked_reminders(type_name)]
    return sorted((row for row in rows if row.key == key), key=attrgetter("name"))
