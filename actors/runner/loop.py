"""asyncio's event loop on a node's runner.

Coroutine handlers and the libraries that they use find a running loop on the runner's threads:
this one. Its callbacks wait in the run queue like actors, its timers among the runner's timers,
its file descriptors in the runner's poller. So there is one thread, one poll and no hand-over
between asyncio and actors, and a callback that blocks holds up the others no more than a
handler does.
"""

import asyncio
import contextlib
import contextvars
import selectors
import sys
from collections.abc import Callable
from typing import Any, Protocol

from callboard.actors.reference import current_cell
from callboard.actors.runner.timers import Timer
from callboard.support.text import error_text

_HANDLES_A_TURN = 100  # callbacks run in one turn before actors get theirs
_LAST_ROUNDS = 100  # turns for cancelled tasks at the end: one that resists must not hold it up


class LoopRunner(Protocol):
    """What an event loop uses of the runner that drives it."""

    #: The poller that the loop's file descriptors are registered with.
    selector: selectors.BaseSelector
    #: The thread that has the runner's role.
    holder: int | None
    #: Returns the monotonic time in seconds.
    now: Callable[[], float]

    def schedule(self, runnable: "RunnerLoop", /) -> None:
        """Put the loop at the end of the run queue."""

    def call_at(self, when: float, callback: Callable[..., object], /, *args: Any) -> Timer:
        """Call at a time of `now()`."""

    def wake(self) -> None:
        """End the current poll."""


class RunnerLoop(asyncio.SelectorEventLoop):
    """An event loop without a thread: the runner runs its callbacks."""

    def __init__(self, runner: LoopRunner) -> None:
        self._runner = runner
        self._scheduled_in_runner = False
        super().__init__(runner.selector)
        self.time = runner.now  # type: ignore[method-assign]  # asked all the time
        self._thread_id = -1  # "running", for is_running() and the checks that depend on it

    # The run queue's side: the loop is scheduled like a cell.

    def run(self) -> None:
        """Run the callbacks that are ready, as one turn of the run queue."""
        self._scheduled_in_runner = False
        ready, runner = self._ready, self._runner  # type: ignore[attr-defined]
        holder = runner.holder
        try:
            for _ in range(min(len(ready), _HANDLES_A_TURN)):
                if runner.holder != holder:
                    break  # a callback was stuck: the rest is for the next holder
                try:
                    handle = ready.popleft()
                except IndexError:  # another thread was faster
                    break
                if not handle._cancelled:
                    # A thread that is stuck in a step may have left its mark: a task would
                    # refuse to go on beside it, and never be asked again.
                    current_task_cleared(self, None)
                    handle._run()
        finally:  # sys.exit() in a callback comes through here
            if ready:
                self._schedule()

    def _schedule(self) -> None:
        """Put the loop into the run queue unless it is there."""
        if not self._scheduled_in_runner:
            self._scheduled_in_runner = True
            self._runner.schedule(self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell of an error, unless it only says that the runner's role went to another thread.

        A step of a task that holds its thread for long loses the role, and with it the mark of
        the current task; asyncio misses that mark when the step, which is whole, ends. The next
        step may come up before that thread has left the task's context: it is tried again.
        """
        error = context.get("exception")
        if isinstance(error, RuntimeError):
            if error_text(error).startswith("Leaving task "):
                return
            trace = error.__traceback__
            is_refused = trace is not None and trace.tb_next is None  # nothing of it has run
            if is_refused and error_text(error).startswith("cannot enter context"):
                self._ready.append(context["handle"])  # type: ignore[attr-defined]
                self._schedule()
                return
        super().call_exception_handler(context)

    # asyncio's side.

    def call_soon(  # type: ignore[override]  # typeshed ties callback and args together
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call in one of the next turns; from any thread."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        self._schedule()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a time of `time()`; from any thread."""
        handle = _LoopTimer(when, callback, args, self, context)
        handle.timer = self._runner.call_at(when, self._fire, handle)
        return handle

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        """Run the callback of a timer that is due in the next turn."""
        if not timer.cancelled():
            self._ready.append(timer)  # type: ignore[attr-defined]
            self._schedule()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio tells that a timer is cancelled."""
        assert isinstance(handle, _LoopTimer)
        handle.timer.cancel()

    def _process_events(self, event_list: Any) -> None:
        """Take what a poll found for asyncio's own transports."""
        super()._process_events(event_list)  # type: ignore[misc]
        self._schedule()

    def _make_self_pipe(self) -> None:
        """The runner wakes its own poller."""

    def _close_self_pipe(self) -> None:
        """See `_make_self_pipe`."""

    def _write_to_self(self) -> None:
        """Wake the runner, as asyncio wakes its own poll."""
        self._runner.wake()

    def refuse_wait(self, asked: object) -> bool:
        """Raise if a handler's wait would never end; returns whether it may block here."""
        cell = current_cell.get()
        return cell is not None and cell.refuse_wait(asked)

    def run_forever(self) -> None:
        """Refuse: the runner runs the loop."""
        msg = "this loop belongs to a node and runs while the node does"
        raise RuntimeError(msg)

    def cancel_tasks(self) -> None:
        """Cancel the tasks that handlers started, and let them do what needs no waiting."""
        tasks = asyncio.all_tasks(self)
        if not tasks:
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for task in tasks:
                task.cancel("the node closed")
            for _ in range(_LAST_ROUNDS):
                if not self._ready:  # type: ignore[attr-defined]
                    break
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self.run()
        finally:
            asyncio._set_running_loop(before)

    def close(self) -> None:
        """End the loop with its runner."""
        current_task_cleared(self, None)
        self._thread_id = None  # type: ignore[assignment]
        super().close()


class _LoopTimer(asyncio.TimerHandle):
    """A timer of asyncio's, and the runner's that stands for it."""

    __slots__ = ("timer",)

    timer: Timer


# The current task of a loop, as asyncio keeps it: a dictionary before 3.13, one function from
# then on. (3.12 has that function too, but it raises KeyError where there is none.)
# Steps of handlers leave their mark, for the next step or turn to replace it: taking it back
# each time would cost every ask.

#: Make a task what `asyncio.current_task()` returns on a loop.
current_task_set: Callable[[asyncio.AbstractEventLoop, Any], object]

#: Leave a loop without a current task, where it has one.
current_task_cleared: Callable[[asyncio.AbstractEventLoop, None], object]

if sys.version_info >= (3, 13):
    current_task_set = current_task_cleared = asyncio.tasks._swap_current_task
else:
    _current_tasks: dict[asyncio.AbstractEventLoop, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    current_task_set, current_task_cleared = _current_tasks.__setitem__, _current_tasks.pop
