"""The table of an actor's life: each legal event leads to its state, others are refused."""

import itertools

import pytest

from callboard import Actor, handler
from callboard.actors.exit_reason import ExitReason
from callboard.actors.life import (
    TRANSITIONS,
    LifeEvent,
    LifeState,
    check_transition,
)
from callboard.actors.runtime import Runtime
from callboard.transitions import IllegalTransition

PAIRS = list(itertools.product(LifeState, LifeEvent))
LEGAL = [(life, event) for life, event in PAIRS if event in TRANSITIONS[life]]
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


class Idle(Actor):
    pass


@pytest.fixture
def still():
    """A runtime whose runner never has a turn."""
    runtime = Runtime("still")
    runtime.runner.start = lambda: None
    yield runtime
    runtime.close()


def cell_in(life, runtime):
    """Return a cell in a state, with the events of its end."""
    cell = runtime._new_cell(Idle, None, None)
    cell.actor = Idle.attach(cell, (), {})
    if life in (LifeState.DOOMED, LifeState.ENDING):
        cell.kill()
    if life in (LifeState.LIVE, LifeState.ENDING):
        cell.open(trap_exit=False)
    if life is LifeState.ENDED:
        cell.abort(ExitReason.ERROR, "")
    assert cell.life is life
    return cell


def apply(event, cell):
    match event:
        case LifeEvent.OPENED:
            cell.open(trap_exit=False)
        case LifeEvent.END_REQUESTED:
            cell.kill()
        case LifeEvent.TERMINATED:
            cell.terminate(ExitReason.KILLED, "")


@pytest.mark.parametrize(("life", "event"), LEGAL, ids=lambda value: value.name)
def test_a_legal_event_leads_to_the_state_of_the_table(life, event, still):
    cell = cell_in(life, still)

    apply(event, cell)

    assert cell.life is TRANSITIONS[life][event]


@pytest.mark.parametrize(("life", "event"), ILLEGAL, ids=lambda value: value.name)
def test_an_illegal_event_is_refused_and_changes_nothing(life, event, still):
    cell = cell_in(life, still)
    ends = []
    still.on_end.append(lambda *end: ends.append(end))

    with pytest.raises(IllegalTransition, match=f"is {life.name}.*cannot be {event.name}"):
        apply(event, cell)

    assert cell.life is life
    assert not ends


def test_only_these_events_are_illegal():
    assert ILLEGAL == [
        (LifeState.LIVE, LifeEvent.OPENED),
        (LifeState.ENDING, LifeEvent.OPENED),
        (LifeState.ENDED, LifeEvent.TERMINATED),
    ]


def test_the_end_can_be_reached_from_every_state():
    for life in set(LifeState) - {LifeState.ENDED}:
        check_transition(life, LifeEvent.TERMINATED, "an actor")

    assert set(TRANSITIONS[LifeState.ENDED].values()) == {LifeState.ENDED}


def test_the_first_request_to_end_counts(runtime):
    class Stops(Actor):
        @handler
        def stop(self, msg: str) -> None:
            self.stop_self(ExitReason.SHUTDOWN)
            raise OSError(msg)

    ref = runtime.start_actor(Stops)
    down = runtime.monitor(ref)
    ref.tell("now")

    assert down.result(5).reason == "shutdown"


def test_an_actor_that_ends_in_its_turn_and_is_killed_in_it_ends_once(runtime):
    ends = []
    runtime.on_end.append(lambda cell, down: ends.append(down.reason))

    class EndsItself(Actor):
        @handler
        def end(self, msg: str) -> None:
            self._cell.terminate(ExitReason.ERROR, msg)
            self._cell.kill()

    ref = runtime.start_actor(EndsItself)
    down = runtime.monitor(ref)
    ref.tell("broken")

    assert down.result(5).detail == "broken"
    runtime.start_actor(Idle).ask("anything", 5).exception(5)  # a turn later
    assert ends == ["error"]
