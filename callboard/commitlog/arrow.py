"""Records as an Arrow table, for pandas, DuckDB, Spark and the rest."""

from itertools import islice
from typing import TYPE_CHECKING, Any

from callboard.commitlog.errors import ExtraMissing

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from callboard.commitlog.reader import LogReader


def to_table(log: "LogReader", start: int, end: int) -> "pa.Table":
    """Return the records from `start` up to, not with, `end`; those that are still there.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        what = "to_arrow needs pyarrow; install it with: pip install 'callboard[arrow]'"
        raise ExtraMissing(what) from None
    kinds: dict[str, Any] = {
        "offset": pa.int64(),
        "time": pa.timestamp("ns", tz="UTC"),
        "topic": pa.string(),
        "key": pa.binary(),
        "headers": pa.map_(pa.string(), pa.string()),
        "payload": pa.binary(),
        "is_bytes": pa.bool_(),
    }
    reading, rows = log.read(start), []
    for record in islice(reading, max(0, end - start)):
        if record.offset >= end:  # retention moved the start
            break
        key = record.key.encode() if isinstance(record.key, str) else record.key
        headers = list(record.headers.items())
        rows.append((*record[:3], key, headers, record.data, record.is_bytes))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
    arrays = [
        pa.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(kinds.items())))
