"""Global names of actors: the first living holder keeps one, whatever else is asked for."""

import threading
from typing import Any

from callboard.actors.cell import Cell
from callboard.actors.reference import ActorRef, Down
from callboard.actors.runtime import Runtime


class GlobalNames:
    """The names of one system. `lock` is held while the actor of a name is created."""

    def __init__(self, runtime: Runtime) -> None:
        self.lock = threading.RLock()
        #: The living holder of each name.
        self.held: dict[str, ActorRef[Any]] = {}
        runtime.on_end.append(self._ended)

    def hold(self, name: str, ref: ActorRef[Any]) -> None:
        """Give a name to an actor until it ends."""
        self.held[name] = ref
        if isinstance(ref.target, Cell) and not ref.target.alive:
            self.held.pop(name, None)

    def name_of(self, cell: Cell) -> str | None:
        """Return the name that an actor was created under."""
        return next((name for name, ref in list(self.held.items()) if ref.target is cell), None)

    def _ended(self, cell: Cell, _: Down) -> None:
        name = self.name_of(cell) if self.held else None
        if name is not None:
            self.held.pop(name, None)
