"""Records as Arrow tables, for pandas, DuckDB, Spark and others.

The columns of a batch have nearly the form of Arrow's, so no work is done for each record: the
columns of consecutive batches are concatenated and passed on.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from callboard.commitlog.batch import (
    BYTES,
    Batch,
    Buffer,
    Layout,
    layout_of,
    malformed,
    plain,
)
from callboard.commitlog.columns import BatchNames
from callboard.commitlog.errors import ExtraMissing, LogCorrupt

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from callboard.commitlog.reading import LogReading


#: Records in a record batch, unless the caller chooses another number.
ROWS: Final = 1 << 16

_NAMED: Final = ("topic", "key", "headers", "sender")
_NEVER: Final = 1 << 63
_ALL_COMMON: Final[list[int | None]] = [None] * len(_NAMED)
_ONE: Final = array("q", (1,))
#: Limit of the payloads in a record batch, in bytes: Arrow's offsets have 31 bits.
_BYTES: Final = 16 << 20


def load_pyarrow() -> Any:
    """Import pyarrow, which is an extra.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        msg = "this needs pyarrow; install it with: pip install 'callboard[arrow]'"
        raise ExtraMissing(msg) from None
    return pyarrow


def load_numpy() -> Any:
    """Import numpy, which parses payloads a batch at a time.

    Raises:
        ExtraMissing: numpy is not installed.
    """
    try:
        import numpy
    except ImportError:
        msg = "fields of payloads need numpy; install it with: pip install 'callboard[arrow]'"
        raise ExtraMissing(msg) from None
    return numpy


def arrow_schema() -> "pa.Schema":
    """Return the schema of records in Arrow.

    `time` is in nanoseconds, UTC; `key` is bytes (text as UTF-8) or null; `payload` has the
    stored bytes, and `is_bytes` is true if they are plain bytes, false if they are CBOR.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """
    pa = load_pyarrow()
    return pa.schema(
        {
            "offset": pa.int64(),
            "time": pa.timestamp("ns", tz="UTC"),
            "topic": pa.string(),
            "key": pa.binary(),
            "headers": pa.map_(pa.string(), pa.string()),
            "sender": pa.string(),
            "payload": pa.binary(),
            "is_bytes": pa.bool_(),
        }
    )


def record_batches(
    reading: "LogReading",
    end: int | None,
    topic: str = "",
    rows: int = ROWS,
    choose: Callable[[Batch], Batch | None] | None = None,
) -> "Iterator[pa.RecordBatch]":
    """Iterate over records as Arrow record batches, up to, not including, `end`.

    Args:
        reading: Yields the batches of the log, from its cursor on.
        end: First offset after the records; None for all.
        topic: Yield only records whose topic has this prefix.
        rows: Yield a record batch once it has so many rows; a batch of the log is never split.
        choose: Returns the batch to use in place of a batch of the log; None skips it.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogCorrupt: durable bytes are damaged; the records before the damage come first.
    """
    start, end = reading.cursor.offset, _NEVER if end is None else end
    piece = _Piece(load_pyarrow(), topic)
    try:
        for batch in reading.batches() if start < end else ():
            if batch.base >= end:  # retention moved the start
                break
            try:
                piece.add(batch, start, end, choose)
            except LogCorrupt as error:
                reading.meet(error)
            if piece.rows >= rows or piece.size >= _BYTES:
                yield piece.pop()
            if batch.end >= end:
                break
    except LogCorrupt:
        if piece.rows:
            yield piece.pop()
        raise
    if piece.rows:
        yield piece.pop()


