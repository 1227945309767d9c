"""The current activity of an actor, for inspection."""

from inspect import iscoroutine
from pathlib import PurePath
from types import FrameType
from typing import Any

from callboard.actors.cell import Cell
from callboard.actors.future import Future, Pause
from callboard.actors.runner.slow_handlers import handler_frame, is_wrapper
from callboard.actors.task import HandlerTask
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Activity:
    """The handler that an actor executes; all texts are empty while it is idle.

    Attributes:
        handler: the function, with its class.
        place: current file and line.
        message: type of the message, if known.
        awaits: description of the awaited result.
    """

    handler: str = ""
    place: str = ""
    message: str = ""
    awaits: str = ""


def handler_under_way(cell: Cell) -> object:
    """Return an object that identifies the running handler; None while the actor is idle.

    A handler that waits for work, such as a job of a queue, is idle.
    """
    task = _oldest_task(cell)
    if task is not None and isinstance(task.waiting_for, Future) and task.waiting_for.is_idle:
        return None
    return cell.taken if task is None and cell.running else task


def activity_of(cell: Cell) -> Activity:
    """Return the activity of an actor. Can be called from any thread."""
    task = _oldest_task(cell)
    rare = cell.rare
    blocked = None if rare is None else rare.blocked_by
    awaits = "" if blocked is None else f"room in the mailbox of {blocked.ref}"
    if task is None:
        frame = handler_frame(_thread_of(cell)) if cell.running else None
        name = "" if frame is None else frame.f_code.co_qualname
        return Activity(name, _place_of(frame), "", awaits)
    coroutine: Any = task.coroutine
    while is_wrapper(getattr(coroutine, "cr_code", None)) and iscoroutine(coroutine.cr_await):
        coroutine = coroutine.cr_await
    message = "" if task.message is None else type(task.message).__qualname__
    place = _place_of(getattr(coroutine, "cr_frame", None))
    return Activity(
        coroutine.__qualname__, place, message, awaits or _awaited(task.waiting_for)
    )


def _oldest_task(cell: Cell) -> HandlerTask | None:
    """Return the running coroutine handler, the oldest of several."""
    if cell.task is not None or cell.rare is None:
        return cell.task
    try:
        return next(iter(cell.rare.tasks), None)
    except RuntimeError:  # another thread modified the tasks during the iteration
        return None


def _thread_of(cell: Cell) -> int:
    """Return the thread of the running handler; 0 if it is unknown."""
    for stuck in list(cell.runner.times.stuck.values()):
        if stuck.runnable is cell:
            return stuck.thread
    return (cell.runner.may_block and cell.runner.holder) or 0


def _place_of(frame: FrameType | None) -> str:
    return (
        "" if frame is None else f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
    )


def _awaited(awaited: object) -> str:
    """Describe the awaited result of a coroutine handler."""
    if isinstance(awaited, Pause):
        return "the end of a sleep"
    if isinstance(awaited, Future) and awaited.asked is not None:
        kind = "the next value" if awaited.is_idle else "an answer"
        return f"{kind} of {awaited.asked}"
    return "" if awaited is None else f"a {type(awaited).__qualname__}"
