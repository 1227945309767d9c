"""Handlers that hold a thread for long: which they are, and where time goes.

The watcher looks at busy runners every few milliseconds anyway. What it sees is a sample of
where the time of handlers goes, so that no clock is read for each message; and it
knows which handlers were stuck so long that their runner went on without them.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from callboard import locks
from callboard.support.dataclass import dataclass

#: Seconds that a handler may hold a thread before it is told.
SLOW_AFTER: Final = 1.0


#: Detached actors count on their own threads.
_ADDING: Final = locks.lock("seconds in handlers", 960)


@dataclass(eq=False)
class Stuck:
    """A turn that holds its thread while its runner goes on with another."""

    runnable: Any
    thread: int
    since: float
    has_sender: bool = False
    sender: Any = None
    depth: int = 0

    def __post_init__(self) -> None:
        self.has_moved()  # from here on it tells what has changed

    def has_moved(self) -> bool:
        """Return whether another message is handled than at the last look.

        Each message of a turn brings another sender or leaves fewer that wait. A handler
        that stands lets them only become more.
        """
        sender = getattr(self.runnable, "sender", None)
        depth: int = getattr(self.runnable, "depth", 0)
        moved = sender is not self.sender or depth < self.depth
        self.sender, self.depth = sender, depth
        return moved


class TimeSheet:
    """What one runner's handlers take."""

    def __init__(self) -> None:
        #: Told of a cell, the name of its handler, and the seconds that it has taken so far; on
        #: the watcher's thread.
        self.on_slow: Callable[[Any, str, float], object] | None = None
        self.slow_after = SLOW_AFTER
        self.stuck: dict[int, Stuck] = {}
        #: Seconds by name of the actor's class: as sampled, or as taken by detached actors.
        self.seconds: dict[str, float] = {}

    def sample(self, current: Any, seconds: float) -> None:
        """Count the time since the last look for what runs at this moment."""
        stuck = [each.runnable for each in list(self.stuck.values())] if self.stuck else ()
        for runnable in (current, *stuck):
            actor = getattr(runnable, "actor", None)
            if actor is not None:
                self.add(actor, seconds)

    def add(self, actor: object, seconds: float) -> None:
        """Count time that a handler of an actor has taken."""
        name = type(actor).__qualname__
        with _ADDING:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def tell_slow(self, now: float) -> None:
        """Tell, once for each, which handlers have held their thread for too long."""
        for stuck in list(self.stuck.values()):
            if stuck.has_moved():
                stuck.since, stuck.has_sender = now, False
            taken = now - stuck.since
            if taken < self.slow_after or stuck.has_sender:
                continue
            stuck.has_sender = True
            if self.on_slow is not None and getattr(stuck.runnable, "actor", None) is not None:
                frame = handler_frame(stuck.thread)
                name = "?" if frame is None else frame.f_code.co_qualname
                self.on_slow(stuck.runnable, name, taken)


def handler_frame(thread: int) -> FrameType | None:
    """Return the frame that the runtime has called: that of the handler, not what it calls."""
    frame, found = sys._current_frames().get(thread), None
    while frame is not None:
        caller = frame.f_back
        if caller is not None and not _is_ours(frame) and _is_ours(caller):
            found = frame  # the outermost: a handler may call us, and we it
        frame = caller
    return found


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this room."""
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("callboard.actors.")
