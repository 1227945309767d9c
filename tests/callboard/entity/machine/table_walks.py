"""Walks over a transition table: to each state, and the pairs of state and event."""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def pairs(table: Mapping[S, Mapping[E, S]]) -> tuple[list[tuple[S, E]], list[tuple[S, E]]]:
    """Return the legal pairs of state and event, and the illegal ones."""
    events = sorted({event for row in table.values() for event in row}, key=lambda e: e.value)
    every = list(product(table, events))
    legal = [(state, event) for state, event in every if event in table[state]]
    return legal, [pair for pair in every if pair not in legal]


def path_to(table: Mapping[S, Mapping[E, S]], first: S, last: S) -> list[E]:
    """Return a shortest path of events from one state to another."""
    paths: dict[S, list[E]] = {first: []}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for event, following in table[state].items():
            if following not in paths:
                paths[following] = [*paths[state], event]
                waiting.append(following)
    return paths[last]


def drawn(text: str | None, table: Mapping[S, Mapping[E, S]]) -> Mapping[S, Mapping[str, str]]:
    """Return the table that a docstring draws, in one part or several."""
    names = {state.name: state for state in table}
    cells: dict[S, dict[str, str]] = {state: {} for state in table}
    events: list[str] = []
    for line in (text or "").splitlines():
        words = line.split()
        if words[:1] in (["state"], ["stage"]) and line.startswith("    "):
            events = words[1:]
        elif words and words[0] in names and len(words) == len(events) + 1:
            cells[names[words[0]]] |= dict(zip(events, words[1:], strict=True))
    return {
        state: {event: after for event, after in row.items() if after != "-"}
        for state, row in cells.items()
    }


def named(table: Mapping[S, Mapping[E, S]]) -> Mapping[S, Mapping[str, str]]:
    """Return a table with names in the place of its events and next states."""
    return {
        state: {event.name: after.name for event, after in row.items()}
        for state, row in table.items()
    }
