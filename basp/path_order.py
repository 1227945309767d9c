"""The order of messages from one node, when their path changes. Pure.

A source counts path epochs for each destination. When its path moves it begins a new epoch
and says over the new path how many dispatches the old one had: ``path_end``. The
destination takes the dispatches of one epoch at a time:

- those of the current epoch are delivered;
- those of a later one are held until the current one is complete: as many arrived as
  ``path_end`` says;
- when the rest does not come in time, the current epoch is closed all the same; what still
  arrives of it is late, is dropped, and counts as lost at its source. So order never
  breaks, and nothing is delivered twice.

How long is in time depends on the old path. If its first link is gone, what is missing is
lost with it but for the little that had passed that link. If that link is up, the path may
have moved because a better one appeared, and everything will come.

``path_end`` has no payload; its operation data has the layout of a dispatch's: bits 61-56
the epoch that ended, bits 55-0 how many dispatches it had, bit 62 set when the old path's
first link is still up.
"""

from typing import Final

from basp.frame import Frame, pack_frame
from basp.header import EPOCH_COUNT, EPOCH_SHIFT, HIGH_PRIORITY, MESSAGE_ID_MASK, Operation

__all__ = ["BROKEN_PATIENCE", "HELD_LIMIT", "OPEN_PATIENCE", "PathOrder", "pack_path_end"]

#: Seconds to wait for the rest of an epoch whose path is broken at its first link.
BROKEN_PATIENCE: Final = 0.25
#: Seconds to wait when that link is up, or nothing is known of the path yet.
OPEN_PATIENCE: Final = 2.0
#: Dispatches held for one source; with more the current epoch is closed at once.
HELD_LIMIT: Final = 100_000

_HALF: Final = EPOCH_COUNT // 2


def pack_path_end(
    source: bytes, destination: bytes, epoch: int, count: int, *, is_open: bool
) -> bytes:
    """Write a ``path_end``: epoch ``epoch`` had ``count`` dispatches."""
    data = epoch << EPOCH_SHIFT | count & MESSAGE_ID_MASK
    if is_open:
        data |= HIGH_PRIORITY
    return pack_frame(Operation.PATH_END, data, source, destination, 0, 0, b"")


class PathOrder:
    """What a destination keeps for one source.

    Attributes:
        current: the epoch whose dispatches are delivered.
        arrived: how many of them came.
        deadline: when the current epoch is closed in any case; None while nothing is held.
        late: dispatches that came after their epoch was closed, since the start.
    """

    __slots__ = ("_ends", "_held", "_held_count", "arrived", "current", "deadline", "late")

    def __init__(self) -> None:
        """Begin with epoch 0, as every source does."""
        self.current = 0
        self.arrived = 0
        self.deadline: float | None = None
        self.late = 0
        self._held: dict[int, list[Frame]] = {}
        self._held_count = 0
        self._ends: dict[int, tuple[int, float]] = {}

    @property
    def has_ends(self) -> bool:
        """Whether the end of some path is known and not reached: then each arrival counts."""
        return bool(self._ends)

    def take(self, frame: Frame, now: float) -> list[Frame]:
        """Take a dispatch of another epoch than the current one; return what is released."""
        epoch = frame[2] >> EPOCH_SHIFT & (EPOCH_COUNT - 1)
        if not self._is_later(epoch):
            self.late += 1
            return []
        self._held.setdefault(epoch, []).append(frame)
        self._held_count += 1
        if self.deadline is None:
            patience = self._ends.get(self.current, (0, OPEN_PATIENCE))[1]
            self.deadline = now + patience
        if self._held_count > HELD_LIMIT:
            return self._close(now)
        return self._advance(now)

    def end(self, operation_data: int, now: float) -> list[Frame]:
        """Take a ``path_end``; return what is released."""
        epoch = operation_data >> EPOCH_SHIFT & (EPOCH_COUNT - 1)
        if epoch != self.current and not self._is_later(epoch):
            return []
        patience = OPEN_PATIENCE if operation_data & HIGH_PRIORITY else BROKEN_PATIENCE
        self._ends[epoch] = (operation_data & MESSAGE_ID_MASK, patience)
        if epoch == self.current and self.deadline is not None:
            self.deadline = min(self.deadline, now + patience)
        return self._advance(now)

    def note_arrival(self, now: float) -> list[Frame]:
        """Count one of the current epoch; return what is released behind it."""
        self.arrived += 1
        return self._advance(now) if self._ends else []

    def tick(self, now: float) -> list[Frame]:
        """Close the current epoch if its time is over; return what is released."""
        if self.deadline is None or now < self.deadline:
            return []
        return self._close(now)

    def _is_later(self, epoch: int) -> bool:
        return 0 < (epoch - self.current) % EPOCH_COUNT < _HALF

    def _advance(self, now: float) -> list[Frame]:
        """Close epochs that are complete."""
        end = self._ends.get(self.current)
        if end is None or self.arrived < end[0]:
            return []
        return self._open((self.current + 1) % EPOCH_COUNT, now)

    def _close(self, now: float) -> list[Frame]:
        """Give the current epoch up and go to the first one of which something is held."""
        if not self._held:
            self.deadline = None
            return []
        first = min(self._held, key=lambda epoch: (epoch - self.current) % EPOCH_COUNT)
        return self._open(first, now)

    def _open(self, epoch: int, now: float) -> list[Frame]:
        self.current = epoch
        for known in [known for known in self._ends if known != epoch]:
            if not self._is_later(known):
                del self._ends[known]
        released = self._held.pop(epoch, [])
        self._held_count -= len(released)
        self.arrived = len(released)
        self.deadline = now + OPEN_PATIENCE if self._held else None
        return released + self._advance(now)
