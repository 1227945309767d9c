"""Samples of what asks take and how long messages wait, so that no message is timed for it.

The watcher looks at busy runners every few milliseconds. Each twentieth look has the next ask
timed, whichever that is: the list that asks are put into is another one until then. How long
messages wait is told by the place in line of the last one in some mailbox: when that many have
been taken out, it was handled. So it is right within two or three milliseconds.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from callboard.support.histogram import Histogram

#: Looks after which one more ask is timed, and one more message followed.
EVERY: Final = 20

#: Messages that are followed at once.
FOLLOWED: Final = 64

#: Seconds after which a message is followed no more: it counts as one that waits for longer.
LONGEST_WAIT: Final = 61.0


class MailLine(Protocol):
    """What is seen of an actor's mailbox."""

    @property
    def depth(self) -> int:
        """Messages that wait."""

    @property
    def taken(self) -> int:
        """Messages that were taken out so far."""

    @property
    def keeps_order(self) -> bool:
        """Whether what waits longest is taken next."""

    @property
    def alive(self) -> bool:
        """Whether its actor has not ended."""


class _Place(NamedTuple):
    line: MailLine
    number: int
    since: float


class Sampler:
    """What is sampled of one node's messages."""

    def __init__(self) -> None:
        #: Seconds from an ask to its outcome, and from a message's arrival to its handler.
        self.asks, self.waits = Histogram(), Histogram()
        #: Has the next ask timed.
        self.time_next_ask: Callable[[], object] = lambda: None
        self._looks = 0
        self._places: list[_Place] = []
        self._new: deque[_Place] = deque(maxlen=FOLLOWED)

    def follow(self, line: MailLine, now: float, behind: int = 0) -> None:
        """Follow the last message of a mailbox, or one that comes behind it; any thread."""
        if line.keeps_order:
            self._new.append(_Place(line, line.taken + line.depth + behind, now))

    def look(self, current: Any, now: float) -> None:
        """Look at the messages that are followed; on the watcher's thread.

        Args:
            current: what runs just now; None for nothing.
            now: the runner's time.
        """
        self._looks += 1
        is_due = self._looks % EVERY == 0
        if not (is_due or self._places or self._new):
            return
        if self._places:
            self._places = [place for place in self._places if not self._is_over(place, now)]
        while self._new and len(self._places) < FOLLOWED:
            self._places.append(self._new.popleft())
        if is_due:
            self.time_next_ask()
            if getattr(current, "depth", 0) and hasattr(current, "keeps_order"):
                self.follow(current, now)

    def _is_over(self, place: _Place, now: float) -> bool:
        """Return whether a message is followed no more, and count how long it waited."""
        waited, line = now - place.since, place.line
        is_over = line.taken >= place.number or (line.alive and waited >= LONGEST_WAIT)
        if is_over:
            self.waits.add(waited)
        return is_over or not line.alive
