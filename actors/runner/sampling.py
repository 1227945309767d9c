"""Samples of response times and waiting times, so that not every message has to be timed.

The watcher checks busy runners every few milliseconds. In every twentieth check it makes the
next ask be timed, by replacing the list to which new asks are appended. It also records the
position of the last message in some mailbox. This message has been handled when as many
messages have been taken out. So the measured waiting time is accurate to two or three
milliseconds.
"""

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from callboard.support.calls import Action
from callboard.support.histogram import Histogram

#: Checks of the watcher between two samples.
EVERY: Final = 20

#: Limit of messages followed at the same time.
FOLLOWED: Final = 64

#: Seconds after which a followed message counts as waiting for that long.
LONGEST_WAIT: Final = 61.0


class MailLine(Protocol):
    """The interface of an actor's mailbox for the sampler."""

    @property
    def depth(self) -> int:
        """Number of waiting messages."""

    @property
    def taken(self) -> int:
        """Number of messages taken out since the start."""

    @property
    def keeps_order(self) -> bool:
        """Whether the oldest message is always handled next."""

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""


class _Place(NamedTuple):
    line: MailLine
    number: int
    since: float


class Sampler:
    """The samples of one node's messages."""

    def __init__(self) -> None:
        #: Seconds from an ask to its outcome, and from a message's arrival to its handler.
        self.asks, self.waits = Histogram(), Histogram()
        #: Called to have the next ask timed.
        self.time_next_ask: Action = lambda: None
        self._checks = 0
        self._places: list[_Place] = []
        self._new: deque[_Place] = deque(maxlen=FOLLOWED)

    def follow(self, line: MailLine, now: float, offset: int = 0) -> None:
        """Follow the last message of a mailbox, or the `offset`-th after it.

        Can be called from any thread.
        """
        if line.keeps_order:
            self._new.append(_Place(line, line.taken + line.depth + offset, now))

    def check(self, current: Any, now: float) -> None:
        """Check the followed messages. Runs on the watcher's thread.

        Args:
            current: the runnable that runs, or None.
            now: time of the runner.
        """
        self._checks += 1
        is_due = self._checks % EVERY == 0
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
        """Return whether to stop following a message, and record how long it waited."""
        waited, line = now - place.since, place.line
        is_over = line.taken >= place.number or (line.alive and waited >= LONGEST_WAIT)
        if is_over:
            self.waits.add(waited)
        return is_over or not line.alive
