"""A runner without threads, sockets and real time: the simulation gives it its turns."""

import asyncio
import math
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from callboard.kernel.environment import TurnwiseRunner, current_task_cleared
from callboard.kernel.errors import CallboardError, NodeClosed
from callboard.node import Node
from callboard.simulation.actor_life import ActorLife, SimulatedLoop
from callboard.simulation.clock import Clock, NodeClock, Shown
from callboard.simulation.databases.model_database import ModelDatabase
from callboard.simulation.network import SimulatedSelector
from callboard.simulation.programs.here import here

if TYPE_CHECKING:
    pass


# A turn asks for each of them.
_get_running_loop: Final = asyncio._get_running_loop
_set_running_loop: Final = asyncio._set_running_loop

#: Turns of nodes in a row without any time passing, or turns of actors in one of these, after
#: which a test is stopped.
STANDSTILL: Final = 100_000


class TimeStandsStill(CallboardError, AssertionError):
    """Nodes are busy for ever at one moment: something is tried again without any wait."""


class SimulatedRunner(TurnwiseRunner):
    """Runs the cells of one simulated node, a turn at a time, on the simulation's thread.

    Between turns it sleeps, as a real one does in its poll; whatever wakes a real one puts
    this one among those that get the next turns.
    """

    #: The databases that stand in the place of those that a URL names.
    databases: Callable[[str], ModelDatabase]
    #: Whether its machine lost its power: nobody can tell that from silence.
    has_crashed = False

    def __init__(
        self,
        name: str,
        number: int,
        clock: Clock,
        rng: random.Random,
        woken: "Callable[[SimulatedRunner], None]",
    ) -> None:
        """Make the runner of a node.

        Args:
            name: of the node.
            number: its place among the nodes: those with smaller ones take turns earlier.
            clock: the simulation's; the node's own one begins with the same time and rate.
            rng: where chance comes from: the simulation's seed.
            woken: called when the node needs a turn.
        """
        self.number = number
        #: Whether it takes no turns, as a process that got SIGSTOP.
        self.is_paused = False
        self.node_clock = NodeClock(clock)
        self._stepping = False
        self._clock = clock
        self._woken_by = woken
        self._planned_at: float | None = None
        #: Called when the node is killed or crashes.
        self.on_death: list[Callable[[], None]] = []
        self._sockets = SimulatedSelector(self.plan_turn)
        self._life = ActorLife(name, number, rng, (clock, self.node_clock))
        super().__init__(name, selector=self._sockets, clock=self.node_clock.time, rng=rng)

    def make_loop(self) -> SimulatedLoop:
        """Make the event loop: its executors have no threads."""
        return SimulatedLoop(self, lambda: self._life)

    def turn(self) -> None:
        """Do what a real runner does until its poll would block, and plan the next turn."""
        clock, node_clock = self._clock, self.node_clock
        if self.closed or self.is_paused or node_clock.busy_until > clock.now:
            self.sleeping = True
            return
        before = _get_running_loop()
        _set_running_loop(self.loop)
        self._stepping = True
        outer, Shown.clock = Shown.clock, node_clock
        outer_life, here.actors = here.actors, self._life
        try:
            limit = self.turns + STANDSTILL
            while self._step() and self._may_go_on():
                if self.turns > limit:
                    msg = (
                        f"time stands still at {self._clock.now:.6f} s: node {self.name} "
                        f"has had something to do {STANDSTILL:,} times in a row"
                    )
                    raise TimeStandsStill(msg)
        finally:
            Shown.clock, here.actors = outer, outer_life
            self._stepping = False
            current_task_cleared(self.loop, None)  # asyncio would keep it if the node dies
            _set_running_loop(before)
        self.sleeping = True
        if node_clock.busy_until > clock.now:
            clock.plan_at(node_clock.busy_until, self.plan_turn)
        elif not self.closed:
            self._plan(self.next_due())

    def _step(self) -> bool:
        """Take one turn of a real runner; False when there is nothing more to do just now."""
        self.take_turns()
        self.housekeep()
        events = self._sockets.select(0) if self._sockets.touched else None
        if events:
            self.take_events(events)
        elif not self.has_work:
            return False
        return self.node_clock.busy_until <= self._clock.now

    def _plan(self, next_due: float) -> None:
        """Be woken for the next timer or deadline, unless that is planned already."""
        if next_due == math.inf:
            return
        due = self.node_clock.outside(next_due)
        if self._planned_at is None or due < self._planned_at:
            self._planned_at = due
            self._clock.plan_at(due, self._due, due)

    def _due(self, planned: float) -> None:
        """Wake the node for a timer, unless an earlier one was planned since."""
        if planned == self._planned_at:
            self._planned_at = None
            self.plan_turn()

    # --- faults ---

    def _may_go_on(self) -> bool:
        """Return whether no fault has come in the middle of the turn."""
        return not (self.closed or self.is_paused)

    def _is_waiting(self) -> bool:
        """Return whether the node waits for its disk."""
        return self.node_clock.busy_until > self._clock.now

    def wait_for_disk(self, seconds: float) -> float:
        """Do nothing until the disk has worked so long; returns when that is.

        What the node sends in the rest of its turn leaves it then. A test that works on the
        disk itself waits for nothing.
        """
        if self._stepping:
            since = max(self.node_clock.busy_until, self._clock.now)
            self.node_clock.busy_until = since + seconds
        return self.node_clock.busy_until

    def wait_for(self, event: threading.Event, seconds: float) -> None:
        """Let time pass for the others, in the middle of a turn.

        Raises:
            NodeClosed: the node was killed meanwhile.
        """
        self.machine.let_pass(seconds, lambda: self.closed or event.is_set())
        if self.closed:
            message = f"the node {self.name} was killed"
            raise NodeClosed(message)

    def die(self) -> None:
        """End without a word."""
        self.closed = True
        for task in asyncio.all_tasks(self.loop):  # nor does it tell when they are collected
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for died in self.on_death:
            died()

    def resume(self) -> None:
        """Go on after `is_paused` was set."""
        self.is_paused = False
        self._planned_at = None
        self.plan_turn()

    def set_rate(self, rate: float) -> None:
        """Let the node's clock run at another rate."""
        self.node_clock.set_rate(rate)
        self._planned_at = None
        self.plan_turn()

    def go_on_with(self, clock: NodeClock) -> None:
        """Take over how the clocks of an earlier life go: they belong to the machine."""
        self.node_clock.rate, self.node_clock.step = clock.rate, clock.step

    # --- what a runner is asked ---

    def is_runner_thread(self) -> bool:
        """Return True while a turn is under way: then a handler or a callback calls."""
        return self._stepping

    def detached(self, name: str) -> "SimulatedRunner":
        """Return itself: a simulation has one thread, also for actors that want their own."""
        return self

    def plan_turn(self) -> None:
        """Ask for a turn, once."""
        if self.sleeping:
            self.sleeping = False
            self._woken_by(self)


def runner_of(node: Node) -> SimulatedRunner:
    """Return the runner of a simulated node."""
    runner = node.runner
    assert isinstance(runner, SimulatedRunner), f"{node!r} is not a simulated node"
    return runner
