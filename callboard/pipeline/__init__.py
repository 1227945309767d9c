"""Logs to Spark and back; see `docs/pipeline.md`.

`session()` makes a Spark session that reads and writes logs as `format("callboard")`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from callboard.pipeline.errors import (
    DataLost,
    InvalidSetting,
    PipelineError,
    PublishFailed,
    SparkMissing,
    Undecodable,
)

if TYPE_CHECKING:
    from callboard.pipeline.bridge import Bridge
    from callboard.pipeline.function import pipeline
    from callboard.pipeline.spark_session import register, session
    from callboard.pipeline.tables import table

__all__ = [
    "Bridge",
    "DataLost",
    "InvalidSetting",
    "PipelineError",
    "PublishFailed",
    "SparkMissing",
    "Undecodable",
    "pipeline",
    "register",
    "session",
    "table",
]

#: Names that Spark's workers do not need; they are imported at their first use.
_HOMES: Final = {
    "Bridge": "bridge",
    "pipeline": "function",
    "register": "spark_session",
    "session": "spark_session",
    "table": "tables",
}


def __getattr__(name: str) -> object:
    """Import a public name (PEP 562)."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
