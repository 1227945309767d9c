"""State of queries per topic, and its update by a value, as plain functions.

Spark's stateful operators call them, and an actor can do so, too: that of
`examples/detector.py` finds the same anomalies in the same values.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Weight of a new value in the level, in the deviation, and in its slot of the season.
_LEVEL: Final = 0.3
_SPREAD: Final = 0.02
_SEASON: Final = 0.2

#: Consecutive anomalies after which the new level counts as normal.
_ACCEPTED: Final = 12

_LEAST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Detection:
    """Settings of the anomaly detection.

    Attributes:
        threshold: Standard deviations above which a value is an anomaly.
        warmup: First values, which are never anomalies.
        slots: Slots of a season, each with its own level; 1 for no season.
        season: Length of a season in seconds, for example 86,400.
    """

    threshold: float = 4.0
    warmup: int = 30
    slots: int = 1
    season: float = 86_400.0

    def slot(self, time: float) -> int:
        """Return the slot of the season for a time in seconds since 1970."""
        return int(time % self.season * self.slots / self.season) if self.slots > 1 else 0


class Baseline(NamedTuple):
    """The learned state of a topic.

    Attributes:
        learned: Number of learned values.
        level: Level apart from the season.
        variance: Of the deviations from the expected values.
        streak: Consecutive anomalies.
        seasonal: The usual value of each slot; NaN if there is none yet.
    """

    learned: int = 0
    level: float = 0.0
    variance: float = 0.0
    streak: int = 0
    seasonal: tuple[float, ...] = ()


class Anomaly(NamedTuple):
    """An unexpected value.

    Attributes:
        time: In seconds since 1970.
        value: The value.
        expected: The expected value.
        score: Distance from it in standard deviations.
    """

    time: float
    value: float
    expected: float
    score: float


def learn(
    state: Baseline, time: float, value: float, detection: Detection
) -> tuple[Baseline, Anomaly | None]:
    """Return the state after a value, and the anomaly if it is one.

    An anomaly changes only the streak, so that the values after it are still compared with the
    usual ones.
    """
    if not math.isfinite(value):
        return state, None
    seasonal = state.seasonal or (math.nan,) * detection.slots
    slot = detection.slot(time)
    usual = seasonal[slot]
    if math.isnan(usual):
        usual = value if not state.learned else value - state.level
    expected = usual + (state.level if state.learned else value - usual)
    step = value - expected
    score = abs(step) / max(math.sqrt(state.variance), _LEAST) if state.variance else 0.0
    if (
        state.learned >= detection.warmup
        and score > detection.threshold
        and state.streak < _ACCEPTED
    ):
        anomaly = Anomaly(time, value, expected, score)
        return state._replace(streak=state.streak + 1), anomaly
    share = max(_SPREAD, 1 / (state.learned + 1))
    was_accepted = state.streak >= _ACCEPTED
    level = (value - usual) if was_accepted else (expected - usual) + _LEVEL * step
    variance = state.variance
    if not was_accepted:
        variance = (1 - share) * variance + share * step * step
    usual += _SEASON * (value - usual - level)
    seasonal = (*seasonal[:slot], usual, *seasonal[slot + 1 :])
    return Baseline(state.learned + 1, level, variance, 0, seasonal), None


def learn_all(
    state: Baseline, values: Iterable[tuple[float, float]], how: Detection
) -> tuple[Baseline, list[Anomaly]]:
    """Return the state after some values, and the anomalies among them.

    Args:
        state: The state before them.
        values: Pairs of time in seconds since 1970 and value; they are sorted by time first.
        how: Parameters of the detection.
    """
    anomalies: list[Anomaly] = []
    for time, value in sorted(values):
        state, anomaly = learn(state, time, value, how)
        if anomaly is not None:
            anomalies.append(anomaly)
    return state, anomalies


class Lateness(NamedTuple):
    """Delays of the records of a topic.

    Attributes:
        latest: Latest time of a record, in seconds since 1970.
        records: Number of records.
        late: Records later than allowed.
        worst: Longest delay in seconds.
    """

    latest: float = -math.inf
    records: int = 0
    late: int = 0
    worst: float = 0.0


def count_late(state: Lateness, times: Iterable[float], allowed: float) -> Lateness:
    """Return the state after some records.

    Args:
        state: The state before them.
        times: Their times in the order of the log, in seconds since 1970.
        allowed: Seconds that a record may be later than the latest one, as for a watermark.
    """
    latest, records, late, worst = state
    for time in times:
        records += 1
        delay = latest - time
        if delay > allowed:
            late += 1
            worst = max(worst, delay)
        latest = max(latest, time)
    return Lateness(latest, records, late, worst)
