"""A runner with simulated sockets and time; the simulation schedules its turns."""

import asyncio
import math
import random
import threading
from collections.abc import Callable
from typing import Final

from callboard.kernel.environment import TurnwiseRunner, current_task_cleared
from callboard.kernel.errors import CallboardError, NodeClosed
from callboard.node import Node
from callboard.simulation.actor_life import ActorLife, SimulatedLoop, current
from callboard.simulation.clock import Clock, CurrentClock, NodeClock
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.network import SimulatedSelector

# Bound here because each turn calls them.
_get_running_loop: Final = asyncio._get_running_loop
_set_running_loop: Final = asyncio._set_running_loop

#: Rounds of nodes without an advance of time, or turns of actors in one turn of a node, after
#: which the test fails.
STANDSTILL: Final = 100_000


class TimeStandsStill(CallboardError, AssertionError):
    """Nodes are busy without an end at one moment, for example with retries without a pause."""


class SimulatedRunner(TurnwiseRunner):
    """Runs the cells of one simulated node in turns, on the thread of the simulation.

    Between turns it sleeps, like a real runner in its poll. Everything that would wake a real
    runner schedules a turn of this one.
    """

    #: Returns the model database that replaces the database of a URL.
    databases: Callable[[str], ModelDatabase]
    #: Whether its machine lost power; other nodes cannot distinguish that from silence.
    has_crashed = False

    def __init__(
        self,
        name: str,
        number: int,
        clock: Clock,
        rng: random.Random,
        woken: "Callable[[SimulatedRunner], None]",
    ) -> None:
        """Create the runner of a node.

        Args:
            name: name of the node.
            number: index of the node; nodes with smaller ones take their turns earlier.
            clock: clock of the simulation; the node's own clock starts with its time and rate.
            rng: random source, derived from the seed of the simulation.
            woken: called when the node needs a turn.
        """
        self.number = number
        #: Whether it is frozen, like a process after SIGSTOP.
        self.is_paused = False
        self.node_clock = NodeClock(clock)
        self._stepping = False
        self._clock = clock
        self._woken_by = woken
        self._planned_at: float | None = None
        #: Called when the node is killed or crashes.
        self.on_death: list[Callable[[], None]] = []
        self._sockets = SimulatedSelector(self.plan_turn)
        self._life = ActorLife(name, rng, (clock, self.node_clock))
        super().__init__(name, selector=self._sockets, clock=self.node_clock.time, rng=rng)

    def make_loop(self) -> SimulatedLoop:
        """Create the event loop, whose executors have no threads."""
        return SimulatedLoop(self, lambda: self._life)

    def turn(self) -> None:
        """Run like a real runner until its poll would block, and plan the next turn."""
        clock, node_clock = self._clock, self.node_clock
        if self.closed or self.is_paused or node_clock.busy_until > clock.now:
            self.sleeping = True
            return
        running_loop = _get_running_loop()
        _set_running_loop(self.loop)
        self._stepping = True
        outer_clock, CurrentClock.clock = CurrentClock.clock, node_clock
        outer_life, current.life = current.life, self._life
        try:
            limit = self.turns + STANDSTILL
            while self._step() and self._may_go_on():
                if self.turns > limit:
                    msg = (
                        f"the virtual time does not pass from {self._clock.now:.6f} s on: "
                        f"node {self.name} "
                        f"had another turn {STANDSTILL:,} times in a row"
                    )
                    raise TimeStandsStill(msg)
        finally:
            CurrentClock.clock, current.life = outer_clock, outer_life
            self._stepping = False
            current_task_cleared(
                self.loop, None
            )  # asyncio would keep the task of a killed node
            _set_running_loop(running_loop)
        self.sleeping = True
        if node_clock.busy_until > clock.now:
            clock.plan_at(node_clock.busy_until, self.plan_turn)
        elif not self.closed:
            self._plan(self.next_due())

    def _step(self) -> bool:
        """Run one turn of a real runner; return False when there is no more work now."""
        self.take_turns()
        self.housekeep()
        events = self._sockets.select(0) if self._sockets.touched else None
        if events:
            self.take_events(events)
        elif not self.has_work:
            return False
        return self.node_clock.busy_until <= self._clock.now

    def _plan(self, next_due: float) -> None:
        """Plan a wake-up for the next timer or deadline, unless one is planned already."""
        if next_due == math.inf:
            return
        due = self.node_clock.outside(next_due)
        if self._planned_at is None or due < self._planned_at:
            self._planned_at = due
            self._clock.plan_at(due, self._due, due)

    def _due(self, planned: float) -> None:
        """Wake the node for a timer, unless an earlier wake-up replaced this one."""
        if planned == self._planned_at:
            self._planned_at = None
            self.plan_turn()

    # --- faults ---

    def _may_go_on(self) -> bool:
        """Return whether the turn may continue; a fault may have ended or frozen the node."""
        return not (self.closed or self.is_paused)

    def _is_waiting(self) -> bool:
        """Return whether the node is blocked by its disk."""
        return self.node_clock.busy_until > self._clock.now

    def wait_for_disk(self, seconds: float) -> float:
        """Block the node while its disk works for some seconds; return the end of the block.

        Bytes sent in the rest of the turn leave the node after the block. Outside of turns,
        when the test itself uses the disk, nothing is blocked.
        """
        if self._stepping:
            since = max(self.node_clock.busy_until, self._clock.now)
            self.node_clock.busy_until = since + seconds
        return self.node_clock.busy_until

    def wait_for(self, event: threading.Event, seconds: float) -> None:
        """Advance time for the other nodes in the middle of a turn, until an event is set.

        Raises:
            NodeClosed: the node was killed in that time.
        """
        self.machine.let_pass(seconds, lambda: self.closed or event.is_set())
        if self.closed:
            message = f"the node {self.name} was killed"
            raise NodeClosed(message)

    def die(self) -> None:
        """End the node silently."""
        self.closed = True
        for task in asyncio.all_tasks(self.loop):  # no warnings about pending tasks either
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for callback in self.on_death:
            callback()

    def resume(self) -> None:
        """Resume after `is_paused` was set."""
        self.is_paused = False
        self._planned_at = None
        self.plan_turn()

    def set_rate(self, rate: float) -> None:
        """Change the rate of the node's clock."""
        self.node_clock.set_rate(rate)
        self._planned_at = None
        self.plan_turn()

    def adopt_clock(self, clock: NodeClock) -> None:
        """Adopt the rate and step of the former node's clocks: they belong to the machine."""
        self.node_clock.rate, self.node_clock.step = clock.rate, clock.step

    # --- the interface of a runner ---

    def is_runner_thread(self) -> bool:
        """Return whether a turn is running, so that a handler or a callback is the caller."""
        return self._stepping

    def detached(self, name: str) -> "SimulatedRunner":
        """Return the runner itself: detached actors have no separate thread here."""
        return self

    def plan_turn(self) -> None:
        """Request a turn, unless one is requested already."""
        if self.sleeping:
            self.sleeping = False
            self._woken_by(self)


def runner_of(node: Node) -> SimulatedRunner:
    """Return the runner of a simulated node."""
    runner = node.runner
    assert isinstance(runner, SimulatedRunner), f"{node!r} is not a simulated node"
    return runner
