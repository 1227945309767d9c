"""Deadlines of asks: exact enough, cheap, and bounded in memory. Time is an argument."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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


def test_overdue_asks_fail_and_the_next_deadline_is_returned():
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


@pytest.mark.parametrize("is_first_longer", [False, True])
def test_answered_asks_after_a_pending_one_are_freed(is_first_longer):
    deadlines = Deadlines()
    waits = pending(deadlines, 2000.0 if is_first_longer else 1000.0)
    for turn in range(10):
        futures = [pending(deadlines, 1000.0) for _ in range(1000)]
        deadlines.sweep(float(turn))
        for future in futures:
            future.set_result(1)

    assert sum(map(len, [*deadlines.lines, deadlines.heap])) <= 2048
    assert deadlines.unanswered() == [waits]


SECONDS = [5.0, 4.0, 3.0, 2.0, 1.0, 0.8, 0.5]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(SECONDS), st.booleans(), st.booleans())))
@example([(seconds, False, True) for seconds in SECONDS])  # more than there are lines
def test_asks_of_different_times_fail_in_the_order_of_their_deadlines(asks):
    deadlines, waiting, failed = Deadlines(), [], []
    for number, (seconds, is_answered, is_swept) in enumerate(asks):
        now = 0.1 * number
        future = pending(deadlines, now + seconds)
        if is_swept:
            deadlines.sweep(now)
        if is_answered:
            future.set_result(1)
        else:
            waiting.append((future.deadline, number))
            future.on_done(lambda _, ask=waiting[-1]: failed.append(ask))

    deadlines.sweep(0.1 * len(asks))
    due = [ask for ask in sorted(waiting) if ask[0] <= 0.1 * len(asks)]

    assert failed == due
    assert deadlines.sweep(1000.0) == math.inf
    assert failed == sorted(waiting)


def test_one_ask_of_a_longer_time_does_not_keep_the_others_out_of_line():
    deadlines = Deadlines()
    for number in range(100):
        pending(deadlines, (1000.0 if number % 10 == 0 else 60.0) + number)
    deadlines.sweep(0.0)

    assert list(map(len, deadlines.lines)) == [10, 90]
    assert not deadlines.heap


def test_closing_fails_pending_asks():
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
