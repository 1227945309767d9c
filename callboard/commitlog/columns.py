"""Records to append, in columns, so that shared values are stored once.

A run of records has a list of payloads. Topics, keys, headers and times are either one value
for all records, or a list with a value for each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from cbor2 import CBOREncodeError, CBORError, dumps, loads

from callboard.commitlog.errors import InvalidRecord
from callboard.commitlog.record import decode_value
from callboard.support.nesting import NestedTooDeep, check_all_levels, to_cbor
from callboard.support.text import safe_repr

T = TypeVar("T")
Key = str | bytes | None
Headers = Mapping[str, str] | None
#: A byte per record, 1 if the payload is plain bytes; empty if all records are of one kind.
Kinds = bytes

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
#: Omitted from the encoding, so that records without a sender need no space for it.
NO_SENDERS: Final = [""]

_BINARY: Final = (bytes, bytearray, memoryview)
_SINGLE: Final = (str, bytes, Mapping)  # one value for all records of a run
_CACHED_NAMES: Final = (
    1024  # bytes; longer encodings hold keys of single records and rarely repeat
)
_MAX_TIME: Final = 2**63
#: Levels of lists and maps that readers decode, and the CBOR head bytes that start none.
_LEVELS: Final = 400
_NO_LEVELS: Final = bytes({*range(0x80), *range(0xE0, 0x100)})


class Cbor(bytes):
    """A payload in CBOR: stored unchanged, and decoded by the reader."""


class Columns(NamedTuple):
    """A run of records to append; a column is None if all records share one value."""

    payloads: Sequence[bytes]
    all_bytes: bool
    kinds: Kinds
    names: bytes
    times: Sequence[int] | None
    topics: Sequence[int] | None
    keys: Sequence[int] | None
    headers: Sequence[int] | None
    senders: Sequence[int] | None = None


class BatchNames(NamedTuple):
    """The values to which the numbers in the columns refer."""

    topics: Sequence[str]
    keys: Sequence[Key]
    headers: Sequence[Mapping[str, str]]
    senders: Sequence[str]


def one_record(
    topic: str, payload: Any, key: Key, headers: Headers, sender: str = ""
) -> Columns:
    """Return the columns of a single record.

    Raises:
        InvalidRecord: the record cannot be stored.
    """
    is_bytes = isinstance(payload, _BINARY) and type(payload) is not Cbor
    data = bytes(payload) if is_bytes else encode_value(payload)
    if key is None and not headers:
        names = _names_of_all(topic, sender)
    else:
        names = encode_names([topic], [key], [headers], [sender])
    return Columns((data,), is_bytes, b"", names, None, None, None, None)


def rows_of(column: Any, count: int) -> Sequence[Any]:
    """Return a column argument as a list: one value for all records, or one for each.

    Raises:
        InvalidRecord: a list has another length, or the argument is not a list.
    """
    if column is None or isinstance(column, _SINGLE):
        return [column]
    if not hasattr(column, "__len__") or not hasattr(column, "__getitem__"):
        message = (
            f"{safe_repr(column):.80} is not a topic, key, headers, sender or list of them"
        )
        raise InvalidRecord(message)
    _check_length(column, count)
    return column  # type: ignore[no-any-return]


def many_records(
    payloads: Sequence[Any],
    topics: Sequence[str],
    keys: Sequence[Key],
    headers: Sequence[Headers],
    senders: Sequence[str],
    times: Sequence[int] | None,
) -> Columns:
    """Return the columns of a run of records; lists have one value for all, or one for each.

    Raises:
        InvalidRecord: a record cannot be stored, or a list has another length.
    """
    count = len(payloads)
    data, all_bytes, kinds = encode_payloads(payloads)
    is_alike = len(topics) == len(keys) == len(headers) == len(senders) == 1
    if is_alike and keys[0] is None and headers[0] is None:
        names = _names_of_all(topics[0], senders[0])
        return Columns(data, all_bytes, kinds, names, times, None, None, None)
    topic_names, topic_column = interned(topics, count)
    key_names, key_column = interned(keys, count)
    header_names, header_column = interned([header_pairs(row) for row in headers], count)
    sender_names, sender_column = interned(senders, count)
    mappings = [dict(row) for row in header_names]
    names = encode_names(topic_names, key_names, mappings, sender_names)
    columns = (topic_column, key_column, header_column, sender_column)
    return Columns(data, all_bytes, kinds, names, times, *columns)


def encode_payloads(payloads: Sequence[Any]) -> tuple[Sequence[bytes], bool, Kinds]:
    """Return payloads as bytes, whether all were bytes, and the kinds if they are mixed.

    Raises:
        InvalidRecord: a payload cannot be stored.
    """
    types = set(map(type, payloads))
    if types == {bytes}:
        return payloads, True, b""
    if types == {Cbor}:
        return payloads, False, b""
    binary = {kind for kind in types if issubclass(kind, _BINARY)} - {Cbor}
    if not binary:
        return _encode_all(payloads), False, b""
    kinds = bytes(type(payload) in binary for payload in payloads)
    data = [
        bytes(payload) if is_bytes else encode_value(payload)
        for payload, is_bytes in zip(payloads, kinds, strict=True)
    ]
    return data, binary == types, b"" if binary == types else kinds


def interned(values: Sequence[T], count: int) -> tuple[list[T], list[int] | None]:
    """Return the distinct values, and for each record the index of its value.

    Raises:
        InvalidRecord: a value is of a type that the column cannot hold.
    """
    if len(values) == 1:
        return list(values), None
    _check_length(values, count)
    numbers: dict[T, int] = {}
    try:
        column = [numbers.setdefault(value, len(numbers)) for value in values]
    except TypeError:
        message = (
            f"topics, keys and senders must be hashable, not all of {safe_repr(values):.80} are"
        )
        raise InvalidRecord(message) from None
    return list(numbers), column if len(numbers) > 1 else None


def _check_length(column: Sequence[Any], count: int) -> None:
    """Raise `InvalidRecord` unless a column has a value for each record."""
    if len(column) != count:
        msg = f"{count} payloads, but {len(column)} values in a column; give one for each"
        raise InvalidRecord(msg)


# --- values ---


def _encode_all(values: Sequence[Any]) -> list[bytes]:
    """Encode values as CBOR; their nesting is checked in one pass.

    Raises:
        InvalidRecord: a value cannot be encoded.
    """
    try:
        check_all_levels(values)
    except NestedTooDeep:
        return [encode_value(value) for value in values]  # its error names the value
    return [encode_value(value, encode=dumps) for value in values]


def encode_value(value: Any, encode: Callable[[Any], bytes] = to_cbor) -> bytes:
    """Encode a value as CBOR.

    Args:
        value: the value.
        encode: the encoder; pass `cbor2.dumps` only for a value whose nesting was checked.

    Raises:
        InvalidRecord: the value cannot be encoded.
    """
    if type(value) is Cbor:
        return value
    try:
        data = encode(value)
        if len(data) > _LEVELS and len(data.translate(None, _NO_LEVELS)) > _LEVELS:
            decode_value(data)  # raises if it has more levels than readers decode
        return data
    except (CBORError, TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(value).__name__
        msg = f"a payload of type {kind} cannot be stored ({error}); use bytes or plain values"
        raise InvalidRecord(msg) from None


def check_times(times: Iterable[int], count: int) -> list[int]:
    """Return times as a list.

    Raises:
        InvalidRecord: their number differs from `count`, or one is not nanoseconds.
    """
    checked = list(times)
    if len(checked) != count:
        msg = f"{count} payloads, but {len(checked)} times; give one each"
        raise InvalidRecord(msg)
    for time in checked:
        if time.__class__ is not int or not -_MAX_TIME <= time < _MAX_TIME:
            msg = f"{safe_repr(time):.80} is not a time; give nanoseconds since 1970 as an int"
            raise InvalidRecord(msg)
    return checked


def _text(text: Any, kind: str) -> str:
    """Return a topic or a sender; raise `InvalidRecord` unless it is text."""
    if not isinstance(text, str):
        msg = f"a {kind} must be a text, not {type(text).__name__}"
        raise InvalidRecord(msg)
    return text


def _key(key: Any) -> Key:
    """Return a key; raise `InvalidRecord` unless it is text, bytes or None."""
    if key is not None and not isinstance(key, str | bytes):
        msg = f"a key must be text, bytes or None, not {type(key).__name__}"
        raise InvalidRecord(msg)
    return key


def header_pairs(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Return headers as a hashable value.

    Raises:
        InvalidRecord: the headers do not map texts to texts.
    """
    return tuple(sorted(_headers(headers).items()))


