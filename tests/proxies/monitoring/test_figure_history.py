"""The ring of a node's figures."""

from callboard.proxies.monitoring.figure_history import (
    SAMPLE_SECONDS,
    SAMPLES,
    FigureHistory,
    FigureSample,
)


def sample(time):
    return FigureSample(time, 2 * time, 3 * time, 0.0, 5.0, 0.5, 1e6)


def test_samples_are_returned_in_order_and_the_oldest_are_overwritten():
    history = FigureHistory()
    for number in range(SAMPLES + 25):
        history.append(sample(float(number)))

    samples = history.samples()

    assert samples == [sample(float(number)) for number in range(25, SAMPLES + 25)]


def test_a_sample_is_due_ten_seconds_after_the_latest():
    history = FigureHistory()
    assert history.is_due(0.0)
    assert history.samples() == []

    history.append(sample(100.0))

    assert not history.is_due(100.0 + SAMPLE_SECONDS - 0.1)
    assert history.is_due(100.0 + SAMPLE_SECONDS)
