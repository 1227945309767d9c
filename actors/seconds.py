"""Times in seconds as arguments of callboard: see `callboard.seconds`."""

from functools import partial
from typing import Final

from callboard.actors.errors import InvalidSeconds
from callboard.seconds import LONGEST, checked_seconds

#: Return a time as 0 to `LONGEST` seconds, or raise `InvalidSeconds`.
seconds: Final = partial(checked_seconds, refuse=InvalidSeconds)

#: The same of a time that has to be more than 0.
period: Final = partial(checked_seconds, refuse=InvalidSeconds, is_period=True)


def limit(value: object, name: str = "timeout") -> float | None:
    """Return a time as 0 to `LONGEST` seconds; None where it is None or for ever.

    Raises:
        InvalidSeconds: it is not a number of seconds.
    """
    if value is None:
        return None
    time = seconds(value, name)
    return time if time < LONGEST else None
