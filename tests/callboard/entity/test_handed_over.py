"""The order of messages to an entity, and of those it sends, while some are handed over.

A finalizer or signal handler runs inside a call that holds the lock of the host. Holding that
lock on the test's thread is the same, and the same each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Actor, Entity, Node, event, handler, locks, message
from callboard.entity.cell import EntityCell
from callboard.entity.host import EntityHost
from callboard.entity.machine.table import slot_of
from tests.polling import eventually


@message("handed-tests.Step")
@dataclass(frozen=True)
class Step:
    number: int


class Line(Entity):
    name = "handed-tests.Line"

    def __init__(self) -> None:
        self.steps: list[int] = []

    @handler
    def on_step(self, msg: Step) -> list[int]:
        self.steps.append(msg.number)
        return self.steps


@pytest.fixture
def host() -> Iterator[EntityHost]:
    """The host of an entity that is awake."""
    with Node("here") as node:
        node.host(Line)
        assert node.entity(Line, "one").ask(Step(0)).result(20) == [0]
        yield node._entities._hosts[Line.name]


def test_messages_and_markers_come_behind_those_that_were_handed_over(
    host: EntityHost,
) -> None:
    slot, mailbox = slot_of("one"), host.cells["one"]._mailbox
    taken: list[Any] = []

    def passed() -> None:
        taken.extend(item[0] for item in mailbox)

    with host.lock:
        assert host.deliver("one", Step(1), None)
        assert not mailbox, "it is handed over"
        assert host.deliver("one", Step(2), None)
        assert host.accept_marker(slot, passed)
        assert not taken, "what was sent before it is not taken yet"
    eventually(lambda: taken)  # on the node's thread, before it handles any of them
    assert [each.number for each in taken] == [1, 2]


@message("handed-tests.Kept")
@dataclass(frozen=True)
class Kept:
    number: int


class Sink(Actor):
    def __init__(self, got: list[str]) -> None:
        self.got = got

    @handler
    def on_text(self, text: str) -> None:
        self.got.append(text)


SINK: list[Any] = []


class Sender(Entity):
    """Tells before and after its event, as the code that it is part of might in between."""

    name = "handed-tests.Sender"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_step(self, msg: Step) -> int:
        SINK[0].tell("in the handler")
        self.persist(Kept(msg.number))
        SINK[0].tell("behind the event")
        return self.total

    @event
    def on_kept(self, kept: Kept) -> None:
        self.total += kept.number


def test_what_a_finalizer_sends_at_the_end_of_a_handler_does_not_overtake_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []
    with Node("here") as node:
        node.host(Sender, state=f"sqlite:{tmp_path}/state.db")
        SINK[:] = [node.spawn(Sink, got)]
        move_to_batch = EntityCell._move_to_batch

        def interrupted(cell: EntityCell, snapshot: Any) -> None:
            """Send where the messages of the handler are neither held nor in a batch."""
            if cell.key == "one" and len(sent) < 2:
                sent.append(None)
                SINK[0].tell(f"from a finalizer {len(sent)}")
            move_to_batch(cell, snapshot)

        sent: list[None] = []
        monkeypatch.setattr(EntityCell, "_move_to_batch", interrupted)
        ref = node.entity(Sender, "one")
        assert ref.ask(Step(1)).result(20) == 1
        assert ref.ask(Step(2)).result(20) == 3
        assert SINK[0].ask("last").result(20) is None
    assert sent, "the end of a handler opens a batch"
    first = got.index("from a finalizer 1")
    assert got[:first] == ["in the handler", "behind the event"]


class Written(Entity):
    """Its state tells whether a lock is held while it is written."""

    name = "handed-tests.Written"
    snapshot_version = 1
    snapshot_every = 2

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_step(self, msg: Step) -> int:
        self.persist(Kept(msg.number))
        return self.total

    @event
    def on_kept(self, kept: Kept) -> None:
        self.total += kept.number


def test_the_state_of_an_entity_is_written_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    snapshot = EntityHost.snapshot

    def write(host: EntityHost, cell: EntityCell) -> Any:
        held.append(locks.holds_any())
        return snapshot(host, cell)

    monkeypatch.setattr(EntityHost, "snapshot", write)
    with Node("here") as node:
        node.host(Written, state=f"sqlite:{tmp_path}/state.db")
        ref = node.entity(Written, "one")
        for number in range(1, 6):
            ref.ask(Step(number)).result(20)
        host = node._entities._hosts[Written.name]
        node.runtime.post(host.shorten_replay, [slot_of("one")])
        assert ref.ask(Step(0)).result(20) == 15
    assert held, "a snapshot is due after two events"
    assert not any(held)
