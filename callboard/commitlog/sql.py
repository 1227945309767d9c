"""Logs as tables of DuckDB: sealed segments as Parquet, the rest as Arrow.

A log is a view with the columns of its Parquet files and one more, `value`: the payload as
JSON, decoded only in queries that use it. DuckDB reads only the columns and row groups that a
query needs. What is not sealed yet is read into memory once, when the log is opened.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.errors import ExtraMissing, LogError
from callboard.commitlog.json_text import payload_json
from callboard.commitlog.reader import LogReader
from callboard.commitlog.sealed import SealedSegment, as_written, sealed_segments

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

#: Bytes of segments that are read into memory; beyond that they have to become Parquet.
TAIL_LIMIT: Final = 1 << 30

_VALUE: Final = "callboard_payload_json"


@contextmanager
def open_sql(logs: Mapping[str, str | Path]) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open a connection of DuckDB, in memory, in which each log is a view.

    Args:
        logs: BatchNames of views, and the directories of logs.

    Raises:
        ExtraMissing: DuckDB or pyarrow is not installed.
        LogFailed: there is no log.
        LogCorrupt: durable bytes of what is not sealed are damaged.
        LogError: too much of a log is not in columns.
    """
    with closing(load_duckdb().connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.create_function(
            _VALUE,
            _values,
            ["BLOB", "BOOLEAN"],
            "VARCHAR",
            type="arrow",
            null_handling="special",
        )
        for name, folder in logs.items():
            _make_view(connection, name, folder)
        yield connection


def load_duckdb() -> Any:
    """Return the package, which is an extra.

    Raises:
        ExtraMissing: it is not installed, or pyarrow is not.
    """
    load_pyarrow()
    try:
        import duckdb
    except ImportError:
        what = "SQL on logs needs DuckDB; install it with: pip install 'callboard[sql]'"
        raise ExtraMissing(what) from None
    return duckdb


def _make_view(connection: Any, name: str, folder: str | Path) -> None:
    """Make the view of a log that queries name."""
    segments = sealed_segments(folder)
    files = [each.columns for each in segments if each.columns is not None]
    view, tail = _quoted(name), _quoted(f"{name} (tail)")
    parts = [f"SELECT * FROM {tail}"]  # noqa: S608
    if files:
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        parts.insert(0, f"SELECT * FROM read_parquet([{listed}])")  # noqa: S608
    connection.register(f"{name} (tail)", _tail(folder, segments))
    connection.execute(
        f"CREATE VIEW {view} AS SELECT *, {_VALUE}(payload, is_bytes)::JSON AS value "  # noqa: S608
        f"FROM ({' UNION ALL '.join(parts)})"
    )


def _tail(folder: str | Path, segments: list[SealedSegment]) -> "pa.Table":
    """Return the records that no Parquet file has."""
    log = LogReader(folder)
    covered = {each.base for each in segments if each.columns is not None}
    bare = [each for each in log.segments if each.base not in covered]
    size = sum(each.bytes for each in bare)
    if size > TAIL_LIMIT:
        what = (
            f"{size:,} bytes of the log {folder} are not in columns, and {TAIL_LIMIT:,} fit"
            f" into memory; run: callboard log columns {folder}"
        )
        raise LogError(what)
    pieces = [piece for each in bare for piece in log.arrow_batches(each.base, each.end)]
    return as_written(pieces)


def _values(payloads: Any, kinds: Any) -> Any:
    """Return payloads as JSON; called by DuckDB for some thousand at a time."""
    pa = load_pyarrow()
    texts = map(payload_json, payloads.to_pylist(), kinds.to_pylist())
    return pa.array(list(texts), pa.string())


def _quoted(name: str) -> str:
    """Return a text as an SQL literal."""
    return '"' + name.replace('"', '""') + '"'
