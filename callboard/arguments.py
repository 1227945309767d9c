"""Checks of arguments, and their errors; on times see `callboard.support.seconds`."""

from functools import partial
from typing import Final

from callboard.base_error import CallboardError
from callboard.support.seconds import MAX_SECONDS, checked_seconds
from callboard.support.text import safe_repr


class WrongArgument(CallboardError, TypeError):
    """An argument has the wrong type; the text says what to pass."""


class WrongValue(CallboardError, ValueError):
    """An argument has an invalid value; the text names valid ones."""


class InvalidSeconds(CallboardError, ValueError):
    """A timeout, delay or period is not a number of seconds."""


def wrong_argument(needed: str, value: object) -> WrongArgument:
    """Return the error for an argument of the wrong type; `needed` says what to pass."""
    return WrongArgument(f"{needed}, not {safe_repr(value):.100}")


def require(is_so: object, needed: str, value: object) -> None:
    """Check an argument.

    Args:
        is_so: whether the argument is valid.
        needed: a text that says what to pass.
        value: the argument.

    Raises:
        WrongArgument: the argument is invalid.
    """
    if not is_so:
        raise wrong_argument(needed, value)


#: Returns a time as 0 to `MAX_SECONDS` seconds, or raises `InvalidSeconds`.
seconds: Final = partial(checked_seconds, refuse=InvalidSeconds)

#: The same for a time that must be more than 0.
period: Final = partial(checked_seconds, refuse=InvalidSeconds, is_period=True)


def limit(value: object, name: str = "timeout") -> float | None:
    """Return a time as 0 to `MAX_SECONDS` seconds; None if it is None or infinite.

    Raises:
        InvalidSeconds: the value is not a number of seconds.
    """
    if type(value) is float and 0.0 <= value < MAX_SECONDS:  # the usual case
        return value
    if (
        type(value) is int and 0 <= value < MAX_SECONDS
    ):  # `result(5)`: checking for `Real` is slow
        return float(value)
    if value is None:
        return None
    time = seconds(value, name)
    return time if time < MAX_SECONDS else None


def count(value: object, name: str, least: int = 0) -> int:
    """Return a count, which must be an integer of at least `least`.

    Raises:
        WrongArgument: the value is not an int, or is a bool.
        WrongValue: the value is less than `least`.
    """
    if type(value) is not int:
        msg = f"{name}={safe_repr(value):.80}: must be a whole number, such as {least + 3}"
        raise WrongArgument(msg)
    if value < least:
        msg = f"{name}={value}: must be at least {least}"
        raise WrongValue(msg)
    return value
