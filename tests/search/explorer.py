"""Visit every state that a model can reach, whatever the order of its events.

A model has states; each knows its successors and its rules. States are told
apart by a key. The search goes deep first, so the way to a state is at hand when something is
wrong with it.
"""

import time
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class Violation(AssertionError):
    """A state that must not be; the text tells the events that lead there."""


@dataclass(frozen=True)
class Explored:
    """Result of a search; an end is a state in which nothing more happens without an event."""

    states: int
    steps: int
    ends: int
    seconds: float
    is_whole: bool


class Model(Generic[S]):
    """The searched model; a subclass defines how its states are made and judged."""

    def start(self) -> S:
        """Return the state to begin with."""
        raise NotImplementedError

    def steps(self, state: S) -> Iterable[tuple[Any, S]]:
        """Return each possible next event, with the state after it."""
        raise NotImplementedError

    def key(self, state: S) -> Hashable:
        """Return what tells states apart; a state may be its own key."""
        return state  # type: ignore[return-value]

    def check(self, state: S) -> bool:
        """Raise `AssertionError` when this state must not be; tell whether it is an end."""
        raise NotImplementedError


def explore(model: Model[S], limit: int | None = None) -> Explored:
    """Search all states of a model, or the first `limit`.

    Raises:
        Violation: a state is wrong; tells the events from the start to it.
    """
    began, steps, ends = time.monotonic(), 0, 0
    # Hashes of 64 bits in place of keys: ten million states would not fit otherwise, and the
    # chance that two of them share one is 3 in 10^6.
    seen: set[int] = set()
    path: list[tuple[Any, Iterator[tuple[Any, S]]]] = [("start", iter(()))]
    key, check, successors = model.key, model.check, model.steps

    def explored(*, is_whole: bool) -> Explored:
        return Explored(len(seen), steps, ends, time.monotonic() - began, is_whole)

    try:
        state = model.start()
        seen.add(hash(key(state)))
        ends += check(state)
        path = [("start", iter(successors(state)))]
        while path:
            step = next(path[-1][1], None)
            if step is None:
                path.pop()
                continue
            steps += 1
            event, state = step
            mark = hash(key(state))
            if mark in seen:
                continue
            if len(seen) == limit:
                return explored(is_whole=False)
            seen.add(mark)
            path.append((event, iter(())))
            ends += check(state)
            path[-1] = (event, iter(successors(state)))
    except AssertionError as error:
        events = "\n".join(f"  {event}" for event, _ in path)
        msg = f"{error or type(error).__name__}\nafter\n{events}"
        raise Violation(msg) from error
    return explored(is_whole=True)
