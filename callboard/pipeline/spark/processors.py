"""Stateful operators of Spark that apply the functions of `state` to each topic."""

from collections.abc import Callable, Iterator
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
#: Result rows in these schemas: the topic, then the fields of an `Anomaly` or a `Lateness`.
_ANOMALY_ROW: Final = Row("source", "seconds", "value", "expected", "score")
_LATE_ROW: Final = Row("source", "seconds", "records", "late", "worst")

#: State of a topic, in the columns of the state store; None if there is none yet.
Known = tuple[Any, ...] | None

#: A step takes a topic, its state and its rows, and returns the new state and the results.
Stepped = tuple[tuple[Any, ...], list[Row]]
Step = Callable[[str, Known, Iterator[Row]], Stepped]


class TopicProcessor(StatefulProcessor):
    """Keeps one state per topic, and updates it with a step function."""

    def __init__(self, name: str, schema: str, step: Step) -> None:
        self._name = name
        self._schema = schema
        self._step = step
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._state = handle.getValueState(self._name, self._schema)

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803
    ) -> Iterator[Row]:
        """Process the rows of a topic, and yield its results."""
        state, results = self._step(key[0], self._state.get(), rows)
        self._state.update(state)
        yield from results

    def close(self) -> None:
        """Do nothing: Spark keeps the state."""


def anomaly_processor(detection: Detection) -> TopicProcessor:
    """Return a processor that finds anomalies in rows with `seconds` and `value`."""

    def step(topic: str, columns: Known, rows: Iterator[Row]) -> Stepped:
        previous = Baseline._make((*columns[:4], tuple(columns[4]))) if columns else Baseline()
        values = ((row.seconds, row.value) for row in rows)
        baseline, anomalies = learn_all(previous, values, detection)
        results = [_ANOMALY_ROW(topic, *anomaly) for anomaly in anomalies]
        return (*baseline[:4], list(baseline.seasonal)), results

    return TopicProcessor("baseline", BASELINE_SCHEMA, step)


def late_processor(allowed: float) -> TopicProcessor:
    """Return a processor that counts late rows, from their `offset` and `seconds`."""

    def step(topic: str, columns: Known, rows: Iterator[Row]) -> Stepped:
        previous = Lateness._make(columns) if columns else Lateness()
        ordered = sorted((row.offset, row.seconds) for row in rows)
        lateness = count_late(previous, (seconds for _, seconds in ordered), allowed)
        return tuple(lateness), [_LATE_ROW(topic, *lateness)]

    return TopicProcessor("lateness", LATENESS_SCHEMA, step)
