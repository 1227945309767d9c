"""What Spark's transformWithState runs for each topic: the functions of `state`, remembered."""

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
#: Results of a topic, in the columns of these schemas: behind it an `Anomaly`, or a `Lateness`.
_ANOMALY_ROW: Final = Row("source", "seconds", "value", "expected", "score")
_LATE_ROW: Final = Row("source", "seconds", "records", "late", "worst")

#: What is remembered of a topic, in the columns of the state; None is nothing yet.
Known = tuple[Any, ...] | None

#: Takes a topic, what is known of it and its rows; returns what is known then, and results.
Stepped = tuple[tuple[Any, ...], list[Row]]
Step = Callable[[str, Known, Iterator[Row]], Stepped]


class TopicProcessor(StatefulProcessor):
    """Remembers one value for each topic, and lets a function make results and the next one."""

    def __init__(self, name: str, schema: str, step: Step) -> None:
        self._name = name
        self._schema = schema
        self._step = step
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get at the memory."""
        self._state = handle.getValueState(self._name, self._schema)

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803
    ) -> Iterator[Row]:
        """Take the rows of a topic; returns its results."""
        known, results = self._step(key[0], self._state.get(), rows)
        self._state.update(known)
        yield from results

    def close(self) -> None:
        """Do nothing: Spark keeps the memory."""


def anomaly_processor(how: Detection) -> TopicProcessor:
    """Return what finds anomalies among rows with `seconds` and `value`."""

    def step(topic: str, known: Known, rows: Iterator[Row]) -> Stepped:
        before = Baseline._make((*known[:4], tuple(known[4]))) if known else Baseline()
        values = ((row.seconds, row.value) for row in rows)
        baseline, found = learn_all(before, values, how)
        results = [_ANOMALY_ROW(topic, *anomaly) for anomaly in found]
        return (*baseline[:4], list(baseline.seasonal)), results

    return TopicProcessor("baseline", BASELINE_SCHEMA, step)


def late_processor(allowed: float) -> TopicProcessor:
    """Return what counts rows, with `offset` and `seconds`, that are later than they may be."""

    def step(topic: str, known: Known, rows: Iterator[Row]) -> Stepped:
        before = Lateness._make(known) if known else Lateness()
        ordered = sorted((row.offset, row.seconds) for row in rows)
        lateness = count_late(before, (seconds for _, seconds in ordered), allowed)
        return tuple(lateness), [_LATE_ROW(topic, *lateness)]

    return TopicProcessor("lateness", LATENESS_SCHEMA, step)
