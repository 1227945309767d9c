"""Who runs when: nodes that have something to do take turns, and time moves when none has.

A node sleeps until something wakes it: bytes, a message, its own next timer. So the cost of
a quiet node is its timers, however many nodes there are.
"""

from collections.abc import Callable
from operator import attrgetter

from callboard.simulation.clock import Clock
from callboard.simulation.runner import SimulatedRunner


class Schedule:
    """Gives turns to the nodes of a simulation and moves its clock."""

    def __init__(self, clock: Clock) -> None:
        """Begin without nodes."""
        self.clock = clock
        self._awake: list[SimulatedRunner] = []

    def wake(self, runner: SimulatedRunner) -> None:
        """Let a node take a turn before time moves; it calls this once until it had it."""
        self._awake.append(runner)

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let time pass until `condition()` or for `limit` seconds; returns the condition."""
        clock = self.clock
        end = clock.now + limit
        while not condition():
            if clock.run_due() or self._awake:
                self._take_turns()
                continue
            due = clock.next_event_at
            if due is None or due > end:
                clock.now = max(clock.now, end)
                return condition()
            clock.now = max(clock.now, due)
        return True

    def _take_turns(self) -> None:
        """Let every node that is awake take a turn, the oldest first."""
        awake, self._awake = self._awake, []
        if len(awake) > 1:
            awake.sort(key=attrgetter("number"))
        for runner in awake:
            runner.turn()
