"""Restores the stored bytes of payloads from typed columns.

A column file leaves out the payload of a record if its columns and a `StoredTemplate` give back
the same bytes. The templates of a file are in its metadata. A template does not say how every
payload was encoded, only how most of its kind were. The writer of a file therefore compares the
restored payload of each record with the stored one, and keeps the stored one if they differ.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog.fields.templates import Numbers
from callboard.support.nesting import parse_json

#: Encodings of a value. "constant" has no column: all values are the null literal.
CONSTANT: Final = "constant"
_NULL: Final = b"\xf6"
#: Bytes of the longest head of a value.
_HEAD: Final = 9
#: Characters of a time with microseconds as Arrow writes it, and bytes of its encoding.
_TIME: Final = 26
_TIME_ROOM: Final = _TIME + 3


class StoredSlot(NamedTuple):
    """One value of a template.

    Attributes:
        literal: The bytes before the value.
        column: The column with the values; empty for a constant.
        encoding: How they are encoded: a key of `_ENCODERS`, or `CONSTANT`.
        null: The bytes of a null value.
    """

    literal: bytes
    column: str
    encoding: str
    null: bytes = _NULL


class StoredTemplate(NamedTuple):
    """The values of payloads of one kind; `end` is the payload of a kind without values."""

    slots: tuple[StoredSlot, ...]
    end: bytes = b""


def templates_to_json(templates: Iterable[StoredTemplate]) -> str:
    """Return templates as JSON."""
    rows = [
        [
            [
                [slot.literal.hex(), slot.column, slot.encoding, slot.null.hex()]
                for slot in template.slots
            ],
            template.end.hex(),
        ]
        for template in templates
    ]
    return json.dumps(rows)


def templates_from_json(text: str | bytes) -> list[StoredTemplate]:
    """Return templates from JSON.

    Raises:
        ValueError: the text is malformed, or a newer callboard wrote it.
    """
    templates = []
    try:
        for rows, end in parse_json(text):
            slots = tuple(
                StoredSlot(bytes.fromhex(literal), column, encoding, bytes.fromhex(null))
                for literal, column, encoding, null in rows
            )
            templates.append(StoredTemplate(slots, bytes.fromhex(end)))
    except TypeError as error:
        raise ValueError(error) from None
    unknown = {slot.encoding for template in templates for slot in template.slots} - {
        CONSTANT,
        *_ENCODERS,
    }
    if unknown:
        msg = (
            f"encodings {', '.join(sorted(unknown))}: a newer callboard may be able to read it"
        )
        raise ValueError(msg)
    return templates


def restore_payloads(
    payloads: pa.Array,
    numbers: pa.Array,
    templates: list[StoredTemplate],
    columns: Mapping[str, pa.Array],
) -> pa.Array:
    """Return payloads of which some are left out.

    Args:
        payloads: The stored ones, null where they are left out.
        numbers: For each record the number of its template; null if its payload is stored.
        templates: The templates of the file.
        columns: The columns that they name.
    """
    of_rows = np.asarray(pc.fill_null(numbers, -1))
    if not (of_rows >= 0).any():
        return payloads
    pieces, rows = [payloads], []
    for number in np.unique(of_rows[of_rows >= 0]):
        chosen = np.flatnonzero(of_rows == number)
        template = templates[number]
        if len(chosen) == len(of_rows):
            return restored(template, columns, len(chosen))
        place = pa.array(chosen)
        names = {slot.column for slot in template.slots if slot.column}
        own = {name: columns[name].take(place) for name in names}
        pieces.append(restored(template, own, len(chosen)))
        rows.append(chosen)
    order = np.arange(len(of_rows))
    order[np.concatenate(rows)] = len(of_rows) + np.arange(sum(map(len, rows)))
    return pa.concat_arrays(pieces).take(pa.array(order))


def restored(template: StoredTemplate, columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return the payloads of records of one template.

    Args:
        template: The template.
        columns: The columns that it names, with only these records.
        count: Number of records.
    """
    if not template.slots:
        return _repeated(template.end, count)
    parts: list[Any] = []
    fixed = b""
    for slot in template.slots:
        if slot.encoding == CONSTANT:
            fixed += slot.literal + slot.null
            continue
        column = columns[slot.column]
        parts += _ENCODERS[slot.encoding](column, fixed + slot.literal, slot.null)
        fixed = b""
    if fixed:
        parts.append(_repeated(fixed, count))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def _repeated(data: bytes, count: int) -> pa.Array:
    """Return an array that holds the same bytes `count` times."""
    return pa.array([data], pa.binary()).take(pa.array(np.zeros(count, np.int64)))


_Encode = Callable[[Any, bytes, bytes], list[Any]]


def _fixed(dtype: str, head: int) -> _Encode:
    """Return the encoder of floats of one width."""

    def encode(column: Any, literal: bytes, null: bytes) -> list[Any]:
        values, is_null = _values(column)
        with np.errstate(over="ignore", invalid="ignore"):
            bits = np.ascontiguousarray(values.astype(dtype)).view(np.uint8)
        table, width = _table(len(values), literal)
        size = np.dtype(dtype).itemsize
        table[:, width] = head
        table[:, width + 1 : width + 1 + size] = bits.reshape(-1, size)
        lengths = np.full(len(values), width + 1 + size)
        return [_rows(table, lengths, is_null, width, null)]

    return encode


