"""Payloads as columns: fields of CBOR maps with types, found in a sample or given.

A payload that is a map has its keys as fields. A list has the fields `_1`, `_2`, …, anything
else the field `value`. `main.temp` is the field `temp` of the field `main`, unless there is one
with the whole name, and `payload.time` is the field `time`, which is not the record's.

A field that is missing is null; one that does not fit its type makes the record undecodable.
Times fit as text of ISO 8601 and as numbers since 1970 as well, integers of any size where
floats are wanted, and NaN is missing where they are not, as in pandas.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

import pyarrow as pa
from cbor2 import CBORDecodeError, loads

from callboard.commitlog.fields.declared import FIELD, DeclaredField, arrow_fields
from callboard.commitlog.record import NO_REFERENCES
from callboard.support.text import safe_repr

#: The field of a payload that is no map and no list.
WHOLE: Final = "value"

#: Characters of a reason, part of which comes from the payload.
_REASON_LIMIT: Final = 200

_NO_FIELDS: Final[Mapping[str, Any]] = {}


class Rules(NamedTuple):
    """How fields of payloads are read beside their types.

    Attributes:
        texts: Those whose numbers, times and truth values are text as well.
        required: Those that no record may lack.
        zone: Where times are at home that tell no zone.
    """

    texts: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    zone: tzinfo = UTC


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
    payloads: Sequence[bytes],
    kinds: Sequence[bool],
    fields: Sequence[pa.Field],
    rules: Rules = Rules(),  # noqa: B008  # never changed
) -> Decoded:
    """Decode payloads into columns.

    Args:
        payloads: As they are stored.
        kinds: Whether each is plain bytes, not CBOR.
        fields: Names and types of the columns.
        rules: How they are read beside that.
    """
    reasons: dict[int, str] = {}
    rows = _load(payloads, kinds, reasons)
    columns = [_column(rows, field, rules, reasons) for field in fields]
    if reasons:  # a record that is bad in one field is bad in all
        masks = pa.array([index in reasons for index in range(len(rows))])
        columns = [_with_nulls(column, masks) for column in columns]
    return Decoded(columns, reasons)


def decode_fields(
    payloads: pa.Array, kinds: pa.Array, fields: Sequence[DeclaredField]
) -> Decoded:
    """Decode payloads of a log into the columns of the fields that it declares."""
    return decode_payloads(payloads.to_pylist(), kinds.to_pylist(), arrow_fields(fields))


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


def _decimal(pair: Any, _: bool) -> Decimal:  # noqa: FBT001
    """Return a decimal; Arrow writes all digits out, and crashes where they are billions."""
    exponent, digits = pair
    if abs(exponent) > _EXPONENT:
        what = f"a decimal has an exponent of {_EXPONENT} at most"
        raise ValueError(what)
    return Decimal(f"{digits}e{exponent}")


_EXPONENT: Final = 3000
_DECODERS: Final[Mapping[int, Callable[[Any, bool], Any]]] = {**NO_REFERENCES, 4: _decimal}


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
            payload = loads(data, semantic_decoders=_DECODERS)
            rows.append(payload if type(payload) is dict else fields_of(payload))
        except (CBORDecodeError, ValueError, RecursionError, OverflowError) as error:
            reasons[index] = f"no CBOR: {error}"[:_REASON_LIMIT]
            rows.append(_NO_FIELDS)
    return rows


def _column(
    rows: Sequence[Mapping[str, Any]], field: pa.Field, rules: Rules, reasons: dict[int, str]
) -> pa.Array:
    """Return one field of all rows as a column, noting values that do not fit."""
    name, kind = field.name, field.type
    values = _named(rows, name)
    column = _fitting(values, kind, name, rules, reasons)
    if name in rules.required and column.null_count:
        for index, value in enumerate(column.is_null().to_pylist()):
            if value:
                reasons.setdefault(index, f"field {name.removeprefix(FIELD)} is missing")
    return column


def _named(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the values of one field, which may stand within others."""
    if "." not in name:
        return [row.get(name) for row in rows]
    inner = name.removeprefix(FIELD)
    return [row[inner] if inner in row else _within(row, inner.split(".")) for row in rows]


def _within(value: Any, path: Sequence[str]) -> Any:
    """Return what stands in a payload behind several names; None for nothing."""
    for part in path:
        value = fields_of(value).get(part) if isinstance(value, dict | list) else None
    return value


def _fitting(
    values: list[Any], kind: pa.DataType, name: str, rules: Rules, reasons: dict[int, str]
) -> pa.Array:
    """Return values as a column, those that do not fit as null with their reason."""
    is_text = name in rules.texts
    if not is_text and not (pa.types.is_nested(kind) or pa.types.is_temporal(kind)):
        with suppress(*_MISFITS):  # as nearly all do
            return _array(values, kind)
    fitted: list[Any] = []

    def refuse(index: int) -> None:
        fitted[index] = None
        value = safe_repr(values[index], _REASON_LIMIT)
        text = f"field {name.removeprefix(FIELD)} is {value}, which is no {kind}"
        reasons.setdefault(index, text[:_REASON_LIMIT])

    for index, value in enumerate(values):
        fitted.append(None)
        try:
            fitted[index] = _text_of(value) if is_text else _fitted(value, kind, rules.zone)
        except _MISFITS:
            refuse(index)
    with suppress(*_MISFITS):
        return _array(fitted, kind)
    for index, value in enumerate(fitted):
        try:
            _array([value], kind)
        except _MISFITS:
            refuse(index)
    return pa.array(fitted, kind)


