"""Logs as tables by the quickest way: what is sealed as Parquet, the rest record by record.

A log that is written with `columns=True` keeps a Parquet file beside each segment that gets no
more. Spark reads those by itself, only the columns that a query uses, without Python.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from callboard.commitlog import LogFailed, LogReader, sealed_segments
from callboard.commitlog.sealed import gaps_between
from callboard.pipeline.errors import InvalidSetting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY: Final = (
    "IF(is_valid_utf8(CAST(key AS STRING)), CAST(key AS STRING),"
    " CONCAT('\\\\x', LOWER(HEX(key))))"
)


def table(spark: "SparkSession", path: str | Path) -> "DataFrame":
    """Return all records of a log as one table, with the columns that the source has.

    Raises:
        InvalidSetting: there is no log.
    """
    from pyspark.sql import functions

    try:
        segments = sealed_segments(path)
        log = LogReader(path)
        start, end = log.start, log.end
    except LogFailed as error:
        raise InvalidSetting(str(error)) from None
    native = [each for each in segments if each.columns]
    gaps = gaps_between(start, end, [(each.base, each.end) for each in native])
    parts = [_read(spark, path, *gap) for gap in gaps]
    if native:
        # Else a flipped bit is another value: Spark looks at no checksums by itself.
        reader = spark.read.option("parquet.page.verify-checksum.enabled", "true")
        files = reader.parquet(*(each.columns for each in native))
        # Text stays text; any other key is shown as the source does, as \x and hexadecimals.
        parts.insert(0, files.withColumn("key", functions.expr(_KEY)).drop("time_ns"))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _read(spark: "SparkSession", path: str | Path, start: int, end: int) -> "DataFrame":
    """Return a range of a log by the source."""
    reader = spark.read.format("callboard").option("startingOffsets", str(start))
    return reader.option("endingOffsets", str(end)).load(str(path))
