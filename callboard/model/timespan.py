"""Timespans and timestamps in nanoseconds, as 64-bit integers (±292 years)."""

import datetime
import re
from math import isfinite
from typing import Final, Self, overload

from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Scalar, whole_number

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_SECOND: Final = 10**9
_MICROSECONDS_MAX: Final = _HIGHEST // 1000
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "min": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "d": 86_400 * _SECOND,
}
_SPAN: Final = re.compile(r"(-?)([0-9]{1,20})(?:\.([0-9]{1,30}))?(ns|us|ms|s|min|h|d)")
_POINT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_TEXT_SHOWN: Final = 60


def _divided(dividend: int, divisor: int) -> int:
    """Divide as C++ does: towards zero."""
    if divisor == 0:
        msg = "division of a timespan by zero"
        raise ZeroDivisionError(msg)
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


class Timespan(Scalar):
    """A span of time: `Timespan(5)` is 5 nanoseconds, `Timespan(5.0)` is 5 seconds.

    >>> Timespan(1.5) + Timespan(1)
    1500000001ns

    Raises:
        DataOverflow: the value does not fit 64 bits.
        UnsupportedData: the value is not a number.
    """

    __slots__ = ()
    _key: int

    def __init__(self, value: float = 0) -> None:
        if isinstance(value, float):
            if not isfinite(value * _SECOND):
                msg = f"{value} seconds is not a timespan"
                raise DataOverflow(msg)
            value = int(value * _SECOND)
        ns = whole_number(value, "a timespan in ns")
        if not _LOWEST <= ns <= _HIGHEST:
            msg = f"timespan of {ns} ns does not fit 64 bits (about 292 years either way)"
            raise DataOverflow(msg)
        self._key = ns

    @classmethod
    def from_timedelta(cls, span: datetime.timedelta) -> Self:
        """Convert a timedelta, exactly."""
        return cls(span // _MICROSECOND * 1000)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number with a unit: `5ns`, `1.5ms`; also us, s, min, h and d.

        Fractions of a nanosecond are cut off.

        Raises:
            InvalidData: the text has another form.
        """
        match = _SPAN.fullmatch(text)
        if match is None:
            msg = f"{text[:_TEXT_SHOWN]!r} is not a timespan like 1.5ms (ns us ms s min h d)"
            raise InvalidData(msg)
        sign, whole, fraction, unit = match.groups()
        fraction = fraction or ""
        ns = int(whole + fraction) * _UNITS[unit] // 10 ** len(fraction)
        try:
            return cls(-ns if sign else ns)
        except DataOverflow as cause:
            raise InvalidData(str(cause)) from cause

    def count(self) -> int:
        """Return the number of nanoseconds."""
        return self._key

    def to_timedelta(self) -> datetime.timedelta:
        """Return a timedelta, rounded to microseconds (half to even)."""
        return datetime.timedelta(microseconds=_microseconds(self._key))

    def total_seconds(self) -> float:
        """Return the seconds; a float cannot represent every nanosecond."""
        return self._key / _SECOND

    def __add__(self, other: object) -> "Timespan":
        if not isinstance(other, Timespan):
            return NotImplemented
        return Timespan(self._key + other._key)

    def __sub__(self, other: object) -> "Timespan":
        if not isinstance(other, Timespan):
            return NotImplemented
        return Timespan(self._key - other._key)

    def __mul__(self, factor: object) -> "Timespan":
        return Timespan(self._key * factor) if isinstance(factor, int) else NotImplemented

    __rmul__ = __mul__

    @overload
    def __truediv__(self, divisor: "Timespan") -> int: ...

    @overload
    def __truediv__(self, divisor: int) -> "Timespan": ...

    def __truediv__(self, divisor: "Timespan | int") -> "Timespan | int":
        if isinstance(divisor, Timespan):
            return _divided(self._key, divisor._key)
        return Timespan(_divided(self._key, divisor))

    def __mod__(self, divisor: "Timespan | int") -> "Timespan":
        by = divisor._key if isinstance(divisor, Timespan) else divisor
        return Timespan(self._key - by * _divided(self._key, by))

    def __str__(self) -> str:
        return f"{self._key}ns"


class Timestamp(Scalar):
    """A point of time since 1970 (UTC): `Timestamp(Timespan(ns))` or `Timestamp(seconds)`.

    Raises:
        DataOverflow: before 1677 or after 2262.
    """

    __slots__ = ()
    _key: int

    def __init__(self, since_epoch: Timespan | float = 0.0) -> None:
        if not isinstance(since_epoch, Timespan):
            whole = isinstance(since_epoch, int) and not isinstance(since_epoch, bool)
            since_epoch = Timespan(since_epoch * _SECOND if whole else since_epoch)
        self._key = since_epoch.count()

    @classmethod
    def from_datetime(cls, moment: datetime.datetime) -> Self:
        """Convert a datetime, exactly. Without a time zone it is local time."""
        if moment.tzinfo is None:
            moment = moment.astimezone()
        return cls(Timespan((moment - _EPOCH) // _MICROSECOND * 1000))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `2026-01-31T12:30:00.123456789`; without a zone it is UTC.

        Raises:
            InvalidData: the text has another form.
        """
        match = _POINT.fullmatch(text)
        if match is None:
            msg = f"{text[:_TEXT_SHOWN]!r} is not a timestamp like 2026-01-31T12:30:00.123"
            raise InvalidData(msg)
        day, clock, fraction, zone = match.groups()
        try:
            moment = datetime.datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}")
            ns = (moment - _EPOCH) // _MICROSECOND * 1000 + int((fraction or "0").ljust(9, "0"))
            return cls(Timespan(ns))
        except (DataOverflow, ValueError) as cause:
            msg = f"{text[:_TEXT_SHOWN]!r} is not a timestamp: {cause}"
            raise InvalidData(msg) from cause

    def time_since_epoch(self) -> Timespan:
        """Return the time since 1970-01-01 00:00 UTC."""
        return Timespan(self._key)

    def to_datetime(self) -> datetime.datetime:
        """Return a datetime in UTC, rounded to microseconds (half to even)."""
        return _EPOCH + datetime.timedelta(microseconds=_microseconds(self._key))

    def isoformat(self) -> str:
        """Return the text that `parse` reads, with three to nine decimal digits."""
        seconds, fraction = divmod(self._key, _SECOND)
        moment = _EPOCH + datetime.timedelta(seconds=seconds)
        digits = f"{fraction:09}".rstrip("0").ljust(3, "0")
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{digits}"

    def __add__(self, span: object) -> "Timestamp":
        if not isinstance(span, Timespan):
            return NotImplemented
        return Timestamp(Timespan(self._key) + span)

    @overload
    def __sub__(self, other: Timespan) -> "Timestamp": ...

    @overload
    def __sub__(self, other: "Timestamp") -> Timespan: ...

    def __sub__(self, other: "Timespan | Timestamp") -> "Timestamp | Timespan":
        if isinstance(other, Timestamp):
            return Timespan(self._key - other._key)
        return Timestamp(Timespan(self._key) - other)

    def __str__(self) -> str:
        return f"{self._key}ns"


def _microseconds(ns: int) -> int:
    """Round to microseconds, half to even, as Python's own conversions do.

    The extreme values are clamped, so that the result can be converted back to a timestamp.
    """
    return max(-_MICROSECONDS_MAX, min(round(ns, -3) // 1000, _MICROSECONDS_MAX))
