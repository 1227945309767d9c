"""What a query reads of a log: the columns, and the rows as it takes them."""

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.failure import reason_of
from callboard.pipeline.function import stated_by
from callboard.pipeline.queries import (
    RECORD_KEYS,
    RECORD_NAMES,
    Query,
    Settings,
    column_of,
    options_of,
    quoted,
    schema_of,
    values,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.types import StructType


#: What Spark counts in the progress of a batch: records that were left out.
OBSERVED: Final = "callboard"
LEFT_OUT: Final = "undecodable"


def read_rows(
    reader: Any,
    log: str,
    query: Query,
    settings: Settings,
    options: dict[str, str],
    observed: "str | Observation" = OBSERVED,
) -> "DataFrame":
    """Return what a query takes: rows of a log, as a table or stream.

    Args:
        reader: Spark's, for one of these.
        log: Where the log is.
        query: Who reads.
        settings: What it is told.
        options: Of the source.
        observed: Takes how many records did not decode and were left out; of a join it takes
            nothing, since Spark counts no rows twice.

    Raises:
        InvalidSetting: settings contradict each other.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    declared, is_whole = parse_schema(settings.schema), stated_by(query) is not None
    buries = "deadLetters" in options
    needs_field = "field" in query.uses and not (is_whole and declared)
    text = schema_of(settings, needs_field=needs_field, tells_errors=not buries)
    columns = StructType.fromDDL(text)
    if declared is not None:
        _check_declared(settings, declared, needs_field=needs_field)
        for each in declared:
            is_taken = each.name in RECORD_NAMES and each.name != "error"
            columns.add(f"payload.{each.name}" if is_taken else each.name, each.dataType)
        if not buries and not is_whole and "error" not in columns.names:
            columns.add("error", "string")
    elif buries and not set(columns.names) - RECORD_NAMES:
        what = (
            "this query reads no payloads, so none becomes a dead letter; give --schema, --time"
            " or --by, or leave --dead-letters out"
        )
        raise InvalidSetting(what)
    options = {**options_of(settings), **options}
    if is_whole:
        asks = declared is None or "error" in declared.names
        return _whole_rows(reader, log, settings, options, columns, tells_errors=asks)
    rows = reader.format("callboard").schema(columns).options(**options).load(log)
    if "error" in columns.names and "left" not in query.uses:
        rows = rows.observe(observed, functions.count("error").alias(LEFT_OUT))
    return values(rows, settings, needs_values=query.needs_values)


def _whole_rows(
    reader: Any,
    log: str,
    settings: Settings,
    options: dict[str, str],
    columns: "StructType",
    *,
    tells_errors: bool,
) -> "DataFrame":
    """Return records with all their columns, and with fields of their payloads behind them.

    Without a schema, records that have no value are rows as others.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from callboard.pipeline.spark.range_reader import RECORD_SCHEMA

    own = from_arrow_schema(RECORD_SCHEMA)
    taken = {*own.names, *(() if tells_errors else ("error",))}
    fields = [each for each in columns if each.name not in taken]
    load = reader.format("callboard").schema(StructType([*own.fields, *fields]))
    rows: DataFrame = load.options(**options).load(log)
    if settings.time:
        name = column_of(settings.time, settings)
        if "error" in rows.columns and not settings.schema:
            rows = rows.where(rows[quoted(name)].isNotNull())
        rows = rows.withColumn("time", rows[quoted(name)]).drop(name)
    if not settings.schema:
        rows = rows.withColumnRenamed(column_of(settings.field, settings), "value")
        rows = rows.drop("error")
    return rows


def parse_schema(text: str) -> "StructType | None":
    """Return the fields of a schema, Spark's DDL or JSON; None if it is empty.

    Raises:
        InvalidSetting: it cannot be read.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not text.strip():
        return None
    try:
        if text.lstrip().startswith("{"):
            found = StructType.fromJson(json.loads(text))
        else:
            found = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        what = (
            f"the schema {text.strip()[:_SHOWN]!r} cannot be read: {reason_of(error)}; give a"
            " file, or fields with types like 'origin string, delay double, at timestamp'"
        )
        raise InvalidSetting(what) from None
    names = [each.name.lower() for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not names or twice is not None:
        what = (
            f"the schema has {'the field ' + repr(twice) + ' twice' if names else 'no fields'}"
        )
        raise InvalidSetting(what)
    return found


def _check_declared(settings: Settings, declared: "StructType", *, needs_field: bool) -> None:
    """Raise `InvalidSetting` unless fields that are named are in the schema."""
    by = "" if settings.by in RECORD_KEYS else settings.by
    wanted = {"--field": settings.field if needs_field else "", "--time": settings.time}
    for option, name in (wanted | {"--by": by}).items():
        inner = name.removeprefix("payload.")
        if not name or inner in declared.names or inner.partition(".")[0] in declared.names:
            continue
        near = get_close_matches(inner, declared.names, 1)
        meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(declared.names)}"
        what = f"{option} {name!r} is not in the schema; {meant}"
        raise InvalidSetting(what)
    field = next((each for each in declared if each.name == settings.field), None)
    if needs_field and field is not None and field.dataType.typeName() in _NO_NUMBERS:
        kind = field.dataType.simpleString()
        what = f"--field {settings.field!r} is {kind} in the schema; name a field with numbers"
        raise InvalidSetting(what)


#: Characters of a schema that an error shows.
_SHOWN: Final = 60

_NO_NUMBERS: Final = frozenset(
    (
        "string",
        "binary",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "array",
        "map",
        "struct",
    )
)
