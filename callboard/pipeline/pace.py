"""The pace of a replay: when each record is due, by its event time.

This module has no clock: the caller passes times and gets delays. Delays are computed from the
first record in whole nanoseconds of event time, so rounding errors do not add up.
"""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from callboard.pipeline.errors import InvalidSetting

_NANOSECONDS: Final = 10**9
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class EventPace:
    """Computes when each record is due.

    Attributes:
        behind: Records whose time is before that of an earlier record; they are due at once.
    """

    def __init__(self, speed: float, longest_pause: float = math.inf) -> None:
        """Start before the first record.

        Args:
            speed: Factor relative to the recorded pace; 0 or infinity for as fast as possible.
            longest_pause: Longest pause between two records, in seconds of the replay.
        """
        self.behind = 0
        self._speed = speed or math.inf
        gap = longest_pause * self._speed * _NANOSECONDS
        self._longest = None if math.isinf(gap) else round(gap)
        self._latest: int | None = None
        self._passed = 0

    def due(self, time_ns: int) -> float:
        """Return when a record is due, in seconds after the first record.

        Args:
            time_ns: Time of the record in nanoseconds; one before the latest is due at once.
        """
        if self._latest is None:
            self._latest = time_ns
        gap = time_ns - self._latest
        if gap < 0:
            self.behind += 1
        else:
            self._passed += gap if self._longest is None else min(gap, self._longest)
            self._latest = time_ns
        return 0.0 if math.isinf(self._speed) else self._passed / _NANOSECONDS / self._speed


def parse_speed(text: str) -> float:
    """Return a speed: a number, or `max` for as fast as possible.

    Raises:
        InvalidSetting: the text is neither.
    """
    try:
        speed = 0.0 if text.strip().lower() == "max" else float(text)
    except ValueError:
        speed = math.nan
    if not 0 <= speed < math.inf:
        msg = f"{text!r} is not a speed; use a number like 60, or max"
        raise InvalidSetting(msg)
    return speed


def event_time(payload: Any, field: str) -> int | None:
    """Return the time in a payload's field in nanoseconds since 1970, or None.

    A number is seconds since 1970. A text is ISO 8601, in UTC if it names no zone.
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
