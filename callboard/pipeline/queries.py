"""Queries that are ready to use: tables or streams of records in, results for a log out.

Each takes rows with the columns `offset`, `time`, `topic` and `value`, as `values` makes them,
and returns rows for the sink. Results of a topic have that topic behind the name of the query:
rates of `/cpu/1` are on `/rates/cpu/1`. With `by` a field of payloads, in a column `by`, stands
in for the topic: rates of the origin JFK are on `/rates/JFK` and have it as field `origin`.
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

#: The columns of a record; the source has fields of payloads named so as `payload.NAME`.
RECORD_NAMES: Final = frozenset(
    ("offset", "time", "topic", "key", "headers", "sender", "payload", "is_bytes", "error")
)

#: Those of them that results can be told for.
RECORD_KEYS: Final = frozenset(("key", "sender"))

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
        time: The field of payloads that holds the event time; "" is the time of the record.
        by: The field of payloads that results are told for, or `key` or `sender` of the record;
            "" is its topic. A join then joins what is equal there.
        schema: Fields of payloads with their types, as Spark's DDL or JSON; "" is none.
    """

    field: str = "value"
    window: float = 10.0
    delay: float = 10.0
    detection: Detection = Detection()
    left: str = ""
    right: str = ""
    within: float = 10.0
    time: str = ""
    by: str = ""
    schema: str = ""


class Query(NamedTuple):
    """A query by its name.

    Attributes:
        build: Makes results of rows.
        needs_values: Whether records without the value's field are of no use.
        help: What it tells, in one line.
        uses: The settings that mean something to it, beside `time`, `by` and `schema`.
    """

    build: "Callable[[DataFrame, Settings], DataFrame]"
    needs_values: bool
    help: str
    uses: frozenset[str] = frozenset()


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


def schema_of(
    settings: Settings, *, needs_field: bool = True, tells_errors: bool = True
) -> str:
    """Return the schema to read a log with.

    Args:
        settings: What the query is told; its own schema is not part of this.
        needs_field: Whether the value's field is read.
        tells_errors: Whether records that do not decode are rows with an `error`.
    """
    columns = {"offset": "BIGINT", "time": "TIMESTAMP", "topic": "STRING"}
    fields: dict[str, str] = {settings.field: "DOUBLE"} if needs_field else {}
    fields |= {settings.time: "TIMESTAMP"} if settings.time else {}
    if settings.by in RECORD_KEYS:
        columns[settings.by] = "STRING"
    elif settings.by:
        fields.setdefault(settings.by, "STRING")
    columns |= {column_of(name, settings): kind for name, kind in fields.items()}
    if tells_errors and fields:
        columns["error"] = "STRING"
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def options_of(settings: Settings) -> dict[str, str]:
    """Return the options of the source to read a log with, beside the schema."""
    options = {}
    if settings.by and settings.by not in {*RECORD_KEYS, settings.field, settings.time}:
        options["textFields"] = column_of(settings.by, settings)
    if settings.time:
        options["requiredFields"] = column_of(settings.time, settings)
    return options


def values(rows: "DataFrame", settings: Settings, *, needs_values: bool = True) -> "DataFrame":
    """Return what queries take, of rows that were read with `schema_of`.

    Records whose payload has no number in the field count as records, not as values. With
    `time`, `by` or `schema`, those that do not decode are left out.
    """
    field, time = column_of(settings.field, settings), "time"
    chosen = ["offset", "topic"]
    if settings.time:
        time = quoted(column_of(settings.time, settings))
    chosen.append(f"{time} AS time")
    if field in rows.columns:
        chosen.append(f"nanvl({quoted(field)}, CAST(NULL AS DOUBLE)) AS value")
    if settings.by:
        is_own = settings.by in RECORD_KEYS
        by = settings.by if is_own else quoted(column_of(settings.by, settings))
        chosen.append(f"CAST({by} AS STRING) AS by")
    is_strict = settings.time or settings.by or settings.schema
    if is_strict and "error" in rows.columns:
        rows = rows.where("error IS NULL")
    named = rows.selectExpr(*chosen)
    return named.where("value IS NOT NULL") if needs_values else named


def column_of(name: str, settings: Settings) -> str:
    """Return the column of the source that holds a field of payloads.

    Beside a schema it is another one than that of the schema, which may have another type.
    """
    inner = name.removeprefix("payload.")
    is_apart = settings.schema or inner != name or name in RECORD_NAMES
    return f"payload.{inner}" if is_apart else name


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def check_sides(settings: Settings) -> None:
    """Raise `InvalidSetting` unless a join knows what to join."""
    if not settings.left or not settings.right:
        what = "a join needs two topics; give --left and --right"
        raise InvalidSetting(what)


