"""How long a log keeps what is in it. Whole segments go, the oldest first."""

import math
from collections.abc import Sequence
from typing import Final

from callboard.commitlog.errors import InvalidOption
from callboard.commitlog.segment import SegmentInfo
from callboard.support.dataclass import dataclass
from callboard.support.seconds import LARGEST, check_numbers

DEFAULT_SEGMENT_BYTES: Final = 64 << 20
#: Segments that a limit is spread over, so that about a tenth of it goes at a time.
PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of a log; None is no limit. The newest segment always stays.

    Attributes:
        bytes: Size on the disk, all segments together.
        records: How many records.
        seconds: Age, by the latest time of a segment and the clock of the log.
    """

    bytes: int | None = None
    records: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and self.seconds > LARGEST:  # which is for ever
            object.__setattr__(self, "seconds", None)
        for name in ("bytes", "records", "seconds"):
            value = getattr(self, name)
            if value == math.inf:
                object.__setattr__(self, name, None)
            elif value is not None and not value > 0:  # nor is NaN
                what = f"Retention({name}={value}): give more than 0, or None for no limit"
                raise InvalidOption(what)
        check_numbers(self)

    @classmethod
    def parse(cls, text: str) -> "Retention":
        """Read limits as they are typed: `bytes=1000000,records=1000,seconds=3600`.

        Raises:
            ValueError: it is something else.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition("=")
            limits[name] = float(number) if name == "seconds" else int(number)
        try:
            return cls(**limits)  # type: ignore[arg-type]  # other names are told below
        except TypeError:
            what = f"{', '.join(limits)}: limits are bytes, records and seconds"
            raise InvalidOption(what) from None

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing ever expires."""
        return self.bytes is None and self.records is None and self.seconds is None

    def count_expired(self, segments: Sequence[SegmentInfo], now: int) -> int:
        """Return how many segments have to go.

        Args:
            segments: All of them, oldest first.
            now: The time, in nanoseconds since 1970.
        """
        size, gone, end = sum(each.bytes for each in segments), 0, segments[-1].end
        for each in segments[:-1]:
            expired = (
                (self.bytes is not None and size > self.bytes)
                or (self.records is not None and end - each.base > self.records)
                or (self.seconds is not None and each.latest_time < now - self.seconds * 1e9)
            )
            if not expired:
                break
            size -= each.bytes
            gone += 1
        return gone


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a new segment begins: at the first of these limits.

    Attributes:
        bytes: Size of a segment.
        records: How many records.
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
        """Return limits that let retention remove about a tenth at a time."""
        size = segment_bytes or DEFAULT_SEGMENT_BYTES
        if segment_bytes is None and retention.bytes is not None:
            size = max(1, min(size, retention.bytes // PARTS))
        records = None if retention.records is None else max(1, retention.records // PARTS)
        part = math.inf if retention.seconds is None else retention.seconds / PARTS
        seconds = min(part, math.inf if segment_seconds is None else segment_seconds)
        return cls(size, records, None if seconds == math.inf else seconds)
