"""Logs as tables of DuckDB: sealed segments as Parquet, the rest as Arrow.

A log is a view with the columns of its Parquet files, one more, `value`: the payload as JSON,
and one for each field that it declares; payloads are decoded only in queries that use these.
DuckDB reads only the columns and row groups that a query needs. What is not sealed yet is read
into memory once, when the log is opened.
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

#: Bytes of segments that are read into memory; beyond that they have to become Parquet.
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
    """Open a connection of DuckDB, in memory, in which each log is a view.

    Args:
        logs: Names of views, and the directories of logs, or readers of them.
        on_damage: Called with each `LogCorrupt` in place of raising it: the views have all
            records that are readable. It is also told of damaged Parquet files, whose segments
            are read instead; without it the log of the program is.
        tails: Of archives, where the logs of these names are written.

    Raises:
        ExtraMissing: DuckDB or pyarrow is not installed.
        LogFailed: there is no log.
        LogCorrupt: durable bytes of what is not in columns are damaged.
        LogError: too much of a log is not in columns.
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


def _make_view(
    connection: Any,
    name: str,
    log: LogReader,
    on_damage: OnDamage | None,
) -> None:
    """Make the view of a log that queries name."""
    kept = list(_intact(sealed.sealed_segments_in(log.place), on_damage))
    view, tail = _quoted(name), _quoted(f"{name} (tail)")
    parts = [f"SELECT * FROM {tail}"]  # noqa: S608
    if kept:
        listed = ", ".join("'" + str(each.columns).replace("'", "''") + "'" for each in kept)
        parts.insert(0, f"SELECT * FROM read_parquet([{listed}])")  # noqa: S608
    connection.register(f"{name} (tail)", _tail(log, kept, on_damage))
    whole = " UNION ALL ".join(parts)
    fields, inner, outer = log.fields, "", ""
    if fields:
        decode = _quoted(f"{name} (fields)")
        _make_decoder(connection, f"{name} (fields)", fields)
        inner = f", {decode}(payload, is_bytes) AS {_FIELDS}"
        outer = f" EXCLUDE ({_FIELDS})" + "".join(
            f", {_FIELDS}.f{at} AS {_quoted(column_name(field.name))}"
            for at, field in enumerate(fields)
        )
    connection.execute(
        f"CREATE VIEW {view} AS SELECT *{outer} FROM (SELECT *, "  # noqa: S608
        f"{_VALUE}(payload, is_bytes)::JSON AS value{inner} FROM ({whole}))"
    )


def _make_decoder(connection: Any, name: str, fields: list[DeclaredField]) -> None:
    """Make the function that decodes the declared fields of a log, all in one go."""
    from callboard.commitlog.fields.decoding import decode_fields

    pa = load_pyarrow()

    def decode(payloads: Any, kinds: Any) -> Any:
        found = decode_fields(payloads, kinds, fields).columns
        return pa.StructArray.from_arrays(found, names)

    names = [f"f{at}" for at in range(len(fields))]  # by place: any text may be a name
    kinds = [_SQL_TYPES[base] + ending for base, ending in map(type_parts, fields)]
    row = ", ".join(map(" ".join, zip(names, kinds, strict=True)))
    how = {"parameters": ["BLOB", "BOOLEAN"], "return_type": f"STRUCT({row})", "type": "arrow"}
    connection.create_function(name, decode, **how, null_handling="special")


def _intact(
    segments: list[sealed.SealedSegment], on_damage: OnDamage | None
) -> Iterator[sealed.SealedSegment]:
    """Yield the segments whose Parquet files are whole, and tell of others."""
    for each in segments:
        if each.columns is None:
            continue
        if (end := sealed.end_of_columns(each)) is not None:
            yield each._replace(end=end)
            continue
        what = (
            f"{each.columns} is damaged, and its segment read instead; remove it, and write it"
            " again with: callboard log columns"
        )
        if on_damage is None:
            _log.warning("%s", what)
        else:
            on_damage(LogCorrupt(what, offset=each.base, next_offset=each.base))


def _tail(
    log: LogReader, kept: list[sealed.SealedSegment], on_damage: OnDamage | None
) -> "pa.Table":
    """Return the records that no Parquet file has."""
    covered = {each.base for each in kept}
    bare = [each for each in log.segments if each.base not in covered]
    size = sum(log.size_of(each) for each in bare)
    if size > TAIL_LIMIT:
        what = (
            f"{size:,} bytes of the log {log.folder} are not in columns, and {TAIL_LIMIT:,} fit"
            f" into memory; run: callboard log columns {log.folder}"
        )
        raise LogError(what)
    gaps = sealed.gaps_between(log.start, log.end, [(each.base, each.end) for each in kept])
    pieces: list[pa.RecordBatch] = []
    for start, end in gaps:
        tell = None if on_damage is None else partial(_tell_before, end, on_damage)
        pieces += log.arrow_batches(start, end, on_damage=tell)
    return sealed.as_written(pieces)


def _tell_before(end: int, on_damage: OnDamage, error: LogCorrupt) -> None:
    """Tell of damage, unless it is of records that a Parquet file has."""
    if error.offset < end:
        on_damage(error)


def _values(payloads: Any, kinds: Any) -> Any:
    """Return payloads as JSON; called by DuckDB for some thousand at a time."""
    pa = load_pyarrow()
    texts = map(payload_json, payloads.to_pylist(), kinds.to_pylist())
    return pa.array(list(texts), pa.string())


def _quoted(name: str) -> str:
    """Return a text as an SQL literal."""
    return '"' + name.replace('"', '""') + '"'
