"""What Spark's transformWithState runs for each topic: the functions of `state`, remembered."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from callboard.pipeline.state import Baseline, Detection, Lateness, count_late, learn_all

BASELINE_SCHEMA: Final = (
    "learned BIGINT, level DOUBLE, variance DOUBLE, streak INT, seasonal ARRAY<DOUBLE>"
)
LATENESS_SCHEMA: Final = "latest DOUBLE, records BIGINT, late BIGINT, worst DOUBLE"

ANOMALY_SCHEMA: Final = (
    "source STRING, seconds DOUBLE, value DOUBLE, expected DOUBLE, score DOUBLE"
)
LATE_SCHEMA: Final = "source STRING, seconds DOUBLE, records BIGINT, late BIGINT, worst DOUBLE"


class AnomalyProcessor(StatefulProcessor):
    """Finds anomalies among rows with `seconds` and `value`."""

    def __init__(self, how: Detection) -> None:
        self._how = how
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get at the memory."""
        self._state = handle.getValueState("baseline", BASELINE_SCHEMA)

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803
    ) -> Iterator[Row]:
        """Learn from the rows of a topic; returns its anomalies."""
        known = self._state.get() if self._state.exists() else None
        baseline = Baseline._make((*known[:4], tuple(known[4]))) if known else Baseline()
        values = ((row.seconds, row.value) for row in rows)
        baseline, found = learn_all(baseline, values, self._how)
        self._state.update((*baseline[:4], list(baseline.seasonal)))
        for each in found:
            yield Row(
                source=key[0],
                seconds=each.time,
                value=each.value,
                expected=each.expected,
                score=each.score,
            )

    def close(self) -> None:
        """Do nothing: Spark keeps the memory."""


class LateProcessor(StatefulProcessor):
    """Counts rows, with `seconds`, that are later than they may be."""

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get at the memory."""
        self._state = handle.getValueState("lateness", LATENESS_SCHEMA)

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803
    ) -> Iterator[Row]:
        """Count the rows of a topic; returns what is known of it."""
        known = self._state.get() if self._state.exists() else None
        before = Lateness._make(known) if known else Lateness()
        ordered = sorted((row.offset, row.seconds) for row in rows)
        lateness = count_late(before, (seconds for _, seconds in ordered), self._allowed)
        self._state.update(tuple(lateness))
        yield Row(
            source=key[0],
            seconds=lateness.latest,
            records=lateness.records,
            late=lateness.late,
            worst=lateness.worst,
        )

    def close(self) -> None:
        """Do nothing: Spark keeps the memory."""
