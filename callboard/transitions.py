"""Transition tables: the next state for each state and event."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar


class TableEnum(Enum):
    """Base class of states and events, whose hash is that of an object.

    The hash of an `Enum` is a function in Python, and tables are read for each message.
    """

    __hash__ = object.__hash__  # members are unique objects


S = TypeVar("S", bound=TableEnum)
E = TypeVar("E", bound=TableEnum)


class IllegalTransition(AssertionError):
    """An event that the current state does not allow: an error of callboard."""


def next_state(transitions: Mapping[S, Mapping[E, S]], state: S, event: E, name: Any) -> S:
    """Return the next state of a table; `name` is in its state, for the error.

    Raises:
        IllegalTransition: the table has no entry for the event.
    """
    state_after = transitions[state].get(event)
    if state_after is None:
        msg = f"{name} is {state.name}, in which it cannot be {event.name}"
        raise IllegalTransition(msg)
    return state_after
