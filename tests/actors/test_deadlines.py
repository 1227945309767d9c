"""Deadlines of asks: exact enough, cheap, and bounded in memory. Time is an argument."""

import math

import pytest

from callboard import Future
from callboard.actors.errors import AskTimeout, NodeClosed
from callboard.actors.runner.deadlines import SWEEP_INTERVAL, SWEEP_SIZE, Deadlines


def pending(deadlines, deadline):
    future = Future("somebody")
    future.timeout = future.deadline = deadline
    deadlines.fresh.append(future)
    return future


def test_nothing_waits_for_nothing():
    assert Deadlines().sweep(0.0) == math.inf


def test_what_is_overdue_fails_and_what_is_not_is_told():
    deadlines = Deadlines()
    early, late = pending(deadlines, 1.0), pending(deadlines, 2.0)

    assert deadlines.sweep(1.0) == 2.0
    assert isinstance(early.exception(), AskTimeout)
    assert not late.done()
    assert deadlines.sweep(2.0) == math.inf
    assert late.done()


def test_asks_made_just_after_a_sweep_wait_for_the_next():
    deadlines = Deadlines()
    pending(deadlines, 9.0)
    deadlines.sweep(1.0)
    future = pending(deadlines, 1.0)

    assert deadlines.sweep(1.0) == 1.0 + SWEEP_INTERVAL
    assert not future.done()
    assert deadlines.sweep(1.0 + SWEEP_INTERVAL) == 9.0
    assert future.done()


def test_many_asks_bring_the_next_sweep_forward():
    deadlines = Deadlines()
    pending(deadlines, 9.0)
    deadlines.sweep(1.0)
    for _ in range(SWEEP_SIZE):
        pending(deadlines, 9.0)

    deadlines.sweep(1.0)

    assert len(deadlines.fresh) == 0


def test_answered_asks_are_forgotten():
    deadlines = Deadlines()
    pending(deadlines, 9.0).set_result(1)

    assert deadlines.sweep(1.0) == math.inf


def test_the_heap_does_not_keep_answered_asks_for_ever():
    deadlines = Deadlines()
    for turn in range(10):
        futures = [pending(deadlines, 1000.0) for _ in range(1000)]
        deadlines.sweep(float(turn))
        for future in futures:
            future.set_result(1)

    assert len(deadlines.heap) <= 2048


def test_closing_fails_what_waits():
    deadlines = Deadlines()
    in_heap = pending(deadlines, 9.0)
    deadlines.sweep(1.0)
    fresh, answered = pending(deadlines, 9.0), pending(deadlines, 9.0)
    answered.set_result(1)

    deadlines.close()

    for future in (in_heap, fresh):
        with pytest.raises(NodeClosed):
            future.result(0)
    assert answered.result(0) == 1
