"""Which actor is running in this context."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.cell import Cell

#: The cell whose handler runs here, or None outside of actors. A coroutine handler runs in a
#: copy of the context, so the value stays right after an await and inside tasks that the
#: handler starts.
current_cell: ContextVar["Cell | None"] = ContextVar("callboard_current_cell", default=None)
