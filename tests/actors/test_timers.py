"""Timers fire in order, and those that are cancelled do not stay."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.runner.timers import COMPACT_FROM, Timers


def fired(timers, now):
    return [args[0] for _, args in timers.due(now)]


@given(st.lists(st.floats(0, 100), max_size=30), st.data())
def test_due_timers_that_are_not_cancelled_fire_in_order(times, data):
    timers = Timers()
    added = [timers.add(when, print, (when,)) for when in times]
    cancelled = (
        data.draw(st.lists(st.sampled_from(range(len(times))), unique=True)) if times else []
    )
    now = data.draw(st.floats(0, 100))

    for index in cancelled:
        added[index].cancel()

    kept = [when for index, when in enumerate(times) if index not in cancelled]
    assert fired(timers, now) == sorted(when for when in kept if when <= now)
    assert fired(timers, 1000.0) == sorted(when for when in kept if when > now)


def test_cancelled_timers_leave_the_heap():
    timers = Timers()
    kept = [timers.add(float(number), print, (number,)) for number in range(10)]

    for number in range(100 * COMPACT_FROM):
        timers.add(50.0, print, (number,)).cancel()

    assert len(timers) <= len(kept) + 2 * COMPACT_FROM
    assert fired(timers, 100.0) == list(range(10))


def test_the_next_time_is_that_of_the_first_timer():
    timers = Timers()

    assert timers.next_at is None
    timers.add(3.0, print, ())
    timers.add(2.0, print, ())
    assert timers.next_at == 2.0
