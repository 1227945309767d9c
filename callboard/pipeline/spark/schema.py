"""Payloads as columns: fields of CBOR maps with types, found in a sample or given.

A payload that is a map has its keys as fields. A list has the fields `_1`, `_2`, …, anything
else the field `value`. A field that is missing is null; one that does not fit its type makes
the record undecodable.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
from cbor2 import CBORDecodeError, loads

#: The field of a payload that is no map and no list.
WHOLE: Final = "value"

#: Characters of a reason, part of which comes from the payload.
_REASON_LIMIT: Final = 200

_NO_FIELDS: Final[Mapping[str, Any]] = {}


class Decoded(NamedTuple):
    """Payloads as columns; records with a reason have null in each."""

    columns: list[pa.Array]
    reasons: dict[int, str]


def fields_of(payload: Any) -> Mapping[str, Any]:
    """Return the fields of a payload."""
    if isinstance(payload, dict):
        return payload
    if isinstance(payload, list):
        return {f"_{number}": item for number, item in enumerate(payload, 1)}
    return {WHOLE: payload}


def decode_payloads(
    payloads: Sequence[bytes], kinds: Sequence[bool], fields: Sequence[pa.Field]
) -> Decoded:
    """Decode payloads into columns.

    Args:
        payloads: As they are stored.
        kinds: Whether each is plain bytes, not CBOR.
        fields: Names and types of the columns.
    """
    reasons: dict[int, str] = {}
    rows = _load(payloads, kinds, reasons)
    columns = [_column(rows, field, reasons) for field in fields]
    if reasons:  # a record that is bad in one field is bad in all
        masks = pa.array([index in reasons for index in range(len(rows))])
        columns = [_with_nulls(column, masks) for column in columns]
    return Decoded(columns, reasons)


def infer_fields(payloads: Iterable[bytes], kinds: Iterable[bool]) -> list[pa.Field]:
    """Return the fields that a sample of payloads has, in order of their first appearance.

    Where they disagree about a type, it is that of most; integers and floats make floats.
    """
    reasons: dict[int, str] = {}
    rows = _load(list(payloads), list(kinds), reasons)
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(name, str):
                columns.setdefault(name, []).append(value)
    return [pa.field(name, _kind_of(values)) for name, values in columns.items()]


def _load(
    payloads: Sequence[bytes], kinds: Sequence[bool], reasons: dict[int, str]
) -> list[Mapping[str, Any]]:
    """Decode payloads to their fields, noting the reason for each that does not decode."""
    rows: list[Mapping[str, Any]] = []
    for index, (data, is_bytes) in enumerate(zip(payloads, kinds, strict=True)):
        if is_bytes:
            rows.append({WHOLE: data})
            continue
        try:
            payload = loads(data)
            rows.append(payload if type(payload) is dict else fields_of(payload))
        except (CBORDecodeError, ValueError, RecursionError, OverflowError) as error:
            reasons[index] = f"no CBOR: {error}"[:_REASON_LIMIT]
            rows.append(_NO_FIELDS)
    return rows


def _column(
    rows: Sequence[Mapping[str, Any]], field: pa.Field, reasons: dict[int, str]
) -> pa.Array:
    """Return one field of all rows as a column, noting values that do not fit."""
    name, kind = field.name, field.type
    values = [row.get(name) for row in rows]
    with suppress(*_MISFITS):
        return _array(values, kind)
    for index, value in enumerate(values):
        try:
            _array([value], kind)
        except _MISFITS:
            values[index] = None
            text = f"field {name} is {value!r}, which is no {kind}"
            reasons.setdefault(index, text[:_REASON_LIMIT])
    return pa.array(values, kind)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column; raise one of `_MISFITS` where they do not fit."""
    if pa.types.is_integer(kind) and float in set(map(type, values)):
        what = "Arrow would cut floats to integers"
        raise ValueError(what)
    return pa.array(values, kind)


def _with_nulls(column: pa.Array, masks: pa.Array) -> pa.Array:
    """Return a column with nulls where the mask says so."""
    import pyarrow.compute as pc

    return pc.if_else(masks, pa.scalar(None, column.type), column)


def _kind_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type of a field's values: that of most where they disagree."""
    with suppress(*_MISFITS):
        return _storable(pa.array(values).type)
    common = Counter(type(value) for value in values).most_common(1)[0][0]
    with suppress(*_MISFITS):
        return _storable(pa.array([each for each in values if type(each) is common]).type)
    return pa.string()


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for one of Arrow."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    return kind


_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
