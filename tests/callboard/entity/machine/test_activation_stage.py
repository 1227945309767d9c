"""The tables of an activation and of its commits: each pair, on a cell and on the table."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from callboard import Entity, event, handler, message
from callboard.actors.exit_reason import ExitReason
from callboard.entity.cell import EntityCell
from callboard.entity.errors import EntityUnavailable
from callboard.entity.machine import activation_stage
from callboard.entity.machine.activation_stage import (
    ACTIVATION,
    COMMITS,
    ActivationEvent,
    ActivationStage,
    CommitEvent,
    CommitStage,
)
from callboard.entity.state.interface import Committed, EntityState, Recovered
from callboard.entity.unit_of_work import EntityBatch
from callboard.simulation import Cluster
from callboard.transitions import IllegalTransition
from tests.callboard.entity.machine.table_walks import drawn, named, pairs, path_to

LEGAL, ILLEGAL = pairs(ACTIVATION)
LEGAL_COMMITS, ILLEGAL_COMMITS = pairs(COMMITS)
EMPTY, MORE = Recovered(None, (), has_more=False), Recovered(None, (), has_more=True)
LOST = EntityUnavailable("the database is away")


@message("stage-tests.Added")
@dataclass(frozen=True)
class Added:
    number: int


class Total(Entity):
    name = "stage-tests.Total"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_number(self, msg: int) -> int:
        self.persist(Added(msg))
        return self.total

    @handler
    def on_text(self, msg: str) -> None:
        raise ValueError(msg)

    @event
    def on_added(self, added: Added) -> None:
        self.total += added.number


class ManualState:
    """A state whose calls end when a test says so."""

    def __init__(self) -> None:
        self.reads: list[Any] = []
        self.commits: list[Any] = []

    def submit(self, done: Any, method: Any, *_: Any) -> None:
        assert method in (EntityState.recover, EntityState.past_events)
        self.reads.append(done)

    def commit(self, batch: Any, done: Any) -> None:
        self.commits.append((batch, done))

    def own_fences(self, _: str) -> dict[int, int]:
        return {}


class Activated:
    """The activation of a key whose state is being read, and the outcomes of its asks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = node = cluster.node("a")
        node.host(Total)
        self.host = host = node._entities._hosts[Total.name]
        self.state: Any = ManualState()
        host.state = self.state
        host.prove = lambda _, emission: emission.release()
        self.ref = node.entity(Total, "k")
        self.asks = [self.ref.ask(1, timeout=60)]
        self.cell: EntityCell = host.cells["k"]

    def run(self) -> None:
        self.cluster.advance(0.001)

    def recover(self) -> None:
        self.state.reads.pop()(EMPTY)
        self.run()

    def ask(self, msg: int | str) -> Any:
        self.asks.append(self.ref.ask(msg, timeout=60))
        self.run()
        return self.asks[-1]

    def numbers(self) -> list[int]:
        """The numbers of the events of each commit."""
        return [event.number for batch, _ in self.state.commits for event in batch.events]

    def end_commit(self, outcome: Any = None) -> None:
        _, done = self.state.commits.pop(0)
        done(outcome or Committed({}, {}, {}))
        self.run()

    def apply(self, event: ActivationEvent) -> None:
        """Let an event happen to the cell, between turns, with a commit in flight."""
        cell = self.cell
        match event:
            case ActivationEvent.READ_STARTED:
                cell.read_state()
            case ActivationEvent.PAGE_READ:
                cell._state_read(cell._reads, MORE)
            case ActivationEvent.PAGE_APPLIED | ActivationEvent.RECOVERED:
                cell._recovered = MORE if event is ActivationEvent.PAGE_APPLIED else EMPTY
                cell._begin()
            case ActivationEvent.HANDLER_FAILED:
                cell._in_flight = EntityBatch(1, [], [])
                cell.failed(ValueError(), None)
                cell._in_flight = None
            case ActivationEvent.COMMIT_FAILED:
                cell._in_flight, cell._broken, cell.running = EntityBatch(1, [], []), None, True
                cell._not_committed(LOST)
                cell.running = False
            case ActivationEvent.PASSIVATED:
                cell._passivate()
            case ActivationEvent.TERMINATED:
                cell.terminate(ExitReason.KILLED, "")


@pytest.fixture
def activated() -> Iterator[Activated]:
    with closing(Cluster(5)) as cluster:
        yield Activated(cluster)


def in_stage(activated: Activated, stage: ActivationStage) -> None:
    for step in path_to(ACTIVATION, ActivationStage.READING, stage):
        activated.apply(step)
    assert activated.cell.stage is stage


# --- the activation ---


@pytest.mark.parametrize(("stage", "event"), LEGAL, ids=lambda value: value.name)
def test_a_legal_event_leads_to_the_stage_of_the_table(stage, event, activated):
    in_stage(activated, stage)

    activated.apply(event)

    assert activated.cell.stage is ACTIVATION[stage][event]


