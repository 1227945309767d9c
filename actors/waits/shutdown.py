"""The end of a node: one sequence with one deadline, which every part registers with.

    running -> draining -> closing -> ended

- *draining*: the node accepts no new work. Consumers of jobs end here.
- *closing*: the steps of `CloseStep` in their order, each with the rest of one deadline.
- *ended*: nothing will be answered. Every pending wait fails with `NodeClosed`.

The interface for the parts of a node:

    guard(future)               for a pending future that only this node can complete: it fails
                                with `NodeClosed` when the node ends, or in an earlier phase
    with ending():              for a coroutine that awaits several things of this node
    on(phase, callback)         for anything else that has to end, such as an iterator
    retry_in(seconds, callback) for a repetition: a timer never fires on a closed node
    add_drain_step(run)         for work to hand over or to finish while the node drains
    add_close_step(step, run)   for resources to release when the node closes

A future, an iterator or a thread that waits for this node without registration waits forever
after the node is closed. `tests/test_waits.py` lists every public method that waits, closes its
node, and fails for a method that is not in its table.

No lock is held while futures are completed or callbacks run. Registration needs no lock: a part
first registers and then reads the phase; the node first sets the phase and then reads the
entries. So at least one of them sees the other, and whichever removes an entry calls it. This
order, and one owner of an entry that is removed, come from the interpreter's global lock.
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
from typing import Final, TypeVar
from weakref import ref as weak

from callboard.actors.errors import NodeClosed
from callboard.actors.future import Future
from callboard.support.calls import Action, Callback
from callboard.support.dataclass import dataclass
from callboard.support.text import logged

_log: Final = logging.getLogger("callboard.actors")

T = TypeVar("T")

#: Seconds that closing may take in total.
CLOSE_SECONDS: Final = 10.0

#: Seconds for closing after a drain that has used all of its time.
GRACE_SECONDS: Final = 0.5

#: Minimum seconds for a step of closing, even after the deadline. Ending actors and links takes
#: milliseconds; a node that skipped these steps would leave them running.
STEP_SECONDS: Final = 0.1

#: Seconds that closing waits for running handlers.
SHUTDOWN_TIMEOUT: Final = 5.0


class Phase(IntEnum):
    """The phase of a node's life; it never returns to an earlier one."""

    RUNNING = 0
    DRAINING = 1
    CLOSING = 2
    ENDED = 3


