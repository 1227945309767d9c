"""Queries that are ready to use: tables or streams of records in, results for a log out.

Each takes rows with the columns `offset`, `time`, `topic` and `value`, as `values` makes them,
and returns rows for the sink. Results of a topic have that topic behind the name of the query:
rates of `/cpu/1` are on `/rates/cpu/1`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.state import Detection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the queries can be told; times are in seconds.

    Attributes:
        field: The field of payloads that holds the value.
        window: Length of a window, and the gap that ends a session.
        delay: How late records may be: windows are final so long after their end.
        detection: How anomalies are found.
        left: Beginning of the topics of one side of a join.
        right: The same for the other side.
        within: How far apart the two sides of a join may be.
    """

    field: str = "value"
    window: float = 10.0
    delay: float = 10.0
    detection: Detection = Detection()
    left: str = ""
    right: str = ""
    within: float = 10.0


class Query(NamedTuple):
    """A query by its name.

    Attributes:
        build: Makes results of rows.
        needs_values: Whether records without the value's field are of no use.
        help: What it tells, in one line.
    """

    build: "Callable[[DataFrame, Settings], DataFrame]"
    needs_values: bool
    help: str


def seconds_of(span: str) -> float:
    """Return a span like `500ms`, `10s`, `5m`, `1h` or `1d` in seconds.

    Raises:
        InvalidSetting: it is none.
    """
    found = _SPAN.fullmatch(span.strip())
    if found is None or float(found[1]) == 0:
        what = f"{span!r} is no span of time; give one like 500ms, 10s, 5m, 1h or 1d"
        raise InvalidSetting(what)
    return float(found[1]) * _UNITS[found[2]]


def schema_of(settings: Settings) -> str:
    """Return the schema to read a log with."""
    return (
        f"offset BIGINT, time TIMESTAMP, topic STRING, `{settings.field}` DOUBLE, error STRING"
    )


def values(rows: "DataFrame", settings: Settings, *, needs_values: bool = True) -> "DataFrame":
    """Return what queries take, of rows that were read with `schema_of`.

    Records whose payload has no number in the field count as records, not as values.
    """
    named = rows.withColumnRenamed(settings.field, "value").drop("error")
    return named.where("value IS NOT NULL") if needs_values else named


def check_sides(settings: Settings) -> None:
    """Raise `InvalidSetting` unless a join knows what to join."""
    if not settings.left or not settings.right:
        what = "a join needs two topics; give --left and --right"
        raise InvalidSetting(what)


