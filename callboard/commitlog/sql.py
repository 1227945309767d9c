"""Logs as views of DuckDB: sealed segments as Parquet, the rest as Arrow.

The view of a log has the columns of records, a column `value` with the payload as JSON, and a
column for each field of its payloads. The Parquet files have these fields as columns; payloads
are decoded only if a query uses `value`, or fields of records that are not in Parquet files.
DuckDB reads only the columns and row groups that a query needs. Records that are not in Parquet
files are read into memory once, when the log is opened.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

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

    from callboard.commitlog.fields.decoding import Rules

#: Limit of the segments that are read into memory, in bytes; more must be written as Parquet.
TAIL_LIMIT: Final = 1 << 30

_RECORD: Final = (
    "offset", "time", "topic", "key", "headers", "sender", "payload", "is_bytes", "time_ns",
)  # fmt: skip
_VALUE: Final = "callboard_payload_json"
_FIELDS: Final = "callboard_fields"
_SQL_TYPES: Final = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "uint": "UBIGINT",
    "float": "DOUBLE",
    "text": "VARCHAR",
    "bytes": "BLOB",
    "decimal": "DECIMAL(38, 18)",
    "time": "TIMESTAMP WITH TIME ZONE",
}

_log = logging.getLogger("callboard.commitlog")


@contextmanager
def open_sql(
    logs: Mapping[str, str | Path | LogReader],
    *,
    on_damage: OnDamage | None = None,
    tails: Mapping[str, str] | None = None,
    nan: Literal["null", "keep"] = "null",
) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open an in-memory connection of DuckDB in which each log is a view.

    Args:
        logs: Directories of logs, or readers, by the name of the view.
        on_damage: Called with each `LogCorrupt` instead of raising it; the views have all
            readable records. It is also called for damaged Parquet files, whose segments are
            read instead; without it these are logged as warnings.
        tails: For archives, by the name of the view: the place where the log is written.
        nan: Whether a field that is NaN, as pandas records a missing value, is null or stays.

    Raises:
        ExtraMissing: DuckDB or pyarrow is not installed.
        LogFailed: a log does not exist.
        LogCorrupt: durable bytes that are not in a Parquet file are damaged.
        LogError: a log has too many records that are not in Parquet files.
    """
    with closing(load_duckdb().connect()) as connection:
        from callboard.commitlog.fields.decoding import rules_for

        rules = rules_for(nan)
        connection.execute("SET TimeZone = 'UTC'")
        kinds = {"parameters": ["BLOB", "BOOLEAN"], "return_type": "VARCHAR", "type": "arrow"}
        connection.create_function(_VALUE, _values, **kinds, null_handling="special")
        for name, folder in logs.items():
            log = folder
            if not isinstance(log, LogReader):
                log = LogReader(log, tail=(tails or {}).get(name))
            _make_view(connection, name, log, on_damage, rules)
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
    rules: "Rules",
) -> None:
    """Create the view of a log."""
    files = list(_intact(sealed.sealed_segments_in(log.place), on_damage))
    tail = f"{name} (tail)"
    connection.register(tail, _tail(log, [segment for segment, _ in files], on_damage))
    fields = sealed.all_fields(log.place)
    decode = f"{name} (fields)"
    if fields:
        _make_decoder(connection, decode, fields, rules)
    parts = []
    for index, (own, paths) in enumerate(_alike(files)):
        quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        source = f"read_parquet([{quoted}], union_by_name = true)"
        payload = "payload"
        if own.templates:
            payload = _make_restorer(connection, f"{name} (payloads {index})", own)
        parts.append(_select(source, payload, fields, decode, own, rules))
    parts.append(_select(_quoted(tail), "payload", fields, decode, None, rules))
    connection.execute(_view(name, parts, fields))


def _view(name: str, parts: list[str], fields: list[DeclaredField]) -> str:
    """Return the statement that creates a view of parts with the same columns."""
    columns = ", ".join(
        f"f{index} AS {_quoted(column_name(field.name))}" for index, field in enumerate(fields)
    )
    records = ", ".join(_quoted(column) for column in _RECORD)
    columns = ", " * bool(fields) + columns
    whole = " UNION ALL ".join(parts)
    return (
        f"CREATE VIEW {_quoted(name)} AS SELECT {records}, "  # noqa: S608
        f"{_VALUE}(payload, is_bytes)::JSON AS value{columns} FROM ({whole})"
    )


