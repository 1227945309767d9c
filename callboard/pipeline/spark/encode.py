"""Encoder from rows of results to record batches of a log, by column where Arrow allows."""

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

#: A column that is ignored: the log that publishes a record assigns its offset.
_DROPPED: Final = "offset"

#: Indices of names if all rows have the same name.
_ALL: Final = memoryview(b"")


class _Payloads(NamedTuple):
    """Payloads of some rows.

    Attributes:
        lengths: Length of each in bytes.
        contents: All payloads, concatenated.
        kinds: For each whether it is plain bytes; None if all are alike.
        flags: `BYTES` if all are plain bytes.
    """

    lengths: pa.Int32Array
    contents: memoryview
    kinds: pa.UInt8Array | None
    flags: int


class RowEncoder:
    """Encodes rows: known columns become parts of the record, others fields of the payload."""

    def __init__(self, schema: pa.Schema, topic: str | None) -> None:
        """Check the columns.

        Args:
            schema: Columns of the rows.
            topic: The topic of rows without such a column.

        Raises:
            InvalidSetting: the topic is missing, or there are fields and a payload.
        """
        names = [name for name in schema.names if name != _DROPPED]
        self._fields = [name for name in names if name not in RECORD_COLUMNS]
        self._names = names
        self._topic = topic
        if "topic" not in names and not topic:
            msg = 'results have no column "topic"; add one, or set option("topic", …)'
            raise InvalidSetting(msg)
        if "payload" in names and self._fields:
            others = ", ".join(self._fields)
            msg = f'there are columns {others} besides "payload"; drop them, or the payload'
            raise InvalidSetting(msg)
        kind = schema.field("time").type if "time" in names else None
        if kind is not None and not pa.types.is_timestamp(kind):
            msg = f'the column "time" is {kind}; it must be a timestamp'
            raise InvalidSetting(msg)
        for name in self._fields:
            if part := _unstorable(name, schema.field(name).type):
                path, kind = part
                msg = (
                    f"the column {path!r} is {kind}, which a log cannot store; cast it to"
                    " a number, a text or a timestamp"
                )
                raise InvalidSetting(msg)

    def encode(self, rows: pa.RecordBatch, base: int, now: int) -> Iterator[bytes]:
        """Yield record batches with the rows.

        Args:
            rows: The rows.
            base: A preliminary offset of the first one.
            now: The time of rows without one, in nanoseconds since 1970.

        Raises:
            InvalidRecord: a row cannot be stored.
        """
        for start in range(0, rows.num_rows, MAX_BATCH_RECORDS):
            part = rows.slice(start, MAX_BATCH_RECORDS)
            payloads = self._payloads(part)
            first = begin = 0
            for end, stop in _cuts(payloads):
                count = end - first
                names, indices = self._named(part.slice(first, count))
                times = self._times(part.slice(first, count), now)
                earliest, latest, stamps, kinds = now, now, _ALL, _ALL
                if times is not None:
                    earliest, latest = times[0].as_py(), pc.max(times).as_py()
                    stamps = _buffer(times)
                if payloads.kinds is not None:
                    kinds = _buffer(payloads.kinds, first, count)
                lengths, contents = payloads.lengths, payloads.contents[begin:stop]
                sizes = _buffer(lengths, first, count)
                packed = Packed(names, stamps, indices, kinds, sizes, contents)
                yield encode_packed(
                    base + start + first, earliest, latest, packed, payloads.flags
                )
                first, begin = end, stop

    def _payloads(self, rows: pa.RecordBatch) -> _Payloads:
        """Return the payloads: the column of that name, or a map of all fields."""
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
        # The bytes are stored unchanged; some may be CBOR, if the rows were read from a log.
        kinds = rows["is_bytes"].fill_null(pa.scalar(value=False)) if tells_kinds else None
        contents, lengths = _contents(column.fill_null(b""))
        plain = rows.num_rows if kinds is None else pc.sum(kinds).as_py()
        is_mixed = 0 < plain < rows.num_rows
        marks = kinds.cast(pa.uint8()) if is_mixed and kinds is not None else None
        return _Payloads(lengths, contents, marks, BYTES if plain else 0)

    def _named(self, rows: pa.RecordBatch) -> tuple[bytes, list[memoryview]]:
        """Return the distinct names of the records, and for each record their indices."""
        topics, of_topics = self._distinct(rows, "topic", self._topic)
        keys, of_keys = self._distinct(rows, "key", None)
        senders, of_senders = self._distinct(rows, "sender", "")
        headers, of_headers = self._headers(rows)
        names = encode_names(topics, keys, headers, [text or "" for text in senders])
        return names, [of_topics, of_keys, of_headers, of_senders]

    def _distinct(
        self, rows: pa.RecordBatch, name: str, default: str | None
    ) -> tuple[list[Any], memoryview]:
        """Return the distinct values of a column, and the index of each row's value."""
        if name not in self._names:
            return [default], _ALL
        column = rows[name].dictionary_encode(null_encoding="encode")
        values = column.dictionary.to_pylist()
        return values, _ALL if len(values) == 1 else _buffer(column.indices)

    def _headers(self, rows: pa.RecordBatch) -> tuple[list[Any], memoryview]:
        """Return the distinct headers, and the index of each row's headers."""
        if "headers" not in self._names or _is_empty(rows["headers"]):
            return [None], _ALL
        pairs = rows["headers"].to_pylist()
        distinct, numbers = interned(
            [header_pairs(None if item is None else dict(item)) for item in pairs], len(pairs)
        )
        headers = [dict(item) for item in distinct]
        return headers, _ALL if numbers is None else _buffer(pa.array(numbers, pa.uint32()))

    def _times(self, rows: pa.RecordBatch, now: int) -> pa.Int64Array | None:
        """Return the times of the rows in nanoseconds; None without such a column."""
        if "time" not in self._names:
            return None
        nanoseconds = rows["time"].cast(pa.timestamp("ns", tz="UTC"), safe=False)
        return nanoseconds.cast(pa.int64()).fill_null(now)


