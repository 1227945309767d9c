"""Values as JSON text, for people and for SQL."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from cbor2 import CBORDecodeError

from callboard.commitlog.record import decode_value

#: Bits of an integer that is still written with decimal digits: Python refuses 4,301 of them.
_DECIMAL_BITS: Final = 14_000


def to_json(value: Any) -> str:
    """Return a value as JSON; what JSON does not have becomes the nearest it has, or text."""
    try:
        return json.dumps(_plain(value), ensure_ascii=False)
    except RecursionError:
        return json.dumps(f"<a {type(value).__name__} that is nested too deep to show>")


def payload_json(data: bytes, is_bytes: bool) -> str | None:  # noqa: FBT001
    """Return a payload as JSON: plain bytes as a text, or as hexadecimal digits.

    None if it is no CBOR.
    """
    if is_bytes:
        try:
            return json.dumps(data.decode(), ensure_ascii=False)
        except UnicodeDecodeError:
            return json.dumps(data.hex())
    try:
        value = decode_value(data)
    except (CBORDecodeError, ValueError):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return to_json(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _DECIMAL_BITS else hex(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else _text_of(key): _plain(held)
            for key, held in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(held) for held in value]
    return value.hex() if isinstance(value, bytes) else _text_of(value)


def _text_of(value: Any) -> str:
    """Return the text of a value; one with an integer that has too many digits by its kind."""
    try:
        return str(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else f"<a {type(value).__name__}>"
