"""Record batches: the unit of write, checksum and recovery.

All numbers are little-endian.

| offset | size | field |
|---|---|---|
| 0 | 4 | `CBL1` |
| 4 | 4 | CRC-32 of the bytes 8 to 47 |
| 8 | 4 | CRC-32 of the body |
| 12 | 4 | length of the body |
| 16 | 8 | offset of the first record |
| 24 | 8 | time of the first record |
| 32 | 8 | latest time of all its records |
| 40 | 4 | number of records, n |
| 44 | 4 | flags: which columns there are; bit 7: a note; bits 8 to 11: compression |

If the batch has a note of producers (`producing.table`), the body starts with its length (4)
and the note, both uncompressed. The rest of the body: length of the names (4), names (CBOR);
then the columns that the flags declare: times (8 each), topics, keys, headers, senders (4 each,
indexes into the names), kinds (1 each, 1 = plain bytes); then the lengths of the payloads (4
each) and the payloads. The lengths precede all payloads, so one call packs or unpacks a whole
column.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice, repeat
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from cbor2 import CBORDecodeError

from callboard.commitlog.columns import BatchNames, Columns, decode_names
from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogCorrupt
from callboard.commitlog.record import BytesRecord, Record

Buffer = bytes | memoryview
MAGIC: Final = b"CBL1"
_HEADER: Final = struct.Struct("<4sIIIQqqII")
_CHECKED: Final = struct.Struct("<IIQqqII")  # the header without magic and its own checksum
_START: Final = struct.Struct("<4sI")
_NUMBER: Final = struct.Struct("<I")
HEADER_SIZE: Final = _HEADER.size
#: Limit of a body in bytes; a header with a larger length is treated as damaged.
MAX_BODY: Final = 64 << 20
#: Limit of a payload in bytes; names and columns must fit into the same batch.
MAX_RECORD: Final = MAX_BODY // 4
#: Records in one batch; the limit bounds the memory of readers.
MAX_BATCH_RECORDS: Final = 8192

BYTES, KINDS, TIMES, TOPICS, KEYS, HEADERS, SENDERS = (1 << bit for bit in range(7))
_ALL_FLAGS: Final = (1 << 7) - 1
#: The body starts with a note; readers without support for notes refuse the batch.
_NOTED: Final = 1 << 7
_NAMED: Final = (TOPICS, KEYS, HEADERS, SENDERS)
_ALL_ALIKE: Final = [None] * len(_NAMED)
_ANY_NAMED: Final = TOPICS | KEYS | HEADERS | SENDERS
_KINDS_OF_RECORD: Final = (Record, BytesRecord)

Compression = Literal["zlib", "zstd"]
Compressor = Callable[[bytes], bytes]
_ZLIB, _ZSTD = 1 << 8, 2 << 8
#: A body of fewer bytes is not compressed: the call would cost more than it saves.
_SHORT: Final = 1024


class Header(NamedTuple):
    """The header of a batch, without magic and its own checksum."""

    checksum: int
    length: int
    base: int
    first_time: int
    latest_time: int
    records: int
    flags: int


class Batch(NamedTuple):
    """An intact batch of a segment."""

    header: Header
    body: bytes
    position: int

    @property
    def base(self) -> int:
        """The offset of the first record."""
        return self.header.base

    @property
    def end(self) -> int:
        """First offset after the last record."""
        return self.header.base + self.header.records

    @property
    def size(self) -> int:
        """Size on disk in bytes."""
        return HEADER_SIZE + self.header.length


def encode_batch(
    base: int,
    now: int,
    columns: Columns,
    compress: tuple[int, Compressor] | None = None,
    note: bytes = b"",
) -> tuple[bytes, int]:
    """Return an encoded batch and its latest time; `now` is used for records without times."""
    payloads, all_bytes, kinds, names, times, *named = columns
    count = len(payloads)
    parts: list[bytes] = [_NUMBER.pack(len(names)), names]
    flags, first, latest = BYTES if all_bytes else 0, now, now
    if times:
        flags, first, latest = flags | TIMES, times[0], max(times)
        parts.append(struct.pack(f"<{count}q", *times))
    if named != _ALL_ALIKE:
        for flag, column in zip(_NAMED, named, strict=True):
            if column is not None:
                flags |= flag
                parts.append(struct.pack(f"<{count}I", *column))
    if kinds:
        flags |= KINDS
        parts.append(kinds)
    if count == 1:
        parts.append(_NUMBER.pack(len(payloads[0])))
    else:
        parts.append(struct.pack(f"<{count}I", *map(len, payloads)))
    body = b"".join((*parts, *payloads))
    if compress is not None and len(body) >= _SHORT:
        codec, compressed = compress
        short = _NUMBER.pack(len(body)) + compressed(body)
        if len(short) < len(body):
            flags, body = flags | codec, short
    if note:
        flags, body = flags | _NOTED, b"".join((_NUMBER.pack(len(note)), note, body))
    header = crc32(body), len(body), base, first, latest, count, flags
    return encode_header(header) + body, latest


class Packed(NamedTuple):
    """The columns of a batch in stored form; an omitted column is empty."""

    names: bytes
    times: Buffer
    named: Sequence[Buffer]
    kinds: Buffer
    lengths: Buffer
    payloads: Buffer


def encode_packed(base: int, first: int, latest: int, packed: Packed, flags: int) -> bytes:
    """Encode a batch from stored columns.

    Args:
        base: Offset of its first record.
        first: Time of its first record.
        latest: Latest time of all its records.
        packed: The columns.
        flags: `BYTES` if all payloads are bytes; flags of columns are added.
    """
    names, times, named, kinds, lengths, payloads = packed
    for flag, column in zip((TIMES, KINDS, *_NAMED), (times, kinds, *named), strict=True):
        flags |= flag if len(column) else 0
    size = _NUMBER.pack(len(names))
    body = b"".join((size, names, times, *named, kinds, lengths, payloads))
    count = len(lengths) // _NUMBER.size
    return (
        encode_header(Header(crc32(body), len(body), base, first, latest, count, flags)) + body
    )


def encode_header(header: tuple[int, int, int, int, int, int, int]) -> bytes:
    """Encode a header; a batch can be moved to another offset by a new header alone."""
    checked = _CHECKED.pack(*header)
    return _START.pack(MAGIC, crc32(checked)) + checked  # packs the fields only once


def decode_header(data: bytes | memoryview, offset: int = 0) -> Header | None:
    """Decode the header at an offset of `data`; return None if it is not intact."""
    if len(data) - offset < HEADER_SIZE:
        return None
    magic, checksum, *fields = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or checksum != crc32(data[offset + 8 : offset + HEADER_SIZE]):
        return None
    header = Header(*fields)
    return header if header.length <= MAX_BODY and header.records else None


def compressor(name: str) -> tuple[int, Compressor]:
    """Return the flag of a compression and a function that compresses a body.

    Levels are chosen for speed rather than size.

    Raises:
        ExtraMissing: Zstandard is not installed.
        ValueError: the name is unknown.
    """
    if name == "zlib":
        return _ZLIB, lambda body: zlib.compress(body, 1)
    if name == "zstd":
        frames = _zstd().ZstdCompressor(level=1)  # creating one costs more than a frame
        return _ZSTD, lambda body: frames.compress(body, frames.FLUSH_FRAME)
    msg = f"compression={name!r}: give 'zstd', 'zlib' or None"
    raise InvalidOption(msg)


def has_note(header: Header) -> bool:
    """Return whether a batch has a note of producers."""
    return bool(header.flags & _NOTED)


def note_of(batch: Batch) -> bytes:
    """Return the note of a batch; empty if it has none.

    Raises:
        ValueError: the note is malformed.
    """
    if not has_note(batch.header):
        return b""
    size = _NUMBER.unpack_from(batch.body)[0] if len(batch.body) > _NUMBER.size else MAX_BODY
    if _NUMBER.size + size > len(batch.body):
        msg = f"a note of {size:,} bytes in {len(batch.body):,}"
        raise ValueError(msg)
    return batch.body[_NUMBER.size : _NUMBER.size + size]


def plain(batch: Batch) -> Batch:
    """Return a batch without its note and with its body decompressed.

    Raises:
        ValueError: the body is malformed.
        ExtraMissing: Zstandard is not installed.
    """
    (_, _, _, _, _, _, flags), body = batch.header, batch.body
    codec = flags & ~_ALL_FLAGS
    if not codec:
        return batch
    if codec & _NOTED:
        header = batch.header._replace(flags=flags & ~_NOTED)
        rest = body[_NUMBER.size + len(note_of(batch)) :]
        return plain(Batch(header, rest, batch.position))
    size = _NUMBER.unpack_from(body)[0] if len(body) > _NUMBER.size else 0
    if codec not in (_ZLIB, _ZSTD) or not 0 < size <= MAX_BODY:
        msg = f"flags {flags:#x}, {size:,} bytes: a newer callboard may be able to read it"
        raise ValueError(msg)
    body = _zlib_plain(body, size) if codec == _ZLIB else _zstd_plain(body, size)
    if len(body) != size:
        msg = f"the body decompresses to {len(body):,} bytes instead of {size:,}"
        raise ValueError(msg)
    return Batch(batch.header._replace(flags=flags & _ALL_FLAGS), body, batch.position)


def _zlib_plain(body: bytes, size: int) -> bytes:
    """Decompress a zlib body to at most `size` bytes."""
    try:
        return zlib.decompressobj().decompress(memoryview(body)[_NUMBER.size :], size)
    except zlib.error as error:
        raise ValueError(error) from None


def _zstd_plain(body: bytes, size: int) -> bytes:
    """Decompress a Zstandard body to at most `size` bytes."""
    zstd = _zstd()
    try:
        plain_body: bytes = zstd.ZstdDecompressor().decompress(body[_NUMBER.size :], size)
    except zstd.ZstdError as error:
        raise ValueError(error) from None
    return plain_body


def _zstd() -> Any:
    """Import Zstandard: from the standard library since Python 3.14, else an extra."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            pass
    msg = "Zstandard is not installed here; install it with: pip install 'callboard[zstd]'"
    raise ExtraMissing(msg)


