"""An actor finds unusual values at once, by the function that the query `anomalies` runs.

Run it with `python examples/detector.py`.
"""

import math
from dataclasses import dataclass

from callboard import Actor, Node, Query, handler, message
from callboard.pipeline.state import Baseline, Detection, learn


@message("example.Unusual")
@dataclass(frozen=True)
class Unusual:
    """A value that was not expected.

    Attributes:
        topic: Of the value.
        time: When, in seconds since 1970.
        value: What came.
        expected: What was expected.
        score: By how many standard deviations it was off.
    """

    topic: str
    time: float
    value: float
    expected: float
    score: float


@message("example.Measured")
@dataclass(frozen=True)
class Measured(Query[Unusual | None]):
    """A value of a topic; its answer says whether it was expected.

    Attributes:
        topic: What was measured; each has a baseline of its own.
        time: When, in seconds since 1970.
        value: What came.
    """

    topic: str
    time: float
    value: float


class Detector(Actor):
    """Learns what is usual for each topic, and answers what is not.

    Values of a topic have to come in the order of their time.
    """

    def __init__(self, how: Detection | None = None) -> None:
        """Begin without knowledge; `how` says what counts as an anomaly."""
        self._how = how or Detection()
        self._baselines: dict[str, Baseline] = {}

    @handler
    def on_measured(self, msg: Measured) -> Unusual | None:
        """Learn from a value."""
        known = self._baselines.get(msg.topic, Baseline())
        self._baselines[msg.topic], found = learn(known, msg.time, msg.value, self._how)
        return None if found is None else Unusual(msg.topic, *found)


def make_values(days: int) -> list[Measured]:
    """Return hourly temperatures of two rooms, of which two are unusual."""
    strange = {("/hall", 200): 35.0, ("/cellar", 300): 2.0}
    values = []
    for hour in range(24 * days):
        wave = math.sin(hour / 24 * math.tau) + hour % 7 / 100
        for topic, usual in (("/hall", 21 + 2 * wave), ("/cellar", 12 + wave)):
            value = strange.get((topic, hour), usual)
            values.append(Measured(topic, 3600.0 * hour, value))
    return values


def main() -> None:
    hourly = Detection(warmup=72, slots=24)  # a day has a level for each of its hours
    with Node() as node:
        detector = node.spawn(Detector, hourly)
        answers = [detector.ask(measured) for measured in make_values(days=14)]
        for answer in answers:
            if found := answer.result(10):
                hour = int(found.time / 3600)
                print(f"{found.topic}, hour {hour}: {found.value} for {found.expected:.1f}")


if __name__ == "__main__":
    main()
