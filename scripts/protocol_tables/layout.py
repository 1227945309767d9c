"""Byte layouts: offset, size, type, field, meaning, from a struct and the words of a page.

Each line of a page is `field | meaning` for the next field of the struct, or `field | size |
meaning` for bytes that no struct describes. Such a size is a number, the name of a constant in
the module of the struct, or words: after a field of words, no offset is known.
"""

import re
from collections.abc import Iterator
from struct import Struct, calcsize
from typing import Final, NamedTuple

from scripts.protocol_tables.source import TableError, attribute
from tests.golden.sample import read_files

_TYPES: Final = {
    **{"b": "i8", "h": "i16", "i": "i32", "q": "i64"},
    **{"B": "u8", "H": "u16", "I": "u32", "Q": "u64"},
    **{"d": "f64", "s": "bytes", "?": "bool"},
}
_ORDERS: Final = {">": "big-endian", "<": "little-endian", "!": "big-endian"}
#: Bytes of a sample that are shown of one field.
_SHOWN: Final = 8


class StructField(NamedTuple):
    """A field of a struct."""

    size: int
    type: str


def struct_fields(form: Struct) -> Iterator[StructField]:
    """Iterate over the fields of a struct in their order; padding has the type `padding`.

    Raises:
        TableError: its byte order is the machine's, so it is not a wire format.
    """
    order, codes = form.format[0], form.format[1:]
    if order not in _ORDERS:
        msg = f"the struct {form.format!r} has no byte order"
        raise TableError(msg)
    for count, code in re.findall(r"(\d*)([a-zA-Z?])", codes):
        times = int(count or 1)
        if code == "x":
            yield StructField(times, "padding")
        elif code == "s":
            yield StructField(times, "bytes")
        else:
            yield from [StructField(calcsize(order + code), _TYPES[code])] * times


class LayoutRow(NamedTuple):
    """A line of a layout; an offset or a size that is not fixed is -1 or words."""

    offset: int
    size: int | str
    type: str
    field: str
    meaning: str


def layout_rows(target: str, lines: list[str], start: int = 0) -> list[LayoutRow]:
    """Return the rows of a layout.

    Args:
        target: `module:struct`, or `module:` if there is no struct.
        lines: what the page says of the fields.
        start: offset of the first field.

    Raises:
        TableError: the page has more or fewer fields than the struct.
    """
    module = target.partition(":")[0]
    left = [] if target.endswith(":") else list(struct_fields(attribute(target)))
    rows: list[LayoutRow] = []
    offset = start
    for line in lines:
        name, *size, meaning = (part.strip() for part in line.split(" | "))
        while not size and left and left[0].type == "padding":
            offset = _add(rows, offset, *left.pop(0), "", "padding, zeros")
        if size:
            if left:
                msg = f"{target}: {name!r} stands before a field of the struct"
                raise TableError(msg)
            offset = _add(rows, offset, _size(module, size[0]), "", name, meaning)
        elif left:
            offset = _add(rows, offset, *left.pop(0), name, meaning)
        else:
            msg = f"{target} has no field for {name!r}"
            raise TableError(msg)
    if left:
        msg = f"{target} has {len(left)} fields that the page does not name"
        raise TableError(msg)
    return rows


def _add(
    rows: list[LayoutRow], offset: int, size: int | str, kind: str, name: str, meaning: str
) -> int:
    """Add a row, and return the offset after it; -1 is unknown."""
    rows.append(LayoutRow(offset, size, kind, name, meaning))
    return offset + size if offset >= 0 and isinstance(size, int) else -1


def _size(module: str, text: str) -> int | str:
    if text.isdigit():
        return int(text)
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", text):
        return text
    value = attribute(f"{module}:{text}")
    return value if isinstance(value, int) else len(value)


def layout_text(target: str, lines: list[str], options: dict[str, str]) -> str:
    """Return a layout as a table in Markdown, with the total size above it if it is known.

    Options: `sample`, the kind and name of golden bytes whose fields are shown; `at`, where in
    them the layout begins; `start`, offset of the first field; `size`, a constant that all
    fields together must have.

    Raises:
        TableError: page and code do not agree.
    """
    start = int(options.get("start", "0"))
    rows = layout_rows(target, lines, start)
    module = target.partition(":")[0]
    if "size" in options:
        whole, said = (
            sum(row.size for row in rows if isinstance(row.size, int)),
            options["size"],
        )
        if whole != _size(module, said):
            msg = f"{target}: the fields have {whole} bytes, {said} is {_size(module, said)}"
            raise TableError(msg)
    sample = _sample(options) if "sample" in options else None
    shown = [] if sample is None else ["sample"]
    head = ["offset", "size", "type", "field", "meaning", *shown]
    out = [_caption(target), "", _line(head), _line(["---"] * len(head))]
    for row in rows:
        cells = [
            "" if row.offset < 0 else str(row.offset),
            str(row.size),
            row.type,
            row.field,
            row.meaning,
            *([] if sample is None else [_bytes(sample, row, start)]),
        ]
        out.append(_line(cells))
    return "\n".join(out)


def _caption(target: str) -> str:
    if target.endswith(":"):
        return f"From `{target[:-1]}`:"
    form = attribute(target)
    return f"{form.size} bytes, {_ORDERS[form.format[0]]}, from `{target.replace(':', '.')}`:"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sample(options: dict[str, str]) -> bytes:
    kind, _, name = options["sample"].partition(" ")
    blobs = read_files(kind)
    if name not in blobs:
        msg = f"there is no golden sample {name!r} of {kind}"
        raise TableError(msg)
    return blobs[name][int(options.get("at", "0")) :]


def _bytes(sample: bytes, row: LayoutRow, start: int) -> str:
    if row.offset < 0:
        return ""
    at = row.offset - start
    end = at + row.size if isinstance(row.size, int) else at + _SHOWN
    part = sample[at:end]
    more = "…" if len(part) > _SHOWN or not isinstance(row.size, int) else ""
    return f"`{part[:_SHOWN].hex(' ')}{more}`" if part else ""
