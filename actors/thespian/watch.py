"""Files that a plain actor watches: `ThespianWatch` in, `WatchMessage` out.

A watch holds for one message: a handler that wants to go on returns it again. So each file is
taken from the poller as soon as it is ready, and what one poll found goes out as one message.
"""

import logging
import selectors
from typing import TYPE_CHECKING

from thespian.actors import ThespianWatch, WatchMessage

if TYPE_CHECKING:
    from actors.cell import Cell

log = logging.getLogger("callboard.thespian")


class Watch:
    """The files that one actor watches until its next message."""

    __slots__ = ("_cell", "_filenos", "_ready")

    def __init__(self, cell: "Cell", wanted: ThespianWatch) -> None:
        self._cell = cell
        self._filenos: set[int] = set()
        self._ready: list[int] = []
        # The poller is touched by whoever holds the runner's role, and by nobody else.
        cell.runner.post(self._open, list(wanted.filenos))

    def close(self) -> None:
        """Watch no longer; what was ready already is still told."""
        self._cell.runner.post(self._close)

    def _open(self, filenos: list[int]) -> None:
        if not self._cell.alive:
            return
        for fileno in filenos:
            try:
                self._cell.runner.selector.register(
                    fileno, selectors.EVENT_READ, lambda _, fileno=fileno: self._found(fileno)
                )
            except (OSError, ValueError, KeyError) as error:
                log.warning("%r cannot watch file %r: %s", self._cell, fileno, error)
            else:
                self._filenos.add(fileno)

    def _close(self) -> None:
        while self._filenos:
            self._forget(self._filenos.pop())

    def _forget(self, fileno: int) -> None:
        try:
            self._cell.runner.selector.unregister(fileno)
        except (OSError, ValueError, KeyError):
            pass  # closed by the actor meanwhile

    def _found(self, fileno: int) -> None:
        self._filenos.discard(fileno)
        self._forget(fileno)
        if not self._ready:
            self._cell.runner.post(self._tell)
        self._ready.append(fileno)

    def _tell(self) -> None:
        ready, self._ready = self._ready, []
        if self._cell.alive:
            self._cell.post(WatchMessage(ready), self._cell)
