"""Built-in queries: they turn records, as tables or streams, into results for a log.

Each query takes rows with the columns `offset`, `time`, `topic` and `value` from `values`, and
returns rows for the sink. The topic of a result is the name of the query and the topic of the
records: rates of `/cpu/1` are published on `/rates/cpu/1`. With `by`, a field of the payload
replaces the topic, in a column `by`: rates of the origin JFK are published on `/rates/JFK` and
have the field `origin`.
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

#: The columns of a record; a payload's field with such a name is `payload.NAME` in the source.
RECORD_NAMES: Final = frozenset(
    ("offset", "time", "topic", "key", "headers", "sender", "payload", "is_bytes", "error")
)

#: Columns that results can be grouped by.
RECORD_KEYS: Final = frozenset(("key", "sender"))

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the queries; times are in seconds.

    Attributes:
        field: The payload's field with the value.
        window: Length of a window, and the gap that ends a session.
        delay: How late records may be; a window is final when this time has passed after its
            end.
        detection: How anomalies are found.
        left: Prefix of the topics of one side of a join.
        right: Prefix of the topics of the other side.
        within: Largest distance in time between the two sides of a join.
        time: The payload's field with the event time; "" for the time of the record.
        by: The payload's field to group results by, or `key` or `sender` of the record; "" for
            the topic. A join then also requires equal values of it.
        schema: Fields of payloads with their types, as Spark's DDL or JSON; "" for none.
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


class QueryKind(NamedTuple):
    """A query.

    Attributes:
        build: Computes the results from rows.
        needs_values: Whether records without the value's field are dropped.
        help: Description in one line.
        uses: The settings that it uses, besides `time`, `by` and `schema`.
    """

    build: "Callable[[DataFrame, Settings], DataFrame]"
    needs_values: bool
    help: str
    uses: frozenset[str] = frozenset()


def seconds_of(span: str) -> float:
    """Return a time span like `500ms`, `10s`, `5m`, `1h` or `1d` in seconds.

    Raises:
        InvalidSetting: the text is not a time span.
    """
    match = _SPAN.fullmatch(span.strip())
    if match is None or float(match[1]) == 0:
        msg = f"{span!r} is not a time span; use one like 500ms, 10s, 5m, 1h or 1d"
        raise InvalidSetting(msg)
    return float(match[1]) * _UNITS[match[2]]


def schema_of(
    settings: Settings, *, needs_field: bool = True, tells_errors: bool = True
) -> str:
    """Return the schema with which to read a log.

    Args:
        settings: Settings of the query; their own schema is not included.
        needs_field: Whether the value's field is read.
        tells_errors: Whether records that do not decode become rows with an `error`.
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
    """Return the options of the source that belong to the schema."""
    options = {}
    if settings.by and settings.by not in {*RECORD_KEYS, settings.field, settings.time}:
        options["textFields"] = column_of(settings.by, settings)
    if settings.time:
        options["requiredFields"] = column_of(settings.time, settings)
    return options


def values(rows: "DataFrame", settings: Settings, *, needs_values: bool = True) -> "DataFrame":
    """Return the input rows of queries, from rows read with `schema_of`.

    A record without a number in the field counts as a record, but not as a value. With `time`,
    `by` or `schema`, records that do not decode are skipped.
    """
    field, time = column_of(settings.field, settings), "time"
    expressions = ["offset", "topic"]
    if settings.time:
        time = quoted(column_of(settings.time, settings))
    expressions.append(f"{time} AS time")
    if field in rows.columns:
        expressions.append(f"nanvl({quoted(field)}, CAST(NULL AS DOUBLE)) AS value")
    if settings.by:
        is_own = settings.by in RECORD_KEYS
        by = settings.by if is_own else quoted(column_of(settings.by, settings))
        expressions.append(f"CAST({by} AS STRING) AS by")
    is_strict = settings.time or settings.by or settings.schema
    if is_strict and "error" in rows.columns:
        rows = rows.where("error IS NULL")
    selected = rows.selectExpr(*expressions)
    return selected.where("value IS NOT NULL") if needs_values else selected


def column_of(name: str, settings: Settings) -> str:
    """Return the source's column for a payload's field.

    With a schema it differs from the schema's column, which may have another type.
    """
    inner = name.removeprefix("payload.")
    is_apart = settings.schema or inner != name or name in RECORD_NAMES
    return f"payload.{inner}" if is_apart else name


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_sides(settings: Settings) -> None:
    """Raise `InvalidSetting` unless both sides of a join are set."""
    if not settings.left or not settings.right:
        msg = "a join needs two topics; pass --left and --right"
        raise InvalidSetting(msg)


