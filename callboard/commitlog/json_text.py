"""Values as JSON text, for people and for SQL."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from cbor2 import CBORDecodeError, loads


def to_json(value: Any) -> str:
    """Return a value as JSON; what JSON does not have becomes the nearest it has, or text."""
    return json.dumps(_plain(value), ensure_ascii=False)


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
        value = loads(data)
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
    if value is None or isinstance(value, bool | int | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): _plain(held)
            for key, held in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(held) for held in value]
    return value.hex() if isinstance(value, bytes) else str(value)
