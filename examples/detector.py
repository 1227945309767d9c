"""An actor detects unusual values at once, with the function of the query `anomalies`.

Run it with `python examples/detector.py`.
"""

import math
from dataclasses import dataclass

from callboard import Actor, Node, Query, handler, message
from callboard.pipeline.state import Baseline, Detection, learn


@message("example.Unusual")
@dataclass(frozen=True)
class Unusual:
    """An unusual value.

    Attributes:
        topic: Topic of the value.
        time: Seconds since 1970.
        value: The measured value.
        expected: The expected value.
        score: Distance of the two, in standard deviations.
    """

    topic: str
    time: float
    value: float
    expected: float
    score: float


@message("example.Measured")
@dataclass(frozen=True)
class Measured(Query[Unusual | None]):
    """A value of a topic; the answer is None if the value is usual.

    Attributes:
        topic: Name of the measured quantity; each has its own baseline.
        time: Seconds since 1970.
        value: The measured value.
    """

    topic: str
    time: float
    value: float


class Detector(Actor):
    """Learns the usual values of each topic, and reports unusual ones.

    Values of a topic must arrive in the order of their times.
    """

    def __init__(self, detection: Detection | None = None) -> None:
        """Start without knowledge; `detection` defines an anomaly."""
        self._detection = detection or Detection()
        self._baselines: dict[str, Baseline] = {}

    @handler
    def on_measured(self, msg: Measured) -> Unusual | None:
        """Learn from a value."""
        baseline = self._baselines.get(msg.topic, Baseline())
        self._baselines[msg.topic], anomaly = learn(
            baseline, msg.time, msg.value, self._detection
        )
        return None if anomaly is None else Unusual(msg.topic, *anomaly)


def make_values(days: int) -> list[Measured]:
    """Return hourly temperatures of two rooms; two of the values are unusual."""
    strange = {("/hall", 200): 35.0, ("/cellar", 300): 2.0}
    values = []
    for hour in range(24 * days):
        wave = math.sin(hour / 24 * math.tau) + hour % 7 / 100
        for topic, usual in (("/hall", 21 + 2 * wave), ("/cellar", 12 + wave)):
            value = strange.get((topic, hour), usual)
            values.append(Measured(topic, 3600.0 * hour, value))
    return values


def main() -> None:
    hourly = Detection(warmup=72, slots=24)  # one baseline for each hour of the day
    with Node() as node:
        detector = node.spawn(Detector, hourly)
        answers = [detector.ask(measured) for measured in make_values(days=14)]
        for answer in answers:
            if unusual := answer.result(10):
                hour = int(unusual.time / 3600)
                print(
                    f"{unusual.topic}, hour {hour}: {unusual.value} for {unusual.expected:.1f}"
                )


if __name__ == "__main__":
    main()