def records_of(batch: Batch, first: int = 0) -> Iterator[Record]:
    """Return the records of a batch from offset `first` on.

    Raises:
        LogCorrupt: the checksum is right, but the contents are malformed.
        ExtraMissing: the batch is compressed, and the package for that is not installed.
    """
    try:
        rows, kinds = _rows(plain(batch))
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise malformed(batch, error) from None
    records: Iterator[Record] = map(tuple.__new__, kinds, rows)
    return islice(records, first - batch.base, None) if first > batch.base else records


def malformed(batch: Batch, reason: Exception) -> LogCorrupt:
    """Return the error for a batch whose checksum is right but whose contents are malformed."""
    msg = f"the batch of record {batch.base} is malformed ({reason}); another program wrote it"
    return LogCorrupt(msg, offset=batch.base, next_offset=batch.end)


def times_of(batch: Batch) -> Sequence[int]:
    """Return the times of all records of a batch.

    Raises:
        LogCorrupt: the checksum is right, but the contents are malformed.
        ExtraMissing: the batch is compressed, and the package for that is not installed.
    """
    header = batch.header
    if not header.flags & TIMES:
        return (header.first_time,) * header.records
    try:
        batch = plain(batch)
    except ValueError as error:
        raise malformed(batch, error) from None
    position = 4 + _NUMBER.unpack_from(batch.body)[0]
    return struct.unpack_from(f"<{header.records}q", batch.body, position)


