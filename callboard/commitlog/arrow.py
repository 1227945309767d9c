"""Records as Arrow tables, for pandas, DuckDB, Spark and the rest.

The columns of a batch are nearly those of Arrow, so nothing is done for each record: what
stands in a batch is put together with that of the next ones, and handed over.
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


#: Records after which a piece is handed over, unless the caller says otherwise.
ROWS: Final = 1 << 16

_NAMED: Final = ("topic", "key", "headers", "sender")
_NEVER: Final = 1 << 63
_ALL_COMMON: Final[list[int | None]] = [None] * len(_NAMED)
_ONE: Final = array("q", (1,))
#: Bytes of payloads after which a piece is handed over: Arrow counts them in 31 bits.
_BYTES: Final = 16 << 20


def load_pyarrow() -> Any:
    """Return the package, which is an extra.

    Raises:
        ExtraMissing: it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        what = "this needs pyarrow; install it with: pip install 'callboard[arrow]'"
        raise ExtraMissing(what) from None
    return pyarrow


def arrow_schema() -> "pa.Schema":
    """Return the columns that records have in Arrow.

    `time` is in nanoseconds, UTC; `key` is bytes (text as UTF-8) or null; `payload` is what is
    stored, and `is_bytes` tells whether that is plain bytes or CBOR.

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
    """Iterate over records as record batches of about so many rows, up to, not with, `end`.

    Args:
        reading: Where to begin.
        end: The offset behind the last record that is wanted; None for all there are.
        topic: Only records whose topic begins so; batches without any are skipped whole.
        rows: Records after which a piece is handed over; a batch of the log is never split.
        choose: Returns a batch, or None for one that is passed over.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogCorrupt: durable bytes are damaged; what stands before comes first.
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
                yield piece.take()
            if batch.end >= end:
                break
    except LogCorrupt:
        if piece.rows:
            yield piece.take()
        raise
    if piece.rows:
        yield piece.take()


class _Piece:
    """Batches on their way into one record batch."""

    def __init__(self, pyarrow: Any, topic: str) -> None:
        self._pa = pyarrow
        self._schema = arrow_schema()
        self._topic = topic
        self._clear()

    def _clear(self) -> None:
        """Begin an empty piece."""
        self.rows, self.size = 0, 0
        self._begin, self._cut = 0, 0
        self._is_mixed = False
        self._steps, self._last = array("q"), 0  # from one offset to the next
        self._times: list[bytes] = []
        self._names = [_Names(value) for value in (_text, _key_bytes, _header_pairs, _text)]
        #: Of records that have all their names in common: the table, and how many they are.
        self._common: tuple[BatchNames | None, int] = None, 0
        self._kinds: list[bytes] = []
        self._lengths: list[Buffer] = [bytes(4)]  # the sums of what follows are Arrow's offsets
        self._payloads: list[Buffer] = []

    def add(
        self,
        batch: Batch,
        start: int,
        end: int,
        choose: Callable[[Batch], Batch | None] | None = None,
    ) -> None:
        """Take the records of a batch that are wanted.

        Raises:
            LogCorrupt: the checksum is right, but the contents are not what we write.
        """
        try:
            chosen = batch if choose is None else choose(batch)
            if chosen is None:
                return
            batch = plain(chosen)
            layout = layout_of(batch)
            topics = layout.names.topics
            if self._topic:
                wanted = sum(topic.startswith(self._topic) for topic in topics)
                if not wanted:
                    return
                self._is_mixed |= wanted < len(topics)
            self._add(batch, layout)
        except (ValueError, TypeError, struct.error) as error:
            raise malformed(batch, error) from None
        self._begin = max(self._begin, start - batch.base)
        self._cut = max(0, batch.end - end)

    def _add(self, batch: Batch, layout: Layout) -> None:
        """Take the columns of a batch, checking that their lengths fit."""
        header, body = batch.header, memoryview(batch.body)
        count, payloads = header.records, body[layout.payloads :]
        lengths = body[layout.lengths : layout.payloads]
        size = int.from_bytes(lengths, "little") if count == 1 else sum(lengths.cast("I"))
        if size != len(payloads):
            what = f"{len(payloads)} bytes of payloads are not what their lengths say"
            raise ValueError(what)
        if layout.named == _ALL_COMMON:
            self._add_common(layout.names, count)
        else:
            self._write_common()
            try:
                for column, values, at in zip(
                    self._names, layout.names, layout.named, strict=True
                ):
                    column.add(values, None if at is None else body[at : at + 4 * count], count)
            except Exception:  # else the next batch's names would stand against other rows
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
        """Count records of batches that follow each other and have one table of names."""
        known, before = self._common
        if names is known:
            self._common = names, before + count
            return
        self._write_common()
        for column, values in zip(self._names, names, strict=True):
            column.begin_of(values)  # refuses what Arrow does not take
        self._common = names, count

    def _write_common(self) -> None:
        """Write out the names that the records so far have in common."""
        names, count = self._common
        if names is not None:
            for column, values in zip(self._names, names, strict=True):
                column.add(values, None, count)
        self._common = None, 0

    def take(self) -> "pa.RecordBatch":
        """Return what was added, and begin the next piece."""
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
        wanted = whole.slice(self._begin, self.rows - self._begin - self._cut)
        if self._is_mixed:
            wanted = wanted.filter(compute.starts_with(wanted.column("topic"), self._topic))
        self._clear()
        return wanted