def _headers(headers: Any) -> Mapping[str, str]:
    """Return headers; raise `InvalidRecord` unless they map texts to texts."""
    if headers is None:
        return NO_HEADERS
    if not isinstance(headers, Mapping) or not all(
        isinstance(text, str) for item in headers.items() for text in item
    ):
        msg = f"headers must be a mapping of texts to texts, not {safe_repr(headers):.80}"
        raise InvalidRecord(msg)
    return headers


# --- names ---


def _names_of_all(topic: Any, sender: Any) -> bytes:
    """Return the encoded names of records with a topic and a sender, but no key or headers.

    Raises:
        InvalidRecord: the topic or the sender is not a text.
    """
    try:
        return plain_names(topic, sender)
    except TypeError:  # not hashable, such as a dict, so the cache refuses it
        return encode_names([topic], [None], [NO_HEADERS], [sender])


@lru_cache(1024)
def plain_names(topic: str, sender: str = "") -> bytes:
    """Return the encoded names of records with a topic and a sender, but no key or headers."""
    return encode_names([topic], [None], [NO_HEADERS], [sender])


def encode_names(
    topics: Sequence[Any], keys: Sequence[Any], headers: Sequence[Any], senders: Sequence[Any]
) -> bytes:
    """Encode the names of a batch.

    Raises:
        InvalidRecord: a value is of the wrong type.
    """
    names: list[Any] = [
        [_text(topic, "topic") for topic in topics],
        [_key(key) for key in keys],
        [dict(_headers(row)) for row in headers],
    ]
    if list(senders) != NO_SENDERS:
        names.append([_text(sender, "sender") for sender in senders])
    try:
        return dumps(names)
    except (CBOREncodeError, ValueError) as error:  # lone surrogates in a text
        msg = f"a topic, key or header cannot be stored: {error}"
        raise InvalidRecord(msg) from None


def decode_names(data: bytes) -> BatchNames:
    """Decode the names of a batch; short equal encodings return the same object.

    Raises:
        ValueError: the names are malformed.
    """
    return _decode_cached(data) if len(data) <= _CACHED_NAMES else _decode(data)


def _decode(data: bytes) -> BatchNames:
    """Decode names and check their types."""
    topics, keys, headers, *rest = loads(data)
    senders = NO_SENDERS
    if rest:
        (senders,) = rest
    kinds = (topics, str), (keys, str | bytes | None), (headers, dict), (senders, str)
    if not all(isinstance(name, kind) for column, kind in kinds for name in column):
        msg = "names of the wrong types"
        raise ValueError(msg)
    rows = [MappingProxyType(row) if row else NO_HEADERS for row in headers]
    return BatchNames(topics, keys, rows, senders)


_decode_cached = lru_cache(1024)(_decode)
