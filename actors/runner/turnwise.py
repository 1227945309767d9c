"""A runner without threads and polls: its owner gives it turns, as a simulation does.

Between turns it sleeps, as a real one does in its poll. Whatever wakes a real one (mail, a call
from another thread, an ask that needs a deadline) calls `plan_turn`. A turn is `take_turns`,
`housekeep`, and `take_events` with what its sockets have, in this order, until nothing is left.
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
    """Runs the actors of one node a turn at a time, on its owner's thread."""

    is_polling = False

    def __init__(
        self, name: str, *, selector: Any, clock: Callable[[], float], rng: Random
    ) -> None:
        """Make a runner that sleeps."""
        super().__init__(name, selector=selector, clock=clock, rng=rng)
        self.deadlines.fresh = _FreshAsks(self.plan_turn)
        self.sleeping = True

    def plan_turn(self) -> None:
        """Ask the owner for a turn, once."""
        raise NotImplementedError

    # --- a turn ---

    @property
    def has_work(self) -> bool:
        """Whether something is ready just now, without any event or timer."""
        return bool(self.ready or self._posted)

    @property
    def has_calls(self) -> bool:
        """Whether calls wait for the next `housekeep`."""
        return bool(self._posted)

    def pending_timers(self) -> list[tuple[float, Timer]]:
        """Return the timers that are set, each with its time, in the order of these."""
        pending = sorted(self.timers.heap, key=itemgetter(0, 1))
        return [(when, timer) for when, _, timer in pending]

    def unanswered_asks(self) -> list[Future[Any]]:
        """Return the asks that have no answer yet."""
        return list(self.deadlines.unanswered())

    def take_turns(self) -> None:
        """Run a batch of what is ready."""
        ready = self.ready
        if ready:
            for _ in range(CELLS_A_TURN):
                self.turns += 1
                ready.popleft().run()
                if not ready or self.closed:  # closed: a fault came in the middle
                    break

    def housekeep(self) -> None:
        """Run what was posted, fire timers, let the links write, and fail late asks."""
        now = self._housekeep()
        deadlines = self.deadlines
        if deadlines.fresh or deadlines.lines or deadlines.heap:
            deadlines.sweep(now)

    def take_events(self, events: list[Any]) -> None:
        """Hand what is ready on sockets to its owners."""
        self._take_events(events)

    def next_due(self) -> float:
        """Return when the next timer or deadline is; `math.inf` if there is none."""
        deadlines = self.deadlines
        is_waited_for = deadlines.fresh or deadlines.lines or deadlines.heap
        due = deadlines.sweep(self.now()) if is_waited_for else math.inf
        next_timer = self.timers.next_at
        return due if next_timer is None or next_timer >= due else next_timer

    # --- what a runner is asked ---

    def start(self) -> None:
        """Be ready for turns."""
        self.is_started = True

    def stop(self) -> None:
        """Take no more turns."""
        if not self.closed:
            self.closed = True
            self._shut()

    def wake(self) -> None:
        """Take a turn before time moves; a node that was stopped fails what comes late."""
        if self._ended:
            self._run_leftovers()
        elif not self.closed:
            self.plan_turn()


class _FreshAsks(deque[Future[Any]]):
    """Asks whose deadlines nobody has looked at: a node that sleeps has to."""

    def __init__(self, plan_turn: Callable[[], None]) -> None:
        super().__init__()
        self._plan_turn = plan_turn

    def append(self, future: Future[Any]) -> None:
        """Add an ask."""
        super().append(future)
        self._plan_turn()
