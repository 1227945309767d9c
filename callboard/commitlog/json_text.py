"""Values as JSON text, for people and for SQL."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from cbor2 import CBORDecodeError

from callboard.commitlog.record import decode_value

#: Bits of the largest integer written in decimal: Python refuses to print 4,301 digits.
_DECIMAL_BITS: Final = 14_000


def to_json(value: Any) -> str:
    """Return a value as JSON; types that JSON lacks become the nearest type, or text."""
    try:
        return json.dumps(_plain(value), ensure_ascii=False)
    except RecursionError:
        return json.dumps(f"<a {type(value).__name__} that is nested too deep to show>")


def payload_json(data: bytes, is_bytes: bool) -> str | None:  # noqa: FBT001
    """Return a payload as JSON: plain bytes as text if they are UTF-8, else as hex digits.

    None if a payload that should be CBOR cannot be decoded.
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
    """Return a value made of types that JSON has."""
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
            key if isinstance(key, str) else _text_of(key): _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else _text_of(value)


def _text_of(value: Any) -> str:
    """Return the text of a value; only its type if it holds an integer too long to print."""
    try:
        return str(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else f"<a {type(value).__name__}>"
