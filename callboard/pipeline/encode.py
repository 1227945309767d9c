"""Rows of results as record batches of a log."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from callboard.commitlog import InvalidRecord
from callboard.commitlog.batch import encode_batch
from callboard.commitlog.columns import many_records
from callboard.commitlog.log import MAX_BATCH_RECORDS, MAX_RECORD
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.range_reader import RECORD_COLUMNS

_DROPPED: Final = "offset"
"""A record gets its offset from the log that it is published in."""


class RowEncoder:
    """Encodes rows: columns of a record by their names, all others as fields of the payload."""

    def __init__(self, schema: pa.Schema, topic: str | None) -> None:
        """Look at the columns.

        Args:
            schema: What the rows have.
            topic: The topic of rows that have no column of that name.

        Raises:
            InvalidSetting: rows have no topic, or fields beside a payload.
        """
        names = [name for name in schema.names if name != _DROPPED]
        self._fields = [name for name in names if name not in RECORD_COLUMNS]
        self._names = names
        self._topic = topic
        if "topic" not in names and not topic:
            what = 'results have no column "topic"; add one, or give option("topic", …)'
            raise InvalidSetting(what)
        if "payload" in names and self._fields:
            beside = ", ".join(self._fields)
            what = f'columns {beside} stand beside "payload"; drop them, or the payload'
            raise InvalidSetting(what)
        kind = schema.field("time").type if "time" in names else None
        if kind is not None and not pa.types.is_timestamp(kind):
            what = f'the column "time" is {kind}; it has to be a timestamp'
            raise InvalidSetting(what)

    def encode(self, rows: pa.RecordBatch, base: int, now: int) -> Iterator[bytes]:
        """Iterate over the batches of a log that hold the rows.

        Args:
            rows: What is to be published.
            base: The offset of the first one, as yet without meaning.
            now: The time of rows that have none, in nanoseconds since 1970.

        Raises:
            InvalidRecord: a row cannot be stored.
        """
        for start in range(0, rows.num_rows, MAX_BATCH_RECORDS):
            part = rows.slice(start, MAX_BATCH_RECORDS)
            payloads, kinds = self._payloads(part)
            columns = {
                name: part[name].to_pylist()
                for name in ("topic", "key", "headers", "sender")
                if name in self._names and not (name == "headers" and _is_empty(part[name]))
            }
            times = self._times(part, now)
            first = 0
            for end in _cuts(payloads):
                span = slice(first, end)
                cut = {name: column[span] for name, column in columns.items()}
                columns_of_batch = many_records(
                    payloads[span],
                    cut.get("topic") or self._topic or "",
                    cut.get("key"),
                    _mappings(cut.get("headers")),
                    _texts(cut.get("sender")),
                    times[span] if times else None,
                )
                if kinds is not None:  # the bytes are of CBOR, as they were read
                    columns_of_batch = columns_of_batch._replace(
                        all_bytes=False, kinds=bytes(kinds[span])
                    )
                yield encode_batch(base + start + first, now, columns_of_batch)[0]
                first = end

    def _payloads(self, rows: pa.RecordBatch) -> tuple[list[Any], list[bool] | None]:
        """Return payloads, and where they are bytes as stored, which of them are no CBOR."""
        if "payload" not in self._names:
            columns = [_values(rows[name]) for name in self._fields]
            fields = self._fields
            if not columns:
                return [{}] * rows.num_rows, None
            return [
                dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)
            ], None
        payloads = _values(rows["payload"])
        if "is_bytes" not in self._names or not pa.types.is_binary(rows["payload"].type):
            return payloads, None
        kinds = [bool(kind) for kind in rows["is_bytes"].to_pylist()]
        return [payload or b"" for payload in payloads], None if all(kinds) else kinds

    def _times(self, rows: pa.RecordBatch, now: int) -> list[int] | None:
        if "time" not in self._names:
            return None
        nanoseconds = rows["time"].cast(pa.timestamp("ns", tz="UTC"), safe=False)
        return [
            now if each is None else each for each in nanoseconds.cast(pa.int64()).to_pylist()
        ]


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as what CBOR holds."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in values]
    return values


def _is_empty(headers: pa.Array) -> bool:
    """Whether no record has any, as in most logs."""
    offsets = headers.offsets
    return bool(offsets[0] == offsets[-1])


def _mappings(column: list[Any] | None) -> list[dict[str, str] | None] | None:
    return column and [None if pairs is None else dict(pairs) for pairs in column]


def _texts(column: list[str | None] | None) -> Sequence[str] | str:
    return [text or "" for text in column] if column else ""


def _cuts(payloads: list[Any]) -> Iterator[int]:
    """Return where to cut so that no batch gets too large; mostly only at the end."""
    sizes = [len(each) if isinstance(each, bytes | str) else 0 for each in payloads]
    if sum(sizes) <= MAX_RECORD:
        yield len(payloads)
        return
    largest = max(sizes)
    if largest > MAX_RECORD:
        what = f"a payload of {largest:,} bytes exceeds the limit of {MAX_RECORD:,}; split it"
        raise InvalidRecord(what)
    taken = 0
    for end, (before, upto) in enumerate(
        zip(accumulate(sizes, initial=0), accumulate(sizes), strict=False)
    ):
        if upto - taken > MAX_RECORD:
            yield end
            taken = before
    yield len(payloads)