def _unstorable(path: str, kind: pa.DataType) -> tuple[str, pa.DataType] | None:
    """Return the first part of a column that payloads cannot hold, as its path and type."""
    if any(is_kind(kind) for is_kind in _UNSTORABLE):
        return path, kind
    if pa.types.is_map(kind):
        if pa.types.is_nested(kind.key_type):
            return f"{path}.key", kind.key_type
        return _unstorable(f"{path}.key", kind.key_type) or _unstorable(path, kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _unstorable(f"{path}[]", kind.value_type)
    if pa.types.is_struct(kind):
        parts = (_unstorable(f"{path}.{field.name}", field.type) for field in kind)
        return next(filter(None, parts), None)
    return None


_UNSTORABLE: Final = (pa.types.is_duration, pa.types.is_interval, pa.types.is_time)


def _encoded(values: list[Any]) -> _Payloads:
    """Return values as encoded payloads."""
    data, all_bytes, kinds = encode_payloads(values)
    lengths = pa.array([len(payload) for payload in data], pa.int32())
    marks, flags = pa.array(kinds, pa.uint8()) if kinds else None, BYTES if all_bytes else 0
    return _Payloads(lengths, memoryview(b"".join(data)), marks, flags)


def _contents(column: pa.BinaryArray) -> tuple[memoryview, pa.Int32Array]:
    """Return the bytes of a column, and the length of each value."""
    _, offsets, contents = column.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, offsets], offset=column.offset
    )
    lengths = pc.subtract(ends.slice(1), ends.slice(0, len(column)))
    first, last = ends[0].as_py(), ends[len(column)].as_py()
    return memoryview(contents or b"")[first:last], lengths


def _buffer(column: pa.Array, first: int = 0, count: int | None = None) -> memoryview:
    """Return the memory of a column of numbers."""
    part = column.slice(first, count)
    size = part.type.bit_width // 8
    begin = part.offset * size
    return memoryview(part.buffers()[1])[begin : begin + len(part) * size]


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column in the types that CBOR supports."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in values]
    return values


def _is_empty(headers: pa.Array) -> bool:
    """Return whether no record has headers, as in most logs."""
    offsets = headers.offsets
    return bool(offsets[0] == offsets[-1])


def _cuts(payloads: _Payloads) -> Iterator[tuple[int, int]]:
    """Yield the ends of batches of limited size, as row and byte."""
    count, size = len(payloads.lengths), len(payloads.contents)
    if size <= MAX_RECORD:
        yield count, size
        return
    lengths = payloads.lengths.to_pylist()
    largest = max(lengths)
    if largest > MAX_RECORD:
        msg = f"a payload of {largest:,} bytes exceeds the limit of {MAX_RECORD:,}; split it"
        raise InvalidRecord(msg)
    batch_start = previous = 0
    for row, total in enumerate(accumulate(lengths)):
        if total - batch_start > MAX_RECORD:
            yield row, previous
            batch_start = previous
        previous = total
    yield count, size
