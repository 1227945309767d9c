"""Checks of times in seconds, and of other numbers, from programs, files and other nodes.

A NaN would break the order of timers, and clocks, sockets and other nodes do not accept
infinite or huge times. Therefore each value is checked once, where it enters callboard.
"""

from collections.abc import Callable
from dataclasses import fields
from numbers import Real
from typing import Any, Final

#: Seconds that mean "forever": 31 years. Longer times are replaced by this one.
MAX_SECONDS: Final = 1e9

#: The largest number in settings. A larger integer could not be converted to a float.
LARGEST: Final = 2**63 - 1


def checked_seconds(
    value: object,
    name: str = "timeout",
    *,
    refuse: Callable[[str], Exception] = ValueError,
    is_period: bool = False,
) -> float:
    """Return a time in seconds from 0 to `MAX_SECONDS`.

    Args:
        value: the time; a negative one, which is in the past, becomes 0.
        name: name of the argument, for the text of the error.
        refuse: creates the error.
        is_period: whether 0 and negative times are refused.

    Raises:
        Exception: the error of `refuse`: the value is not a valid time.
    """
    # The fast path of nearly all calls; the checks below are slow.
    if type(value) is float and 0.0 < value <= MAX_SECONDS:
        return value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value:  # NaN is not equal to itself
        text = f"{name}={_quoted(value)}: a time must be a number of seconds"
        raise refuse(text)
    if is_period and not value > 0:  # type: ignore[operator]
        text = f"{name}={_quoted(value)}: a period must be more than 0 seconds"
        raise refuse(text)
    # Before the conversion: float() raises for a very large integer.
    if value > MAX_SECONDS:  # type: ignore[operator]
        return MAX_SECONDS
    return float(value) if value > 0 else 0.0  # type: ignore[operator,arg-type]


def check_numbers(settings: Any) -> None:
    """Check the numbers among the fields of a dataclass.

    Raises:
        ValueError: a number is NaN, infinite, or too large for calculations.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            name = f"{type(settings).__name__}({field.name}={_quoted(value)})"
            text = f"{name}: must be a number of at most {LARGEST:,}"
            raise ValueError(text)


def _quoted(value: object) -> str:
    return repr(value)[:80] if isinstance(value, int | float | str) else type(value).__name__
