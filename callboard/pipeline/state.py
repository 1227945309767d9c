"""What queries remember of each topic, and how a value changes it: plain functions.

Spark's stateful operators call them, and so may an actor, as that of `examples/detector.py`
does: both find the same anomalies in the same values.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Share of a new value in the level, in the deviation, and in its part of the season.
_LEVEL: Final = 0.3
_SPREAD: Final = 0.02
_SEASON: Final = 0.2

#: Anomalies in a row after which they are what is normal.
_ACCEPTED: Final = 12

_LEAST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Detection:
    """How anomalies are found.

    Attributes:
        threshold: Standard deviations that are too many.
        warmup: Values that are only learned from.
        slots: Parts of a season that have a level of their own; 1 is no season.
        season: Seconds of a season, for example 86,400.
    """

    threshold: float = 4.0
    warmup: int = 30
    slots: int = 1
    season: float = 86_400.0

    def slot(self, time: float) -> int:
        """Return the part of the season that a time belongs to, in seconds since 1970."""
        return int(time % self.season * self.slots / self.season) if self.slots > 1 else 0


class Baseline(NamedTuple):
    """What is known of one topic.

    Attributes:
        learned: Values that were learned from.
        level: Where it is beside the season.
        variance: Of the steps from the level.
        streak: Anomalies in a row.
        seasonal: The usual value of each part of the season; NaN is none yet.
    """

    learned: int = 0
    level: float = 0.0
    variance: float = 0.0
    streak: int = 0
    seasonal: tuple[float, ...] = ()


class Anomaly(NamedTuple):
    """A value that was not expected.

    Attributes:
        time: When, in seconds since 1970.
        value: What came.
        expected: What was expected.
        score: By how many standard deviations it was off.
    """

    time: float
    value: float
    expected: float
    score: float


def learn(
    state: Baseline, time: float, value: float, how: Detection
) -> tuple[Baseline, Anomaly | None]:
    """Return what is known after a value, and the anomaly if it was one.

    An anomaly moves nothing but the streak, so that what comes after it is still seen.
    """
    if not math.isfinite(value):
        return state, None
    seasonal = state.seasonal or (math.nan,) * how.slots
    slot = how.slot(time)
    usual = seasonal[slot]
    if math.isnan(usual):
        usual = value if not state.learned else value - state.level
    expected = usual + (state.level if state.learned else value - usual)
    step = value - expected
    score = abs(step) / max(math.sqrt(state.variance), _LEAST) if state.variance else 0.0
    if state.learned >= how.warmup and score > how.threshold and state.streak < _ACCEPTED:
        found = Anomaly(time, value, expected, score)
        return state._replace(streak=state.streak + 1), found
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
    """Return what is known after some values, and the anomalies among them.

    Args:
        state: What was known before.
        values: Times in seconds since 1970 and values; they are taken in order of time.
        how: How anomalies are found.
    """
    found: list[Anomaly] = []
    for time, value in sorted(values):
        state, anomaly = learn(state, time, value, how)
        if anomaly is not None:
            found.append(anomaly)
    return state, found


class Lateness(NamedTuple):
    """How late the records of one topic came.

    Attributes:
        latest: The latest time of a record, in seconds since 1970.
        records: How many came.
        late: How many of them were later than they may be.
        worst: The longest delay, in seconds.
    """

    latest: float = -math.inf
    records: int = 0
    late: int = 0
    worst: float = 0.0


def count_late(state: Lateness, times: Iterable[float], allowed: float) -> Lateness:
    """Return what is known after some records.

    Args:
        state: What was known before.
        times: Their times in the order of the log, in seconds since 1970.
        allowed: Seconds that a record may be behind the latest one, as a watermark says.
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
