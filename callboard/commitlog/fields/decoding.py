"""Payloads as columns: typed fields of CBOR maps, declared or inferred from a sample.

The fields of a map are its keys. A list has the fields `_1`, `_2` …, any other payload the
field `value`. `main.temp` is the field `temp` of the field `main`, unless a field has the whole
name. `payload.time` is the field `time` of the payload, as `time` is that of the record.

A missing field is null, and so is a value that does not fit the type of its field: the record
then has a reason, and its other fields keep their values. A time may also be text of ISO 8601,
or a number since 1970; a float column accepts integers of any size. NaN is null, as in pandas,
unless the rules keep it in columns of floats.

Most payloads are parsed a batch at a time (`templates`, `typed`). The functions here decode the
others one by one, and convert values of unusual types.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from cbor2 import CBORDecodeError, loads

from callboard.commitlog.arrow import load_numpy
from callboard.commitlog.errors import InvalidOption
from callboard.commitlog.fields.declared import FIELD, DeclaredField, arrow_fields
from callboard.commitlog.record import NO_REFERENCES
from callboard.support.text import safe_repr

if TYPE_CHECKING:
    from callboard.commitlog.fields.templates import ParsedPayloads

#: The field of a payload that is neither a map nor a list.
WHOLE: Final = "value"

#: Characters of a reason; it quotes the payload.
_REASON_LIMIT: Final = 200

_NO_FIELDS: Final[Mapping[str, Any]] = {}


class Rules(NamedTuple):
    """Rules for decoding fields, besides their types.

    Attributes:
        texts: Fields whose numbers, times and truth values are converted to text.
        required: Fields that every record must have.
        zone: Time zone of times without one.
        keeps_nan: Whether NaN stays in columns of floats; it is null otherwise.
    """

    texts: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    zone: tzinfo = UTC
    keeps_nan: bool = False


def rules_for(nan: str) -> Rules:
    """Return the rules for an option `nan`.

    Raises:
        InvalidOption: the option is neither "null" nor "keep".
    """
    if nan not in {"null", "keep"}:
        msg = f"nan={nan!r}: give 'null' or 'keep'"
        raise InvalidOption(msg)
    return Rules(keeps_nan=nan == "keep")


class Decoded(NamedTuple):
    """Payloads as columns, and by row the reason why a record or one of its fields is null."""

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
        payloads: Payloads as they are stored.
        kinds: Whether each payload is plain bytes, not CBOR.
        fields: Names and types of the columns.
        rules: Further rules.
    """
    reasons: dict[int, str] = {}
    rows = _load(payloads, kinds, reasons)
    columns = [_column(rows, field, rules, reasons) for field in fields]
    return Decoded(columns, reasons)


def decode_arrays(
    payloads: pa.Array,
    kinds: pa.Array,
    fields: Sequence[pa.Field],
    rules: Rules = Rules(),  # noqa: B008  # never changed
    parsed: "ParsedPayloads | None" = None,
) -> Decoded:
    """Decode payloads into columns, most of them a batch at a time.

    The result is that of `decode_payloads`.

    Args:
        payloads: Payloads as they are stored, none of them null.
        kinds: Whether each payload is plain bytes, not CBOR.
        fields: Names and types of the columns.
        rules: Further rules.
        parsed: The same payloads, if they were parsed already.
    """
    np = load_numpy()
    from callboard.commitlog.fields.templates import scan
    from callboard.commitlog.fields.typed import column_of

    if isinstance(payloads, pa.ChunkedArray):  # from DuckDB
        payloads, kinds = payloads.combine_chunks(), kinds.combine_chunks()
    parsed = parsed or scan(payloads, kinds, [])
    columns, is_left = [], np.zeros(len(payloads), bool)
    for field in fields:
        name = field.name.removeprefix(FIELD)
        column, is_unusual = column_of(parsed, name, field.type, keeps_nan=rules.keeps_nan)
        is_left |= is_unusual | (field.name in rules.texts and field.type != pa.string())
        if field.name in rules.required:
            is_left |= np.asarray(column.is_null())
        columns.append(column)
    if not fields:
        is_left[parsed.rest] = True
    rows = np.flatnonzero(is_left)
    if not len(rows):
        return Decoded(columns, {})
    if len(rows) == len(payloads):
        return decode_payloads(payloads.to_pylist(), kinds.to_pylist(), fields, rules)
    chosen = pa.array(rows)
    own = payloads.take(chosen).to_pylist(), kinds.take(chosen).to_pylist()
    one_by_one = decode_payloads(*own, fields, rules)
    columns = [
        with_rows(column, rows, other)
        for column, other in zip(columns, one_by_one.columns, strict=True)
    ]
    return Decoded(columns, {int(rows[i]): text for i, text in one_by_one.reasons.items()})


