"""asyncio's event loop on a node's runner.

On the runner's threads, this loop is the running loop of coroutine handlers and the libraries
that they use. Its callbacks wait in the run queue like actors, its timers are timers of the
runner, and its file descriptors are registered with the runner's poller. So asyncio and actors
share one thread and one poll, and a callback that blocks delays other code no more than a
handler that blocks.
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
from callboard.support.calls import Callback, Keywords
from callboard.support.text import error_text

_HANDLES_A_TURN = 100  # callbacks per turn, before actors run
_LAST_ROUNDS = 100  # turns for cancelled tasks at the end; more could be endless


class LoopRunner(Protocol):
    """The interface of the runner for its event loop."""

    #: The poller of the loop's file descriptors.
    selector: selectors.BaseSelector
    #: The thread that holds the runner's role.
    holder: int | None
    #: Returns the monotonic time in seconds.
    now: Callable[[], float]

    def schedule(self, runnable: "RunnerLoop", /) -> None:
        """Put the loop at the end of the run queue."""

    def call_at(self, when: float, callback: Callback, /, *args: Any) -> Timer:
        """Call at a time of `now()`."""

    def wake(self) -> None:
        """Interrupt the current poll."""


class RunnerLoop(asyncio.SelectorEventLoop):
    """An event loop without a thread, whose callbacks the runner runs."""

    def __init__(self, runner: LoopRunner) -> None:
        self._runner = runner
        self._scheduled_in_runner = False
        super().__init__(runner.selector)
        self.time = runner.now  # type: ignore[method-assign]  # a direct attribute, as it is hot
        self._thread_id = -1  # any number means "running" for is_running() and its callers

    # The interface for the run queue: the loop is scheduled like a cell.

    def run(self) -> None:
        """Run the ready callbacks, as one turn of the run queue."""
        self._scheduled_in_runner = False
        ready, runner = self._ready, self._runner  # type: ignore[attr-defined]
        holder = runner.holder
        try:
            for _ in range(min(len(ready), _HANDLES_A_TURN)):
                if runner.holder != holder:
                    # A callback blocked, and another thread has the role and runs the rest.
                    break
                try:
                    handle = ready.popleft()
                except IndexError:  # another thread popped the last one
                    break
                if not handle._cancelled:
                    # A thread that blocks in a step of a task leaves this task as the loop's
                    # current task. asyncio then refuses to run another task, which would never
                    # be resumed.
                    current_task_cleared(self, None)
                    handle._run()
        finally:  # even if a callback calls sys.exit()
            if ready:
                self._schedule()

    def _schedule(self) -> None:
        """Put the loop into the run queue, unless it is there."""
        if not self._scheduled_in_runner:
            self._scheduled_in_runner = True
            self._runner.schedule(self)

    def call_exception_handler(self, context: Keywords) -> None:
        """Report an error, unless it is a consequence of a role that was passed on.

        If a step of a task blocks its thread for long, the thread loses the role, and the task
        is no longer the current task of the loop. When the step ends, asyncio reports this as
        an error, although the step is complete. If the next step begins before that thread has
        left the context of the task, asyncio refuses the step, and this method repeats it.
        """
        error = context.get("exception")
        if isinstance(error, RuntimeError):
            if error_text(error).startswith("Leaving task "):
                return
            trace = error.__traceback__
            is_refused = trace is not None and trace.tb_next is None  # the step has not begun
            if is_refused and error_text(error).startswith("cannot enter context"):
                self._ready.append(context["handle"])  # type: ignore[attr-defined]
                self._schedule()
                return
        super().call_exception_handler(context)

    # The interface of asyncio's loops.

    def call_soon(  # type: ignore[override]  # typeshed ties callback and args together
        self,
        callback: Callback,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call in one of the next turns. Can be called from any thread."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        self._schedule()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callback,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a time of `time()`. Can be called from any thread."""
        handle = _LoopTimer(when, callback, args, self, context)
        handle.timer = self._runner.call_at(when, self._fire, handle)
        return handle

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        """Run the callback of a timer that is due in the next turn."""
        if not timer.cancelled():
            self._ready.append(timer)  # type: ignore[attr-defined]
            self._schedule()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancel the timer of the runner; asyncio calls this."""
        assert isinstance(handle, _LoopTimer)
        handle.timer.cancel()

    def _process_events(self, event_list: Any) -> None:
        """Pass polled events to asyncio's transports."""
        super()._process_events(event_list)  # type: ignore[misc]
        self._schedule()

    def _make_self_pipe(self) -> None:
        """Do nothing: the runner wakes its own poller."""

    def _close_self_pipe(self) -> None:
        """Do nothing, see `_make_self_pipe`."""

    def _write_to_self(self) -> None:
        """Wake the runner, as asyncio would wake its own poll."""
        self._runner.wake()

    def refuse_wait(self, awaited: object) -> bool:
        """Raise if a handler's wait would never end; return whether it may block here."""
        cell = current_cell.get()
        return cell is not None and cell.refuse_wait(awaited)

    def run_forever(self) -> None:
        """Refuse, because the runner runs the loop."""
        msg = "this loop belongs to a node and runs while the node does"
        raise RuntimeError(msg)

    def cancel_tasks(self) -> None:
        """Cancel the asyncio tasks that handlers have started, and run them until they wait."""
        tasks = asyncio.all_tasks(self)
        if not tasks:
            return
        previous = asyncio._get_running_loop()
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
            asyncio._set_running_loop(previous)

    def close(self) -> None:
        """Close the loop with its runner."""
        current_task_cleared(self, None)
        self._thread_id = None  # type: ignore[assignment]
        super().close()


class _LoopTimer(asyncio.TimerHandle):
    """A timer of asyncio, which a timer of the runner fires."""

    __slots__ = ("timer",)

    timer: Timer


# The current task of a loop, where asyncio keeps it: a dictionary before 3.13, one function
# since then. (3.12 has that function too, but it raises KeyError if there is no current task.)
# A step of a handler does not reset its task afterwards, as this would cost every ask. The next
# step or turn replaces it.

#: Makes a task the result of `asyncio.current_task()` on a loop.
current_task_set: Callable[[asyncio.AbstractEventLoop, Any], object]

#: Removes the current task of a loop, if there is one.
current_task_cleared: Callable[[asyncio.AbstractEventLoop, None], object]

if sys.version_info >= (3, 13):
    current_task_set = current_task_cleared = asyncio.tasks._swap_current_task
else:
    _current_tasks: dict[asyncio.AbstractEventLoop, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    current_task_set, current_task_cleared = _current_tasks.__setitem__, _current_tasks.pop