class Layout(NamedTuple):
    """Positions of the columns in the body of a batch; None for a missing column."""

    names: BatchNames
    times: int | None
    named: list[int | None]
    kinds: int | None
    lengths: int
    payloads: int


def layout_of(batch: Batch) -> Layout:
    """Return the positions of the columns of an uncompressed batch.

    Raises:
        ValueError: the batch is malformed.
        struct.error: the body is too short.
    """
    (_, _, _, _, _, count, flags), body = batch.header, batch.body
    if flags > _ALL_FLAGS:
        msg = f"unknown flags {flags:#x}"
        raise ValueError(msg)
    position = 4 + _NUMBER.unpack_from(body)[0]
    try:
        names = decode_names(body[4:position])
    except CBORDecodeError as error:
        raise ValueError(error) from None
    times = kinds = None
    if flags & TIMES:
        times, position = position, position + 8 * count
    named: list[int | None] = [None] * len(_NAMED)
    if flags & _ANY_NAMED:
        for place, flag in enumerate(_NAMED):
            if flags & flag:
                named[place], position = position, position + 4 * count
    if flags & KINDS:
        kinds, position = position, position + count
    return Layout(names, times, named, kinds, position, position + 4 * count)


def _rows(batch: Batch) -> tuple[Iterable[Any], Iterable[type[Record]]]:
    """Return the fields of the records and their classes, after checking their form."""
    header, body, layout = batch.header, batch.body, layout_of(batch)
    count = header.records
    times: Iterable[int] = repeat(header.first_time)
    if layout.times is not None:
        times = struct.unpack_from(f"<{count}q", body, layout.times)
    columns: list[Iterable[Any]] = []
    for position, values in zip(layout.named, layout.names, strict=True):
        if position is None:
            columns.append(repeat(values[0]))
        else:
            columns.append(
                [values[i] for i in struct.unpack_from(f"<{count}I", body, position)]
            )
    kinds: Iterable[type[Record]] = repeat(_KINDS_OF_RECORD[header.flags & BYTES])
    if layout.kinds is not None:
        marks = body[layout.kinds : layout.kinds + count]
        kinds = [_KINDS_OF_RECORD[kind] for kind in marks]
    lengths = struct.unpack_from(f"<{count}I", body, layout.lengths)
    if layout.payloads + sum(lengths) != len(body):
        msg = f"{sum(lengths)} bytes of payloads, {len(body) - layout.payloads} expected"
        raise ValueError(msg)
    source = io.BytesIO(body)  # shares the bytes; reads are faster than slices
    source.seek(layout.payloads)
    offsets = range(header.base, header.base + count)
    return zip(offsets, times, *columns, map(source.read, lengths), strict=False), kinds
