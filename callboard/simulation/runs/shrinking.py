"""Making what fails small: fewer faults and steps; faults shorter, in round numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from callboard.simulation.faults import Fault

T = TypeVar("T")

#: Whether a run with these faults, and these steps of the test, still fails.
Fails = Callable[[list[Fault], list[int]], bool]

#: Faults with the times at which they began, in place of what they waited for.
Timed = Callable[[list[Fault], list[int]], list[Fault]]


def _as_they_are(faults: list[Fault], _: list[int]) -> list[Fault]:
    """Return faults as they are: no other times are known."""
    return faults


def shrink(
    faults: list[Fault], steps: list[int], fails: Fails, timed: Timed = _as_they_are
) -> tuple[list[Fault], list[int]]:
    """Return as few and as simple faults and steps as can be found for a run that fails.

    Parts are left out as long as any can be (Zeller and Hildebrandt, "Simplifying and isolating
    failure-inducing input", TSE 2002); then what is left is made simpler one by one. `fails`
    ends it by returning False for everything once its time is over.
    """
    before = -1
    while before != len(faults) + len(steps):  # fewer steps may need fewer faults
        before = len(faults) + len(steps)
        faults = fewer(faults, partial(_with_steps, fails, steps))
        steps = fewer(steps, partial(fails, faults))
    for place in range(len(faults)):
        if faults[place].on:  # a time and a machine tell more than what it waits for
            tried = [*faults[:place], timed(faults, steps)[place], *faults[place + 1 :]]
            if tried != faults and fails(tried, steps):
                faults = tried
        for simpler in _simpler(faults[place]):
            tried = [*faults[:place], simpler(faults[place]), *faults[place + 1 :]]
            if tried != faults and fails(tried, steps):
                faults = tried
    return faults, steps


def _with_steps(fails: Fails, steps: list[int], faults: list[Fault]) -> bool:
    """Return whether a run fails; the steps first, for `partial`."""
    return fails(faults, steps)


def fewer(parts: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Leave out all, then halves, quarters, until no single part can be left out."""
    size = len(parts)
    while size:
        before, start = len(parts), 0
        while start < len(parts):
            tried = parts[:start] + parts[start + size :]
            if fails(tried):
                parts = tried
            else:
                start += size
        if size > 1 or len(parts) == before:
            size //= 2
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
