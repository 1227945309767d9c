"""Logs as views of DuckDB: sealed segments as Parquet, the rest as Arrow.

The view of a log has the columns of its Parquet files, a column `value` with the payload as
JSON, and a column for each declared field. Payloads are decoded only in queries that use these.
DuckDB reads only the columns and row groups that a query needs. Records that are not in Parquet
files are read into memory once, when the log is opened.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.commitlog import sealed
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.errors import ExtraMissing, LogCorrupt, LogError
from callboard.commitlog.fields.declared import DeclaredField, column_name, type_parts
from callboard.commitlog.json_text import payload_json
from callboard.commitlog.reader import LogReader
from callboard.commitlog.reading import OnDamage

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

#: Limit of the segments that are read into memory, in bytes; more must be written as Parquet.
TAIL_LIMIT: Final = 1 << 30

_VALUE: Final = "callboard_payload_json"
_FIELDS: Final = "callboard_fields"
_SQL_TYPES: Final = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "uint": "UBIGINT",
    "float": "DOUBLE",
    "text": "VARCHAR",
    "time": "TIMESTAMP WITH TIME ZONE",
}

_log = logging.getLogger("callboard.commitlog")


@contextmanager
def open_sql(
    logs: Mapping[str, str | Path | LogReader],
    *,
    on_damage: OnDamage | None = None,
    tails: Mapping[str, str] | None = None,
) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open an in-memory connection of DuckDB in which each log is a view.

    Args:
        logs: Directories of logs, or readers, by the name of the view.
        on_damage: Called with each `LogCorrupt` instead of raising it; the views have all
            readable records. It is also called for damaged Parquet files, whose segments are
            read instead; without it these are logged as warnings.
        tails: For archives, by the name of the view: the place where the log is written.

    Raises:
        ExtraMissing: DuckDB or pyarrow is not installed.
        LogFailed: a log does not exist.
        LogCorrupt: durable bytes that are not in a Parquet file are damaged.
        LogError: too much of a log is not in Parquet files.
    """
    with closing(load_duckdb().connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        kinds = {"parameters": ["BLOB", "BOOLEAN"], "return_type": "VARCHAR", "type": "arrow"}
        connection.create_function(_VALUE, _values, **kinds, null_handling="special")
        for name, folder in logs.items():
            log = folder
            if not isinstance(log, LogReader):
                log = LogReader(log, tail=(tails or {}).get(name))
            _make_view(connection, name, log, on_damage)
        yield connection


def load_duckdb() -> Any:
    """Import DuckDB, which is an extra.

    Raises:
        ExtraMissing: DuckDB or pyarrow is not installed.
    """
    load_pyarrow()
    try:
        import duckdb
    except ImportError:
        msg = "SQL on logs needs DuckDB; install it with: pip install 'callboard[sql]'"
        raise ExtraMissing(msg) from None
    return duckdb


def _make_view(
    connection: Any,
    name: str,
    log: LogReader,
    on_damage: OnDamage | None,
) -> None:
    """Create the view of a log."""
    segments = list(_intact(sealed.sealed_segments_in(log.place), on_damage))
    view, tail = _quoted(name), _quoted(f"{name} (tail)")
    parts = [f"SELECT * FROM {tail}"]  # noqa: S608
    if segments:
        listed = ", ".join(
            "'" + str(segment.columns).replace("'", "''") + "'" for segment in segments
        )
        parts.insert(0, f"SELECT * FROM read_parquet([{listed}])")  # noqa: S608
    connection.register(f"{name} (tail)", _tail(log, segments, on_damage))
    whole = " UNION ALL ".join(parts)
    fields, inner, outer = log.fields, "", ""
    if fields:
        decode = _quoted(f"{name} (fields)")
        _make_decoder(connection, f"{name} (fields)", fields)
        inner = f", {decode}(payload, is_bytes) AS {_FIELDS}"
        outer = f" EXCLUDE ({_FIELDS})" + "".join(
            f", {_FIELDS}.f{index} AS {_quoted(column_name(field.name))}"
            for index, field in enumerate(fields)
        )
    connection.execute(
        f"CREATE VIEW {view} AS SELECT *{outer} FROM (SELECT *, "  # noqa: S608
        f"{_VALUE}(payload, is_bytes)::JSON AS value{inner} FROM ({whole}))"
    )


def _make_decoder(connection: Any, name: str, fields: list[DeclaredField]) -> None:
    """Register the function that decodes all declared fields of a log in one call."""
    from callboard.commitlog.fields.decoding import decode_fields

    pa = load_pyarrow()

    def decode(payloads: Any, kinds: Any) -> Any:
        columns = decode_fields(payloads, kinds, fields).columns
        return pa.StructArray.from_arrays(columns, names)

    names = [f"f{i}" for i in range(len(fields))]  # numbered: a field name may be any text
    kinds = [_SQL_TYPES[base] + ending for base, ending in map(type_parts, fields)]
    row = ", ".join(map(" ".join, zip(names, kinds, strict=True)))
    options = {
        "parameters": ["BLOB", "BOOLEAN"],
        "return_type": f"STRUCT({row})",
        "type": "arrow",
    }
    connection.create_function(name, decode, **options, null_handling="special")


def _intact(
    segments: list[sealed.SealedSegment], on_damage: OnDamage | None
) -> Iterator[sealed.SealedSegment]:
    """Yield the segments with an intact Parquet file; report damaged files."""
    for segment in segments:
        if segment.columns is None:
            continue
        if (end := sealed.end_of_columns(segment)) is not None:
            yield segment._replace(end=end)
            continue
        msg = (
            f"{segment.columns} is damaged, so its segment is read instead; remove the file,"
            " and write it again with: callboard log columns"
        )
        if on_damage is None:
            _log.warning("%s", msg)
        else:
            on_damage(LogCorrupt(msg, offset=segment.base, next_offset=segment.base))


def _tail(
    log: LogReader, segments: list[sealed.SealedSegment], on_damage: OnDamage | None
) -> "pa.Table":
    """Return the records that are not in the Parquet files of the given segments."""
    covered = {segment.base for segment in segments}
    uncovered = [segment for segment in log.segments if segment.base not in covered]
    size = sum(log.size_of(segment) for segment in uncovered)
    if size > TAIL_LIMIT:
        msg = (
            f"{size:,} bytes of the log {log.folder} are not in Parquet files; at most"
            f" {TAIL_LIMIT:,} are read into memory; run: callboard log columns {log.folder}"
        )
        raise LogError(msg)
    ranges = [(segment.base, segment.end) for segment in segments]
    gaps = sealed.gaps_between(log.start, log.end, ranges)
    pieces: list[pa.RecordBatch] = []
    for start, end in gaps:
        report = None if on_damage is None else partial(_report_before, end, on_damage)
        pieces += log.arrow_batches(start, end, on_damage=report)
    return sealed.as_written(pieces)


def _report_before(end: int, on_damage: OnDamage, error: LogCorrupt) -> None:
    """Report damage, unless a Parquet file has the damaged records."""
    if error.offset < end:
        on_damage(error)


def _values(payloads: Any, kinds: Any) -> Any:
    """Return payloads as JSON; DuckDB calls this with some thousand payloads at a time."""
    pa = load_pyarrow()
    texts = map(payload_json, payloads.to_pylist(), kinds.to_pylist())
    return pa.array(list(texts), pa.string())


def _quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
