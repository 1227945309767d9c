"""Rows of results as record batches of a log, column by column as far as Arrow has them."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog import InvalidRecord
from callboard.commitlog.batch import (
    BYTES,
    MAX_BATCH_RECORDS,
    MAX_RECORD,
    Packed,
    encode_packed,
)
from callboard.commitlog.columns import encode_names, encode_payloads, header_pairs, interned
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.range_reader import RECORD_COLUMNS

#: A record gets its offset from the log that it is published in.
_DROPPED: Final = "offset"

#: The numbers of names where one serves all.
_ALL: Final = memoryview(b"")


class _Payloads(NamedTuple):
    """Payloads of some rows.

    Attributes:
        lengths: Of each, in bytes.
        contents: All of them, one behind the other.
        kinds: For each whether it is plain bytes; None if all are alike.
        flags: `BYTES` if all are plain bytes.
    """

    lengths: pa.Int32Array
    contents: memoryview
    kinds: pa.UInt8Array | None
    flags: int


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
            payloads = self._payloads(part)
            first = begin = 0
            for end, behind in _cuts(payloads):
                count = end - first
                names, named = self._named(part.slice(first, count))
                times = self._times(part.slice(first, count), now)
                at, latest, stamps, kinds = now, now, _ALL, _ALL
                if times is not None:
                    at, latest = times[0].as_py(), pc.max(times).as_py()
                    stamps = _buffer(times)
                if payloads.kinds is not None:
                    kinds = _buffer(payloads.kinds, first, count)
                lengths, contents = payloads.lengths, payloads.contents[begin:behind]
                sizes = _buffer(lengths, first, count)
                packed = Packed(names, stamps, named, kinds, sizes, contents)
                yield encode_packed(base + start + first, at, latest, packed, payloads.flags)
                first, begin = end, behind

    def _payloads(self, rows: pa.RecordBatch) -> _Payloads:
        """Return the payloads of rows: the column of that name, or all fields as a map."""
        if "payload" not in self._names:
            columns = [_values(rows[name]) for name in self._fields]
            fields = self._fields
            if not columns:
                return _encoded([{}] * rows.num_rows)
            return _encoded(
                [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
            )
        column = rows["payload"]
        tells_kinds = "is_bytes" in self._names
        if not pa.types.is_binary(column.type) or (column.null_count and not tells_kinds):
            return _encoded(_values(column))
        # The bytes are stored as they are; some may be of CBOR that was read.
        kinds = rows["is_bytes"].fill_null(pa.scalar(value=False)) if tells_kinds else None
        contents, lengths = _contents(column.fill_null(b""))
        plain = rows.num_rows if kinds is None else pc.sum(kinds).as_py()
        is_mixed = 0 < plain < rows.num_rows
        marks = kinds.cast(pa.uint8()) if is_mixed and kinds is not None else None
        return _Payloads(lengths, contents, marks, BYTES if plain else 0)

    def _named(self, rows: pa.RecordBatch) -> tuple[bytes, list[memoryview]]:
        """Return the names of records, and for each record the numbers of its own."""
        topics, of_topics = self._distinct(rows, "topic", self._topic)
        keys, of_keys = self._distinct(rows, "key", None)
        senders, of_senders = self._distinct(rows, "sender", "")
        headers, of_headers = self._headers(rows)
        names = encode_names(topics, keys, headers, [text or "" for text in senders])
        return names, [of_topics, of_keys, of_headers, of_senders]

    def _distinct(
        self, rows: pa.RecordBatch, name: str, default: str | None
    ) -> tuple[list[Any], memoryview]:
        """Return the distinct values of a column, and the numbers of each row's own."""
        if name not in self._names:
            return [default], _ALL
        column = rows[name].dictionary_encode(null_encoding="encode")
        values = column.dictionary.to_pylist()
        return values, _ALL if len(values) == 1 else _buffer(column.indices)

    def _headers(self, rows: pa.RecordBatch) -> tuple[list[Any], memoryview]:
        """Return the distinct headers, and the numbers of each row's own."""
        if "headers" not in self._names or _is_empty(rows["headers"]):
            return [None], _ALL
        pairs = rows["headers"].to_pylist()
        distinct, numbers = interned(
            [header_pairs(None if each is None else dict(each)) for each in pairs], len(pairs)
        )
        found = [dict(each) for each in distinct]
        return found, _ALL if numbers is None else _buffer(pa.array(numbers, pa.uint32()))

    def _times(self, rows: pa.RecordBatch, now: int) -> pa.Int64Array | None:
        """Return the rows' times in nanoseconds; None if they have none."""
        if "time" not in self._names:
            return None
        nanoseconds = rows["time"].cast(pa.timestamp("ns", tz="UTC"), safe=False)
        return nanoseconds.cast(pa.int64()).fill_null(now)


def _encoded(values: list[Any]) -> _Payloads:
    """Return values as payloads."""
    data, all_bytes, kinds = encode_payloads(values)
    lengths = pa.array([len(each) for each in data], pa.int32())
    marks, flags = pa.array(kinds, pa.uint8()) if kinds else None, BYTES if all_bytes else 0
    return _Payloads(lengths, memoryview(b"".join(data)), marks, flags)


def _contents(column: pa.BinaryArray) -> tuple[memoryview, pa.Int32Array]:
    """Return the bytes of a column, and how long each value is."""
    _, offsets, contents = column.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, offsets], offset=column.offset
    )
    lengths = pc.subtract(ends.slice(1), ends.slice(0, len(column)))
    first, last = ends[0].as_py(), ends[len(column)].as_py()
    return memoryview(contents or b"")[first:last], lengths


def _buffer(column: pa.Array, first: int = 0, count: int | None = None) -> memoryview:
    """Return numbers as the bytes that they are in memory."""
    part = column.slice(first, count)
    size = part.type.bit_width // 8
    begin = part.offset * size
    return memoryview(part.buffers()[1])[begin : begin + len(part) * size]


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


def _cuts(payloads: _Payloads) -> Iterator[tuple[int, int]]:
    """Return where to cut so that no batch gets too large: after which row, and which byte."""
    count, size = len(payloads.lengths), len(payloads.contents)
    if size <= MAX_RECORD:
        yield count, size
        return
    lengths = payloads.lengths.to_pylist()
    largest = max(lengths)
    if largest > MAX_RECORD:
        what = f"a payload of {largest:,} bytes exceeds the limit of {MAX_RECORD:,}; split it"
        raise InvalidRecord(what)
    taken = before = 0
    for row, upto in enumerate(accumulate(lengths)):
        if upto - taken > MAX_RECORD:
            yield row, before
            taken = before
        before = upto
    yield count, size
