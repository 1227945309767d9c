"""In-order delivery of the messages of one node that took different paths. Pure.

A source numbers its dispatches to a destination: six bits of path epoch, then 24 bits of
sequence number. When its path changes, it starts a new epoch with sequence number 0, and sends
the number of messages in the old epoch over the new path: ``path_end``. An epoch has at most
2^24 messages; the next one follows without a ``path_end``. Epoch and sequence number together
are one number, the *position*. It increases by one with each message, and skips the unused rest
of an epoch that ended early. A dispatch that carries several messages has as many positions:
its header has the last one, and this module uses the first one. A path may also change in its
middle before the source knows it, so dispatches of one epoch can overtake each other, too.

The destination delivers exactly in the order of positions:

- the expected dispatch is delivered;
- a later one is held until all dispatches before it have arrived;
- missing dispatches that do not arrive in time are given up, and the held ones are released.
  A dispatch that arrives after it was given up is late: it is dropped, and counts as lost at
  its source. So the order is never broken, and no dispatch is delivered twice.

Wrong positions. A node on the path may alter the frames that it forwards. A correct source is
never more than ``FAR_EPOCHS`` ahead of the expected position or after it, so frames with other
positions are dropped and change nothing. If no others arrive for ``OPEN_PATIENCE``, the
expected position is the wrong one, and the order continues at the position of the source. A
source whose position is too low learns this from the delivery reports, starts an epoch after
the one expected here (:mod:`callboard.basp.accounting`), and sends the end of the latter.

Wrong ends. If two ends contradict each other, one was altered: only the latest is valid, and
none is if more messages of its epoch arrive than it counts. An altered end may also belong to
an epoch that has not ended. Therefore no end is valid for longer than ``END_PATIENCE``. If its
epoch is not complete by then, the next frame decides: a dispatch of that epoch, a dispatch of
a later one, or the same end again.

Waiting times. A held dispatch waits for ``OPEN_PATIENCE``, however many are missing before it.
The same is true for the end of an epoch that follows one without an end. If the current epoch
has ended because the first link of its path was lost, its missing messages were lost with
that link, except for a few that had already passed it: ``BROKEN_PATIENCE`` suffices for them.
``END_PATIENCE`` after the end of an epoch, no message of it arrives.

``path_end`` has no payload; its operation data has the layout of a dispatch's: bits 61-56
the epoch that ended, bits 31-0 how many messages it had, bit 62 set when the old path's
first link is still up.
"""

from collections import deque
from heapq import heappop, heappush
from typing import Final

from callboard.basp.frame import RawFrame, pack_frame
from callboard.basp.header import (
    EPOCH_COUNT,
    EPOCH_SHIFT,
    HIGH_PRIORITY,
    MESSAGE_ID_MASK,
    POSITION_MASK,
    POSITION_SHIFT,
    SEQUENCE_BITS,
    SEQUENCE_COUNT,
    Operation,
    count_of,
)

#: Seconds to wait for the rest of an epoch whose path was broken at its first link.
BROKEN_PATIENCE: Final = 0.25
#: Seconds that a dispatch is held while others before it are missing.
OPEN_PATIENCE: Final = 2.0
#: Seconds after the end of an epoch until its source counts unconfirmed messages as lost.
END_PATIENCE: Final = 5.0
#: Dispatches held for one source; with more, the missing ones before the first are given up.
HELD_LIMIT: Final = 100_000
#: Bytes of the payloads held for one source, if there are at least two.
HELD_BYTES: Final = 32 * 1024 * 1024

#: Greatest difference in epochs between the position of a dispatch and the expected one.
FAR_EPOCHS: Final = 24

