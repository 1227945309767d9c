"""Which actor is running in this context, and who waits in place of threads."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.future import Future

#: The cell whose handler runs here, or None outside of actors. A coroutine handler runs in a
#: copy of the context, so the value stays right after an await and inside tasks that the
#: handler starts.
current_cell: ContextVar["Cell | None"] = ContextVar("callboard_current_cell", default=None)

#: In a simulation, what `.result(timeout)` calls instead of blocking: nothing would happen
#: there while a thread sleeps.
waiting: ContextVar["Callable[[Future[Any], float | None], None] | None"] = ContextVar(
    "callboard_waiting", default=None
)
