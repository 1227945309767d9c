"""Input of a query: the columns to read, and the rows in the form that the query expects."""

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.failure import reason_of
from callboard.pipeline.function import stated_by
from callboard.pipeline.queries import (
    RECORD_KEYS,
    RECORD_NAMES,
    QueryKind,
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


#: Names of Spark's counter for skipped records in the progress of a batch.
OBSERVED: Final = "callboard"
LEFT_OUT: Final = "undecodable"


def read_rows(
    reader: Any,
    log: str,
    query: QueryKind,
    settings: Settings,
    options: dict[str, str],
    observed: "str | Observation" = OBSERVED,
) -> "DataFrame":
    """Return the input rows of a query, as a table or a stream.

    Args:
        reader: Spark's reader, for a table or a stream.
        log: Address of the log.
        query: The query.
        settings: Its settings.
        options: Options of the source.
        observed: Receives the number of records that did not decode and were skipped. It is not
            used for a join, because Spark would count its rows twice.

    Raises:
        InvalidSetting: settings contradict each other.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    declared, is_whole = parse_schema(settings.schema), stated_by(query) is not None
    buries = "deadLetters" in options
    needs_field = "field" in query.uses and not (is_whole and declared)
    ddl = schema_of(settings, needs_field=needs_field, tells_errors=not buries)
    columns = StructType.fromDDL(ddl)
    if declared is not None:
        _check_declared(settings, declared, needs_field=needs_field)
        for field in declared:
            is_reserved = field.name in RECORD_NAMES and field.name != "error"
            columns.add(f"payload.{field.name}" if is_reserved else field.name, field.dataType)
        if not buries and not is_whole and "error" not in columns.names:
            columns.add("error", "string")
    elif buries and not set(columns.names) - RECORD_NAMES:
        msg = (
            "this query reads no payloads, so there are no dead letters; add --schema, --time"
            " or --by, or omit --dead-letters"
        )
        raise InvalidSetting(msg)
    options = {**options_of(settings), **options}
    if is_whole:
        tells_errors = declared is None or "error" in declared.names
        return _whole_rows(reader, log, settings, options, columns, tells_errors=tells_errors)
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
    """Return records with all their columns, followed by the fields of their payloads.

    Without a schema, records without a value are kept as rows.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from callboard.pipeline.spark.range_reader import RECORD_SCHEMA

    own = from_arrow_schema(RECORD_SCHEMA)
    excluded = {*own.names, *(() if tells_errors else ("error",))}
    fields = [field for field in columns if field.name not in excluded]
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
    """Return the fields of a schema in Spark's DDL or JSON; None if it is empty.

    Raises:
        InvalidSetting: the schema cannot be read.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not text.strip():
        return None
    try:
        if text.lstrip().startswith("{"):
            fields = StructType.fromJson(json.loads(text))
        else:
            fields = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        msg = (
            f"the schema {text.strip()[:_SHOWN]!r} cannot be read: {reason_of(error)}; pass a"
            " file, or fields with types like 'origin string, delay double, at timestamp'"
        )
        raise InvalidSetting(msg) from None
    names = [field.name.lower() for field in fields]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if not names or duplicate is not None:
        msg = f"the schema has {f'the field {duplicate!r} twice' if names else 'no fields'}"
        raise InvalidSetting(msg)
    return fields


def _check_declared(settings: Settings, declared: "StructType", *, needs_field: bool) -> None:
    """Raise `InvalidSetting` if a named field is not in the schema."""
    by = "" if settings.by in RECORD_KEYS else settings.by
    required = {"--field": settings.field if needs_field else "", "--time": settings.time}
    for option, name in (required | {"--by": by}).items():
        inner = name.removeprefix("payload.")
        if not name or inner in declared.names or inner.partition(".")[0] in declared.names:
            continue
        matches = get_close_matches(inner, declared.names, 1)
        hint = (
            f"did you mean {matches[0]}?" if matches else f"it has {', '.join(declared.names)}"
        )
        msg = f"{option} {name!r} is not in the schema; {hint}"
        raise InvalidSetting(msg)
    field = next((column for column in declared if column.name == settings.field), None)
    if needs_field and field is not None and field.dataType.typeName() in _NO_NUMBERS:
        kind = field.dataType.simpleString()
        msg = f"--field {settings.field!r} is {kind} in the schema; name a field with numbers"
        raise InvalidSetting(msg)


#: Characters of a schema that are quoted in an error.
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