def with_rows(column: pa.Array, rows: Any, values: pa.Array) -> pa.Array:
    """Return a column with other values in some rows."""
    np = load_numpy()
    places = np.arange(len(column))
    places[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, values]).take(pa.array(places))


def decode_fields(
    payloads: pa.Array,
    kinds: pa.Array,
    fields: Sequence[DeclaredField],
    rules: Rules = Rules(),  # noqa: B008  # never changed
) -> Decoded:
    """Decode payloads of a log into the columns of the fields that it declares."""
    return decode_arrays(payloads, kinds, arrow_fields(fields), rules)


def infer_fields(payloads: Iterable[bytes], kinds: Iterable[bool]) -> list[pa.Field]:
    """Return the fields of a sample of payloads, in order of their first appearance.

    If values of a field differ in type, the most frequent type wins; integers and floats
    become floats.
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
    """Return a decimal; a huge exponent is refused, as Arrow would crash writing its digits."""
    exponent, digits = pair
    if abs(exponent) > _EXPONENT_LIMIT:
        message = f"the exponent of a decimal is at most {_EXPONENT_LIMIT}"
        raise ValueError(message)
    return Decimal(f"{digits}e{exponent}")


_EXPONENT_LIMIT: Final = 3000
_DECODERS: Final[Mapping[int, Callable[[Any, bool], Any]]] = {**NO_REFERENCES, 4: _decimal}


def _load(
    payloads: Sequence[bytes], kinds: Sequence[bool], reasons: dict[int, str]
) -> list[Mapping[str, Any]]:
    """Decode payloads to their fields; record a reason for each that cannot be decoded."""
    rows: list[Mapping[str, Any]] = []
    for index, (data, is_bytes) in enumerate(zip(payloads, kinds, strict=True)):
        if is_bytes:
            rows.append({WHOLE: data})
            continue
        try:
            payload = loads(data, semantic_decoders=_DECODERS)
            rows.append(payload if type(payload) is dict else fields_of(payload))
        except (CBORDecodeError, ValueError, RecursionError, OverflowError) as error:
            reasons[index] = f"not CBOR: {error}"[:_REASON_LIMIT]
            rows.append(_NO_FIELDS)
    return rows


def _column(
    rows: Sequence[Mapping[str, Any]], field: pa.Field, rules: Rules, reasons: dict[int, str]
) -> pa.Array:
    """Return one field of all rows as a column; record a reason for values that do not fit."""
    name, kind = field.name, field.type
    values = _values_of(rows, name)
    column = _fitting(values, kind, name, rules, reasons)
    if name in rules.required and column.null_count:
        for index, is_null in enumerate(column.is_null().to_pylist()):
            if is_null:
                reasons.setdefault(index, f"field {name.removeprefix(FIELD)} is missing")
    return column


def _values_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the values of one field, which may be nested."""
    if "." not in name:
        return [row.get(name) for row in rows]
    inner = name.removeprefix(FIELD)
    return [row[inner] if inner in row else _nested(row, inner.split(".")) for row in rows]