def _select(
    source: str,
    payload: str,
    fields: list[DeclaredField],
    decode: str,
    own: sealed.FileFields | None,
    rules: "Rules",
) -> str:
    """Return the query of some files, or of the tail if `own` is None.

    Args:
        source: The table or function of DuckDB that has the records.
        payload: The expression of payloads.
        fields: The fields of the view.
        decode: Name of the function that decodes them.
        own: The fields of the files.
        rules: With NaN kept, fields are decoded: the files have null for it.
    """
    columns, is_decoding = [], False
    for index, field in enumerate(fields):
        is_float = type_parts(field)[0] == "float" and rules.keeps_nan
        column = None if own is None or is_float else own.source_of(field)
        if column is None:
            expression, is_decoding = f"{_FIELDS}.f{index}", True
        else:
            expression = f"{_quoted(column) if column else 'NULL'}::{_sql_type(field)}"
        columns.append(f", {expression} AS f{index}")
    records = ", ".join(
        f"{payload} AS payload" if column == "payload" else _quoted(column)
        for column in _RECORD
    )
    decoded = f", {_quoted(decode)}({payload}, is_bytes) AS {_FIELDS}" if is_decoding else ""
    inner = source
    if is_decoding:
        inner = f"(SELECT *{decoded} FROM {source})"  # noqa: S608
    return f"SELECT {records}{''.join(columns)} FROM {inner}"  # noqa: S608


def _alike(
    files: list[tuple[sealed.SealedSegment, sealed.FileFields]],
) -> list[tuple[sealed.FileFields, list[str]]]:
    """Return the files in groups with the same columns and templates."""
    groups: dict[str, tuple[sealed.FileFields, list[str]]] = {}
    for segment, fields in files:
        key = repr((fields.fields, fields.templates, sorted(fields.unknown)))
        groups.setdefault(key, (fields, []))[1].append(str(segment.columns))
    return list(groups.values())


def _make_restorer(connection: Any, name: str, own: sealed.FileFields) -> str:
    """Register the function that restores payloads; return the expression that calls it."""
    from callboard.commitlog.fields.restoring import restore_payloads

    pa = load_pyarrow()
    used = {slot.column for template in own.templates for slot in template.slots}
    fields = [field for field in own.fields if column_name(field.name) in used]
    names = [column_name(field.name) for field in fields]

    def restore(payloads: Any, numbers: Any, columns: Any) -> Any:
        payloads, numbers, columns = (
            array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            for array in (payloads, numbers, columns)
        )
        own_columns = dict(zip(names, columns.flatten(), strict=False))
        return restore_payloads(payloads, numbers, own.templates, own_columns)

    kinds = [f"c{index} {_sql_type(field)}" for index, field in enumerate(fields)]
    values = [f"c{index} := {_quoted(column)}" for index, column in enumerate(names)]
    # A STRUCT has at least one value.
    kinds, values = kinds or ["c0 BOOLEAN"], values or ["c0 := true"]
    options = {
        "parameters": ["BLOB", "INTEGER", f"STRUCT({', '.join(kinds)})"],
        "return_type": "BLOB",
        "type": "arrow",
    }
    connection.create_function(name, restore, **options, null_handling="special")
    return f"{_quoted(name)}(payload, {sealed.TEMPLATE}, struct_pack({', '.join(values)}))"


def _sql_type(field: DeclaredField) -> str:
    """Return the type of a field in SQL."""
    base, ending = type_parts(field)
    return _SQL_TYPES[base] + ending


def _make_decoder(
    connection: Any, name: str, fields: list[DeclaredField], rules: "Rules"
) -> None:
    """Register the function that decodes all fields of a log in one call."""
    from callboard.commitlog.fields.decoding import decode_fields

    pa = load_pyarrow()

    def decode(payloads: Any, kinds: Any) -> Any:
        columns = decode_fields(payloads, kinds, fields, rules).columns
        return pa.StructArray.from_arrays(columns, names)

    names = [f"f{i}" for i in range(len(fields))]  # numbered: a field name may be any text
    kinds = map(_sql_type, fields)
    row = ", ".join(map(" ".join, zip(names, kinds, strict=True)))
    options = {
        "parameters": ["BLOB", "BOOLEAN"],
        "return_type": f"STRUCT({row})",
        "type": "arrow",
    }
    connection.create_function(name, decode, **options, null_handling="special")


def _intact(
    segments: list[sealed.SealedSegment], on_damage: OnDamage | None
) -> Iterator[tuple[sealed.SealedSegment, sealed.FileFields]]:
    """Yield the segments with an intact Parquet file; report damaged files."""
    for segment in segments:
        if segment.columns is None:
            continue
        if (intact := sealed.intact_columns(segment)) is not None:
            end, fields = intact
            yield segment._replace(end=end), fields
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
