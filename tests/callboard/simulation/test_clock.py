"""Virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.simulation.clock import Clock, NodeClock


def test_events_of_one_moment_keep_their_order():
    clock, happened = Clock(), []
    for number in range(5):
        clock.plan_at(0.3, happened.append, number)
        clock.now += 0.1 / 3

    clock.now = 0.3
    clock.run_due()

    assert happened == [0, 1, 2, 3, 4]


def test_time_stands_still_until_it_is_moved():
    clock, happened = Clock(), []
    clock.plan(1.0, happened.append, "late")

    assert not clock.run_due()
    assert clock.next_event_at == 1.0


def test_a_clock_that_changes_its_rate_never_jumps():
    clock = Clock()
    node_clock = NodeClock(clock)
    clock.now = 10.0
    node_clock.set_rate(1.05)
    assert node_clock.time() == 10.0
    clock.now = 20.0
    assert node_clock.time() == 20.5
    node_clock.set_rate(0.5)
    clock.now = 21.0
    assert node_clock.time() == 21.0


@given(st.floats(0.5, 2.0), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_what_is_planned_on_a_nodes_clock_is_due_when_it_comes(rate, since, later):
    clock = Clock()
    clock.now = since
    node_clock = NodeClock(clock, rate)
    when = node_clock.time() + later

    clock.now = node_clock.outside(when)

    assert node_clock.time() >= when
    assert clock.now - since <= later / rate + 1e-6
