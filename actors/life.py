"""The life of an actor: its states, and the next state after each event.

    state      OPENED    END_REQUESTED    TERMINATED
    STARTING   LIVE      DOOMED           ENDED
    DOOMED     ENDING    DOOMED           ENDED
    LIVE       -         ENDING           ENDED
    ENDING     -         ENDING           ENDED
    ENDED      ENDED     ENDED            -

- STARTING: `__init__` runs on the thread that spawns the actor. Messages wait.
- DOOMED: the same, but the end was requested meanwhile. The actor still has to be opened: its
  end runs `on_end` and notifies watchers, which must not happen while user code runs in
  `__init__`.
- LIVE: the actor has turns.
- ENDING: the end was requested, by a kill, a stop or a failed handler. The actor ends as soon
  as the current handler returns or awaits, and handles no further message. A second request
  changes nothing: a handler that calls `stop_self()` and then raises ends with `normal`.
- ENDED: watchers are notified, and messages become dead letters. A request to end has no
  effect, as a kill may be on its way from any thread. Opening has none, either: an activation
  of an entity ends before it is opened if its state cannot be read.

An actor that has ended cannot end again. Otherwise it would be counted twice, its parent would
be notified twice, and a supervisor would restart it twice.

The state is not stored. `Cell.life` derives it from attributes that are each set once. So a
kill on one thread cannot undo the end of the actor on another.
"""

from collections.abc import Mapping
from enum import auto
from typing import Final

from callboard.transitions import TableEnum, next_state


class LifeState(TableEnum):
    """A state of an actor's life."""

    STARTING = auto()
    DOOMED = auto()
    LIVE = auto()
    ENDING = auto()
    ENDED = auto()


class LifeEvent(TableEnum):
    """An event that may change the state of an actor's life."""

    OPENED = auto()
    END_REQUESTED = auto()
    TERMINATED = auto()


#: The next state for each state and event; an event without one is illegal in that state.
TRANSITIONS: Final[Mapping[LifeState, Mapping[LifeEvent, LifeState]]] = {
    LifeState.STARTING: {
        LifeEvent.OPENED: LifeState.LIVE,
        LifeEvent.END_REQUESTED: LifeState.DOOMED,
        LifeEvent.TERMINATED: LifeState.ENDED,
    },
    LifeState.DOOMED: {
        LifeEvent.OPENED: LifeState.ENDING,
        LifeEvent.END_REQUESTED: LifeState.DOOMED,
        LifeEvent.TERMINATED: LifeState.ENDED,
    },
    LifeState.LIVE: {
        LifeEvent.END_REQUESTED: LifeState.ENDING,
        LifeEvent.TERMINATED: LifeState.ENDED,
    },
    LifeState.ENDING: {
        LifeEvent.END_REQUESTED: LifeState.ENDING,
        LifeEvent.TERMINATED: LifeState.ENDED,
    },
    LifeState.ENDED: {
        LifeEvent.OPENED: LifeState.ENDED,
        LifeEvent.END_REQUESTED: LifeState.ENDED,
    },
}


def check_transition(life: LifeState, event: LifeEvent, name: object) -> None:
    """Check that an event is legal for an actor in a state.

    Raises:
        IllegalTransition: the table has no entry for it.
    """
    next_state(TRANSITIONS, life, event, name)
