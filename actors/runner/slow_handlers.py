"""Slow handlers, and the time that the handlers of each actor class take.

The watcher checks busy runners every few milliseconds anyway. Each check is a sample of the
running handler, so that messages need no timing. It also knows the handlers that blocked a
thread until the runner continued on another one.
"""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from callboard import locks
from callboard.support.dataclass import dataclass

#: Seconds that a handler may hold a thread before it is reported.
SLOW_AFTER: Final = 1.0


#: Guards the sums, as detached actors add to them on their own threads.
_ADDING: Final = locks.lock("seconds in handlers", 960)


@dataclass(eq=False)
class Stuck:
    """A turn that blocks its thread while its runner continues on another thread."""

    runnable: Any
    thread: int
    since: float
    is_reported: bool = False
    sender: Any = None
    depth: int = 0

    def __post_init__(self) -> None:
        self.has_moved()  # stores the state that later calls compare with

    def has_moved(self) -> bool:
        """Return whether the turn has reached another message since the last call.

        Between two messages of a turn, the sender changes, or the number of waiting messages
        falls. While a handler is stuck, the sender stays the same, and the number can only
        grow.
        """
        sender = getattr(self.runnable, "sender", None)
        depth: int = getattr(self.runnable, "depth", 0)
        moved = sender is not self.sender or depth < self.depth
        self.sender, self.depth = sender, depth
        return moved


class TimeSheet:
    """The time that one runner's handlers take."""

    def __init__(self) -> None:
        #: Called with a cell, the name of its handler, and the seconds it has run; on
        #: the watcher's thread.
        self.on_slow: Callable[[Any, str, float], object] | None = None
        self.slow_after = SLOW_AFTER
        self.stuck: dict[int, Stuck] = {}
        #: Seconds by class name of the actor: sampled, or measured for detached actors.
        self.seconds: dict[str, float] = {}

    def sample(self, current: Any, seconds: float) -> None:
        """Add the time since the last sample to the running handlers."""
        stuck = [turn.runnable for turn in list(self.stuck.values())] if self.stuck else ()
        for runnable in (current, *stuck):
            actor = getattr(runnable, "actor", None)
            if actor is not None:
                self.add(actor, seconds)

    def add(self, actor: object, seconds: float) -> None:
        """Add time that a handler of an actor has taken."""
        name = type(actor).__qualname__
        with _ADDING:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def report_slow(self, now: float) -> None:
        """Report each handler that has blocked its thread for too long, once."""
        for stuck in list(self.stuck.values()):
            if stuck.has_moved():
                stuck.since, stuck.is_reported = now, False
            elapsed = now - stuck.since
            if elapsed < self.slow_after or stuck.is_reported:
                continue
            stuck.is_reported = True
            if self.on_slow is not None and getattr(stuck.runnable, "actor", None) is not None:
                frame = handler_frame(stuck.thread)
                name = "?" if frame is None else frame.f_code.co_qualname
                self.on_slow(stuck.runnable, name, elapsed)


def handler_frame(thread: int) -> FrameType | None:
    """Return the frame of the handler that a thread runs, not of a function that it calls."""
    frame, handler = sys._current_frames().get(thread), None
    while frame is not None:
        caller = frame.f_back
        if caller is not None and not _is_ours(frame) and _is_ours(caller):
            # Keep the outermost one: a handler may call callboard, which calls user code again.
            handler = frame
        frame = caller
    return handler


def is_wrapper(code: CodeType | None) -> bool:
    """Return whether a function only calls the handler that it wraps.

    Such a function has the local variable `__tracebackhide__`, as for pytest.
    """
    return code is not None and "__tracebackhide__" in code.co_varnames


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package, or a wrapper of a handler."""
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("callboard.actors.") or is_wrapper(frame.f_code)
