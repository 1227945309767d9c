"""An actor that finds anomalies at once, by the function that the query `anomalies` runs."""

from dataclasses import dataclass

from actors.actor import Actor
from actors.dispatch import handler
from actors.signals import Query
from callboard.pipeline.state import Anomaly, Baseline, Detection, learn
from proxies.messages import message


@message("callboard.pipeline.Unusual")
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


@message("callboard.pipeline.Measured")
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
        return None if found is None else _told(msg.topic, found)


def _told(topic: str, found: Anomaly) -> Unusual:
    return Unusual(topic, found.time, found.value, found.expected, found.score)
