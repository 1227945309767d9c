"""The state that queries keep for a topic, without Spark."""

import math

import pytest

from callboard.pipeline.state import (
    Baseline,
    Detection,
    Lateness,
    count_late,
    learn,
    learn_all,
)
from examples.temperatures import PLACES, load_temperatures

HOURLY = Detection(warmup=72, slots=24)


def wave(hours):
    return [(3600.0 * hour, math.sin(hour / 24 * math.tau) + hour % 7 / 100) for hour in hours]


def test_usual_values_are_not_anomalies():
    _, found = learn_all(Baseline(), wave(range(1000)), HOURLY)

    assert found == []


@pytest.mark.parametrize("off", [1.0, -1.0])
def test_an_anomaly_is_reported_with_the_expected_value(off):
    state, _ = learn_all(Baseline(), wave(range(500)), HOURLY)
    ((time, usual),) = wave([500])

    _, found = learn(state, time, usual + off, HOURLY)

    assert (found.time, found.value) == (time, usual + off)
    assert found.expected == pytest.approx(usual, abs=0.2)
    assert found.score > HOURLY.threshold


def test_an_anomaly_does_not_hide_the_next_one():
    values = wave(range(600))
    spoiled = [(t, v + 1.0 if i in (550, 551, 560) else v) for i, (t, v) in enumerate(values)]

    _, found = learn_all(Baseline(), spoiled, HOURLY)

    assert [each.time / 3600 for each in found] == [550, 551, 560]


def test_a_lasting_change_becomes_the_new_baseline():
    spoiled = [(t, v + 5.0 if t >= 500 * 3600 else v) for t, v in wave(range(600))]

    _, found = learn_all(Baseline(), spoiled, HOURLY)

    assert [each.time / 3600 for each in found] == list(range(500, 512))


def test_it_does_not_matter_how_values_are_cut_into_batches():
    values = wave(range(700))
    values[640] = (values[640][0], 3.0)
    whole = learn_all(Baseline(), values, HOURLY)

    state, found = Baseline(), []
    for start in range(0, 700, 33):
        state, some = learn_all(state, reversed(values[start : start + 33]), HOURLY)
        found += some

    assert (state, found) == whole


def test_values_that_are_not_numbers_do_not_change_the_baseline():
    assert learn(Baseline(), 0.0, math.nan, HOURLY) == (Baseline(), None)


@pytest.mark.parametrize("place", PLACES)
def test_exactly_the_known_anomalies_of_real_temperatures_are_detected(place):
    readings = load_temperatures(place)
    known = {reading.time / 1e9 for reading in readings if reading.is_anomaly}

    _, found = learn_all(
        Baseline(), [(each.time / 1e9, each.temperature) for each in readings], HOURLY
    )

    right = known & {each.time for each in found}
    assert len(readings) >= 8758
    assert len(right) / len(found) > 0.95
    assert len(right) / len(known) > 0.8


def test_records_older_than_the_latest_by_more_than_the_allowance_are_late():
    assert count_late(Lateness(), [10.0, 12.0, 9.0, 1.0, 13.0], 5.0) == Lateness(
        13.0, 5, 1, 11.0
    )


def test_lateness_is_tracked_across_batches():
    first = count_late(Lateness(), [100.0], 5.0)

    assert count_late(first, [90.0, 99.0], 5.0) == Lateness(100.0, 3, 1, 10.0)
