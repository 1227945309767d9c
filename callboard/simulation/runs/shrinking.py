"""Making what fails small: fewer faults and steps; faults shorter, in round numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from callboard.simulation.faults import Fault

T = TypeVar("T")

#: Whether a run with these faults, and these steps of the test, still fails.
Fails = Callable[[list[Fault], list[int]], bool]

#: Told which runs may be asked for next, the likeliest first: several can be lived at a time.
Ahead = Callable[[list[tuple[list[Fault], list[int]]]], object]

#: Faults with the times at which they began, in place of what they waited for.
Timed = Callable[[list[Fault], list[int]], list[Fault]]


def _as_they_are(faults: list[Fault], _: list[int]) -> list[Fault]:
    """Return faults as they are: no other times are known."""
    return faults


def _nothing(_: object) -> None:
    """Live no run ahead."""


def shrink(
    faults: list[Fault],
    steps: list[int],
    fails: Fails,
    timed: Timed = _as_they_are,
    ahead: Ahead = _nothing,
) -> tuple[list[Fault], list[int]]:
    """Return as few and as simple faults and steps as can be found for a run that fails.

    Parts are left out as long as any can be (Zeller and Hildebrandt, "Simplifying and isolating
    failure-inducing input", TSE 2002), first all, then halves, quarters: of the faults and of
    the steps in turn, so that few of both are left where time is short. Then what is left is
    made simpler one by one. `fails` ends it by returning False for everything once its time is
    over.
    """

    def ahead_of_faults(tries: list[list[Fault]]) -> None:
        ahead([(tried, steps) for tried in tries])

    def ahead_of_steps(tries: list[list[int]]) -> None:
        ahead([(faults, tried) for tried in tries])

    pieces = 1
    while True:
        before = len(faults) + len(steps)
        largest = max(len(faults), len(steps))
        part = partial(_with_steps, fails, steps)
        faults = _without(faults, _size(faults, pieces), part, ahead_of_faults)
        steps = _without(steps, _size(steps, pieces), partial(fails, faults), ahead_of_steps)
        if pieces < largest:
            pieces *= 2
        elif before == len(faults) + len(steps):  # fewer steps may need fewer faults
            break
    return _simplified(faults, steps, fails, timed), steps


def _simplified(
    faults: list[Fault], steps: list[int], fails: Fails, timed: Timed
) -> list[Fault]:
    """Return faults that are as simple as they can be."""
    if any(fault.on for fault in faults):  # a time tells more than what a fault waits for
        faults = _first(fails, steps, faults, timed(faults, steps))
    faults = _first(fails, steps, faults, [_simplest(fault) for fault in faults])
    for place, fault in enumerate(faults):
        if fault.on:
            at_a_time = _with(faults, place, timed(faults, steps)[place])
            faults = _first(fails, steps, faults, at_a_time)
        simplest = _with(faults, place, _simplest(faults[place]))
        faults = _first(fails, steps, faults, simplest)
        if faults != simplest:
            for simpler in _simpler(faults[place]):
                tried = _with(faults, place, simpler(faults[place]))
                faults = _first(fails, steps, faults, tried)
    return faults


def _with(faults: list[Fault], place: int, fault: Fault) -> list[Fault]:
    """Return faults with another one at a place."""
    return [*faults[:place], fault, *faults[place + 1 :]]


def _first(
    fails: Fails, steps: list[int], faults: list[Fault], tried: list[Fault]
) -> list[Fault]:
    """Return other faults if a run fails with them as well."""
    return tried if tried != faults and fails(tried, steps) else faults


def _simplest(fault: Fault) -> Fault:
    """Return a fault after all that may make it simpler."""
    for simpler in _simpler(fault):
        fault = simpler(fault)
    return fault


def _with_steps(fails: Fails, steps: list[int], faults: list[Fault]) -> bool:
    """Return whether a run fails; the steps first, for `partial`."""
    return fails(faults, steps)


def fewer(parts: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Leave out all, then halves, quarters, until no single part can be left out."""
    size = len(parts)
    while size:
        before = len(parts)
        parts = _without(parts, size, fails)
        if size > 1 or len(parts) == before:
            size //= 2
    return parts


def _size(parts: list[T], pieces: int) -> int:
    """Return how many parts are in one of so many pieces."""
    return -(-len(parts) // pieces)


def _without(
    parts: list[T],
    size: int,
    fails: Callable[[list[T]], bool],
    ahead: Callable[[list[list[T]]], object] = _nothing,
) -> list[T]:
    """Leave out each piece of so many parts without which it fails as well."""
    start = 0
    while start < len(parts):
        ahead([parts[:at] + parts[at + size :] for at in range(start, len(parts), size)])
        tried = parts[:start] + parts[start + size :]
        if fails(tried):
            parts = tried
        else:
            start += size
    return parts


def _simpler(fault: Fault) -> list[Callable[[Fault], Fault]]:
    """Return what may make a fault simpler: each is tried on what the one before left."""
    return [
        lambda one: replace(one, skip=0),
        lambda one: replace(one, after=0.0),
        lambda one: replace(one, at=float(f"{one.at:.1g}")),
        lambda one: replace(one, at=float(f"{fault.at:.2g}")),
        lambda one: replace(one, after=float(f"{one.after:.1g}")),
        lambda one: replace(one, lasts=float(f"{one.lasts:.1g}")),
        lambda one: replace(one, lasts=float(f"{fault.lasts:.2g}")),
        lambda one: replace(one, amount=float(f"{one.amount:.1g}")),
    ]