class _Piece:
    """Builds one Arrow record batch from batches of the log."""

    def __init__(self, pyarrow: Any, topic: str) -> None:
        self._pa = pyarrow
        self._schema = arrow_schema()
        self._topic = topic
        self._clear()

    def _clear(self) -> None:
        """Start an empty record batch."""
        self.rows, self.size = 0, 0
        self._begin, self._cut = 0, 0
        self._is_mixed = False
        self._steps, self._last = array("q"), 0  # differences between consecutive offsets
        self._times: list[bytes] = []
        self._names = [_Names(value) for value in (_text, _key_bytes, _header_pairs, _text)]
        #: A run of records that share all names: the names, and the length of the run.
        self._common: tuple[BatchNames | None, int] = None, 0
        self._kinds: list[bytes] = []
        self._lengths: list[Buffer] = [bytes(4)]  # their running sums are Arrow's offsets
        self._payloads: list[Buffer] = []

    def add(
        self,
        batch: Batch,
        start: int,
        end: int,
        choose: Callable[[Batch], Batch | None] | None = None,
    ) -> None:
        """Add a batch, unless none of its records is selected.

        Raises:
            LogCorrupt: the checksum is right, but the contents are malformed.
        """
        try:
            chosen = batch if choose is None else choose(batch)
            if chosen is None:
                return
            batch = plain(chosen)
            layout = layout_of(batch)
            topics = layout.names.topics
            if self._topic:
                matches = sum(topic.startswith(self._topic) for topic in topics)
                if not matches:
                    return
                self._is_mixed |= matches < len(topics)
            self._add(batch, layout)
        except (ValueError, TypeError, struct.error) as error:
            raise malformed(batch, error) from None
        self._begin = max(self._begin, start - batch.base)
        self._cut = max(0, batch.end - end)

    def _add(self, batch: Batch, layout: Layout) -> None:
        """Add the columns of a batch, after checking their lengths."""
        header, body = batch.header, memoryview(batch.body)
        count, payloads = header.records, body[layout.payloads :]
        lengths = body[layout.lengths : layout.payloads]
        size = int.from_bytes(lengths, "little") if count == 1 else sum(lengths.cast("I"))
        if size != len(payloads):
            msg = f"{len(payloads)} bytes of payloads, but their lengths add up to {size}"
            raise ValueError(msg)
        if layout.named == _ALL_COMMON:
            self._add_common(layout.names, count)
        else:
            self._write_common()
            try:
                for column, values, start in zip(
                    self._names, layout.names, layout.named, strict=True
                ):
                    numbers = None if start is None else body[start : start + 4 * count]
                    column.add(values, numbers, count)
            except Exception:  # undo, else the next batch's names would be in the wrong rows
                for column in self._names:
                    column.cut(self.rows)
                raise
        self._steps.append(header.base - self._last)
        if count > 1:
            self._steps.extend(_ONE * (count - 1))
        self._last = header.base + count - 1
        if layout.times is None:
            self._times.append(struct.pack("<q", header.first_time) * count)
        else:
            self._times.append(batch.body[layout.times : layout.times + 8 * count])
        if layout.kinds is None:
            self._kinds.append(bytes((header.flags & BYTES,)) * count)
        else:
            self._kinds.append(batch.body[layout.kinds : layout.kinds + count])
        self._lengths.append(lengths)
        self._payloads.append(payloads)
        self.rows += count
        self.size += size

    def _add_common(self, names: BatchNames, count: int) -> None:
        """Extend the run of records that share all names, or start a new run."""
        run_names, length = self._common
        if names is run_names:
            self._common = names, length + count
            return
        self._write_common()
        for column, values in zip(self._names, names, strict=True):
            column.begin_of(values)  # raises for values that Arrow refuses
        self._common = names, count

    def _write_common(self) -> None:
        """Add the names of the current run to the columns, and end the run."""
        names, count = self._common
        if names is not None:
            for column, values in zip(self._names, names, strict=True):
                column.add(values, None, count)
        self._common = None, 0

    def pop(self) -> "pa.RecordBatch":
        """Return the record batch, and start the next one."""
        from pyarrow import compute

        self._write_common()
        pa, schema, numbers = self._pa, self._schema, _numbers
        topics, keys, headers, senders = (
            column.values(pa, schema.field(name).type, self.rows)
            for column, name in zip(self._names, _NAMED, strict=True)
        )
        ends = compute.cumulative_sum(numbers("int32", b"".join(self._lengths))).buffers()[1]
        contents = [None, ends, pa.py_buffer(b"".join(self._payloads))]
        columns = [
            compute.cumulative_sum(numbers("int64", self._steps)),
            numbers("int64", b"".join(self._times)).view(schema.field("time").type),
            topics,
            keys,
            headers,
            senders,
            pa.Array.from_buffers(pa.binary(), self.rows, contents),
            numbers("uint8", b"".join(self._kinds)).cast(pa.bool_()),
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=schema)
        piece = whole.slice(self._begin, self.rows - self._begin - self._cut)
        if self._is_mixed:
            piece = piece.filter(compute.starts_with(piece.column("topic"), self._topic))
        self._clear()
        return piece


