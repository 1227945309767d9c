"""Logs as tables, read the fastest way: sealed segments as Parquet, the rest by record.

A log with `columns=True` keeps a Parquet file beside each sealed segment. Spark reads these
files without Python, and only the columns that a query uses.
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
    """Return all records of a log as one table, with the columns of the source.

    Raises:
        InvalidSetting: the log does not exist.
    """
    from pyspark.sql import functions

    try:
        segments = sealed_segments(path)
        log = LogReader(path)
        start, end = log.start, log.end
    except LogFailed as error:
        raise InvalidSetting(str(error)) from None
    native = [segment for segment in segments if segment.columns]
    gaps = gaps_between(start, end, [(segment.base, segment.end) for segment in native])
    parts = [_read(spark, path, *gap) for gap in gaps]
    if native:
        # By default Spark ignores the checksums, and a flipped bit would change a value.
        reader = spark.read.option("parquet.page.verify-checksum.enabled", "true")
        files = reader.parquet(*(segment.columns for segment in native))
        # A key that is not text becomes \x and hexadecimal digits, as in the source.
        parts.insert(0, files.withColumn("key", functions.expr(_KEY)).drop("time_ns"))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _read(spark: "SparkSession", path: str | Path, start: int, end: int) -> "DataFrame":
    """Read a range of a log with the source."""
    reader = spark.read.format("callboard").option("startingOffsets", str(start))
    return reader.option("endingOffsets", str(end)).load(str(path))