@pytest.mark.parametrize(("stage", "event"), ILLEGAL, ids=lambda value: value.name)
def test_an_illegal_event_is_refused_and_changes_nothing(stage, event, activated):
    in_stage(activated, stage)

    with pytest.raises(IllegalTransition, match=f"is {stage.name}.*cannot be {event.name}"):
        activated.cell._enter(event)

    assert activated.cell.stage is stage


@pytest.mark.parametrize(
    "stage", [stage for stage in ActivationStage if stage is not ActivationStage.READING]
)
def test_a_page_is_ignored_in_each_stage_that_does_not_read(stage, activated):
    in_stage(activated, stage)
    page = activated.cell._recovered

    activated.cell._state_read(activated.cell._reads, EMPTY)

    assert (activated.cell.stage, activated.cell._recovered) == (stage, page)


def test_the_end_can_be_reached_from_every_stage():
    for stage in set(ActivationStage) - {ActivationStage.ENDED}:
        assert ACTIVATION[stage][ActivationEvent.TERMINATED] is ActivationStage.ENDED

    assert set(ACTIVATION[ActivationStage.ENDED].values()) == {ActivationStage.ENDED}


def test_the_state_is_read_only_after_the_commits_in_flight(activated):
    activated.recover()
    assert (activated.numbers(), activated.state.reads) == ([1], [])

    activated.ask("fails")
    assert activated.cell.stage is ActivationStage.UNREAD
    assert not activated.state.reads, "the read might miss event 1"

    activated.end_commit()
    activated.end_commit()  # of the error, which waits like an answer
    assert activated.cell.stage is ActivationStage.READING
    assert len(activated.state.reads) == 1


def test_a_page_of_an_earlier_read_is_not_applied(activated):
    first = activated.state.reads.pop()
    activated.cell.failed(ValueError(), None)  # a promise whose answer cannot be sent
    assert activated.cell.stage is ActivationStage.READING

    first(EMPTY)
    activated.run()

    assert activated.cell.stage is ActivationStage.READING


def test_a_blocking_handler_that_fails_after_its_commit_has_the_state_read_once(
    activated, caplog
):
    activated.recover()
    activated.cell.running = True  # as while a handler blocks
    activated.end_commit(LOST)
    assert activated.cell.stage is ActivationStage.BROKEN

    activated.cell.failed(ValueError(), None)
    activated.cell.running = False
    activated.recover()
    later = activated.ask(2)
    assert activated.numbers() == [1]
    activated.cluster.advance(0.1)  # the check for the end of the handler is due

    assert activated.cell.stage is ActivationStage.ACTIVE
    assert not activated.state.reads, "event 1 is being committed"
    assert IllegalTransition.__name__ not in caplog.text
    activated.end_commit()
    assert later.result(0) == 2


def test_the_docstring_draws_this_table():
    text, _, commits = (activation_stage.__doc__ or "").partition("**Its commits.**")

    assert drawn(text, ACTIVATION) == named(ACTIVATION)
    assert drawn(commits, COMMITS) == named(COMMITS)


# --- its commits ---


def commit(event: CommitEvent, activated: Activated) -> None:
    """Let an event happen to the commits of an active entity."""
    cell = activated.cell
    match event:
        case CommitEvent.UNIT_CLOSED:
            activated.ask(1)
        case CommitEvent.DURABLE:
            activated.end_commit()
        case CommitEvent.NOT_COMMITTED:
            cell.running = True  # so that the state is not read at once
            activated.end_commit(LOST)
            cell.running = False
        case CommitEvent.STATE_READ:
            cell.stage = ActivationStage.UNREAD
            cell.read_state()


def in_commits(activated: Activated, stage: CommitStage) -> None:
    activated.recover()
    activated.end_commit()
    assert activated.cell.commits is CommitStage.CLEAN
    for step in path_to(COMMITS, CommitStage.CLEAN, stage):
        commit(step, activated)
    assert activated.cell.commits is stage


@pytest.mark.parametrize(("stage", "event"), LEGAL_COMMITS, ids=lambda value: value.name)
def test_a_legal_event_leads_to_the_stage_of_the_commits(stage, event, activated):
    in_commits(activated, stage)

    commit(event, activated)

    assert activated.cell.commits is COMMITS[stage][event]


@pytest.mark.parametrize(("stage", "event"), ILLEGAL_COMMITS, ids=lambda value: value.name)
def test_an_illegal_event_of_the_commits_is_refused(stage, event, activated):
    in_commits(activated, stage)
    cell = activated.cell
    cell.stage = ActivationStage.UNREAD  # in which the state may be read
    calls = {
        CommitEvent.DURABLE: lambda: cell.handle_outcome(Committed({}, {}, {})),
        CommitEvent.NOT_COMMITTED: lambda: cell.handle_outcome(LOST),
        CommitEvent.STATE_READ: cell.read_state,
    }

    with pytest.raises(IllegalTransition, match=f"is {stage.name}.*cannot be {event.name}"):
        calls[event]()

    assert cell.commits is stage
