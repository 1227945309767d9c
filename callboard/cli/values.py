"""Values between the command line and messages: JSON where it is JSON, else text."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


def from_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def to_json(value: Any) -> str:
    """Return a value as JSON; what JSON does not have becomes the nearest it has, or text."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
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
