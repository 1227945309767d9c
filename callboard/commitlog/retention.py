"""Retention of a log: whole segments expire, the oldest first."""

import math
from collections.abc import Sequence
from typing import Final

from callboard.commitlog.errors import InvalidOption
from callboard.commitlog.segment import SegmentInfo
from callboard.support.dataclass import dataclass
from callboard.support.seconds import LARGEST, check_numbers

DEFAULT_SEGMENT_BYTES: Final = 64 << 20
#: Number of segments that share a limit, so that about a tenth of it expires at a time.
PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of a log; None is unlimited. The newest segment never expires.

    Attributes:
        bytes: Size on disk of all segments together.
        records: Number of records.
        seconds: Age of a segment: from the latest time in it until now, by the log's clock. A
            time in the future counts as the latest time of the segment after it.
    """

    bytes: int | None = None
    records: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and self.seconds > LARGEST:  # practically unlimited
            object.__setattr__(self, "seconds", None)
        for name in ("bytes", "records", "seconds"):
            value = getattr(self, name)
            if value == math.inf:
                object.__setattr__(self, name, None)
            elif value is not None and not value > 0:  # also true for NaN
                msg = f"Retention({name}={value}): give more than 0, or None for no limit"
                raise InvalidOption(msg)
        check_numbers(self)

    @classmethod
    def parse(cls, text: str) -> "Retention":
        """Parse limits such as `bytes=1000000,records=1000,seconds=3600`.

        Raises:
            ValueError: the text is malformed.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition("=")
            limits[name] = float(number) if name == "seconds" else int(number)
        try:
            return cls(**limits)  # type: ignore[arg-type]  # wrong names are reported below
        except TypeError:
            msg = f"{', '.join(limits)}: use the limits bytes, records and seconds"
            raise InvalidOption(msg) from None

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit is set."""
        return self.bytes is None and self.records is None and self.seconds is None

    def count_expired(self, segments: Sequence[SegmentInfo], now: int) -> int:
        """Return how many segments have expired.

        Args:
            segments: All segments, oldest first.
            now: The time, in nanoseconds since 1970.
        """
        size, count, end = sum(segment.bytes for segment in segments), 0, segments[-1].end
        for segment, latest in zip(segments[:-1], _latest_times(segments, now), strict=False):
            expired = (
                (self.bytes is not None and size > self.bytes)
                or (self.records is not None and end - segment.base > self.records)
                or (self.seconds is not None and latest < now - self.seconds * 1e9)
            )
            if not expired:
                break
            size -= segment.bytes
            count += 1
        return count


def _latest_times(segments: Sequence[SegmentInfo], now: int) -> list[int]:
    """Return the latest time of each segment, for its age.

    A wrong clock or a wrong unit can give a record a time in the next century, and its segment
    would keep all later ones from expiring. Its records were appended before those of the next
    segment, so the time of that one is used.
    """
    times = []
    next_time = now
    for segment in reversed(segments):
        if segment.latest_time <= now:
            next_time = segment.latest_time
        times.append(next_time)
    return times[::-1]


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of a segment; the first that is reached starts a new one.

    Attributes:
        bytes: Size of the segment.
        records: Number of records.
        seconds: Age of its first record.
    """

    bytes: int
    records: int | None
    seconds: float | None

    @classmethod
    def fitting(
        cls,
        retention: Retention,
        segment_bytes: int | None,
        segment_seconds: float | None = None,
    ) -> "SegmentLimits":
        """Return limits with which retention removes about a tenth at a time."""
        size = segment_bytes or DEFAULT_SEGMENT_BYTES
        if segment_bytes is None and retention.bytes is not None:
            size = max(1, min(size, retention.bytes // PARTS))
        records = None if retention.records is None else max(1, retention.records // PARTS)
        part = math.inf if retention.seconds is None else retention.seconds / PARTS
        seconds = min(part, math.inf if segment_seconds is None else segment_seconds)
        return cls(size, records, None if seconds == math.inf else seconds)