class CloseStep(IntEnum):
    """The steps of closing, in their order."""

    #: Close pages for people, which show the running node.
    PAGES = 10
    #: Entities commit pending work and hand their slots to other nodes.
    ENTITIES = 20
    #: End actors.
    ACTORS = 30
    #: Close links and ports.
    LINKS = 40
    #: Stop the runner, after every pending wait has failed.
    RUNNER = 50
    #: Wait for child processes.
    PROCESSES = 60
    #: Release files, databases and leases.
    FILES = 70


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time limit on the clock of a node."""

    now: Callable[[], float]
    end: float

    @classmethod
    def after(cls, now: Callable[[], float], seconds: float) -> "Deadline":
        """Return the deadline after a number of seconds."""
        return cls(now, now() + seconds)

    def left(self, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """Return the remaining seconds, within bounds."""
        return min(max(self.end - self.now(), at_least), at_most)


#: A pending future, and the phase in which it fails.
_Wait = tuple[weak[Future], Phase]

#: A callback, and the phase with which it is called.
_Listener = tuple[Action, Phase]

#: Work of a part while the node drains.
DrainRun = Callable[[Deadline], Awaitable[object]]

#: Work of a part when the node closes, on a thread that may block.
CloseRun = Callable[[Deadline], object]


class Shutdown:
    """The shutdown sequence of one node."""

    def __init__(
        self,
        name: str,
        now: Callable[[], float],
        call_later: Callback,
    ) -> None:
        """Start in the running phase.

        Args:
            name: name of the node, for errors.
            now: clock of the node.
            call_later: timers of the node; callable from any thread.
        """
        self.phase = Phase.RUNNING
        #: The deadline of the drain; None if the node did not drain.
        self.drain_deadline: Deadline | None = None
        self._name, self._now, self._call_later = name, now, call_later
        self._numbers = itertools.count()
        self._waits: dict[int, _Wait] = {}
        self._listeners: dict[int, _Listener] = {}
        self._drain_steps: list[DrainRun] = []
        self._close_steps: list[tuple[CloseStep, int, CloseRun]] = []

    # --- waits ---

    def guard(self, future: Future[T], until: Phase = Phase.ENDED) -> Future[T]:
        """Fail a pending future with `NodeClosed` when the node reaches a phase.

        Does not keep the future alive. Can be called from any thread.
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

    def on(self, phase: Phase, callback: Action) -> Callable[[], None]:
        """Call back once when the node reaches a phase; immediately if it already has.

        Returns:
            A function that removes the callback.
        """
        number = next(self._numbers)
        self._listeners[number] = callback, phase
        if self.phase >= phase:
            self._call(number)
        return partial(self._forget_listener, number)

    def ending(self) -> "Ending":
        """Return a context in which the current task fails with `NodeClosed` at the end.

        Use it for a coroutine that awaits several things, each of which may stay unanswered at
        the end: `with shutdown.ending(): …`, as `asyncio.timeout` does for a time.
        """
        return Ending(self)

    def retry_in(self, seconds: float, callback: Action) -> None:
        """Call back once after some seconds, or when the node ends if that is sooner.

        If the end of the node causes the call, a retry in it fails: the node is closed.
        """
        number = next(self._numbers)
        self._listeners[number] = callback, Phase.ENDED
        if self.phase >= Phase.ENDED:
            self._call(number)
        else:
            self._call_later(seconds, self._call, number)

    @property
    def pending(self) -> int:
        """The number of registered waits and callbacks."""
        return len(self._waits) + len(self._listeners)

    # --- steps ---

    def add_drain_step(self, run: DrainRun) -> None:
        """Call and await `run(deadline)` when the node drains, before it waits for idleness."""
        self._drain_steps.append(run)

    def add_close_step(self, step: CloseStep, run: CloseRun) -> None:
        """Call `run(deadline)` when the node closes, on a thread that may block."""
        self._close_steps.append((step, len(self._close_steps), run))

    # --- for the node ---

    def begin(self, phase: Phase) -> None:
        """Enter a phase: fail its waits and call its callbacks."""
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
        """Enter the draining phase, and run its steps."""
        self.drain_deadline = deadline
        self.begin(Phase.DRAINING)
        for run in self._drain_steps:
            await run(deadline)

    def close(self) -> None:
        """Run the steps of closing; a failed step does not stop the following ones."""
        self.begin(Phase.CLOSING)
        deadline = self._close_deadline()
        for _, _, run in sorted(self._close_steps, key=lambda entry: entry[:2]):
            try:
                run(deadline)
            except Exception as error:  # noqa: BLE001 - the other parts have to be released
                logged(_log, "a step of closing %s failed", self._name, error=error)
        self.begin(Phase.ENDED)

    def _close_deadline(self) -> Deadline:
        """Return the deadline of closing."""
        now = self._now()
        end = now + CLOSE_SECONDS
        if self.drain_deadline is not None:
            end = min(end, max(self.drain_deadline.end, now + GRACE_SECONDS))
        return Deadline(self._now, end)

    def _call(self, number: int) -> None:
        """Call a callback, unless it was called or removed."""
        listener = self._listeners.pop(number, None)
        if listener is None:
            return
        try:
            listener[0]()
        except Exception as error:  # noqa: BLE001 - the other parts have to end, too
            logged(_log, "a callback at the end of %s failed", self._name, error=error)

    def _forget_listener(self, number: int) -> None:
        """Remove a callback."""
        self._listeners.pop(number, None)

    def _error(self, phase: Phase) -> NodeClosed:
        """Return the error of a wait that ends in a phase."""
        if phase is Phase.DRAINING and self.phase is Phase.DRAINING:
            return NodeClosed(f"{self._name} is draining and takes no new work")
        return NodeClosed(f"{self._name} was closed; create another node")

    def closed_error(self) -> NodeClosed:
        """Return the error of a wait that ended with the node."""
        return self._error(Phase.ENDED)


class Ending:
    """A block of a task that fails with `NodeClosed` when the node ends."""

    def __init__(self, shutdown: Shutdown) -> None:
        """Use `Shutdown.ending` instead."""
        self._shutdown = shutdown
        self._is_over = self._has_cancelled = False
        self._take_back: Action = _nothing

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:  # another thread has taken over the node's own loop during this step
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
        """Cancel the task, on the thread of its loop. Can be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over:
            self._has_cancelled = True
            self._task.cancel()


def _nothing() -> None:
    """Do nothing: no callback is registered."""