def _integers(column: Any, literal: bytes, null: bytes) -> list[Any]:
    """Encode integers in their shortest form."""
    values, is_null = _values(column)
    if values.dtype == np.float64:
        with np.errstate(invalid="ignore"):
            values = values.astype(np.int64)
    is_negative = values < 0
    numbers = np.where(is_negative, -1 - values.astype(np.int64), values).astype(np.uint64)
    return [_with_heads(numbers, literal, null, is_null, is_negative.astype(np.uint8) << 5)]


def _truths(column: Any, literal: bytes, null: bytes) -> list[Any]:
    """Encode truth values."""
    values, is_null = _values(column.cast(pa.uint8()))
    table, width = _table(len(values), literal)
    table[:, width] = 0xF4 + values
    return [_rows(table, np.full(len(values), width + 1), is_null, width, null)]


def _texts(major: int) -> _Encode:
    """Return the encoder of texts or bytes."""

    def encode(column: Any, literal: bytes, null: bytes) -> list[Any]:
        column = column.cast(pa.binary())
        lengths = np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.uint64)
        is_null = np.asarray(column.is_null()) if column.null_count else None
        heads: Numbers = np.full(len(lengths), major << 5, np.uint8)
        return [
            _with_heads(lengths, literal, null, is_null, heads),
            column.fill_null(b"") if column.null_count else column,
        ]

    return encode


def _times(tag: bytes) -> _Encode:
    """Return the encoder of times as text of ISO 8601 in UTC, as cbor2 writes them."""

    def encode(column: Any, literal: bytes, null: bytes) -> list[Any]:
        values, is_null = _values(column.cast(pa.int64()))
        moments = pa.array(values).cast(pa.timestamp("us"))
        texts = moments.cast(pa.string()).cast(pa.binary())
        table, begin = _table(len(values), literal + tag, _TIME_ROOM)
        lengths = np.asarray(pc.binary_length(texts))
        sizes = np.full(len(values), begin)  # too short: such a payload is not restored
        if (lengths == _TIME).all():  # always, between the years 0 and 9999
            content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
            text = content[texts.offset * _TIME :][: _TIME * len(texts)].reshape(-1, _TIME)
            is_whole = values % 1_000_000 == 0
            for chosen, size in ((is_whole, _TIME - 7), (~is_whole, _TIME)):
                head = (0x78, size + 1) if size >= 23 else (0x60 + size + 1,)
                part = table[chosen]
                start = begin + len(head)
                part[:, begin:start] = head
                part[:, start : start + size] = text[chosen][:, :size]
                part[:, start + 10] = ord("T")
                part[:, start + size] = ord("Z")
                table[chosen] = part
                sizes[chosen] = start + size + 1
        return [_rows(table, sizes, is_null, len(literal), null)]

    return encode


_ENCODERS: Final[Mapping[str, _Encode]] = {
    "int": _integers,
    "f64": _fixed(">f8", 0xFB),
    "f32": _fixed(">f4", 0xFA),
    "f16": _fixed(">f2", 0xF9),
    "bool": _truths,
    "text": _texts(3),
    "bytes": _texts(2),
    "time": _times(b"\xc0"),
    "time text": _times(b""),
}


def _values(column: Any) -> tuple[Numbers, Numbers | None]:
    """Return a column as numbers, and which of them are null; None if none is."""
    if not column.null_count:
        return column.to_numpy(), None
    return column.fill_null(0).to_numpy(), np.asarray(column.is_null())


def _table(count: int, literal: bytes, room: int = _HEAD) -> tuple[Numbers, int]:
    """Return a table with a row of bytes for each record, which begins with a literal."""
    width = len(literal)
    table: Numbers = np.empty((count, width + room), np.uint8)
    table[:, :width] = np.frombuffer(literal, np.uint8)
    return table, width


def _with_heads(
    numbers: Numbers, literal: bytes, null: bytes, is_null: Numbers | None, majors: Numbers
) -> pa.Array:
    """Return a literal and the head of each value, with its argument in the shortest form."""
    table, width = _table(len(numbers), literal)
    sizes: Numbers = np.zeros(len(numbers), np.uint64)
    heads = np.minimum(numbers, 23).astype(np.uint8)
    for code, (limit, size) in enumerate(
        ((24, 1), (1 << 8, 2), (1 << 16, 4), (1 << 32, 8)), 24
    ):
        is_longer = numbers >= np.uint64(limit)
        sizes[is_longer] = size
        heads[is_longer] = code
    table[:, width] = heads | majors
    shifts = (64 - 8 * sizes) & np.uint64(63)
    bits = (numbers << shifts).byteswap()
    table[:, width + 1 : width + 9] = bits.view(np.uint8).reshape(-1, 8)
    return _rows(table, width + 1 + sizes.astype(np.int64), is_null, width, null)


def _rows(
    table: Numbers, lengths: Numbers, is_null: Numbers | None, width: int, null: bytes
) -> pa.Array:
    """Return the first bytes of each row of a table as binary; nulls have the null literal."""
    if is_null is not None:
        table[np.flatnonzero(is_null)[:, None], np.arange(width, width + len(null))] = (
            np.frombuffer(null, np.uint8)
        )
        lengths = np.where(is_null, width + len(null), lengths)
    borders: Numbers = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=borders[1:])
    if len(lengths) and (lengths == lengths[0]).all():
        flat = np.ascontiguousarray(table[:, : int(lengths[0])])
    else:
        flat = table[np.arange(table.shape[1]) < lengths[:, None]]
    content = [None, pa.py_buffer(borders), pa.py_buffer(flat)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), content)
