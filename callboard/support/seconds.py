"""Times in seconds, and other numbers, as programs, files and other nodes give them.

A time that is no number, or not a number (NaN), would put timers out of order; an infinite or
huge one cannot be told to a clock, a socket or another node. So each is checked once, where it
comes in.
"""

from collections.abc import Callable
from dataclasses import fields
from numbers import Real
from typing import Any, Final

#: Seconds that stand for ever: 31 years. Longer times are taken for this.
MAX_SECONDS: Final = 1e9

#: The largest number in settings. Integers have no end, but floats that are made of them have.
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
        value: a time that has run out already, less than 0, is 0.
        name: of the argument, for the error's text.
        refuse: makes the error.
        is_period: whether it has to be more than 0.

    Raises:
        Exception: that of `refuse`: it is not a number, or no time.
    """
    if (
        type(value) is float and 0.0 < value <= MAX_SECONDS
    ):  # as most are; the test below is slow
        return value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value:  # as NaN alone is
        text = f"{name}={_shown(value)}: a time is a number of seconds"
        raise refuse(text)
    if is_period and not value > 0:  # type: ignore[operator]
        text = f"{name}={_shown(value)}: a period is more than 0 seconds"
        raise refuse(text)
    if value > MAX_SECONDS:  # type: ignore[operator]  # before it is a float: integers have no end
        return MAX_SECONDS
    return float(value) if value > 0 else 0.0  # type: ignore[operator,arg-type]


def check_numbers(settings: Any) -> None:
    """Check the numbers among the fields of a dataclass.

    Raises:
        ValueError: one is not a number (NaN), infinite, or too large to reckon with.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            name = f"{type(settings).__name__}({field.name}={_shown(value)})"
            text = f"{name}: give a number of at most {LARGEST:,}"
            raise ValueError(text)


def _shown(value: object) -> str:
    return repr(value)[:80] if isinstance(value, int | float | str) else type(value).__name__