def rates(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Count records and tell their rate for each window and topic."""
    found = _grouped("window", rows, settings, _RECORDS)
    rate = f"records / {settings.window}D AS rate"
    return found.selectExpr(*_of_window("/rates"), "records", rate)


def quantiles(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Tell least, median, 90 %, 99 %, greatest and mean for each window and topic."""
    found = _grouped("window", rows, settings, *_MEASURES)
    levels = (f"{level} AS {name}" for name, level in _LEVELS.items())
    return found.selectExpr(*_of_window("/quantiles"), "measured AS records", *levels)


def windows(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Tell rates and quantiles, which both come from one pass over the records.

    Each result has the columns of both, of which those of the other one are null.
    """
    found = _grouped("window", rows, settings, _RECORDS, *_MEASURES)
    results = {
        "/rates": {"records": "records", "rate": f"records / {settings.window}D"},
        "/quantiles": {"records": "measured", **_LEVELS},
    }
    told = []
    for topic, mine in results.items():
        fields = [
            f"{mine.get(name, 'CAST(NULL AS DOUBLE)')} AS {name}"
            for name in ("records", "rate", *_LEVELS)
        ]
        told.append(f"struct({', '.join((*_of_window(topic), *fields))})")
    return found.selectExpr(f"inline(array({', '.join(told)}))").where("records > 0")


def sessions(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find runs of records of a topic without a gap as long as the window."""
    found = _grouped("session_window", rows, settings, _RECORDS, "max(time) AS last")
    length = "CAST(last AS DOUBLE) - CAST(window.start AS DOUBLE) AS seconds"
    return found.selectExpr(*_of_window("/sessions"), "records", length)


def late(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Count records that came later than the delay behind the latest one of their topic."""
    from callboard.pipeline.spark.processors import LATE_SCHEMA, late_processor

    timed = rows.selectExpr("offset", "topic", "CAST(time AS DOUBLE) AS seconds")
    found = timed.groupBy("topic").transformWithState(
        late_processor(settings.delay), LATE_SCHEMA, "Update", "None"
    )
    return found.selectExpr(*_of_source("/late"), "records", "late", "worst")


def anomalies(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find values that are far from what is usual for their topic at that time."""
    from callboard.pipeline.spark.processors import ANOMALY_SCHEMA, anomaly_processor

    timed = rows.selectExpr("topic", "CAST(time AS DOUBLE) AS seconds", "value")
    found = timed.groupBy("topic").transformWithState(
        anomaly_processor(settings.detection), ANOMALY_SCHEMA, "Update", "None"
    )
    return found.selectExpr(*_of_source("/anomalies"), "value", "expected", "score")


def join(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Join each record of some topics with those of others that are near in time."""
    from pyspark.sql import functions as f

    check_sides(settings)
    width = max(1, round(settings.within * 1e6))

    def side(name: str, prefix: str, steps: tuple[int, ...]) -> "DataFrame":
        mine = _marked(rows, settings).where(f.col("topic").startswith(prefix))
        span = f"(unix_micros(time) - pmod(unix_micros(time), {width})) div {width}"
        spans = ", ".join(f"{span} + {step}" for step in steps)
        return mine.selectExpr(
            *(f"{each} AS {name}_{each}" for each in _SIDE),
            f"explode(array({spans})) AS {name}_span",
        )

    # Streams are joined by something that is equal: what is near is in the same span of time as
    # the record of the right side, or in one beside it.
    left, right = side("left", settings.left, (-1, 0, 1)), side("right", settings.right, (0,))
    near = f.expr(
        "left_span = right_span"
        f" AND right_time BETWEEN left_time - INTERVAL {width} MICROSECONDS"
        f" AND left_time + INTERVAL {width} MICROSECONDS"
    )
    return left.join(right, near).selectExpr(
        "concat('/join', left_topic) AS topic",
        "greatest(left_time, right_time) AS time",
        "left_topic",
        "left_value",
        "right_topic",
        "right_value",
        "CAST(right_time AS DOUBLE) - CAST(left_time AS DOUBLE) AS apart",
    )


_SIDE: Final = ("time", "topic", "value")

QUERIES: Final = {
    "rates": Query(rates, needs_values=False, help="records and rate of each window and topic"),
    "quantiles": Query(quantiles, needs_values=True, help="quantiles of each window and topic"),
    "windows": Query(windows, needs_values=False, help="rates and quantiles in one pass"),
    "sessions": Query(sessions, needs_values=False, help="runs of records without a gap"),
    "late": Query(late, needs_values=False, help="records that came too late, of each topic"),
    "anomalies": Query(anomalies, needs_values=True, help="values that are not usual"),
    "join": Query(join, needs_values=False, help="records of two topics near in time"),
}


def _marked(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Return rows with the watermark that the settings ask for."""
    return rows.withWatermark("time", f"{settings.delay} seconds")


def _grouped(kind: str, rows: "DataFrame", settings: Settings, *measures: str) -> "DataFrame":
    """Return what is measured, in SQL, for each topic and `window` or `session_window`."""
    from pyspark.sql import functions as f

    window = f.expr(f"{kind}(time, '{settings.window} seconds') AS window")
    return _marked(rows, settings).groupBy(window, "topic").agg(*map(f.expr, measures))


_RECORDS: Final = "count(*) AS records"

#: What is measured for quantiles.
_MEASURES: Final = (
    "count(value) AS measured",
    "min(value) AS least",
    "percentile_approx(value, array(0.5D, 0.9D, 0.99D)) AS parts",
    "max(value) AS greatest",
    "avg(value) AS mean",
)

#: The columns that are told of that.
_LEVELS: Final = {
    "min": "least",
    "p50": "parts[0]",
    "p90": "parts[1]",
    "p99": "parts[2]",
    "max": "greatest",
    "mean": "mean",
}


def _of_window(name: str) -> list[str]:
    """Return topic, time and start of a window's result, in SQL."""
    return [
        f"concat('{name}', topic) AS topic",
        "window.end AS time",
        "window.start AS start",
    ]


def _of_source(name: str) -> list[str]:
    """Return topic and time of a result that stands for one record, in SQL."""
    return [
        f"concat('{name}', source) AS topic",
        "timestamp_micros(CAST(seconds * 1e6D AS BIGINT)) AS time",
    ]
