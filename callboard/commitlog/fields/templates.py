"""Templates of CBOR payloads, with which a whole batch is parsed one field at a time.

Records of one kind mostly have the same keys in the same order, so their payloads differ only
in their values. A `Template` holds the bytes that they share, and the names of the fields.
`scan` finds the templates of a batch and reads the values of all its records with numpy: for
each field one operation on all records, instead of one object for each value.

A template covers maps with text keys, maps in them, lists at the top, and single values. A
payload with a list in a map, an unusual key, a tag other than that of a time, or a length that
is not definite has no template; `decoding` decodes it by itself.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

#: Kinds of values; the first one has no column of its own.
OTHER, INT, FLOAT, TEXT, BOOL, NULL, BYTES, TIME = range(8)

#: Templates that are tried for the records of one batch.
TEMPLATES_LIMIT: Final = 64
#: Payloads in a row without a template, after which the rest of a batch is not tried.
_STRANGE_LIMIT: Final = 16
#: Fields of a template.
_SLOTS_LIMIT: Final = 500
#: Bytes after the payloads that may be read without a check of the end.
_PADDING: Final = 16
_LONGEST: Final = 1 << 31
#: The field of a payload that is neither a map nor a list.
WHOLE: Final = "value"

#: Arrays of numpy; its types depend on its version.
Numbers = Any

_TAG_TIME: Final = 0xC0
_LIST: Final = 4
_MAP: Final = 5
#: Levels of maps in a template.
_DEPTH_LIMIT: Final = 8


def _kinds_of_heads() -> tuple[Numbers, Numbers]:
    """Return the kind of value and the number of argument bytes for each first byte."""
    kinds: Numbers = np.zeros(256, np.uint8)
    sizes: Numbers = np.zeros(256, np.uint8)
    for major, kind in ((0x00, INT), (0x20, INT), (0x40, BYTES), (0x60, TEXT)):
        kinds[major : major + 28] = kind
        sizes[major + 24 : major + 28] = 1, 2, 4, 8
    kinds[[0xF4, 0xF5]] = BOOL
    kinds[0xF6] = NULL
    kinds[[0xF9, 0xFA, 0xFB]] = FLOAT
    sizes[[0xF9, 0xFA, 0xFB]] = 2, 4, 8
    return kinds, sizes


_KINDS, _SIZES = _kinds_of_heads()


class Template(NamedTuple):
    """The shape of payloads.

    Attributes:
        literals: The bytes before each value: heads of maps and lists, and keys.
        names: The names of the fields, in the same order; `a.b` is `b` in the map `a`.
    """

    literals: tuple[bytes, ...]
    names: tuple[str, ...]


class Values(NamedTuple):
    """The values of one field in some records.

    Attributes:
        kinds: Kind of each value.
        heads: First byte of each value; that of the text for a time.
        numbers: The argument after the first byte: an integer, a length, or bits of a float.
        begins: Position of the bytes of a text.
    """

    kinds: Numbers
    heads: Numbers
    numbers: Numbers
    begins: Numbers

    def of(self, chosen: Numbers) -> "Values":
        """Return the values of the chosen records."""
        return Values(*(column[chosen] for column in self))


class TemplateGroup(NamedTuple):
    """Records of a batch with one template: their rows, and the values of each field."""

    template: Template
    rows: Numbers
    values: list[Values]


class ParsedPayloads(NamedTuple):
    """The payloads of a batch, parsed.

    Attributes:
        data: The bytes of all payloads, with padding.
        begins: Position of each payload.
        ends: Position after each payload.
        groups: Records with a template.
        rest: Rows without one.
    """

    data: Numbers
    begins: Numbers
    ends: Numbers
    groups: list[TemplateGroup]
    rest: Numbers


def scan(payloads: pa.Array, kinds: pa.Array, templates: list[Template]) -> ParsedPayloads:
    """Parse a batch.

    Args:
        payloads: Payloads as they are stored, none of them null.
        kinds: Whether each payload is plain bytes, which have no template.
        templates: Templates to try first; new ones are added.
    """
    data, begins, ends = _positions(payloads)
    is_cbor = ~np.asarray(kinds.cast(pa.uint8())).astype(bool) & (ends > begins)
    left, groups = np.flatnonzero(is_cbor), []
    parser = _Parser(data, begins, ends)
    tried, strange, skipped = 0, 0, []
    while len(left) and tried < TEMPLATES_LIMIT:
        if tried < len(templates):
            template = templates[tried]
        elif strange >= _STRANGE_LIMIT:
            break
        else:
            first = left[0]
            new = template_of(bytes(data[begins[first] : ends[first]]))
            if new is None or new in templates:  # a value in it is malformed
                strange += 1
                skipped.append(left[:1])
                left = left[1:]
                continue
            templates.append(new)
            template, strange = new, 0
        tried += 1
        group, left = parser.match(template, left)
        if len(group.rows):
            groups.append(group)
    rest = np.concatenate([left, *skipped, np.flatnonzero(~is_cbor)])
    return ParsedPayloads(data, begins, ends, groups, np.sort(rest))


def _positions(payloads: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    """Return the bytes of payloads with padding, and the begin and end of each."""
    _, offsets, content = payloads.buffers()
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    first = payloads.offset
    borders = np.frombuffer(offsets, width)[first : first + len(payloads) + 1]
    borders = borders.astype(np.int64)
    start, end = (int(borders[0]), int(borders[-1])) if len(borders) else (0, 0)
    data: Numbers = np.zeros(end - start + _PADDING, np.uint8)
    if end > start:
        data[: end - start] = np.frombuffer(content, np.uint8)[start:end]
    borders -= start
    return data, borders[:-1], borders[1:]


class _Parser:
    """Reads values at many positions of a buffer at once."""

    def __init__(self, data: Numbers, begins: Numbers, ends: Numbers) -> None:
        self._data, self._begins, self._ends = data, begins, ends
        # The 8 bytes from each position on, as a number: unaligned reads of one array.
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))

    def match(self, template: Template, rows: Numbers) -> tuple[TemplateGroup, Numbers]:
        """Return the records of a template with their values, and the other records."""
        all_rows, positions, ends = rows, self._begins[rows], self._ends[rows]
        values: list[Values] = []

        def keep(fits: Numbers) -> None:
            nonlocal rows, positions, ends, values
            if not fits.all():
                rows, positions, ends = rows[fits], positions[fits], ends[fits]
                values = [value.of(fits) for value in values]

        for literal in template.literals[: len(template.names)]:
            keep(positions + len(literal) < ends)  # at least one byte of the value follows
            for begin in range(0, len(literal), 8):
                part = literal[begin : begin + 8]
                word, bits = int.from_bytes(part, "little"), 8 * len(part)
                words = self._words[np.minimum(positions + begin, len(self._words) - 1)]
                if bits < 64:
                    words &= np.uint64((1 << bits) - 1)
                keep(words == np.uint64(word))
            positions = positions + len(literal)
            value, after = self._values(positions)
            values.append(value)
            positions = after
            keep((value.kinds != OTHER) & (after <= ends))
        if not template.names:  # an empty map or list
            (literal,) = template.literals
            keep((self._data[positions] == literal[0]) & (ends == positions + 1))
            positions = ends
        keep(positions == ends)
        return TemplateGroup(template, rows, values), _without(all_rows, rows)

    def _values(self, positions: Numbers) -> tuple[Values, Numbers]:
        """Return the values at positions below the end, and the positions after them."""
        heads = self._data[positions]
        if len(heads) and heads[0] == 0xFB and (heads == 0xFB).all():  # the most frequent case
            bits = self._words[np.minimum(positions + 1, len(self._words) - 1)].byteswap()
            kinds: Numbers = np.full(len(heads), FLOAT, np.uint8)
            return Values(kinds, heads, bits, positions), positions + 9
        kinds = _KINDS[heads]
        is_time = heads == _TAG_TIME
        if is_time.any():
            positions = positions + is_time
            heads = self._data[positions]
            kinds = np.where(is_time, np.where(_KINDS[heads] == TEXT, TIME, OTHER), kinds)
        sizes = _SIZES[heads]
        words = self._words[np.minimum(positions + 1, len(self._words) - 1)].byteswap()
        shifts = (64 - 8 * sizes.astype(np.uint64)) & np.uint64(63)
        numbers = np.where(sizes == 0, (heads & 31).astype(np.uint64), words >> shifts)
        begins = positions + 1 + sizes
        has_text = (kinds == TEXT) | (kinds == BYTES) | (kinds == TIME)
        kinds = np.where(has_text & (numbers >= _LONGEST), OTHER, kinds).astype(np.uint8)
        lengths = np.where(has_text, np.minimum(numbers, _LONGEST), 0).astype(np.int64)
        return Values(kinds, heads, numbers, begins), begins + lengths


def _without(rows: Numbers, chosen: Numbers) -> Numbers:
    """Return the rows that are not chosen; both are sorted."""
    if len(chosen) == len(rows):
        return rows[:0]
    is_left: Numbers = np.ones(len(rows), bool)
    is_left[np.searchsorted(rows, chosen)] = False
    return rows[is_left]


# --- values as arrays ---


def integers_of(values: Values) -> tuple[Numbers, Numbers]:
    """Return integers of 64 bits with a sign, and which of them fit."""
    fits = values.numbers < np.uint64(1 << 63)
    numbers = values.numbers.astype(np.int64)
    return np.where((values.heads & 0xE0) == 0x20, -1 - numbers, numbers), fits


def floats_of(values: Values) -> Numbers:
    """Return floats, whatever their width."""
    floats = values.numbers.view(np.float64)
    for head, bits, kind in ((0xFA, np.uint32, np.float32), (0xF9, np.uint16, np.float16)):
        is_short = values.heads == head
        if is_short.any():
            short = values.numbers.astype(bits).view(kind).astype(np.float64)
            floats = np.where(is_short, short, floats)
    return floats


def texts_of(data: Numbers, values: Values, chosen: Numbers) -> pa.Array:
    """Return texts or bytes as binary; null where `chosen` is false."""
    # The chosen texts, and the bytes between them, as consecutive elements of one array: every
    # second one is a text, so no text is copied one by one.
    begins = values.begins[chosen]
    ends = begins + values.numbers[chosen].astype(np.int64)
    borders: Numbers = np.empty(2 * len(begins) + 1, np.int64)
    borders[0], borders[1::2], borders[2::2] = 0, begins, ends
    content = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    whole = pa.Array.from_buffers(pa.large_binary(), 2 * len(begins), content)
    places: Numbers = np.full(len(chosen), -1, np.int64)
    places[chosen] = np.arange(1, 2 * len(begins), 2)
    if chosen.all():
        return whole.take(pa.array(places)).cast(pa.binary())
    return whole.take(pa.array(places, mask=~chosen)).cast(pa.binary())


# --- the template of one payload ---


class _NoTemplateError(Exception):
    """A payload has a part that templates do not cover."""


def template_of(payload: bytes) -> Template | None:
    """Return the template of a payload; None if it has none."""
    literals: list[bytes] = []
    names: list[str] = []
    begin = 0
    try:
        for name, start, end in _slots(payload):
            literals.append(payload[begin:start])
            names.append(name)
            begin = end
    except (_NoTemplateError, IndexError, ValueError):
        return None
    if not names:
        return Template((payload,), ()) if payload in {b"\xa0", b"\x80"} else None
    if len(set(names)) < len(names) or len(names) > _SLOTS_LIMIT or begin != len(payload):
        return None
    maps = {name[:index] for name in names for index, c in enumerate(name) if c == "."}
    # A key with a dot may be named like a field of another map, or like a map.
    return None if maps & set(names) else Template(tuple(literals), tuple(names))


def _slots(payload: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the name, begin and end of each value.

    Raises:
        _NoTemplateError: the payload has a part that templates do not cover.
        IndexError: the payload is incomplete.
    """
    end = 0

    def walk(position: int, path: str, depth: int) -> Iterator[tuple[str, int, int]]:
        nonlocal end
        major = payload[position] >> 5
        if major != _MAP and (major != _LIST or depth):
            end = _end_of_value(payload, position)
            yield path or WHOLE, position, end
            return
        count, end = _argument(payload, position)
        if (not count and depth) or count > _SLOTS_LIMIT or depth > _DEPTH_LIMIT:
            raise _NoTemplateError
        for number in range(1, count + 1):
            key = f"_{number}"
            if major == _MAP:
                key, end = _key(payload, end)
            yield from walk(end, f"{path}.{key}" if depth else key, depth + 1)

    yield from walk(0, "", 0)


def _end_of_value(payload: bytes, position: int) -> int:
    """Return the position after a value that is not a map or list."""
    is_time = payload[position] == _TAG_TIME
    head = payload[position + is_time]
    kind = _KINDS[head]
    if kind == OTHER or (is_time and kind != TEXT):
        raise _NoTemplateError
    number, end = _argument(payload, position + is_time)
    return end + number if kind in {TEXT, BYTES} else end


def _argument(payload: bytes, position: int) -> tuple[int, int]:
    """Return the argument of a head, and the position after it."""
    low = payload[position] & 31
    if low < 24:
        return low, position + 1
    if low > 27:
        raise _NoTemplateError
    size = 1 << low - 24
    argument = payload[position + 1 : position + 1 + size]
    if len(argument) < size:
        raise _NoTemplateError
    return int.from_bytes(argument, "big"), position + 1 + size


def _key(payload: bytes, position: int) -> tuple[str, int]:
    """Return a key, which must be text, and the position after it."""
    if payload[position] >> 5 != 3:
        raise _NoTemplateError
    length, begin = _argument(payload, position)
    text = payload[begin : begin + length]
    if len(text) < length or not text:
        raise _NoTemplateError
    return text.decode(), begin + length
