"""A runner without threads, sockets and real time: the simulation gives it its turns."""

import asyncio
import random

from actors.runner import CELLS_A_TURN, Runner
from callboard.simulation.clock import Clock
from callboard.simulation.socket import SimulatedSelector


class SimulatedRunner(Runner):
    """Runs the cells of one simulated node, a turn at a time, on the simulation's thread."""

    def __init__(self, name: str, clock: Clock, rng: random.Random) -> None:
        """Make the runner of a node; randomness comes from the simulation's seed."""
        self._stepping = False
        self._next_deadline: float | None = None
        super().__init__(name, selector=SimulatedSelector(), clock=clock.time, rng=rng)

    def turn(self) -> bool:
        """Do what a real runner does in one turn; False when there was nothing to do."""
        if self.closed:
            return False
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        self._stepping = True
        try:
            worked = bool(self.ready or self._posted) or self._is_timer_due()
            for _ in range(CELLS_A_TURN):
                if not self.ready:
                    break
                self.turns += 1
                self.ready.popleft().run()
            now = self._housekeep()
            self._next_deadline = self.deadlines.sweep(now)
            events = self.selector.select(0)
            self._take_events(events)
            return worked or bool(events)
        finally:
            self._stepping = False
            asyncio._set_running_loop(before)

    def _is_timer_due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= self.now()

    @property
    def next_turn_at(self) -> float | None:
        """When a timer or a deadline needs the next turn; None when nothing is planned."""
        times = [] if self._next_deadline is None else [self._next_deadline]
        if self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)

    def is_runner_thread(self) -> bool:
        """Return True while a turn is under way: then a handler or a callback calls."""
        return self._stepping

    def start(self) -> None:
        """Be ready for turns."""
        self._started = True

    def stop(self) -> None:
        """Take no more turns."""
        if not self.closed:
            self.closed = True
            self._shut()

    def wake(self) -> None:
        """Nothing sleeps here."""

    def _open_wake_up(self) -> None:
        """Nothing sleeps here."""

    def _close_wake_up(self) -> None:
        """Nothing sleeps here."""
