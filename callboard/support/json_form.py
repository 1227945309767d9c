"""JSON of any value: numbers that JSON lacks are written as text.

`json.dumps` writes NaN and infinity as words that are not JSON: browsers, `jq` and databases
refuse the whole document. All code that writes values of users as JSON uses this instead. Such
a number becomes the text `"nan"`, `"inf"` or `"-inf"`, as Python and Broker print it.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

#: What the text of a number that JSON lacks stands for; the last three are JavaScript's.
NUMBERS: Final[Mapping[str, float]] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def json_of(
    value: Any, *, ensure_ascii: bool = False, default: Callable[[Any], Any] | None = None
) -> str:
    """Return a value as JSON.

    Args:
        value: whatever `json.dumps` takes.
        ensure_ascii: whether other characters are escaped.
        default: returns what is written for a value that JSON lacks.

    Raises:
        TypeError: JSON lacks a value, and there is no `default`.
        ValueError: the value contains itself.
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False, default=default)
    except ValueError as error:
        try:
            finite = _finite(value)
        except RecursionError:
            raise error from None
    more = default and (lambda held: _finite(default(held)))
    return json.dumps(finite, ensure_ascii=ensure_ascii, allow_nan=False, default=more)


def _finite(value: Any) -> Any:
    """Return a value with texts in the place of numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {_finite(key): _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return value
