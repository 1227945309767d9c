"""The pace of event time: when records of a log are due that are played again.

Pure: times come in and go out. Everything counts from the first record, in whole nanoseconds of
event time, so that no error adds up however many records there are.
"""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from callboard.pipeline.errors import InvalidSetting

_NANOSECONDS: Final = 10**9
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class EventPace:
    """Says when each record is due.

    Attributes:
        behind: Records whose time was before that of one before them: due at once.
    """

    def __init__(self, speed: float, longest_pause: float = math.inf) -> None:
        """Begin.

        Args:
            speed: So many times as fast as recorded; 0 or infinity is as fast as possible.
            longest_pause: Seconds between two records at most, as they are waited for.
        """
        self.behind = 0
        self._speed = speed or math.inf
        gap = longest_pause * self._speed * _NANOSECONDS
        self._longest = None if math.isinf(gap) else round(gap)
        self._latest: int | None = None
        self._passed = 0

    def due(self, at: int) -> float:
        """Return in how many seconds from the first record on one is due.

        Args:
            at: Its time, in nanoseconds; one of before the latest is due at once.
        """
        if self._latest is None:
            self._latest = at
        gap = at - self._latest
        if gap < 0:
            self.behind += 1
        else:
            self._passed += gap if self._longest is None else min(gap, self._longest)
            self._latest = at
        return 0.0 if math.isinf(self._speed) else self._passed / _NANOSECONDS / self._speed


def parse_speed(text: str) -> float:
    """Return a speed: a number, or `max` for as fast as possible.

    Raises:
        InvalidSetting: it is something else.
    """
    try:
        speed = 0.0 if text.strip().lower() == "max" else float(text)
    except ValueError:
        speed = math.nan
    if not 0 <= speed < math.inf:
        what = f"{text!r} is no speed; give a number like 60, or max"
        raise InvalidSetting(what)
    return speed


def event_time(payload: Any, field: str) -> int | None:
    """Return the time in a field of a payload, in nanoseconds since 1970; None if it has none.

    A number is seconds since 1970; a text is ISO 8601, UTC unless it says otherwise.
    """
    value = payload.get(field) if isinstance(payload, dict) else None
    with suppress(ValueError, OverflowError):
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            moment = value.replace(tzinfo=value.tzinfo or UTC)
            return int((moment - _EPOCH) // timedelta(microseconds=1)) * 1000
        if isinstance(value, int | float) and not isinstance(value, bool):
            return round(value * _NANOSECONDS)
    return None
