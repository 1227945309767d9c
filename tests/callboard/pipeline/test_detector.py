"""The actor finds what the query finds."""

from callboard import Node
from callboard.pipeline.detector import Detector, Measured
from callboard.pipeline.state import Baseline, Detection, learn_all
from callboard.pipeline.temperatures import load_temperatures

HOURLY = Detection(warmup=72, slots=24)


def test_the_actor_finds_the_anomalies_that_the_function_finds_in_each_topic():
    series = {
        place: [(each.time / 1e9, each.temperature) for each in load_temperatures(place)[:1600]]
        for place in ("san-francisco", "seattle")
    }
    expected = {
        place: learn_all(Baseline(), values, HOURLY)[1] for place, values in series.items()
    }

    found = {place: [] for place in series}
    with Node() as node:
        detector = node.spawn(Detector, HOURLY)
        answers = [
            (place, detector.ask(Measured(place, *value)))
            for values in zip(*series.values(), strict=True)
            for place, value in zip(series, values, strict=True)
        ]
        for place, answer in answers:
            if (unusual := answer.result(10)) is not None:
                found[place].append((unusual.time, unusual.value, unusual.score))

    assert all(expected.values())
    assert found == {
        place: [(each.time, each.value, each.score) for each in anomalies]
        for place, anomalies in expected.items()
    }