def _fitted(value: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return a value as Arrow takes it for a type, or as it is; raise one of `_MISFITS`."""
    types = pa.types
    if value is None:
        return None
    if types.is_floating(kind):
        is_number = isinstance(value, int | Decimal | Fraction) and type(value) is not bool
        return float(value) if is_number else value
    if isinstance(value, float) and math.isnan(value):
        return None
    if types.is_timestamp(kind):
        moment = time_of(value, zone)
        return moment if kind.tz else moment.astimezone(zone).replace(tzinfo=None)
    if types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, Decimal) and not types.is_decimal(kind):
        return _whole(value, kind)
    if types.is_integer(kind) and not isinstance(value, int):
        what = f"{value!r} is no {kind}"  # Arrow would cut floats, within others too
        raise ValueError(what)
    if types.is_decimal(kind) and isinstance(value, float):
        return Decimal(repr(value))
    return _fitted_inside(value, kind, zone) if types.is_nested(kind) else value


def _whole(value: Decimal, kind: pa.DataType) -> int:
    """Return a decimal that is an integer, where one is wanted; Arrow would cut others."""
    is_one = pa.types.is_integer(kind) and value.is_finite() and abs(value) < 10**20
    if not is_one or value != value.to_integral_value():
        what = f"{value!r} is no {kind}"
        raise ValueError(what)
    return int(value)


def _fitted_inside(value: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return a map or list with all that is in it as Arrow takes it."""
    types = pa.types
    if types.is_list(kind) and isinstance(value, list):
        return [_fitted(each, kind.value_type, zone) for each in value]
    if isinstance(value, dict) and types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type, zone) for field in kind}
    if isinstance(value, dict) and types.is_map(kind):
        of_keys, of_values = kind.key_type, kind.item_type
        return [
            (_fitted(key, of_keys, zone), _fitted(each, of_values, zone))
            for key, each in value.items()
        ]
    what = f"{type(value).__name__} is no {kind}"
    raise ValueError(what)


def time_of(value: Any, zone: tzinfo = UTC) -> datetime:
    """Return a time: one of CBOR, text of ISO 8601, or a number since 1970.

    Numbers are seconds up to 10^11 (the year 5138), then milliseconds up to 10^14, microseconds
    up to 10^17, and nanoseconds.

    Args:
        value: What a payload has.
        zone: Where it is at home if it tells no zone.

    Raises:
        ValueError: it is no time.
        OverflowError: nor is it a number of these.
    """
    if isinstance(value, str):
        text = value.strip()
        if _EPOCH.fullmatch(text):
            value = Decimal(text)
        else:
            value = datetime.fromisoformat(_SLASHES.sub(r"\1-\2-\3", text))
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=zone)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=zone)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        what = f"{value!r} is no time"
        raise ValueError(what)  # what does not fit is one kind of error
    number: Any = value
    steps = next((steps for limit, steps in _EPOCHS if abs(number) < limit), None)
    if steps is None:
        what = "a number since 1970 is less than 10^20"
        raise ValueError(what)
    if isinstance(number, Decimal):  # which may have a billion digits behind the point
        number = number.quantize(_TENTH_OF_MICROSECOND, ROUND_FLOOR)
    exact = Fraction(number) * 1_000_000 / steps
    return _1970 + timedelta(microseconds=math.floor(exact))


#: Numbers below these limits count so many steps a second; above it is nanoseconds.
_EPOCHS: Final[tuple[tuple[float, int], ...]] = (
    (10**11, 1),
    (10**14, 1000),
    (10**17, 1_000_000),
    (10**20, 10**9),
)
_TENTH_OF_MICROSECOND: Final = Decimal("1e-7")

_EPOCH: Final = re.compile(r"-?\d{9,}(\.\d+)?")
_SLASHES: Final = re.compile(r"^(\d{4})/(\d\d)/(\d\d)\b")
_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _text_of(value: Any) -> str | None:
    """Return a number, time or truth value as text, or text as it is."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, date):  # times are dates as well
        return value.isoformat()
    if isinstance(value, int | float | Decimal):
        return str(value)
    what = f"{type(value).__name__} is no text"
    raise TypeError(what)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column; raise one of `_MISFITS` where they do not fit."""
    if pa.types.is_integer(kind) and not {float, Decimal}.isdisjoint(map(type, values)):
        what = "Arrow would cut floats and decimals to integers"
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


_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, ArithmeticError, RecursionError)
