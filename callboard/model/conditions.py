"""Fields of JSON values by their paths, and conditions on them."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

#: The value of a field that does not exist; equal to no other value.
MISSING: Final = object()

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, choices: value in choices,
}


def field_of(content: Any, path: str) -> Any:
    """Return a field of a JSON value by its path, such as `cpu.load`, or `MISSING`."""
    for part in path.split("."):
        if not isinstance(content, dict) or part not in content:
            return MISSING
        content = content[part]
    return content


def check_conditions(conditions: Mapping[str, Any]) -> None:
    """Refuse comparisons that do not exist.

    Args:
        conditions: required values by path, or comparisons: `{">": 0.5, "<=": 0.9}`.

    Raises:
        ValueError: a comparison is unknown, or has a value of the wrong type.
    """
    for field, condition in conditions.items():
        unknown = set(condition) - set(_COMPARISONS) if isinstance(condition, dict) else set()
        if unknown:
            signs = " ".join(_COMPARISONS)
            msg = f"{field}: {min(unknown)!r} is not a comparison; use one of {signs}"
            raise ValueError(msg)
        if isinstance(condition, dict) and not isinstance(condition.get("in", []), list):
            msg = f"{field}: the comparison 'in' takes a list of values"
            raise ValueError(msg)


def meets(content: Any, conditions: Mapping[str, Any]) -> bool:
    """Return whether a JSON value meets all conditions."""
    return all(
        _holds(field_of(content, path), condition) for path, condition in conditions.items()
    )


def _holds(value: Any, condition: Any) -> bool:
    """Return whether a value equals the condition, or satisfies its comparisons."""
    if not isinstance(condition, dict):
        return bool(value == condition)
    if value is MISSING:
        return False
    try:
        return all(_COMPARISONS[sign](value, limit) for sign, limit in condition.items())
    except TypeError:  # for example a text compared with a number
        return False
