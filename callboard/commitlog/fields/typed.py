"""Columns of parsed payloads: the values of a field in all records, as one array of Arrow.

The results equal those of `decoding`, which decides about each value that is not covered here.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog.fields.templates import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    NULL,
    TEXT,
    TIME,
    Numbers,
    ParsedPayloads,
    Values,
    floats_of,
    integers_of,
    texts_of,
)

#: Text of a time that Arrow and Python read alike.
_ISO: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$"
#: The begin of the year 1, in microseconds since 1970.
_FIRST_TIME: Final = -62_135_596_800_000_000
#: Numbers since 1970 below each limit, as in `decoding.time_of`: steps in a microsecond, or
#: microseconds in a step.
_EPOCHS: Final = ((10**11, 1_000_000, 1), (10**14, 1000, 1), (10**17, 1, 1), (1 << 63, 1, 1000))

#: Converts values to an array, and says which of them it covers.
_Convert = Callable[[Numbers, Values], tuple[Any, Numbers]]


def column_of(
    parsed: ParsedPayloads, name: str, kind: pa.DataType, *, keeps_nan: bool
) -> tuple[Any, Any]:
    """Return a field as a column, and the rows whose value is not covered.

    Args:
        parsed: Parsed payloads.
        name: Name of the field in the payloads.
        kind: Type of the column.
        keeps_nan: Whether NaN stays in a column of floats; it is null otherwise.
    """
    count, convert = len(parsed.begins), _converter(kind)
    is_left: Numbers = np.zeros(count, bool)
    is_left[parsed.rest] = True
    rows, pieces = [], []
    for group in parsed.groups:
        if name not in group.template.names:
            # The value is a map of its own, which is not covered.
            is_left[group.rows] |= any(
                item.startswith(f"{name}.") for item in group.template.names
            )
            continue
        values = group.values[group.template.names.index(name)]
        if convert is None:
            is_left[group.rows] = True
            continue
        piece, fits = convert(parsed.data, values)
        is_null = values.kinds == NULL
        if (values.kinds == FLOAT).any():
            is_nan = (values.kinds == FLOAT) & np.isnan(floats_of(values))
            if not (keeps_nan and pa.types.is_floating(kind)):
                is_null |= is_nan
        is_left[group.rows] |= ~(fits | is_null)
        rows.append(group.rows)
        pieces.append(_masked(piece, is_null | ~fits))
    return _scattered(rows, pieces, count, kind), is_left


def _masked(piece: Any, is_null: Numbers) -> pa.Array:
    """Return an array with nulls where `is_null`."""
    if isinstance(piece, np.ndarray):
        return pa.array(piece, mask=is_null if is_null.any() else None)
    if not is_null.any():
        return piece
    return pc.if_else(pa.array(is_null), pa.scalar(None, piece.type), piece)


def _scattered(rows: list[Numbers], pieces: list[Any], count: int, kind: Any) -> pa.Array:
    """Return the pieces at their rows of a column that is null elsewhere."""
    pieces = [piece if piece.type == kind else piece.cast(kind) for piece in pieces]
    if len(pieces) == 1 and len(pieces[0]) == count:
        return pieces[0]
    places: Numbers = np.full(count, -1, np.int64)
    if rows:
        places[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
    whole = pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind)
    return whole.take(pa.array(places, mask=places < 0))


def _converter(kind: pa.DataType) -> _Convert | None:
    """Return the function that converts values to a type; None if no value is covered."""
    types = pa.types
    if types.is_integer(kind):
        return _unsigned if kind == pa.uint64() else _integers(kind)
    if kind in {pa.float32(), pa.float64()}:
        return _floats(kind)
    if kind == pa.timestamp("us", tz="UTC"):
        return _times
    return {pa.string(): _texts, pa.binary(): _bytes, pa.bool_(): _truths}.get(kind)


def _integers(kind: pa.DataType) -> _Convert:
    """Return the conversion to integers."""
    target = np.dtype(kind.to_pandas_dtype())
    limits = np.iinfo(target)

    def convert(_: Numbers, values: Values) -> tuple[Any, Numbers]:
        numbers, fits = integers_of(values)
        fits &= values.kinds == INT
        if target.itemsize < 8 or not limits.min:
            fits &= (numbers >= limits.min) & (numbers <= limits.max)
        return numbers.astype(target), fits

    return convert


def _unsigned(_: Numbers, values: Values) -> tuple[Any, Numbers]:
    """Return integers without a sign."""
    return values.numbers, (values.kinds == INT) & ((values.heads & 0xE0) == 0)


def _floats(kind: pa.DataType) -> _Convert:
    """Return the conversion to floats."""
    target = np.dtype(kind.to_pandas_dtype())

    def convert(_: Numbers, values: Values) -> tuple[Any, Numbers]:
        is_float = values.kinds == FLOAT
        floats = floats_of(values)
        if is_float.all():
            fits = is_float
        else:
            numbers, is_small = integers_of(values)
            is_positive = (values.heads & 0xE0) == 0
            whole = np.where(
                is_positive, values.numbers.astype(np.float64), numbers.astype(np.float64)
            )
            fits = is_float | ((values.kinds == INT) & (is_small | is_positive))
            floats = np.where(is_float, floats, whole)
        with np.errstate(over="ignore", invalid="ignore"):
            return floats.astype(target), fits

    return convert


def _texts(data: Numbers, values: Values) -> tuple[Any, Numbers]:
    """Return texts."""
    fits = values.kinds == TEXT
    try:
        return texts_of(data, values, fits).cast(pa.string()), fits
    except pa.ArrowInvalid:  # a text is not UTF-8
        return pa.nulls(len(fits), pa.string()), np.zeros(len(fits), bool)


def _bytes(data: Numbers, values: Values) -> tuple[Any, Numbers]:
    """Return bytes."""
    fits = values.kinds == BYTES
    return texts_of(data, values, fits), fits


def _truths(_: Numbers, values: Values) -> tuple[Any, Numbers]:
    """Return truth values."""
    return values.heads == 0xF5, values.kinds == BOOL


def _times(data: Numbers, values: Values) -> tuple[Any, Numbers]:
    """Return times in microseconds since 1970."""
    kind, count = pa.timestamp("us", tz="UTC"), len(values.kinds)
    micros: Numbers = np.zeros(count, np.int64)
    fits: Numbers = np.zeros(count, bool)
    if (is_int := values.kinds == INT).any():
        numbers, is_small = integers_of(values)
        fits |= is_int & is_small
        size = np.abs(np.where(fits, numbers, 0))
        left = fits.copy()
        for limit, factor, divisor in _EPOCHS:
            chosen = left & (size < limit)
            micros[chosen] = numbers[chosen] * factor // divisor
            left &= ~chosen
        fits &= ~left
    is_text = (values.kinds == TEXT) | (values.kinds == TIME)
    if is_text.any():
        try:
            texts = texts_of(data, values, is_text).cast(pa.string())
            is_iso = pc.fill_null(pc.match_substring_regex(texts, _ISO), fill_value=False)
            texts = pc.if_else(is_iso, texts, pa.scalar(None, pa.string()))
            moments = pc.fill_null(texts.cast(kind).cast(pa.int64()), _FIRST_TIME - 1)
            micros = np.where(is_text, np.asarray(moments), micros)
            fits |= is_text
        except pa.ArrowInvalid:  # such as a 31st of February
            fits &= ~is_text
    fits &= micros >= _FIRST_TIME
    return pa.array(micros).cast(kind), fits
