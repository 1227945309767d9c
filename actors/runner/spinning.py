"""Adaptive spinning: a runner without work polls briefly before it sleeps.

Putting a thread to sleep and waking it takes some ten microseconds of a processor, and a halted
virtual processor needs about ten more to resume. Two nodes that exchange asks one at a time pay
this on both sides for each message, which is more than all other costs. So after a wait that
was short, the runner expects another short wait, and polls repeatedly for a few times the cost
of a sleep. Before each poll it yields the processor to a thread that it has just woken, or to
another node on the same processor.

A runner that has sent something may receive an answer, possibly from a thread that has to be
woken first. It spins longer for an answer than for other events.

Spinning without success wastes a processor, perhaps the one that the other node needs. So after
a spin without an event the runner sleeps in the next few waits, twice as many each time. After
a long turn it does not spin, because later events are then handled in larger batches. So a node
that is idle or flooded, or receives a message now and then, hardly spins.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from selectors import BaseSelector, SelectorKey
from typing import Final

from callboard.support.calls import Action

#: Limit in seconds for a spin, and for the previous wait of a runner that spins.
SPIN_SECONDS: Final = 0.0001

#: The same after a message was sent, for which an answer may arrive.
#:
#: A round trip between threads of two sleeping nodes takes nearly as long.
ANSWER_SPIN_SECONDS: Final = 0.0004

#: Limit in seconds for the turn before a spin: one message, not a flood.
TURN_SECONDS: Final = 0.0001

#: Waits without spinning after the first spin without an event.
FIRST_PAUSE: Final = 8

#: Limit of the same after many such spins: spinning then costs a thousandth of the time.
LONGEST_PAUSE: Final = 1024

_yield_processor: Final[Action] = getattr(os, "sched_yield", partial(time.sleep, 0))


class AdaptivePoll:
    """Waits for events, spinning or asleep."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Set by any thread that sends something to another node.
        self.has_sent = False
        self._is_worth_it = False
        #: End of the last wait.
        self._ended = 0.0
        self._pause = 0
        #: Remaining short waits without spinning.
        self._left = 0

    def select(self, selector: BaseSelector, timeout: float) -> list[tuple[SelectorKey, int]]:
        """Wait at most `timeout` seconds for events."""
        select, clock = selector.select, self._clock
        now = started = clock()
        longest = ANSWER_SPIN_SECONDS if self.has_sent else SPIN_SECONDS
        self.has_sent = False
        if self._is_worth_it and timeout > longest and now - self._ended < TURN_SECONDS:
            events = select(0.0)
            if events:  # the events arrived during the turn, so there was no wait
                self._ended = clock()
                return events
            until = started + longest
            while now < until:
                _yield_processor()
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