def _numbers(alias: str, data: Any) -> Any:
    """Return numbers of 8 to 64 bits in native byte order as an Arrow array."""
    pa = load_pyarrow()
    kind, buffer = pa.type_for_alias(alias), pa.py_buffer(data)
    return pa.Array.from_buffers(kind, buffer.size * 8 // kind.bit_width, [None, buffer])


class _Names:
    """A column of names: the distinct values, and for each record the index of its value."""

    def __init__(self, plain: Callable[[Any], Any]) -> None:
        """Start an empty column; `plain` converts a value to a type that Arrow accepts."""
        self._plain = plain
        self._values: list[Any] = []
        self._places = array("i")
        #: A run of records that share a value: the index of the value, and the run's length.
        self._run = 0, 0
        self._begins: dict[int, tuple[Sequence[Any], int]] = {}

    def add(self, values: Sequence[Any], numbers: memoryview | None, count: int) -> None:
        """Add the column of a batch: its values, and for each record an index into them."""
        begin = self.begin_of(values)
        if numbers is None:
            place, length = self._run
            if place == begin or not length:
                self._run = begin, length + count
            else:
                self._write_run()
                self._run = begin, count
            return
        own = numbers.cast("I")
        if max(own) >= len(values):
            msg = f"name index {max(own)} is out of range: the batch has {len(values)} names"
            raise ValueError(msg)
        self._write_run()
        if begin:
            self._places.extend(array("i", map(begin.__add__, own)))
        else:
            self._places.frombytes(numbers)

    def _write_run(self) -> None:
        """Add the places of the current run, and end the run."""
        place, count = self._run
        if count:
            self._places.extend(array("i", (place,)) * count)
            self._run = 0, 0

    def begin_of(self, values: Sequence[Any]) -> int:
        """Return the index of a batch's first value in this column; add new values."""
        # Equal lists of values are mostly one object (see `decode_names`). The entry refers to
        # the list: if it were freed, another list could get its id.
        entry = self._begins.get(id(values))
        if entry is None:
            plain = [self._plain(value) for value in values]
            entry = self._begins[id(values)] = values, len(self._values)
            self._values += plain
        return entry[1]

    def cut(self, rows: int) -> None:
        """Drop all but the first `rows` records."""
        self._write_run()
        del self._places[rows:]

    def values(self, pa: Any, kind: Any, rows: int) -> Any:
        """Return the column as an Arrow array."""
        self._write_run()
        places = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(self._places)])
        return _array(pa, kind, self._values).take(places)


def _array(pa: Any, kind: Any, values: Sequence[Any]) -> Any:
    """Return an Arrow array of optional bytes, or of header pairs.

    It is built from buffers: `pa.array` of Python objects imports pandas if that is installed,
    which takes longer than reading a million records.
    """
    if not pa.types.is_map(kind):
        whole = [value or b"" for value in values]
        validity = None
        if None in values:
            marks = bytes(value is not None for value in values)
            validity = _numbers("uint8", marks).cast(pa.bool_()).buffers()[1]
        contents = [validity, _ends(whole).buffers()[1], pa.py_buffer(b"".join(whole))]
        return pa.Array.from_buffers(kind, len(whole), contents)
    keys, items = (
        _array(pa, pa.string(), [pair[index] for pairs in values for pair in pairs])
        for index in (0, 1)
    )
    return pa.MapArray.from_arrays(_ends(values), keys, items).cast(kind)


def _ends(values: Sequence[Sized]) -> Any:
    """Return Arrow's offsets of concatenated values: a 0, then the end of each value."""
    return _numbers("int32", array("i", accumulate(map(len, values), initial=0)))


def _text(text: str) -> bytes:
    """Return a text as UTF-8."""
    return text.encode()


def _key_bytes(key: str | bytes | None) -> bytes | None:
    """Return a key as bytes: text as UTF-8."""
    return key.encode() if isinstance(key, str) else key


def _header_pairs(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    """Return headers as the pairs of an Arrow map."""
    pairs = tuple(headers.items())
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        msg = f"headers must be texts, not {pairs!r}"
        raise ValueError(msg)
    return tuple((name.encode(), text.encode()) for name, text in pairs)