def rates(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Compute the number and rate of records for each window and topic."""
    groups = _grouped("window", rows, settings, _RECORDS)
    rate = f"records / {settings.window}D AS rate"
    return groups.selectExpr(*_of_window("/rates", settings), "records", rate)


def quantiles(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Compute minimum, median, 90 %, 99 %, maximum and mean for each window and topic."""
    groups = _grouped("window", rows, settings, *_MEASURES)
    levels = (f"{level} AS {name}" for name, level in _LEVELS.items())
    return groups.selectExpr(
        *_of_window("/quantiles", settings), "measured AS records", *levels
    )


def windows(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Compute rates and quantiles in one pass over the records.

    Each result has the columns of both; the columns of the other query are null.
    """
    groups = _grouped("window", rows, settings, _RECORDS, *_MEASURES)
    results = {
        "/rates": {"records": "records", "rate": f"records / {settings.window}D"},
        "/quantiles": {"records": "measured", **_LEVELS},
    }
    structs = []
    for topic, columns in results.items():
        fields = [
            f"{columns.get(name, 'CAST(NULL AS DOUBLE)')} AS {name}"
            for name in ("records", "rate", *_LEVELS)
        ]
        structs.append(f"struct({', '.join((*_of_window(topic, settings), *fields))})")
    return groups.selectExpr(f"inline(array({', '.join(structs)}))").where("records > 0")


def sessions(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find runs of records of a topic without a gap as long as the window."""
    groups = _grouped("session_window", rows, settings, _RECORDS, "max(time) AS last")
    length = "CAST(last AS DOUBLE) - CAST(window.start AS DOUBLE) AS seconds"
    return groups.selectExpr(*_of_window("/sessions", settings), "records", length)


def late(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Count records that are later than the delay after the latest record of their topic."""
    from callboard.pipeline.spark.processors import LATE_SCHEMA, late_processor

    timed = _keyed(rows).selectExpr("offset", "topic", "CAST(time AS DOUBLE) AS seconds")
    counts = timed.groupBy("topic").transformWithState(
        late_processor(settings.delay), LATE_SCHEMA, "Update", "None"
    )
    return counts.selectExpr(*_of_source("/late", settings), "records", "late", "worst")


def anomalies(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Find values that differ much from the usual values of their topic at that time."""
    from callboard.pipeline.spark.processors import ANOMALY_SCHEMA, anomaly_processor

    timed = _keyed(rows).selectExpr("topic", "CAST(time AS DOUBLE) AS seconds", "value")
    anomaly_rows = timed.groupBy("topic").transformWithState(
        anomaly_processor(settings.detection), ANOMALY_SCHEMA, "Update", "None"
    )
    return anomaly_rows.selectExpr(
        *_of_source("/anomalies", settings), "value", "expected", "score"
    )


def join(rows: "DataFrame", settings: Settings) -> "DataFrame":
    """Join records of some topics with records of others that are near in time.

    With `by`, its values must be equal, too.
    """
    from pyspark.sql import functions as f

    check_sides(settings)
    width = max(1, round(settings.within * 1e6))
    sides = (*_SIDE, "by") if settings.by else _SIDE

    def side(name: str, prefix: str, steps: tuple[int, ...]) -> "DataFrame":
        matching = _marked(rows, settings).where(f.col("topic").startswith(prefix))
        span = f"(unix_micros(time) - pmod(unix_micros(time), {width})) div {width}"
        spans = ", ".join(f"{span} + {step}" for step in steps)
        return matching.selectExpr(
            *(f"{column} AS {name}_{column}" for column in sides),
            f"explode(array({spans})) AS {name}_span",
        )

    # Spark joins streams by equality. So time is cut into spans, and each left record is put
    # into its own span and both neighbors: a near right record is in one of these.
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
    name: QueryKind(build, needs_values=needs_values, help=text, uses=uses)
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
    """Return rows with the watermark of the settings."""
    return rows.withWatermark("time", f"{settings.delay} seconds")


def _grouped(kind: str, rows: "DataFrame", settings: Settings, *measures: str) -> "DataFrame":
    """Return measures, in SQL, per topic and `window` or `session_window`."""
    from pyspark.sql import functions as f

    window = f.expr(f"{kind}(time, '{settings.window} seconds') AS window")
    return _keyed(_marked(rows, settings)).groupBy(window, "topic").agg(*map(f.expr, measures))


def _keyed(rows: "DataFrame") -> "DataFrame":
    """Return rows with the value of `by`, if any, as the topic; "" for null."""
    from pyspark.sql import functions as f

    if "by" not in rows.columns:
        return rows
    return rows.withColumn("topic", f.expr("IF(by IS NULL, '', concat('/', by))")).drop("by")


def _of_by(settings: Settings, topic: str) -> list[str]:
    """Return the `by` field of results in SQL, from the topic that `_keyed` made."""
    if not settings.by:
        return []
    return [f"IF({topic} = '', NULL, substr({topic}, 2)) AS {quoted(settings.by)}"]


_RECORDS: Final = "count(*) AS records"

#: Measures for quantiles.
_MEASURES: Final = (
    "count(value) AS measured",
    "min(value) AS least",
    "percentile_approx(value, array(0.5D, 0.9D, 0.99D)) AS parts",
    "max(value) AS greatest",
    "avg(value) AS mean",
)

#: Columns of results, by measure.
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
    """Return topic and time of a result for a single record, in SQL."""
    return [
        f"concat('{name}', source) AS topic",
        "timestamp_micros(CAST(seconds * 1e6D AS BIGINT)) AS time",
        *_of_by(settings, "source"),
    ]
