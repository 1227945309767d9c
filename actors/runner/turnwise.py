"""A runner without threads and polls, whose owner gives it turns, as a simulation does.

Between turns it sleeps, as a real runner does in its poll. Events that wake a real runner (a
message, a call from another thread, an ask with a deadline) call `plan_turn`. A turn consists
of `take_turns`, `housekeep`, and `take_events` with the events of its sockets, in this order,
until nothing is left.
"""

import math
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from random import Random
from typing import Any

from callboard.actors.future import Future
from callboard.actors.runner.runner import CELLS_A_TURN, Runner
from callboard.actors.runner.timers import Timer


class TurnwiseRunner(Runner):
    """Runs the actors of one node in single turns, on its owner's thread."""

    is_polling = False

    def __init__(
        self, name: str, *, selector: Any, clock: Callable[[], float], rng: Random
    ) -> None:
        """Create a sleeping runner."""
        super().__init__(name, selector=selector, clock=clock, rng=rng)
        self.deadlines.fresh = _FreshAsks(self.plan_turn)
        self.sleeping = True

    def plan_turn(self) -> None:
        """Request one turn from the owner."""
        raise NotImplementedError

    # --- a turn ---

    @property
    def has_work(self) -> bool:
        """Whether it has work without any further event or timer."""
        return bool(self.ready or self._posted)

    @property
    def has_calls(self) -> bool:
        """Whether calls wait for the next `housekeep`."""
        return bool(self._posted)

    def pending_timers(self) -> list[tuple[float, Timer]]:
        """Return the pending timers with their times, in the order of the times."""
        pending = sorted(self.timers.heap, key=itemgetter(0, 1))
        return [(when, timer) for when, _, timer in pending]

    def unanswered_asks(self) -> list[Future]:
        """Return the asks without an answer."""
        return list(self.deadlines.unanswered())

    def take_turns(self) -> None:
        """Run a batch of ready cells."""
        ready = self.ready
        if ready:
            for _ in range(CELLS_A_TURN):
                self.turns += 1
                ready.popleft().run()
                if not ready or self.closed:  # closed if a fault was injected in this batch
                    break

    def housekeep(self) -> None:
        """Run posted calls, fire timers, let the links write, and fail expired asks."""
        now = self._housekeep()
        deadlines = self.deadlines
        if deadlines.fresh or deadlines.lines or deadlines.heap:
            deadlines.sweep(now)

    def take_events(self, events: list[Any]) -> None:
        """Pass ready events of sockets to their owners."""
        self._take_events(events)

    def next_due(self) -> float:
        """Return the time of the next timer or deadline; `math.inf` if there is none."""
        deadlines = self.deadlines
        has_deadlines = deadlines.fresh or deadlines.lines or deadlines.heap
        due = deadlines.sweep(self.now()) if has_deadlines else math.inf
        next_timer = self.timers.next_at
        return due if next_timer is None or next_timer >= due else next_timer

    # --- the interface of a runner ---

    def start(self) -> None:
        """Accept turns."""
        self.is_started = True

    def stop(self) -> None:
        """Refuse further turns."""
        if not self.closed:
            self.closed = True
            self._shut()

    def wake(self) -> None:
        """Request a turn before time advances. A stopped runner fails late messages at once."""
        if self._ended:
            self._run_leftovers()
        elif not self.closed:
            self.plan_turn()


class _FreshAsks(deque[Future]):
    """Recent asks; an append requests a turn, in which the node registers the deadline."""

    def __init__(self, plan_turn: Callable[[], None]) -> None:
        super().__init__()
        self._plan_turn = plan_turn

    def append(self, future: Future) -> None:
        """Add an ask."""
        super().append(future)
        self._plan_turn()
