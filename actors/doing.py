"""What an actor does at this moment, for people who look at it from outside."""

from pathlib import PurePath
from types import FrameType
from typing import Any

from callboard.actors.cell import Cell
from callboard.actors.future import Future, Pause
from callboard.actors.runner.slow_handlers import handler_frame
from callboard.actors.task import HandlerTask
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Doing:
    """The handler that an actor is in; all texts are empty while it is in none.

    Attributes:
        handler: the function, with its class.
        place: file and line where it stands.
        message: the type of its message, where that is known.
        awaits: what it waits for.
    """

    handler: str = ""
    place: str = ""
    message: str = ""
    awaits: str = ""


def handler_under_way(cell: Cell) -> object:
    """Return what stays the same while an actor is in one handler; None while it is in none."""
    task = _oldest_task(cell)
    return cell.taken if task is None and cell.running else task


def doing_of(cell: Cell) -> Doing:
    """Return what an actor does; from any thread."""
    task = _oldest_task(cell)
    aside = cell.aside
    blocked = None if aside is None else aside.blocked_by
    awaits = "" if blocked is None else f"room in the mailbox of {blocked.ref}"
    if task is None:
        frame = handler_frame(_thread_of(cell)) if cell.running else None
        name = "" if frame is None else frame.f_code.co_qualname
        return Doing(name, _place_of(frame), "", awaits)
    coroutine: Any = task.coroutine
    message = "" if task.message is None else type(task.message).__qualname__
    place = _place_of(getattr(coroutine, "cr_frame", None))
    return Doing(coroutine.__qualname__, place, message, awaits or _awaited(task.waiting_for))


def _oldest_task(cell: Cell) -> HandlerTask | None:
    """Return the coroutine handler that is under way, the oldest of several."""
    if cell.task is not None or cell.aside is None:
        return cell.task
    try:
        return next(iter(cell.aside.tasks), None)
    except RuntimeError:  # another thread has just changed them
        return None


def _thread_of(cell: Cell) -> int:
    """Return the thread that a running handler holds; 0 where that is not known."""
    for stuck in list(cell.runner.times.stuck.values()):
        if stuck.runnable is cell:
            return stuck.thread
    return (cell.runner.may_block and cell.runner.holder) or 0


def _place_of(frame: FrameType | None) -> str:
    return (
        "" if frame is None else f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
    )


def _awaited(awaited: object) -> str:
    """Return what a coroutine handler waits for."""
    if isinstance(awaited, Pause):
        return "a time that it set itself"
    if isinstance(awaited, Future) and awaited.asked is not None:
        return f"an answer of {awaited.asked}"
    return "" if awaited is None else f"a {type(awaited).__qualname__}"
