"""Logs to Spark and back; see `docs/pipeline.md`.

`session()` makes a Spark session that reads and writes logs as `format("callboard")`.
"""

from typing import TYPE_CHECKING

from callboard.pipeline.errors import (
    DataLost,
    InvalidSetting,
    PipelineError,
    PublishFailed,
    SparkMissing,
    Undecodable,
)

if TYPE_CHECKING:
    from callboard.pipeline.spark_session import register, session
    from callboard.pipeline.tables import table

__all__ = [
    "DataLost",
    "InvalidSetting",
    "PipelineError",
    "PublishFailed",
    "SparkMissing",
    "Undecodable",
    "register",
    "session",
    "table",
]


def __getattr__(name: str) -> object:
    """Import what sessions need when it is used: Spark's workers need nothing of it."""
    if name in {"register", "session"}:
        from callboard.pipeline import spark_session

        return getattr(spark_session, name)
    if name == "table":
        from callboard.pipeline.tables import table

        return table
    what = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(what)
