from callboard.demo.dashboard import (
    EMPTY,
    VALUES_LIMIT,
    DemoHistory,
    Peak,
    Rate,
    RollingWindow,
    Summary,
)


def test_an_empty_window_has_zeros():
    assert RollingWindow(1.0).summary(5.0) == EMPTY


def test_mean_95th_percentile_and_maximum_of_what_is_in_the_window():
    window = RollingWindow(10.0)
    for number in range(1, 21):
        window.add(number / 10, float(number))

    assert window.summary(2.0) == Summary(count=20, mean=10.5, p95=19.0, max=20.0)


def test_the_95th_percentile_of_one_value_is_that_value():
    window = RollingWindow(10.0)
    window.add(0.0, 7.0)

    assert window.summary(0.0) == Summary(1, 7.0, 7.0, 7.0)


def test_values_leave_the_window_when_their_time_is_over():
    window = RollingWindow(2.0)
    window.add(0.0, 100.0)
    window.add(1.0, 1.0)

    assert window.summary(1.9).max == 100.0
    assert window.summary(2.0) == Summary(1, 1.0, 1.0, 1.0)
    assert window.summary(3.0) == EMPTY


def test_a_window_is_bounded_however_fast_values_come():
    window = RollingWindow(10.0)
    for number in range(VALUES_LIMIT + 10):
        window.add(0.0, float(number))

    assert window.summary(0.0).count == VALUES_LIMIT


def test_history_holds_the_means_of_the_newest_bins():
    history = DemoHistory(bin_seconds=0.5, bins=2)
    for at, value in [(0.0, 9.0), (0.6, 1.0), (0.9, 3.0), (1.2, 5.0)]:
        history.add(at, value)

    assert history.means() == [2.0, 5.0]


def test_rate_comes_near_the_rise_per_second_and_stays():
    rate = Rate()
    for tick in range(100):
        rate.update(tick / 10, tick * 5)

    assert 49.9 < rate.per_second < 50.1


def test_a_counter_that_begins_again_has_no_negative_rate():
    rate = Rate()
    rate.update(0.0, 0)
    rate.update(1.0, 100)

    assert rate.update(2.0, 0) == 0.0


def test_a_report_of_the_same_moment_changes_no_rate():
    rate = Rate()
    rate.update(0.0, 0)
    before = rate.update(1.0, 100)

    assert rate.update(1.0, 200) == before


def test_a_peak_is_the_highest_value_of_its_time():
    peak = Peak(60.0)

    told = [peak.add(at, value) for at, value in ((0, 5), (1, 9), (2, 3), (3, 4), (59, 4))]
    assert told == [True, True, False, False, False]
    assert peak.value == 9

    assert peak.add(61.0, 1)
    assert peak.value == 4
    assert peak.add(119.0, 1)
    assert peak.value == 1
