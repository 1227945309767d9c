"""Whether a runner that has nothing to do polls on for a moment before it sleeps.

To put a thread to sleep and to wake it takes a processor some ten microseconds of work, and a
virtual one that was halted needs some ten more to come back. Between two nodes that ask each
other one thing after the other, both pay that for each message, and it is more than all the
rest. So where the last wait was a short one, the next may be too, and the runner looks again
and again for a few times as long as a sleep would have cost. Before each look it yields: a
thread that it has just woken, or a node on the same processor, goes first.

A runner that has sent something may get an answer, perhaps from a thread that has to be woken
first; an answer is worth a longer wait than what comes unasked.

It must pay. Where nothing comes in that time (the other side needs longer, or waits for the
very processor that is being used up), the runner lets some short waits pass before it tries
again, twice as many each time. And a turn that had much to do needs no haste: what comes
meanwhile is taken in larger portions. So a node that is idle, or flooded, or hears something
now and then, does not poll in vain.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector, SelectorKey
from typing import Final

#: Seconds to poll before sleeping, and how short the wait before must be.
LONGEST: Final = 0.0001

#: The same where something was sent since the wait before, so that an answer may come.
#:
#: A round between threads of two nodes takes nearly as long while everybody sleeps.
LONGEST_OF_ANSWER: Final = 0.0004

#: Seconds that the turn before may have taken: one message, not a flood.
SHORT_TURN: Final = 0.0001

#: Short waits without polling after one time in vain.
FIRST_PAUSE: Final = 8

#: Short waits without polling after many times in vain: it then costs a thousandth.
LONGEST_PAUSE: Final = 1024

_give_way: Final[Callable[[], object]] = getattr(os, "sched_yield", partial(time.sleep, 0))


class AdaptivePoll:
    """Waits for what is ready, awake or asleep."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Set on any thread that sends something to another node.
        self.has_sent = False
        self._is_worth_it = False
        #: When the last wait was over.
        self._ended = 0.0
        self._pause = 0
        #: Short waits to let pass before the next attempt.
        self._left = 0

    def select(self, selector: BaseSelector, timeout: float) -> list[tuple[SelectorKey, int]]:
        """Wait for at most `timeout` seconds until something is ready."""
        select, clock = selector.select, self._clock
        now = started = clock()
        longest = LONGEST_OF_ANSWER if self.has_sent else LONGEST
        self.has_sent = False
        if self._is_worth_it and timeout > longest and now - self._ended < SHORT_TURN:
            events = select(0.0)
            if events:  # it was there already: that says nothing of waiting
                self._ended = clock()
                return events
            until = started + longest
            while now < until:
                _give_way()
                events = select(0.0)
                now = clock()
                if events:
                    self._ended = now
                    self._pause >>= 1
                    return events
            self._left = self._pause = min(2 * self._pause + FIRST_PAUSE, LONGEST_PAUSE)
        events = select(timeout)
        self._ended = now = clock()
        if now - started < longest:
            self._left -= 1
            self._is_worth_it = self._left < 0
        else:
            self._is_worth_it = False
        return events