def _nested(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of names in a payload; None if it is missing."""
    for part in path:
        value = fields_of(value).get(part) if isinstance(value, dict | list) else None
    return value


def _fitting(
    values: list[Any], kind: pa.DataType, name: str, rules: Rules, reasons: dict[int, str]
) -> pa.Array:
    """Return values as a column; those that do not fit are null, with a reason."""
    is_text = name in rules.texts
    is_usual = not is_text and not (pa.types.is_nested(kind) or pa.types.is_temporal(kind))
    if is_usual and (rules.keeps_nan or not pa.types.is_floating(kind)):
        with suppress(*_MISFITS):  # the values of most columns fit as they are
            return _array(values, kind)
    fitted: list[Any] = []

    def refuse(index: int) -> None:
        fitted[index] = None
        value = safe_repr(values[index], _REASON_LIMIT)
        field = name.removeprefix(FIELD)
        text = f"field {field} is {value}, which does not fit the type {kind}"
        reasons.setdefault(index, text[:_REASON_LIMIT])

    for index, value in enumerate(values):
        fitted.append(None)
        try:
            fitted[index] = _text_of(value) if is_text else _fitted(value, kind, rules)
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


def _fitted(value: Any, kind: pa.DataType, rules: Rules) -> Any:
    """Convert a value to the form that Arrow accepts for a type; raise one of `_MISFITS`."""
    types = pa.types
    if value is None:
        return None
    if isinstance(value, float) and math.isnan(value):
        return value if rules.keeps_nan and types.is_floating(kind) else None
    if types.is_floating(kind):
        is_number = isinstance(value, int | Decimal | Fraction) and type(value) is not bool
        return float(value) if is_number else value
    if types.is_timestamp(kind):
        moment = time_of(value, rules.zone)
        return moment if kind.tz else moment.astimezone(rules.zone).replace(tzinfo=None)
    if types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, Decimal) and not types.is_decimal(kind):
        return _whole(value, kind)
    if types.is_integer(kind) and not isinstance(value, int):
        message = f"{value!r} is not a {kind}"  # Arrow would truncate floats, nested ones too
        raise ValueError(message)
    if types.is_decimal(kind) and isinstance(value, float):
        return Decimal(repr(value))
    return _fitted_inside(value, kind, rules) if types.is_nested(kind) else value


def _whole(value: Decimal, kind: pa.DataType) -> int:
    """Return an integral decimal as an integer; Arrow would truncate other decimals."""
    is_small = pa.types.is_integer(kind) and value.is_finite() and abs(value) < 10**20
    if not is_small or value != value.to_integral_value():
        message = f"{value!r} is not a {kind}"
        raise ValueError(message)
    return int(value)


def _fitted_inside(value: Any, kind: pa.DataType, rules: Rules) -> Any:
    """Convert a map or list and its elements to the forms that Arrow accepts."""
    types = pa.types
    if types.is_list(kind) and isinstance(value, list):
        return [_fitted(item, kind.value_type, rules) for item in value]
    if isinstance(value, dict) and types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type, rules) for field in kind}
    if isinstance(value, dict) and types.is_map(kind):
        of_keys, of_values = kind.key_type, kind.item_type
        return [
            (_fitted(key, of_keys, rules), _fitted(item, of_values, rules))
            for key, item in value.items()
        ]
    message = f"{type(value).__name__} is not a {kind}"
    raise ValueError(message)


def time_of(value: Any, zone: tzinfo = UTC) -> datetime:
    """Return a time from a time of CBOR, text of ISO 8601, or a number since 1970.

    Numbers are seconds up to 10^11 (the year 5138), then milliseconds up to 10^14, microseconds
    up to 10^17, and nanoseconds.

    Args:
        value: A value of a payload.
        zone: Time zone of a time without one.

    Raises:
        ValueError: the value is not a time.
        OverflowError: the time is beyond the range of `datetime`.
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
        message = f"{value!r} is not a time"
        raise ValueError(message)  # as for text that is not a time
    number: Any = value
    steps = next((steps for limit, steps in _EPOCHS if abs(number) < limit), None)
    if steps is None:
        message = "a number since 1970 is less than 10^20"
        raise ValueError(message)
    if isinstance(number, Decimal):  # it may have billions of decimal places
        number = number.quantize(_TENTH_OF_MICROSECOND, ROUND_FLOOR)
    exact = Fraction(number) * 1_000_000 / steps
    return _1970 + timedelta(microseconds=math.floor(exact))


#: Limits of numbers since 1970, and the steps per second of numbers below each.
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
    """Convert a number, time, truth value or bytes to text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, date):  # a datetime is a date too
        return value.isoformat()
    if isinstance(value, int | float | Decimal):
        return str(value)
    message = f"{type(value).__name__} is not text"
    raise TypeError(message)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column; raise one of `_MISFITS` if a value does not fit."""
    if pa.types.is_integer(kind) and not {float, Decimal}.isdisjoint(map(type, values)):
        message = "Arrow would truncate floats and decimals to integers"
        raise ValueError(message)
    return pa.array(values, kind)


def _kind_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type of a field's values; the most frequent one if they differ."""
    with suppress(*_MISFITS):
        return _storable(pa.array(values).type)
    common = Counter(type(value) for value in values).most_common(1)[0][0]
    with suppress(*_MISFITS):
        return _storable(pa.array([value for value in values if type(value) is common]).type)
    return pa.string()


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type of Spark that corresponds to a type of Arrow."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_decimal(kind):
        # 1.5 in the sample does not mean that there is no 10.25 in the log.
        digits = kind.precision - kind.scale  # before the point
        if digits <= _DECIMAL.precision - _DECIMAL.scale and kind.scale <= _DECIMAL.scale:
            return _DECIMAL
        return pa.decimal128(38, max(0, min(kind.scale, 38 - digits)))
    return kind


#: Decimals as Spark infers them: 20 digits before the point, 18 after it.
_DECIMAL: Final = pa.decimal128(38, 18)


_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, ArithmeticError, RecursionError)
