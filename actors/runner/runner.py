"""The runner of a node: one thread at a time polls sockets and runs actors.

In each turn, the runner runs the ready cells and asyncio's callbacks, runs the calls that other
threads posted, fires timers, lets the links write, and polls the sockets. It holds the role
lock in all steps but the first. So only one thread at a time, the holder of the role, uses the
state of links and timers.

A handler may block. The watcher (`callboard.actors.runner.watcher`) notices that a turn makes
no progress and passes the role to a spare thread, which continues to poll and to run actors.
The stuck thread finishes its handler, sees that it lost the role, and becomes a spare. Each
actor stays serial, because a running cell is never run by another thread. Decision 2 in
`docs/decisions` has the measurements.
"""

import asyncio
import logging
import math
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from callboard import locks
from callboard.actors.errors import NodeClosed
from callboard.actors.runner import contention
from callboard.actors.runner.contention import CONTENTION
from callboard.actors.runner.deadlines import SWEEP_INTERVAL, Deadlines
from callboard.actors.runner.loop import RunnerLoop, current_task_cleared
from callboard.actors.runner.poller import NoSelector, WakeUp, best_selector, drop_poller
from callboard.actors.runner.sampling import Sampler
from callboard.actors.runner.slow_handlers import Stuck, TimeSheet
from callboard.actors.runner.spinning import AdaptivePoll
from callboard.actors.runner.timers import Timer, Timers
from callboard.actors.runner.watcher import WATCHER
from callboard.support import after_fork
from callboard.support.calls import Arguments, Callback
from callboard.support.text import logged, safe_repr

_log = logging.getLogger("callboard.runner")

#: Ready cells that run before the runner checks sockets and timers again.
CELLS_A_TURN: Final = 64

#: Minimum seconds between two polls while cells are ready: a poll costs as much as several
#: short turns of cells.
SHORTEST_TURN: Final = 0.0002

#: Limit in seconds for one poll: pollers refuse much longer or infinite times.
LONGEST_POLL: Final = 24 * 3600.0

#: Seconds until a spare thread that is not needed ends.
SPARE_IDLE: Final = 1.0


class Runnable(Protocol):
    """An entry of the run queue."""

    def run(self) -> None:
        """Do the work of one turn."""


class ConnectionOwner:
    """Owner of a connection whose callbacks a runner calls.

    If a callback raises, it may have read bytes without handling them, and the connection
    cannot continue correctly. So the owner closes the connection.
    """

    __slots__ = ()

    def broken(self, error: BaseException) -> None:
        """Close, because a callback of this object raised; the error was logged."""
        raise NotImplementedError


