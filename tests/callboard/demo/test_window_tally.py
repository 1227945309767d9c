import json

from callboard.demo.dashboard import SensorCount, Tally


def test_numbers_that_never_came_are_missed():
    count = SensorCount()
    for number in (5, 6, 9):
        count.add(number)

    assert (count.received, count.missed) == (3, 2)


def test_a_sensor_that_is_taken_over_in_the_middle_has_missed_nothing():
    count = SensorCount()
    count.add(500)

    assert count.missed == 0


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
