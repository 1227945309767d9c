"""Logs as tables, read the fastest way: sealed segments as Parquet, the rest by record.

A log with `columns=True` keeps a Parquet file beside each sealed segment. Spark reads these
files without Python, and only the columns that a query uses. A function in Python restores the
payloads that a file leaves out; Spark calls it only if a query uses the column `payload`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.commitlog import LogFailed, LogReader
from callboard.commitlog.fields.declared import DeclaredField, arrow_fields, column_name
from callboard.commitlog.sealed import (
    TEMPLATE,
    FileFields,
    SealedSegment,
    all_fields,
    fields_of_path,
    gaps_between,
    sealed_segments_in,
)
from callboard.pipeline.errors import InvalidSetting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY: Final = (
    "IF(is_valid_utf8(CAST(key AS STRING)), CAST(key AS STRING),"
    " CONCAT('\\\\x', LOWER(HEX(key))))"
)


def table(spark: "SparkSession", path: str | Path, *, fields: bool = False) -> "DataFrame":
    """Return all records of a log as one table, with the columns of the source.

    Args:
        spark: The session.
        path: The directory of the log.
        fields: Whether to add the fields of payloads: those that the log declares, and those
            that its Parquet files have. A field is null in records that lack it, or whose value
            does not fit.

    Raises:
        InvalidSetting: the log does not exist.
    """
    try:
        log = LogReader(path)
        segments = sealed_segments_in(log.place)
        start, end = log.start, log.end
    except LogFailed as error:
        raise InvalidSetting(str(error)) from None
    log_fields = all_fields(log.place) if fields else []
    native: dict[str, tuple[FileFields, list[SealedSegment]]] = {}
    for segment in segments:
        own = fields_of_path(segment.columns) if segment.columns else None
        if own is not None and all(own.source_of(field) is not None for field in log_fields):
            key = repr((own.fields, own.templates))
            native.setdefault(key, (own, []))[1].append(segment)
    covered = sorted(
        (segment.base, segment.end) for _, files in native.values() for segment in files
    )
    parts = [_native(spark, own, files, log_fields) for own, files in native.values()]
    parts += [_read(spark, path, gap, log_fields) for gap in gaps_between(start, end, covered)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _native(
    spark: "SparkSession",
    own: FileFields,
    segments: list[SealedSegment],
    log_fields: list[DeclaredField],
) -> "DataFrame":
    """Read Parquet files that have the same fields."""
    from pyspark.sql import functions

    from callboard.pipeline.spark.range_reader import RECORD_SCHEMA

    # By default Spark ignores the checksums, and a flipped bit would change a value.
    reader = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    files = reader.parquet(*(str(segment.columns) for segment in segments))
    columns: list[Any] = []
    for name in RECORD_SCHEMA.names:
        column = functions.col(name)
        if name == "key":  # one that is not text becomes \\x and digits, as in the source
            column = functions.expr(_KEY).alias("key")
        elif name == "payload" and own.templates:
            column = _payload(own).alias("payload")
        columns.append(column)
    for field, kind in zip(log_fields, _spark_types(log_fields), strict=True):
        source = own.source_of(field)
        value = functions.col(f"`{source}`") if source else functions.lit(None)
        columns.append(value.cast(kind).alias(column_name(field.name)))
    return files.select(*columns)


def _payload(own: FileFields) -> "Column":
    """Return the column of payloads, of which a file leaves out some."""
    import pyarrow as pa
    from pyspark.sql import functions

    from callboard.commitlog.fields.restoring import restore_payloads

    templates = own.templates
    used = {slot.column for template in templates for slot in template.slots} - {""}
    names = sorted(used) or ["is_bytes"]  # a struct has at least one column

    def restore(payloads: Any, numbers: Any, columns: Any) -> Any:
        own = dict(zip(names, columns.flatten(), strict=True))
        return restore_payloads(payloads, numbers, templates, own)

    # Spark chooses the kind of function by its annotations.
    parameters = dict.fromkeys(("payloads", "numbers", "columns", "return"), pa.Array)
    restore.__annotations__.update(parameters)
    columns = functions.struct(*(functions.col(f"`{name}`") for name in names))
    call = functions.arrow_udf(restore, "binary")
    return call(functions.col("payload"), functions.col(TEMPLATE), columns)


def _spark_types(fields: list[DeclaredField]) -> list[Any]:
    """Return Spark's types of fields."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    from callboard.pipeline.spark.source import signed_field

    schema = pa.schema([signed_field(field) for field in arrow_fields(fields)])
    return [field.dataType for field in from_arrow_schema(schema).fields]


def _read(
    spark: "SparkSession",
    path: str | Path,
    part: tuple[int, int],
    log_fields: list[DeclaredField],
) -> "DataFrame":
    """Read a range of a log with the source; values that do not fit are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from callboard.pipeline.spark.range_reader import ERROR, RECORD_SCHEMA

    start, end = part
    reader = spark.read.format("callboard").option("startingOffsets", str(start))
    reader = reader.option("endingOffsets", str(end))
    if not log_fields:
        return reader.load(str(path))
    schema = from_arrow_schema(RECORD_SCHEMA)
    for field, kind in zip(log_fields, _spark_types(log_fields), strict=True):
        schema = schema.add(column_name(field.name), kind)
    return reader.schema(schema.add(ERROR, "string")).load(str(path)).drop(ERROR)