class Runner:
    """Runs the cells of one node and polls its sockets."""

    #: Whether it sleeps in a poll, which other threads have to interrupt.
    is_polling: ClassVar[bool] = True
    #: In a simulation, the simulated disk and ports; None on a real machine.
    machine: Any = None
    #: In a simulation, returns the simulated database of a URL; None on a real machine.
    databases: Any = None

    def __init__(
        self,
        name: str,
        *,
        selector: selectors.BaseSelector | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        may_block: bool = False,
    ) -> None:
        """Create a runner without a thread.

        Args:
            name: name of the node, for the names of threads.
            selector: poller of sockets; the system's best by default.
            clock: monotonic time in seconds.
            rng: source of randomness; the system's by default.
            may_block: whether the runner serves a single actor that may block, so that the role
                never passes to another thread.
        """
        self.name = name
        #: Monotonic time in seconds; all code of this node reads the time here.
        self.now = clock
        self.random = rng or random.SystemRandom()  # also for the nonces of handshakes
        self.ready: deque[Runnable] = deque()
        self.may_block = may_block
        self.turns = 0
        #: The runnable that runs, or ran last, for the watcher.
        self.current: Runnable | None = None
        self.times, self.sampler = TimeSheet(), Sampler()
        self.sleeping = False
        #: The latest end of the current poll.
        self._polls_until = math.inf
        self.closed = False
        self.selector = selector or best_selector()
        self.patience = AdaptivePoll(clock)
        self.deadlines = Deadlines()
        self.loop = self.make_loop()
        #: Called with the role lock held before each poll: links write their buffers.
        self.before_poll: list[Callable[[], None]] = []
        #: Set after the runner has stopped, on its last thread.
        self.stopped = threading.Event()
        self._posted: deque[tuple[Callback, Arguments]] = deque()
        self.timers = Timers()
        self._role = threading.Lock()
        #: The thread that holds the role; None while no thread does.
        self.holder: int | None = None
        self._threads: set[int] = set()
        self._spare_lock = locks.lock("spare threads of a runner", 800)
        #: One locked lock for each waiting spare thread.
        self._spares: list[threading.Lock] = []
        #: Whether the runner has had a thread, or will never have one.
        self.is_started = False
        self._ended = False
        self._clearing: set[int] = set()  # threads inside `_run_leftovers`
        self._wake_up = WakeUp(self.selector) if self.is_polling else None
        #: Whether this is the copy in a forked process, which has no thread.
        self.is_forked = False
        after_fork.register(self, Runner._drop_copy)

    # --- from any thread ---

    def schedule(self, runnable: Runnable) -> None:
        """Put a runnable at the end of the run queue."""
        self.ready.append(runnable)
        if self.sleeping:
            self.wake()

    def post(self, callback: Callback, *args: Any) -> None:
        """Call `callback(*args)` soon with the role lock held (for links, routes, timers)."""
        self._posted.append((callback, args))
        if self.sleeping:
            self.wake()

    def call_at(self, when: float, callback: Callback, *args: Any) -> Timer:
        """Call at a time of `now()` with the role lock held."""
        timer = self.timers.add(when, callback, args)
        if self.sleeping:
            self.wake()
        return timer

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Timer:
        """Call after `delay` seconds with the role lock held."""
        return self.call_at(self.now() + delay, callback, *args)

    def wait_for(self, event: threading.Event, seconds: float) -> None:
        """Block until an event is set, or for some seconds; for detached actors."""
        event.wait(seconds)

    def make_loop(self) -> RunnerLoop:
        """Create the event loop of coroutine handlers."""
        return RunnerLoop(self)

    def wake(self) -> None:
        """Interrupt the current poll.

        Raises:
            NodeClosed: the process is a fork of the one that made this runner.
        """
        if self.is_forked:
            self._forget()
            raise NodeClosed(after_fork.refusal(f"the node {self.name}", "make a Node here"))
        self.sleeping = False
        wake_up = self._wake_up
        if wake_up is not None:
            wake_up.ring()
        if self._ended:
            self.sleeping = True
            self._run_leftovers()

    def awake_by(self, when: float) -> None:
        """Make sure that the runner checks the deadlines of asks before a time of `now()`."""
        if self.sleeping and self._polls_until > when:
            self.wake()

    def watch(
        self, file: Any, previous: int, events: int, ready: Callable[[int], object]
    ) -> None:
        """Change the watched events of a file from `previous` to `events`; 0 means none.

        Needs the role.
        """
        if previous and not events:
            self.selector.unregister(file)
        elif events and not previous:
            self.selector.register(file, events, ready)
        elif events != previous:
            self.selector.modify(file, events, ready)

    def is_runner_thread(self) -> bool:
        """Return whether this is a thread that runs handlers."""
        return threading.get_ident() in self._threads

    def start(self) -> None:
        """Start the runner's thread, unless it was started before."""
        if self.is_started:
            return
        with self._spare_lock:
            if not self.is_started:
                self.is_started = True
                self._new_thread()
                if not self.may_block:
                    WATCHER.watch(self)

    def detached(self, name: str) -> "Runner":
        """Return a runner for one actor that has its own thread."""
        runner = Runner(name, clock=self.now, rng=self.random, may_block=True)
        runner.times.seconds = self.times.seconds  # shared: handler times are per node
        return runner

    def stop(self) -> None:
        """End the runner after its current turn; `stopped` is set when it has ended.

        A runner without a thread ends immediately.
        """
        with self._spare_lock:
            has_thread = self.is_started
            self.closed = self.is_started = True
        if has_thread:
            self.wake()
        else:
            self._shut()

    # --- with the role ---

    def _new_thread(self) -> None:
        """Start a thread that serves the runner or waits as a spare."""
        thread = threading.Thread(target=self._run, name=f"callboard-{self.name}", daemon=True)
        thread.start()

    def _run(self) -> None:
        """Run one of the runner's threads until it is not needed."""
        me = threading.get_ident()
        self._threads.add(me)
        asyncio._set_running_loop(self.loop)
        try:
            while self._serve(me):
                if not self._wait_as_spare() or self._ended:
                    return
        finally:
            asyncio._set_running_loop(None)
            self._threads.discard(me)

    def _serve(self, me: int) -> bool:
        """Run turns while this thread has the role.

        Returns True if the role was passed on, and False if the runner has stopped.
        """
        role = self._role
        role.acquire()
        self.holder = me
        ready = self.ready
        while not self.closed:
            if ready:
                role.release()
                has_role = self._run_timed(me) if self.may_block else self._run_ready(me)
                if has_role:
                    role.acquire()
                    has_role = self.holder == me
                    if not has_role:
                        role.release()
                if not has_role:
                    self.times.stuck.pop(me, None)
                    return True
            now = self._housekeep()
            self._poll(now)
        self._shut()
        role.release()
        return False

    def _housekeep(self) -> float:
        """Run posted calls, fire timers, and let the links write; return the time."""
        posted = self._posted
        if posted:
            for _ in range(len(posted)):
                self._call(*posted.popleft())
        now = self.now()
        timers = self.timers.heap
        if timers and timers[0][0] <= now:
            for callback, args in self.timers.due(now):
                self._call(callback, args)
        for before_poll in self.before_poll:
            try:
                before_poll()
            except BaseException as error:  # noqa: BLE001  # as in `_call`
                self.failed(before_poll, error)
        return now

    def _run_ready(self, me: int) -> bool:
        """Run a batch of ready cells without the role lock; return whether it kept the role."""
        ready = self.ready
        take = ready.popleft
        until = self.now() + SHORTEST_TURN
        left = CELLS_A_TURN
        while ready:
            self.turns += 1
            try:
                self.current = runnable = take()
            # This thread has lost the role, and the new holder popped the last cell.
            except IndexError:
                return self.holder == me
            try:
                runnable.run()
            except BaseException as error:  # noqa: BLE001  # even sys.exit() must not end the node
                logged(_log, "a turn of %s failed", safe_repr(runnable), error=error)
            if self.holder != me:
                return False
            left -= 1
            if not left:
                if self._posted or self.closed or self.now() >= until:
                    return True
                left = CELLS_A_TURN
        return True

    def _run_timed(self, me: int) -> bool:
        """Run a batch and add its time to the actor: the watcher skips detached actors."""
        actor = getattr(self.ready[0], "actor", None)
        started = self.now()
        try:
            return self._run_ready(me)
        finally:
            if actor is not None:
                self.times.add(actor, self.now() - started)

    def _call(self, callback: Callback, args: Arguments) -> None:
        """Call a callback with the role lock held; log its error."""
        try:
            callback(*args)
        except BaseException as error:  # noqa: BLE001  # the role lock is held
            self.failed(callback, error)

    def failed(self, callback: Callback, error: BaseException) -> None:
        """Log the error of a callback, and close the connection that it belongs to."""
        logged(_log, "%s failed", safe_repr(callback), error=error)
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, ConnectionOwner):
            try:
                owner.broken(error)
            except BaseException as second:  # noqa: BLE001  # as in `_call`
                logged(_log, "%s could not be closed", safe_repr(owner), error=second)

    def _poll(self, now: float) -> None:
        """Wait for events of sockets, and handle them.

        This runs once for each message of a sequential exchange, so the code avoids calls.
        """
        deadlines = self.deadlines
        has_deadlines = deadlines.fresh or deadlines.lines or deadlines.heap
        until = deadlines.sweep(now) if has_deadlines else math.inf
        self._polls_until = math.inf  # so that a thread that sets a deadline now wakes this one
        self.sleeping = True
        # This check comes after setting `sleeping`: a thread that adds an entry later sees
        # `sleeping`, and wakes the poll.
        if self.ready or self._posted:
            timeout = 0.0
        else:
            if deadlines.fresh and until > now + SWEEP_INTERVAL:
                until = now + SWEEP_INTERVAL
            next_timer = self.timers.next_at
            if next_timer is not None and next_timer < until:
                until = next_timer
            self._polls_until = until
            timeout = until - now
            if timeout < 0.0:
                timeout = 0.0
            elif timeout > LONGEST_POLL:
                timeout = LONGEST_POLL
        if CONTENTION.is_seen or self.may_block:
            events = contention.select(self.selector, timeout)
        else:
            events = self.patience.select(self.selector, timeout)
        self.sleeping = False
        if WATCHER.dormant and not self.may_block:
            WATCHER.awaken()
        self._take_events(events)

    def _take_events(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Pass ready events to their owner: a link, or asyncio."""
        for key, mask in events:
            if callable(key.data):
                try:
                    key.data(mask)
                except BaseException as error:  # noqa: BLE001  # as in `_call`
                    self.failed(key.data, error)
            else:
                self.loop._process_events([(key, mask)])

    def _shut(self) -> None:
        """End the runner; needs the role lock."""
        self.loop.cancel_tasks()
        self.holder = None
        self._ended = True
        self.deadlines.close()
        WATCHER.unwatch(self)
        wake_up, self._wake_up = self._wake_up, None
        if wake_up is not None:
            wake_up.close()
        self.loop.close()
        with self._spare_lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            spare.release()
        self.sleeping = True  # so that posting from here on calls `wake`
        self._run_leftovers()
        self.stopped.set()

    def _run_leftovers(self) -> None:
        """Run cells after the end, so that they fail late asks and count late messages."""
        me = threading.get_ident()
        if me in self._clearing:
            return  # this is a nested call, and the outer call continues the loop
        self._clearing.add(me)
        try:
            while self.ready:
                try:
                    runnable = self.ready.popleft()
                except IndexError:  # another thread popped the last one
                    return
                if runnable is not self.loop:
                    runnable.run()
        finally:
            self._clearing.discard(me)

    # --- from the watcher ---

    def pass_role_on(self) -> bool:
        """Pass the role to a spare thread, because the holder is stuck in a handler.

        Returns False if the holder is not in a handler: it polls, or works with the role lock
        held.
        """
        if not self._role.acquire(blocking=False):
            return False
        try:
            holder = self.holder
            if self._ended or holder is None:  # a closed runner needs no thread
                return False
            self.times.stuck[holder] = Stuck(self.current, holder, self.now())
            self.holder = None
            current_task_cleared(self.loop, None)
        finally:
            self._role.release()
        with self._spare_lock:
            spare = self._spares.pop() if self._spares else None
        if spare is not None:
            spare.release()
        else:
            self._new_thread()
        return True

    def _wait_as_spare(self) -> bool:
        """Wait for the role; return False after some time in which it was not needed."""
        needed = threading.Lock()
        needed.acquire()
        with self._spare_lock:
            if self._ended:
                return False
            self._spares.append(needed)
        if needed.acquire(timeout=SPARE_IDLE):
            return True
        with self._spare_lock:
            if needed in self._spares:
                self._spares.remove(needed)
                return False
        return True  # the role arrived just before the timeout

    # --- in a forked process ---

    def _drop_copy(self) -> None:
        """Refuse further work in a forked process, and detach from the parent's poller."""
        self.is_forked = self.sleeping = True
        self._forget()
        if self._wake_up is not None:
            self._wake_up.leave()
        drop_poller(self.selector)
        # If the parent forked in a handler, this thread polls again when the handler returns.
        self.selector = NoSelector()

    def _forget(self) -> None:
        """Drop all work, as there is no thread for it."""
        while self.ready:
            # Reset the flag, so that the next message schedules the cell again and `wake`
            # raises an error. Otherwise the cell would count as scheduled, and the message
            # would wait forever.
            setattr(self.ready.pop(), "scheduled", False)  # noqa: B010
        self._posted.clear()
