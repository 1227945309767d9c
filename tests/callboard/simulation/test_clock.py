"""Virtual time."""

from callboard.simulation.clock import Clock


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
