import json

import pytest

from callboard.demo.aggregator import BINS, LEVELS_LIMIT, Subject, Tally

SECOND = 1_000_000_000


def subject_with(*levels):
    subject = Subject()
    for at, level in levels:
        subject.add(at, level, {})
    return subject


def test_a_subject_without_recent_levels_has_zeros():
    figures = subject_with((0.0, 9.0)).figures(50.0)

    assert figures == {"mean": 0.0, "p95": 0.0, "max": 0.0, "history": [], "parts": {}}


def test_mean_95th_percentile_and_maximum_of_what_is_in_the_window():
    figures = subject_with(*((number / 10, float(number)) for number in range(1, 21)))

    assert figures.figures(2.0).items() >= {"mean": 10.5, "p95": 19.0, "max": 20.0}.items()


def test_the_95th_percentile_of_one_value_is_that_value():
    assert subject_with((0.0, 7.0)).figures(0.0)["p95"] == 7.0


@pytest.mark.parametrize(("now", "highest"), [(9.9, 100.0), (10.0, 1.0), (11.0, 0.0)])
def test_values_leave_the_window_when_their_time_is_over(now, highest):
    assert subject_with((0.0, 100.0), (1.0, 1.0)).figures(now)["max"] == highest


def test_a_window_is_bounded_however_fast_values_come():
    levels = [(0.0, 9.0), *((0.0, 1.0) for _ in range(LEVELS_LIMIT))]

    assert subject_with(*levels).figures(0.0)["max"] == 1.0


def test_history_holds_the_means_of_the_newest_bins():
    figures = subject_with((0.0, 9.0), (0.6, 1.0), (0.9, 3.0), (1.2, 5.0)).figures(1.2)
    assert figures["history"] == [9.0, 2.0, 5.0]

    levels = ((number / 4, float(number)) for number in range(4 * BINS))
    assert len(subject_with(*levels).figures(BINS)["history"]) == BINS


def counts_of(*numbers):
    tally = Tally()
    for number in numbers:
        tally.add("A.cpu", number, 0.0, {}, SECOND)
    return tally.snapshot(SECOND)["sensors"]["A.cpu"]


def test_numbers_that_never_came_are_missed():
    assert counts_of(5, 6, 9) == {"received": 3, "missed": 2}


def test_a_sensor_that_is_taken_over_in_the_middle_has_missed_nothing():
    assert counts_of(500) == {"received": 1, "missed": 0}


def test_sensors_are_counted_each_and_subjects_together():
    tally = Tally()
    tally.add("A.cpu", 1, 10.0, {"core 0": 10.0}, 1_000_000_000)
    tally.add("D.cpu", 1, 30.0, {"core 0": 30.0}, 1_100_000_000)

    snapshot = tally.snapshot(1_200_000_000)

    assert snapshot["handled"] == 2
    assert snapshot["first_handled_ns"] == 1_000_000_000
    assert snapshot["sensors"] == {
        "A.cpu": {"received": 1, "missed": 0},
        "D.cpu": {"received": 1, "missed": 0},
    }
    assert snapshot["subjects"]["cpu"]["mean"] == 20.0
    assert snapshot["subjects"]["cpu"]["max"] == 30.0
    assert snapshot["subjects"]["cpu"]["parts"] == {"core 0": 30.0}


def test_a_snapshot_can_go_through_json():
    tally = Tally()
    tally.add("A.disk", 1, 5.0, {"read": 5.0}, 1)

    snapshot = tally.snapshot(2)

    assert json.loads(json.dumps(snapshot)) == snapshot
