"""Times and numbers as arguments of callboard; on times see `callboard.support.seconds`."""

from functools import partial
from typing import Final

from callboard.actors.errors import InvalidSeconds, WrongArgument, WrongValue
from callboard.support.seconds import LONGEST, checked_seconds
from callboard.support.text import shown

#: Return a time as 0 to `LONGEST` seconds, or raise `InvalidSeconds`.
seconds: Final = partial(checked_seconds, refuse=InvalidSeconds)

#: The same of a time that has to be more than 0.
period: Final = partial(checked_seconds, refuse=InvalidSeconds, is_period=True)


def limit(value: object, name: str = "timeout") -> float | None:
    """Return a time as 0 to `LONGEST` seconds; None where it is None or for ever.

    Raises:
        InvalidSeconds: it is not a number of seconds.
    """
    if type(value) is float and 0.0 <= value < LONGEST:  # as most are
        return value
    if type(value) is int and 0 <= value < LONGEST:  # `result(5)`: to ask for `Real` is slow
        return float(value)
    if value is None:
        return None
    time = seconds(value, name)
    return time if time < LONGEST else None


def count(value: object, name: str, least: int = 0) -> int:
    """Return a number of things.

    Raises:
        WrongArgument: it is no integer; a bool is none.
        WrongValue: it is less than `least`.
    """
    if type(value) is not int:
        msg = f"{name}={shown(value):.80}: a whole number is needed here, such as {least + 3}"
        raise WrongArgument(msg)
    if value < least:
        msg = f"{name}={value}: a number of at least {least} is needed here"
        raise WrongValue(msg)
    return value
