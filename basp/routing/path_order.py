"""The order of messages from one node, whatever ways they take. Pure.

A source numbers its dispatches to a destination: six bits of path epoch, then 24 bits of
sequence number. It begins a new epoch, with sequence number 0, when its path moves, and says
over the new path how many messages the old epoch had: ``path_end``. An epoch holds 2^24
messages at most, and the next one follows by itself: epoch and sequence number together are
one number, the *position*, that rises by one with each message and skips the unused rest of
an epoch that ended early. A dispatch that carries several messages takes as many positions; its
header has the last, and here it stands at the first. Paths may also move in the middle, where
the source hears of it later, so dispatches of one epoch may overtake each other too.

The destination delivers exactly in the order of positions:

- the expected one is delivered;
- a later one is held until what is missing before it has come;
- when that does not come in time, it is given up, and what is held goes on. What still
  arrives of it is late, is dropped, and counts as lost at its source. So order never breaks,
  and nothing is delivered twice.

No source is far ahead or behind, by more than ``FAR_EPOCHS``. What says so is dropped and moves
nothing. If nothing else comes for ``OPEN_PATIENCE``, then the position
here is wrong, because a node on the path has altered what it passed on, and the order begins
anew with the source's. A source whose position is late hears of it by the delivery reports,
begins an epoch behind it (:mod:`callboard.basp.accounting`), and says that the one here is
over. An end that another one contradicts was altered too: the latest holds, alone, and none
when more comes of its epoch than it says. An end may also lie ahead, of an epoch that goes on.
So nobody relies on one for longer than ``END_PATIENCE``: if its epoch is not complete by then,
what comes next decides, a dispatch of that epoch, or one behind it, or the end once more.

How long is in time: ``OPEN_PATIENCE`` for each dispatch that is held, however many are missing
before it, and for the end of an epoch before which one without an end is expected. If the
current epoch is over because the first link of its path is gone, what is
missing of it is lost with that link but for the little that had passed it, and
``BROKEN_PATIENCE`` is enough. Nothing comes of an epoch that is over for ``END_PATIENCE``.

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

#: Seconds to wait for the rest of an epoch whose path is broken at its first link.
BROKEN_PATIENCE: Final = 0.25
#: Seconds that a dispatch is held at most while others before it are missing.
OPEN_PATIENCE: Final = 2.0
#: Seconds after which a source takes for lost what is not confirmed of an epoch that is over.
END_PATIENCE: Final = 5.0
#: Dispatches held for one source; with more, what the first of them waits for is given up.
HELD_LIMIT: Final = 100_000
#: Bytes of their payloads, as soon as there are two.
HELD_BYTES: Final = 32 * 1024 * 1024

#: Epochs by which the position of a dispatch may differ from the expected one.
FAR_EPOCHS: Final = 24

_POSITION_COUNT: Final = POSITION_MASK + 1
_HALF: Final = _POSITION_COUNT // 2
# How far back the order of a source that is met in the middle begins.
_BACK: Final = (EPOCH_COUNT // 4) << SEQUENCE_BITS
_EPOCH_START: Final = -SEQUENCE_COUNT
_NONE_EXPECTED: Final = -1
_NEVER: Final = float("inf")
_PAYLOAD: Final = 7


def pack_path_end(
    source: bytes, destination: bytes, epoch: int, count: int, *, is_open: bool
) -> bytes:
    """Write a ``path_end``: epoch ``epoch`` had ``count`` messages."""
    data = epoch << EPOCH_SHIFT | count & MESSAGE_ID_MASK
    if is_open:
        data |= HIGH_PRIORITY
    return pack_frame(Operation.PATH_END, data, source, destination, 0, 0, b"")


class PathOrder:
    """What a destination keeps for one source.

    Attributes:
        expected: position of the dispatch to deliver next; the driver delivers a dispatch of
            this position, adds one, and gives all others to :meth:`is_next` and :meth:`take`.
            It is one that no dispatch has while any is held or decides, and from :meth:`stop`
            to :meth:`go_on`.
        deadline: when to call :meth:`tick`; None while nothing is waited for.
        late: messages that came twice, after they were given up, or from far away, since the
            start.
        given_up: epochs, and how many messages of them were given up, for the driver to
            count and remove. The rest of an epoch that is over is not among them: its source
            knows that it is over.
    """

    def __init__(self) -> None:
        """Begin with epoch 0, as every source does."""
        self.expected = 0
        self.deadline: float | None = None
        self.late = 0
        self.given_up: list[tuple[int, int]] = []
        # Positions in here go on rising where those of the header wrap.
        self._position = 0
        self._held: dict[int, RawFrame] = {}
        self._octets = 0
        # What is held, and some that are not any more: a heap, and in the order of arrival.
        self._positions: list[int] = []
        self._waits: deque[tuple[float, int]] = deque()
        # By epoch: its end, when it was known that the path is broken, and since when.
        self._ends: dict[int, tuple[int, float, float]] = {}
        # What follows ends that were not complete in time, and are forgotten; else 0.
        self._over = 0
        self._is_stopped = False
        # Since when nothing came but what is far away, and the position then.
        self._far_since = _NEVER, 0

    @property
    def epoch(self) -> int:
        """The epoch that the next dispatch is expected of."""
        self._catch_up()
        return (self._position >> SEQUENCE_BITS) % EPOCH_COUNT

    @property
    def doubts_ends(self) -> bool:
        """Whether the source may be behind ends that were not complete in time."""
        return self._over > 0

    def is_next(self, frame: RawFrame) -> bool:
        """Return whether a dispatch carries the messages to deliver next; they count then."""
        last = frame[2] >> POSITION_SHIFT & POSITION_MASK
        count = _count(frame)
        if last - count + 1 != self.expected:
            return False
        self.expected += count
        return True

    def take(self, frame: RawFrame, now: float) -> list[RawFrame]:
        """Take a dispatch that is not the expected one; return what is released."""
        self._catch_up()
        number = _first_number(frame)
        self._meet(number)
        position = _nearest(number, self._position)
        if self._is_far(position):
            if not self._is_nothing_else(now):
                self.late += _count(frame)
                return []
            self._begin_at(position)
        self._far_since = _NEVER, 0
        if position < self._position or position in self._held:
            self.late += _count(frame)
            return []
        released = self._pass_over(position)
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
        """Take a ``path_end``; return what is released."""
        self._catch_up()
        number = (operation_data >> EPOCH_SHIFT & (EPOCH_COUNT - 1)) << SEQUENCE_BITS
        self._meet(number)
        start = _nearest(number, self._position & _EPOCH_START)
        epoch = start >> SEQUENCE_BITS
        if self._is_far(start):
            if self._is_nothing_else(now):
                self._begin_at(start + SEQUENCE_COUNT)
        elif self._position < start + SEQUENCE_COUNT <= self._over:  # said again: it is true
            return self._pass_over(self._over)
        elif start + SEQUENCE_COUNT > self._position:
            last = start + min(operation_data & MESSAGE_ID_MASK, SEQUENCE_COUNT)
            known = self._ends.get(epoch)
            if known is None or known[0] != last:
                if known is not None:
                    self._ends.clear()
                broken = _NEVER if operation_data & HIGH_PRIORITY else now
                self._ends[epoch] = last, broken, now
        return self._advance()

    def is_owed(self, frame: RawFrame) -> bool:
        """Return whether a dispatch is missing of an epoch whose end is known."""
        position = self._position_of(frame)
        end = self._ends.get(position >> SEQUENCE_BITS, (0,))[0]
        return self._position <= position < end and position not in self._held

    def has_come(self, frame: RawFrame) -> bool:
        """Return whether one of this position was delivered, is held, or was given up."""
        position = self._position_of(frame)
        return position < self._position or position in self._held

    def _position_of(self, frame: RawFrame) -> int:
        """Return the position of a dispatch, nearest to the expected one."""
        self._catch_up()
        return _nearest(_first_number(frame), self._position)

    def tick(self, now: float) -> list[RawFrame]:
        """Give up what did not come in time; return what is released."""
        self._catch_up()
        released = self._advance()
        while self.deadline is not None and now >= self.deadline:
            to = self._next_epoch()
            if self._due_end() <= now:
                to = (max(self._ends) + 1) << SEQUENCE_BITS
                if self._is_whole():
                    self._over, to = to, self._position
                    self._ends.clear()
            elif now >= self._waits[0][0] + OPEN_PATIENCE:
                to = self._waits[0][1]
            else:  # what is missing of later epochs may come
                to = min(to, self._waits[0][1])
            released += self._skip(to)
        return released

    def stop(self) -> None:
        """Expect no dispatch: all of them are for `take`, until `go_on`."""
        self._catch_up()
        self._is_stopped = True
        self.expected = _NONE_EXPECTED

    def go_on(self) -> None:
        """Expect the next dispatch again."""
        self._is_stopped = False
        self._clean()

    def _catch_up(self) -> None:
        """Add what the driver delivered without us, also behind an end that was altered."""
        if self.expected != _NONE_EXPECTED:
            self._position += self.expected - (self._position & POSITION_MASK)
            end = self._ends.get(self._position >> SEQUENCE_BITS)
            if end is not None and end[0] < self._position:
                self._ends.clear()

    def _meet(self, number: int) -> None:
        """Begin near the first number of a source that is met in the middle of its epochs."""
        is_met = self._held or self._ends or self._over
        if self._position == 0 and not is_met and number > _BACK:
            self._position = _POSITION_COUNT + number - _BACK

    def _is_far(self, position: int) -> bool:
        """Return whether a position is one that the source cannot have come to."""
        epochs = (position >> SEQUENCE_BITS) - (self._position >> SEQUENCE_BITS)
        return abs(epochs) > FAR_EPOCHS

    def _is_nothing_else(self, now: float) -> bool:
        """Return whether nothing came for long but what is far away, as now."""
        since, position = self._far_since
        if position != self._position:
            since = _NEVER
        self._far_since = min(since, now), self._position
        return now >= since + OPEN_PATIENCE

    def _begin_at(self, position: int) -> None:
        """Forget everything and go on where the source is; give up its epoch before that."""
        self.late += sum(map(_count, self._held.values()))
        self._held.clear()
        self._octets = 0
        self._ends.clear()
        self._over = 0
        self._positions.clear()
        self._position = position
        before = position - (position & _EPOCH_START)
        if before:
            self.given_up.append(((position >> SEQUENCE_BITS) % EPOCH_COUNT, before))

    def _pass_over(self, position: int) -> list[RawFrame]:
        """Skip the ends that are doubted if this position is behind them; else deny them."""
        over, self._over = self._over, 0
        return self._skip(over) if self._position < over <= position else []

    def _next_epoch(self) -> int:
        """Return the first position of the next epoch."""
        return ((self._position >> SEQUENCE_BITS) + 1) << SEQUENCE_BITS

    def _advance(self) -> list[RawFrame]:
        """Release what is complete, over the ends of epochs, and find the next deadline."""
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
        """Take out what is held of a position."""
        frame = self._held.pop(position, None)
        self._octets -= 0 if frame is None else len(frame[_PAYLOAD])
        return frame

    def _skip(self, to: int) -> list[RawFrame]:
        """Give up what is missing before a position; return what is released."""
        first = max(self._position, to & _EPOCH_START)
        missing = to - first
        released = []
        while self._positions and self._positions[0] < to:
            position = heappop(self._positions)
            frame = self._pop(position)
            if frame is not None:
                released.append(frame)
                missing -= _count(frame) if position >= first else 0
        if missing > 0:
            self.given_up.append(((to >> SEQUENCE_BITS) % EPOCH_COUNT, missing))
        self._position = to
        return released + self._advance()

    def _clean(self) -> None:
        """Drop what was passed, and find what is expected and until when."""
        epoch = self._position >> SEQUENCE_BITS
        for known in [known for known in self._ends if known < epoch]:
            del self._ends[known]
        while self._positions and self._positions[0] < self._position:
            # Only a wrong end of its epoch is behind something that is held still, or a wrong
            # number of messages that are carried.
            frame = self._pop(heappop(self._positions))
            self.late += 0 if frame is None else _count(frame)
        due = self._due_end()
        self.deadline = None if due == _NEVER else due
        if not self._held:
            self._waits.clear()
            if not self._is_stopped and not self._over:
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
        """Return when the last known end is believed or, of a whole row, doubted."""
        if not self._ends or (self._is_whole() and self._held):
            return _NEVER
        patience = END_PATIENCE if self._is_whole() else OPEN_PATIENCE
        return self._ends[max(self._ends)][2] + patience

    def _is_whole(self) -> bool:
        """Return whether no end is missing between here and the last known one."""
        return max(self._ends) - (self._position >> SEQUENCE_BITS) < len(self._ends)


def _count(frame: RawFrame) -> int:
    """Return how many positions a dispatch takes."""
    return count_of(frame[2], frame[5], frame[6])


def _first_number(frame: RawFrame) -> int:
    """Return the first position that a dispatch takes, as in headers."""
    return (frame[2] >> POSITION_SHIFT & POSITION_MASK) - _count(frame) + 1


def _nearest(number: int, origin: int) -> int:
    """Return the position nearest to another one that has a number in a header."""
    return origin + (number - origin + _HALF) % _POSITION_COUNT - _HALF
