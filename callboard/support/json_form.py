"""Encoder of any value as JSON: numbers that JSON lacks become texts.

`json.dumps` writes NaN and infinity as words that are not JSON, so browsers, `jq` and databases
refuse the whole document. All code that writes users' values as JSON uses this module
instead. Such a number becomes the text `"nan"`, `"inf"` or `"-inf"`, as in Python and Broker.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Numbers by the texts that stand for them; the last three texts are those of JavaScript.
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
        value: any value that `json.dumps` accepts.
        ensure_ascii: whether characters outside ASCII are escaped.
        default: returns a substitute for a value that JSON lacks.

    Raises:
        TypeError: JSON lacks a value, and `default` is None.
        ValueError: the value contains itself.
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False, default=default)
    except ValueError as error:
        try:
            finite = _finite(value)
        except RecursionError:
            raise error from None
    finite_default = default and (lambda item: _finite(default(item)))
    return json.dumps(
        finite, ensure_ascii=ensure_ascii, allow_nan=False, default=finite_default
    )


def _finite(value: Any) -> Any:
    """Return a value in which texts replace the numbers that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {_finite(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