_POSITION_COUNT: Final = POSITION_MASK + 1
_HALF: Final = _POSITION_COUNT // 2
# Positions before the first received one at which the order of a running source starts.
_BACK: Final = (EPOCH_COUNT // 4) << SEQUENCE_BITS
_EPOCH_START: Final = -SEQUENCE_COUNT
_NONE_EXPECTED: Final = -1
_NEVER: Final = float("inf")
_PAYLOAD: Final = 7


def pack_path_end(
    source: bytes, destination: bytes, epoch: int, count: int, *, is_open: bool
) -> bytes:
    """Pack a ``path_end``: epoch ``epoch`` had ``count`` messages."""
    data = epoch << EPOCH_SHIFT | count & MESSAGE_ID_MASK
    if is_open:
        data |= HIGH_PRIORITY
    return pack_frame(Operation.PATH_END, data, source, destination, 0, 0, b"")


class PathOrder:
    """The order of the dispatches of one source, kept by the destination.

    Attributes:
        expected: position of the next dispatch. The driver delivers a dispatch with this
            position, adds one, and passes all others to :meth:`is_next` and :meth:`take`. While
            dispatches are held or an end is in doubt, and between :meth:`stop` and
            :meth:`resume`, it is a number that no dispatch has.
        deadline: time of the next call of :meth:`tick`; None while nothing is missing.
        late: number of messages since the start that arrived twice, after they were given
            up, or with a position that is far away.
        given_up: epochs, and the number of their messages that were given up; the driver
            counts and removes them. Messages after the end of an epoch do not count: its
            source knows that there are none.
    """

    def __init__(self) -> None:
        """Start at epoch 0, as every source does."""
        self.expected = 0
        self.deadline: float | None = None
        self.late = 0
        self.given_up: list[tuple[int, int]] = []
        # Positions in this class do not wrap, as the numbers in headers do.
        self._position = 0
        self._held: dict[int, RawFrame] = {}
        self._octets = 0
        # Positions of held dispatches, as a heap, and with their times in order of arrival.
        # Both also have some that are no longer held.
        self._positions: list[int] = []
        self._waits: deque[tuple[float, int]] = deque()
        # By epoch: position after its last message, time when its path was known to be broken,
        # time when the end arrived.
        self._ends: dict[int, tuple[int, float, float]] = {}
        # Position after ends that are in doubt, because their epochs were not complete in
        # time; 0 if none is.
        self._doubtful_end = 0
        self._is_stopped = False
        # Time since which only positions far away have arrived, and the position at this time.
        self._far_since = _NEVER, 0

    @property
    def epoch(self) -> int:
        """The epoch of the next expected dispatch."""
        self._catch_up()
        return (self._position >> SEQUENCE_BITS) % EPOCH_COUNT

    @property
    def doubts_ends(self) -> bool:
        """Whether an end is in doubt: its epoch was not complete in time."""
        return self._doubtful_end > 0

    def is_next(self, frame: RawFrame) -> bool:
        """Return whether a dispatch has the next messages; if so, count them as delivered."""
        last = frame[2] >> POSITION_SHIFT & POSITION_MASK
        count = _count(frame)
        if last - count + 1 != self.expected:
            return False
        self.expected += count
        return True

    def take(self, frame: RawFrame, now: float) -> list[RawFrame]:
        """Handle a dispatch that is not the expected one; return the released dispatches."""
        self._catch_up()
        number = _first_number(frame)
        self._meet(number)
        position = _nearest(number, self._position)
        if self._is_far(position):
            if not self._is_only_far(now):
                self.late += _count(frame)
                return []
            self._begin_at(position)
        self._far_since = _NEVER, 0
        if position < self._position or position in self._held:
            self.late += _count(frame)
            return []
        released = self._settle_doubt(position)
        self._held[position] = frame
        self._octets += len(frame[_PAYLOAD])
        if position > self._position:
            heappush(self._positions, position)
            self._waits.append((now, position))
        released += self._advance()
        while len(self._held) > HELD_LIMIT or (
            self._octets > HELD_BYTES and len(self._held) > 1
        ):
            released += self._skip(self._positions[0])
        return released

    def end(self, operation_data: int, now: float) -> list[RawFrame]:
        """Handle a ``path_end``; return the released dispatches."""
        self._catch_up()
        number = (operation_data >> EPOCH_SHIFT & (EPOCH_COUNT - 1)) << SEQUENCE_BITS
        self._meet(number)
        start = _nearest(number, self._position & _EPOCH_START)
        epoch = start >> SEQUENCE_BITS
        if self._is_far(start):
            if self._is_only_far(now):
                self._begin_at(start + SEQUENCE_COUNT)
        elif self._position < start + SEQUENCE_COUNT <= self._doubtful_end:
            return self._settle_doubt(self._doubtful_end)  # the end arrived again: it is true
        elif start + SEQUENCE_COUNT > self._position:
            last = start + min(operation_data & MESSAGE_ID_MASK, SEQUENCE_COUNT)
            earlier = self._ends.get(epoch)
            if earlier is None or earlier[0] != last:
                if earlier is not None:
                    self._ends.clear()
                broken = _NEVER if operation_data & HIGH_PRIORITY else now
                self._ends[epoch] = last, broken, now
        return self._advance()

    def is_owed(self, frame: RawFrame) -> bool:
        """Return whether a dispatch is missing in an epoch whose end is known."""
        position = self._position_of(frame)
        end = self._ends.get(position >> SEQUENCE_BITS, (0,))[0]
        return self._position <= position < end and position not in self._held

    def has_come(self, frame: RawFrame) -> bool:
        """Return whether a dispatch of this position was delivered, held or given up."""
        position = self._position_of(frame)
        return position < self._position or position in self._held

    def _position_of(self, frame: RawFrame) -> int:
        """Return the position of a dispatch: the one nearest to the expected position."""
        self._catch_up()
        return _nearest(_first_number(frame), self._position)

    def tick(self, now: float) -> list[RawFrame]:
        """Give up dispatches that are overdue; return the released dispatches."""
        self._catch_up()
        released = self._advance()
        while self.deadline is not None and now >= self.deadline:
            target = self._next_epoch()
            if self._due_end() <= now:
                target = (max(self._ends) + 1) << SEQUENCE_BITS
                if self._is_complete():
                    self._doubtful_end, target = target, self._position
                    self._ends.clear()
            elif now >= self._waits[0][0] + OPEN_PATIENCE:
                target = self._waits[0][1]
            else:  # only this epoch's path is broken: messages of later epochs may arrive
                target = min(target, self._waits[0][1])
            released += self._skip(target)
        return released

    def stop(self) -> None:
        """Expect no dispatch, so the driver passes all of them to `take`, until `resume`."""
        self._catch_up()
        self._is_stopped = True
        self.expected = _NONE_EXPECTED

    def resume(self) -> None:
        """Expect the next dispatch again."""
        self._is_stopped = False
        self._clean()

    def _catch_up(self) -> None:
        """Add the dispatches that the driver delivered; drop ends that they contradict."""
        if self.expected != _NONE_EXPECTED:
            self._position += self.expected - (self._position & POSITION_MASK)
            end = self._ends.get(self._position >> SEQUENCE_BITS)
            if end is not None and end[0] < self._position:
                self._ends.clear()

    def _meet(self, number: int) -> None:
        """Set the position at the first number of a source that has been running for long."""
        has_state = self._held or self._ends or self._doubtful_end
        if self._position == 0 and not has_state and number > _BACK:
            self._position = _POSITION_COUNT + number - _BACK

    def _is_far(self, position: int) -> bool:
        """Return whether a position is one that a correct source cannot have reached."""
        epochs = (position >> SEQUENCE_BITS) - (self._position >> SEQUENCE_BITS)
        return abs(epochs) > FAR_EPOCHS

    def _is_only_far(self, now: float) -> bool:
        """Record a position far away; return whether only such ones arrived for long."""
        since, position = self._far_since
        if position != self._position:
            since = _NEVER
        self._far_since = min(since, now), self._position
        return now >= since + OPEN_PATIENCE

    def _begin_at(self, position: int) -> None:
        """Continue at the position of the source, and give up its epoch before it."""
        self.late += sum(map(_count, self._held.values()))
        self._held.clear()
        self._octets = 0
        self._ends.clear()
        self._doubtful_end = 0
        self._positions.clear()
        self._position = position
        missing = position - (position & _EPOCH_START)
        if missing:
            self.given_up.append(((position >> SEQUENCE_BITS) % EPOCH_COUNT, missing))

    def _settle_doubt(self, position: int) -> list[RawFrame]:
        """Believe the doubtful end if this position follows it; otherwise forget the end."""
        end, self._doubtful_end = self._doubtful_end, 0
        return self._skip(end) if self._position < end <= position else []

    def _next_epoch(self) -> int:
        """Return the first position of the next epoch."""
        return ((self._position >> SEQUENCE_BITS) + 1) << SEQUENCE_BITS

    def _advance(self) -> list[RawFrame]:
        """Release complete dispatches, across ends of epochs; set the next deadline."""
        released = []
        while True:
            frame = self._pop(self._position)
            if frame is not None:
                released.append(frame)
                self._position += _count(frame)
                continue
            end = self._ends.get(self._position >> SEQUENCE_BITS)
            if end is None or self._position < end[0]:
                break
            self._position = self._next_epoch()
        self._clean()
        return released

    def _pop(self, position: int) -> RawFrame | None:
        """Remove and return the held dispatch of a position."""
        frame = self._held.pop(position, None)
        self._octets -= 0 if frame is None else len(frame[_PAYLOAD])
        return frame

    def _skip(self, target: int) -> list[RawFrame]:
        """Give up missing dispatches before ``target``; return the released dispatches."""
        first = max(self._position, target & _EPOCH_START)
        missing = target - first
        released = []
        while self._positions and self._positions[0] < target:
            position = heappop(self._positions)
            frame = self._pop(position)
            if frame is not None:
                released.append(frame)
                missing -= _count(frame) if position >= first else 0
        if missing > 0:
            self.given_up.append(((target >> SEQUENCE_BITS) % EPOCH_COUNT, missing))
        self._position = target
        return released + self._advance()

    def _clean(self) -> None:
        """Drop state before the position; set the expected position and the deadline."""
        epoch = self._position >> SEQUENCE_BITS
        for past in [past for past in self._ends if past < epoch]:
            del self._ends[past]
        while self._positions and self._positions[0] < self._position:
            # A dispatch before the position is still held only after a wrong end of its epoch,
            # or if a dispatch claims a wrong number of carried messages.
            frame = self._pop(heappop(self._positions))
            self.late += 0 if frame is None else _count(frame)
        due = self._due_end()
        self.deadline = None if due == _NEVER else due
        if not self._held:
            self._waits.clear()
            if not self._is_stopped and not self._doubtful_end:
                self.expected = self._position & POSITION_MASK
            return
        self.expected = _NONE_EXPECTED
        if len(self._waits) > 2 * len(self._held) + 100:
            self._waits = deque(wait for wait in self._waits if wait[1] in self._held)
        while self._waits[0][1] not in self._held:
            self._waits.popleft()
        arrived = self._waits[0][0]
        _, broken, since = self._ends.get(epoch, (0, _NEVER, _NEVER))
        patience = max(arrived, broken) + BROKEN_PATIENCE
        self.deadline = min(
            due, arrived + OPEN_PATIENCE, patience, max(arrived, since + END_PATIENCE)
        )

    def _due_end(self) -> float:
        """Return the time at which the last known end is acted on.

        Then it is in doubt if all ends before it are known, and believed otherwise.
        """
        if not self._ends or (self._is_complete() and self._held):
            return _NEVER
        patience = END_PATIENCE if self._is_complete() else OPEN_PATIENCE
        return self._ends[max(self._ends)][2] + patience

    def _is_complete(self) -> bool:
        """Return whether all ends from the current epoch to the last known one are known."""
        return max(self._ends) - (self._position >> SEQUENCE_BITS) < len(self._ends)


def _count(frame: RawFrame) -> int:
    """Return the number of positions of a dispatch."""
    return count_of(frame[2], frame[5], frame[6])


def _first_number(frame: RawFrame) -> int:
    """Return the first position of a dispatch, as a number of headers."""
    return (frame[2] >> POSITION_SHIFT & POSITION_MASK) - _count(frame) + 1


def _nearest(number: int, origin: int) -> int:
    """Return the position nearest to ``origin`` that has ``number`` in a header."""
    return origin + (number - origin + _HALF) % _POSITION_COUNT - _HALF
