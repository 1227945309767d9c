"""The end of a node: one sequence with one deadline, which every part registers with.

    running -> draining -> closing -> ended

- *draining*: the node takes no new work. Takers of jobs end here.
- *closing*: the steps of `CloseStep` in their order, each with what is left of one deadline.
- *ended*: nothing will be answered. Every wait that is still pending fails with `NodeClosed`.

What a part of a node does with it:

    guard(future)               a pending future that only this node can complete: it fails
                                with `NodeClosed` when the node ends, or in an earlier phase
    with ending():              a coroutine that awaits several things of this node
    on(phase, callback)         something else that has to end: an iterator, a table of waiters
    retry_in(seconds, callback) a repetition: a timer alone would never fire on a closed node
    add_drain_step(run)         work to hand over or to finish while the node drains
    add_close_step(step, run)   something to release when it closes

A future, an iterator or a thread that waits for something of a node and is registered nowhere
waits for ever once that node is closed. `tests/test_waits.py` lists every public method that
waits, closes its node, and fails for a method that is not in its table.

No lock is held while futures are completed or callbacks run. Registration needs none: a part
enters itself first and looks at the phase then, the node sets the phase first and looks at the
entries then; whichever takes an entry out of the table is the one that calls it.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import ref as weak

from callboard.actors.errors import NodeClosed
from callboard.actors.future import Future
from callboard.support.dataclass import dataclass
from callboard.support.text import logged

_log: Final = logging.getLogger("callboard.actors")

T = TypeVar("T")

#: Seconds that closing may take as a whole, if its steps do not end sooner.
CLOSE_SECONDS: Final = 10.0

#: Seconds that closing has after a drain which used up its own time.
GRACE_SECONDS: Final = 0.5

#: Seconds that a step of closing has at least, also when the deadline has passed: to end actors
#: and links takes milliseconds, and a node that skipped it would leave them behind.
STEP_SECONDS: Final = 0.1


class Phase(IntEnum):
    """Where a node is in its life; it only ever moves on to a later one."""

    RUNNING = 0
    DRAINING = 1
    CLOSING = 2
    ENDED = 3


class CloseStep(IntEnum):
    """The steps of closing, in their order."""

    #: Pages for people, which show what runs.
    PAGES = 10
    #: Entities commit what is under way and give their slots to other nodes.
    ENTITIES = 20
    #: Actors end.
    ACTORS = 30
    #: Links and ports are closed.
    LINKS = 40
    #: The runner stops; every pending wait fails before it does.
    RUNNER = 50
    #: Child processes are waited for.
    PROCESSES = 60
    #: Files, databases and leases are released.
    FILES = 70


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by which something has to be over, by the clock of a node."""

    now: Callable[[], float]
    end: float

    @classmethod
    def after(cls, now: Callable[[], float], seconds: float) -> "Deadline":
        """Return the deadline in so many seconds."""
        return cls(now, now() + seconds)

    def left(self, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """Return the seconds that are left, within bounds."""
        return min(max(self.end - self.now(), at_least), at_most)


#: A pending future, and the phase in which it fails.
_Wait = tuple[weak[Future[Any]], Phase]

#: A callback, and the phase with which it is called.
_Listener = tuple[Callable[[], object], Phase]

#: What a part does while the node drains.
DrainRun = Callable[[Deadline], Awaitable[object]]

#: What a part does when the node closes; on a thread that may block.
CloseRun = Callable[[Deadline], object]


class Shutdown:
    """The end of one node."""

    def __init__(
        self,
        name: str,
        now: Callable[[], float],
        call_later: Callable[..., object],
    ) -> None:
        """Begin with a node that runs.

        Args:
            name: of the node, for errors.
            now: its clock.
            call_later: its timers, from any thread.
        """
        self.phase = Phase.RUNNING
        #: The deadline of the drain; None for a node that was not drained.
        self.drain_deadline: Deadline | None = None
        self._name, self._now, self._call_later = name, now, call_later
        self._numbers = itertools.count()
        self._waits: dict[int, _Wait] = {}
        self._listeners: dict[int, _Listener] = {}
        self._drain_steps: list[DrainRun] = []
        self._close_steps: list[tuple[CloseStep, int, CloseRun]] = []

    # --- waits ---

    def guard(self, future: Future[T], until: Phase = Phase.ENDED) -> Future[T]:
        """Let a pending future fail with `NodeClosed` when the node comes to a phase.

        The future is not kept alive. From any thread.
        """
        if self.phase >= until:
            future.set_exception(self._error(until))
            return future
        number, waits = next(self._numbers), self._waits

        def forget(_: object) -> None:
            waits.pop(number, None)

        waits[number] = weak(future, forget), until
        future.on_done(forget)
        if self.phase >= until:
            future.set_exception(self._error(until))
        return future

    def on(self, phase: Phase, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back once when the node comes to a phase; at once if it has.

        Returns:
            What takes that back.
        """
        number = next(self._numbers)
        self._listeners[number] = callback, phase
        if self.phase >= phase:
            self._call(number)
        return partial(self._forget_listener, number)

    def ending(self) -> "Ending":
        """Return a context in which the current task fails with `NodeClosed` at the end.

        For a coroutine that awaits several things, of which any may be left unanswered then:
        `with shutdown.ending(): …`, as `asyncio.timeout` does it for a time.
        """
        return Ending(self)

    def retry_in(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back in so many seconds, or when the node ends if that is sooner; once.

        A repetition that the end brings forward fails by itself: a closed node refuses it.
        """
        number = next(self._numbers)
        self._listeners[number] = callback, Phase.ENDED
        if self.phase >= Phase.ENDED:
            self._call(number)
        else:
            self._call_later(seconds, self._call, number)

    @property
    def pending(self) -> int:
        """How many waits and callbacks are registered."""
        return len(self._waits) + len(self._listeners)

    # --- steps ---

    def add_drain_step(self, run: DrainRun) -> None:
        """Call and await `run(deadline)` when the node drains, before it becomes quiet."""
        self._drain_steps.append(run)

    def add_close_step(self, step: CloseStep, run: CloseRun) -> None:
        """Call `run(deadline)` when the node closes, on a thread that may block."""
        self._close_steps.append((step, len(self._close_steps), run))

    # --- for the node ---

    def begin(self, phase: Phase) -> None:
        """Come to a phase: fail the waits and call the callbacks that end with it."""
        if self.phase >= phase:
            return
        self.phase = phase
        for number, (_, until) in list(self._listeners.items()):
            if until <= phase:
                self._call(number)
        for future, until in list(self._waits.values()):
            if until <= phase and (pending := future()) is not None:
                pending.set_exception(self._error(until))

    async def drain(self, deadline: Deadline) -> None:
        """Come to the draining phase, and carry out its steps."""
        self.drain_deadline = deadline
        self.begin(Phase.DRAINING)
        for run in self._drain_steps:
            await run(deadline)

    def close(self) -> None:
        """Carry out the steps of closing; a step that fails does not keep the next from it."""
        self.begin(Phase.CLOSING)
        deadline = self._close_deadline()
        for _, _, run in sorted(self._close_steps, key=lambda entry: entry[:2]):
            try:
                run(deadline)
            except Exception as error:  # noqa: BLE001 - the others have to be released
                logged(_log, "a step of closing %s failed", self._name, error=error)
        self.begin(Phase.ENDED)

    def _close_deadline(self) -> Deadline:
        """Return by when the node has to be closed."""
        now = self._now()
        end = now + CLOSE_SECONDS
        if self.drain_deadline is not None:
            end = min(end, max(self.drain_deadline.end, now + GRACE_SECONDS))
        return Deadline(self._now, end)

    def _call(self, number: int) -> None:
        """Call a callback, unless that was done or taken back."""
        listener = self._listeners.pop(number, None)
        if listener is None:
            return
        try:
            listener[0]()
        except Exception as error:  # noqa: BLE001 - the others have to end, too
            logged(_log, "a part of %s failed at its end", self._name, error=error)

    def _forget_listener(self, number: int) -> None:
        """Take a callback back."""
        self._listeners.pop(number, None)

    def _error(self, phase: Phase) -> NodeClosed:
        """Return what a wait fails with that ends in a phase."""
        if phase is Phase.DRAINING and self.phase is Phase.DRAINING:
            return NodeClosed(f"{self._name} is draining and takes no new work")
        return NodeClosed(f"{self._name} was closed; make another node")

    def closed_error(self) -> NodeClosed:
        """Return the error of a wait that ended with the node."""
        return self._error(Phase.ENDED)


class Ending:
    """A part of a task that fails with `NodeClosed` when the node ends."""

    def __init__(self, shutdown: Shutdown) -> None:
        """Use `Shutdown.ending`."""
        self._shutdown = shutdown
        self._is_over = self._has_cancelled = False
        self._take_back: Callable[[], object] = _nothing

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:  # a step on the node's own loop that held its thread up for long
            return  # that loop cancels its tasks when the node ends
        self._task, self._cancels = task, task.cancelling()
        self._take_back = self._shutdown.on(Phase.ENDED, self._end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self._is_over = True
        self._take_back()
        if not self._has_cancelled:
            return
        is_ours = self._task.uncancel() <= self._cancels
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._shutdown.closed_error() from error

    def _end(self) -> None:
        """Cancel the task, on the thread of its loop; from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over:
            self._has_cancelled = True
            self._task.cancel()


def _nothing() -> None:
    """What takes back that nothing was registered."""
