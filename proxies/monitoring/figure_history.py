"""The figures of a node during the last hour, one sample each ten seconds.

The node samples during its housekeeping, so the hour is complete when a page is opened. A node
keeps `SAMPLES` numbers for each figure, about 20 KB in all.
"""

from array import array
from typing import Final, NamedTuple

#: Seconds between samples, and the number of samples that are kept: one hour.
SAMPLE_SECONDS: Final = 10.0
SAMPLES: Final = 360


class FigureSample(NamedTuple):
    """The figures of a node at one moment.

    Attributes:
        time: the node's monotonic clock in seconds.
        handled: messages handled since the start.
        sent: messages sent to other nodes since the start.
        lost: messages to other nodes that were lost or not confirmed, since the start.
        waiting: messages in all mailboxes.
        waited: seconds that the oldest of them has waited, at least.
        resident_bytes: memory of the process in RAM.
    """

    time: float
    handled: float
    sent: float
    lost: float
    waiting: float
    waited: float
    resident_bytes: float


class FigureHistory:
    """A ring of samples. Call it on the node's thread."""

    def __init__(self) -> None:
        self._ring = array("d", bytes(8 * SAMPLES * len(FigureSample._fields)))
        self._count = 0
        self._due_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the next sample is due."""
        return now >= self._due_at

    def append(self, sample: FigureSample) -> None:
        """Add a sample; the oldest one is overwritten."""
        width = len(sample)
        offset = self._count % SAMPLES * width
        self._ring[offset : offset + width] = array("d", sample)
        self._count += 1
        self._due_at = sample.time + SAMPLE_SECONDS

    def samples(self) -> list[FigureSample]:
        """Return the samples, the oldest first."""
        width = len(FigureSample._fields)
        first = max(0, self._count - SAMPLES)
        offsets = (index % SAMPLES * width for index in range(first, self._count))
        return [FigureSample(*self._ring[offset : offset + width]) for offset in offsets]