def rates(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Count records and tell their rate for each window and topic."""
    found = _grouped("window", rows, settings, _RECORDS)
    rate = f"records / {settings.window}D AS rate"
    return found.selectExpr(*_of_window("/rates", settings), "records", rate)


def quantiles(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Tell least, median, 90 %, 99 %, greatest and mean for each window and topic."""
    found = _grouped("window", rows, settings, *_MEASURES)
    levels = (f"{level} AS {name}" for name, level in _LEVELS.items())
    return found.selectExpr(*_of_window("/quantiles", settings), "measured AS records", *levels)


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
        told.append(f"struct({', '.join((*_of_window(topic, settings), *fields))})")
    return found.selectExpr(f"inline(array({', '.join(told)}))").where("records > 0")


def sessions(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find runs of records of a topic without a gap as long as the window."""
    found = _grouped("session_window", rows, settings, _RECORDS, "max(time) AS last")
    length = "CAST(last AS DOUBLE) - CAST(window.start AS DOUBLE) AS seconds"
    return found.selectExpr(*_of_window("/sessions", settings), "records", length)


def late(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Count records that came later than the delay behind the latest one of their topic."""
    from callboard.pipeline.spark.processors import LATE_SCHEMA, late_processor

    timed = _keyed(rows).selectExpr("offset", "topic", "CAST(time AS DOUBLE) AS seconds")
    found = timed.groupBy("topic").transformWithState(
        late_processor(settings.delay), LATE_SCHEMA, "Update", "None"
    )
    return found.selectExpr(*_of_source("/late", settings), "records", "late", "worst")


def anomalies(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find values that are far from what is usual for their topic at that time."""
    from callboard.pipeline.spark.processors import ANOMALY_SCHEMA, anomaly_processor

    timed = _keyed(rows).selectExpr("topic", "CAST(time AS DOUBLE) AS seconds", "value")
    found = timed.groupBy("topic").transformWithState(
        anomaly_processor(settings.detection), ANOMALY_SCHEMA, "Update", "None"
    )
    return found.selectExpr(*_of_source("/anomalies", settings), "value", "expected", "score")


def join(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Join each record of some topics with those of others that are near in time.

    With `by` they are also equal in that.
    """
    from pyspark.sql import functions as f

    check_sides(settings)
    width = max(1, round(settings.within * 1e6))
    sides = (*_SIDE, "by") if settings.by else _SIDE

    def side(name: str, prefix: str, steps: tuple[int, ...]) -> "DataFrame":
        mine = _marked(rows, settings).where(f.col("topic").startswith(prefix))
        span = f"(unix_micros(time) - pmod(unix_micros(time), {width})) div {width}"
        spans = ", ".join(f"{span} + {step}" for step in steps)
        return mine.selectExpr(
            *(f"{each} AS {name}_{each}" for each in sides),
            f"explode(array({spans})) AS {name}_span",
        )

    # Streams are joined by something that is equal: what is near is in the same span of time as
    # the record of the right side, or in one beside it.
    left, right = side("left", settings.left, (-1, 0, 1)), side("right", settings.right, (0,))
    near = f.expr(
        "left_span = right_span"
        f" AND right_time BETWEEN left_time - INTERVAL {width} MICROSECONDS"
        f" AND left_time + INTERVAL {width} MICROSECONDS"
        + (" AND left_by = right_by" if settings.by else "")
    )
    return left.join(right, near).selectExpr(
        "concat('/join', left_topic) AS topic",
        "greatest(left_time, right_time) AS time",
        "left_topic",
        "left_value",
        "right_topic",
        "right_value",
        "CAST(right_time AS DOUBLE) - CAST(left_time AS DOUBLE) AS apart",
        *([f"left_by AS {quoted(settings.by)}"] if settings.by else []),
    )


_SIDE: Final = ("time", "topic", "value")

_DELAY: Final = frozenset(("delay",))
_WINDOW: Final = _DELAY | {"window"}
_VALUES: Final = _WINDOW | {"field"}
_DETECTION: Final = frozenset(("field", "detection"))
_JOIN: Final = _DELAY | {"field", "left", "right", "within"}

QUERIES: Final = {
    name: Query(build, needs_values=needs_values, help=text, uses=uses)
    for name, build, needs_values, text, uses in (
        ("rates", rates, False, "records and rate of each window and topic", _WINDOW),
        ("quantiles", quantiles, True, "quantiles of each window and topic", _VALUES),
        ("windows", windows, False, "rates and quantiles in one pass", _VALUES),
        ("sessions", sessions, False, "runs of records without a gap", _WINDOW),
        ("late", late, False, "records that came too late, of each topic", _DELAY),
        ("anomalies", anomalies, True, "values that are not usual", _DETECTION),
        ("join", join, False, "records of two topics near in time", _JOIN),
    )
}


def _marked(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Return rows with the watermark that the settings ask for."""
    return rows.withWatermark("time", f"{settings.delay} seconds")


def _grouped(kind: str, rows: "DataFrame", settings: Settings, *measures: str) -> "DataFrame":
    """Return what is measured, in SQL, for each topic and `window` or `session_window`."""
    from pyspark.sql import functions as f

    window = f.expr(f"{kind}(time, '{settings.window} seconds') AS window")
    return _keyed(_marked(rows, settings)).groupBy(window, "topic").agg(*map(f.expr, measures))


def _keyed(rows: "DataFrame") -> "DataFrame":
    """Return rows with what their results are told for as the topic; "" if they have none."""
    from pyspark.sql import functions as f

    if "by" not in rows.columns:
        return rows
    return rows.withColumn("topic", f.expr("IF(by IS NULL, '', concat('/', by))")).drop("by")


def _of_by(settings: Settings, topic: str) -> list[str]:
    """Return the field of results that they are told for, in SQL, of what `_keyed` made."""
    if not settings.by:
        return []
    return [f"IF({topic} = '', NULL, substr({topic}, 2)) AS {quoted(settings.by)}"]


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


def _of_window(name: str, settings: Settings) -> list[str]:
    """Return topic, time and start of a window's result, in SQL."""
    return [
        f"concat('{name}', topic) AS topic",
        "window.end AS time",
        "window.start AS start",
        *_of_by(settings, "topic"),
    ]


def _of_source(name: str, settings: Settings) -> list[str]:
    """Return topic and time of a result that stands for one record, in SQL."""
    return [
        f"concat('{name}', source) AS topic",
        "timestamp_micros(CAST(seconds * 1e6D AS BIGINT)) AS time",
        *_of_by(settings, "source"),
    ]