def _numbers(alias: str, data: Any) -> Any:
    """Return numbers, of 8 to 64 bits as the machine has them, as an array."""
    pa = load_pyarrow()
    kind, buffer = pa.type_for_alias(alias), pa.py_buffer(data)
    return pa.Array.from_buffers(kind, buffer.size * 8 // kind.bit_width, [None, buffer])


class _Names:
    """One column: the values of each table of names, and for each record where its own is."""

    def __init__(self, plain: Callable[[Any], Any]) -> None:
        """Begin without records; `plain` makes of a value what Arrow takes."""
        self._plain = plain
        self._values: list[Any] = []
        self._places = array("i")
        #: Where the value stands that the last records have in common, and how many they are.
        self._run = 0, 0
        self._begins: dict[int, tuple[Sequence[Any], int]] = {}

    def add(self, values: Sequence[Any], numbers: memoryview | None, count: int) -> None:
        """Take the column of a batch: its table, and the number of each record in this."""
        begin = self.begin_of(values)
        if numbers is None:
            place, before = self._run
            if place == begin or not before:
                self._run = begin, before + count
            else:
                self._write_run()
                self._run = begin, count
            return
        own = numbers.cast("I")
        if max(own) >= len(values):
            what = f"number {max(own)} in a table of {len(values)} names"
            raise ValueError(what)
        self._write_run()
        if begin:
            self._places.extend(array("i", map(begin.__add__, own)))
        else:
            self._places.frombytes(numbers)

    def _write_run(self) -> None:
        """Write out the places of records that have one value in common."""
        place, count = self._run
        if count:
            self._places.extend(array("i", (place,)) * count)
            self._run = 0, 0

    def begin_of(self, values: Sequence[Any]) -> int:
        """Return where a table stands behind the others, to which it is added if needed."""
        # Equal tables mostly are one object; the entry keeps it, so that its id stays its own.
        entry = self._begins.get(id(values))
        if entry is None:
            plain = [self._plain(value) for value in values]
            entry = self._begins[id(values)] = values, len(self._values)
            self._values += plain
        return entry[1]

    def cut(self, rows: int) -> None:
        """Forget what was taken behind so many records."""
        self._write_run()
        del self._places[rows:]

    def values(self, pa: Any, kind: Any, rows: int) -> Any:
        """Return the values of the records."""
        self._write_run()
        places = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(self._places)])
        return _array(pa, kind, self._values).take(places)


def _array(pa: Any, kind: Any, values: Sequence[Any]) -> Any:
    """Return bytes or None, or the pairs of headers, as an array.

    By its buffers: `pa.array` of Python's objects imports pandas where it is installed, which
    takes longer than to read a million records.
    """
    if not pa.types.is_map(kind):
        whole = [value or b"" for value in values]
        is_there = None
        if None in values:
            marks = bytes(value is not None for value in values)
            is_there = _numbers("uint8", marks).cast(pa.bool_()).buffers()[1]
        contents = [is_there, _ends(whole).buffers()[1], pa.py_buffer(b"".join(whole))]
        return pa.Array.from_buffers(kind, len(whole), contents)
    keys, items = (
        _array(pa, pa.string(), [pair[at] for pairs in values for pair in pairs])
        for at in (0, 1)
    )
    return pa.MapArray.from_arrays(_ends(values), keys, items).cast(kind)


def _ends(values: Sequence[Sized]) -> Any:
    """Return where values end that stand behind each other, with a 0 in front."""
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
        what = f"headers {pairs!r} are not texts"
        raise ValueError(what)
    return tuple((name.encode(), text.encode()) for name, text in pairs)
