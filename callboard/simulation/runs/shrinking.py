"""Shrinking of failures: fewer faults and steps, shorter faults, round numbers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from callboard.simulation.faults import Fault

T = TypeVar("T")

#: Whether a run with these faults, and these steps of the test, still fails.
Fails = Callable[[list[Fault], list[int]], bool]

#: Called with the runs that may be needed next, the likeliest first, to run them in parallel.
Ahead = Callable[[list[tuple[list[Fault], list[int]]]], object]

#: Returns faults with fixed start times in place of the events that they waited for.
Timed = Callable[[list[Fault], list[int]], list[Fault]]


def _as_they_are(faults: list[Fault], _: list[int]) -> list[Fault]:
    """Return faults unchanged: their start times are unknown."""
    return faults


def _nothing(_: object) -> None:
    """Run nothing ahead."""


def shrink(
    faults: list[Fault],
    steps: list[int],
    fails: Fails,
    timed: Timed = _as_they_are,
    ahead: Ahead = _nothing,
) -> tuple[list[Fault], list[int]]:
    """Shrink the faults and steps of a failing run.

    Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input",
    TSE 2002) removes parts while the run still fails: all, then halves, quarters and so on. It
    alternates between faults and steps, so that both are small if the time runs out. Then the
    remaining faults are simplified one by one. After its time limit, `fails` returns False for
    everything, which ends the search.
    """

    def ahead_of_faults(tries: list[list[Fault]]) -> None:
        ahead([(tried, steps) for tried in tries])

    def ahead_of_steps(tries: list[list[int]]) -> None:
        ahead([(faults, tried) for tried in tries])

    pieces = 1
    while True:
        old_count = len(faults) + len(steps)
        largest = max(len(faults), len(steps))
        fails_without_faults = partial(_with_steps, fails, steps)
        faults = _without(faults, _size(faults, pieces), fails_without_faults, ahead_of_faults)
        steps = _without(steps, _size(steps, pieces), partial(fails, faults), ahead_of_steps)
        if pieces < largest:
            pieces *= 2
        elif old_count == len(faults) + len(steps):  # fewer steps may need fewer faults
            break
    return _simplified(faults, steps, fails, timed), steps


def _simplified(
    faults: list[Fault], steps: list[int], fails: Fails, timed: Timed
) -> list[Fault]:
    """Simplify faults as far as the run still fails."""
    if any(fault.on for fault in faults):  # a fixed time is simpler than an event
        faults = _first(fails, steps, faults, timed(faults, steps))
    faults = _first(fails, steps, faults, [_simplest(fault) for fault in faults])
    for index, fault in enumerate(faults):
        if fault.on:
            fixed = _with(faults, index, timed(faults, steps)[index])
            faults = _first(fails, steps, faults, fixed)
        simplest = _with(faults, index, _simplest(faults[index]))
        faults = _first(fails, steps, faults, simplest)
        if faults != simplest:
            for simpler in _simpler(faults[index]):
                tried = _with(faults, index, simpler(faults[index]))
                faults = _first(fails, steps, faults, tried)
    return faults


def _with(faults: list[Fault], index: int, fault: Fault) -> list[Fault]:
    """Return faults with the one at an index replaced."""
    return [*faults[:index], fault, *faults[index + 1 :]]


def _first(
    fails: Fails, steps: list[int], faults: list[Fault], tried: list[Fault]
) -> list[Fault]:
    """Return the changed faults if the run fails with them, else the unchanged ones."""
    return tried if tried != faults and fails(tried, steps) else faults


def _simplest(fault: Fault) -> Fault:
    """Return a fault after all simplifications."""
    for simpler in _simpler(fault):
        fault = simpler(fault)
    return fault


def _with_steps(fails: Fails, steps: list[int], faults: list[Fault]) -> bool:
    """Return whether a run fails; the order of arguments is for `partial`."""
    return fails(faults, steps)


def fewer(parts: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Remove all, then halves, quarters and so on, until no single part can be removed."""
    size = len(parts)
    while size:
        old_count = len(parts)
        parts = _without(parts, size, fails)
        if size > 1 or len(parts) == old_count:
            size //= 2
    return parts


def _size(parts: list[T], pieces: int) -> int:
    """Return the size of the pieces when parts are divided into this many."""
    return -(-len(parts) // pieces)


def _without(
    parts: list[T],
    size: int,
    fails: Callable[[list[T]], bool],
    ahead: Callable[[list[list[T]]], object] = _nothing,
) -> list[T]:
    """Remove each piece of `size` parts that the failure does not need."""
    start = 0
    while start < len(parts):
        ahead(
            [
                parts[:offset] + parts[offset + size :]
                for offset in range(start, len(parts), size)
            ]
        )
        tried = parts[:start] + parts[start + size :]
        if fails(tried):
            parts = tried
        else:
            start += size
    return parts


def _simpler(fault: Fault) -> list[Callable[[Fault], Fault]]:
    """Return simplifications of a fault, to be applied one after another."""
    return [
        lambda changed: replace(changed, skip=0),
        lambda changed: replace(changed, after=0.0),
        lambda changed: replace(changed, at=float(f"{changed.at:.1g}")),
        lambda changed: replace(changed, at=float(f"{fault.at:.2g}")),
        lambda changed: replace(changed, after=float(f"{changed.after:.1g}")),
        lambda changed: replace(changed, lasts=float(f"{changed.lasts:.1g}")),
        lambda changed: replace(changed, lasts=float(f"{fault.lasts:.2g}")),
        lambda changed: replace(changed, amount=float(f"{changed.amount:.1g}")),
    ]
