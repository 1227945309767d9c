"""Global names of actors: the first living holder keeps one, whatever else is asked for."""

import threading
from typing import TYPE_CHECKING, Any

from actors.cell import Cell
from actors.reference import ActorRef
from actors.signals import Down

if TYPE_CHECKING:
    from actors.runtime import Runtime


class GlobalNames:
    """The names of one system. `lock` is held while the actor of a name is created."""

    def __init__(self, runtime: "Runtime") -> None:
        self.lock = threading.RLock()
        self._held: dict[str, ActorRef[Any]] = {}
        runtime.on_end.append(self._ended)

    def holder_of(self, name: str) -> ActorRef[Any] | None:
        """Return the actor of a name, if it lives."""
        return self._held.get(name)

    def hold(self, name: str, ref: ActorRef[Any]) -> None:
        """Give a name to an actor until it ends."""
        self._held[name] = ref
        if isinstance(ref.target, Cell) and not ref.target.alive:
            self._held.pop(name, None)

    def name_of(self, cell: Cell) -> str | None:
        """Return the name that an actor was created under."""
        return next((name for name, ref in self.held().items() if ref.target is cell), None)

    def held(self) -> dict[str, ActorRef[Any]]:
        """Return who holds which name."""
        return dict(self._held)

    def _ended(self, cell: Cell, _: Down) -> None:
        name = self.name_of(cell) if self._held else None
        if name is not None:
            self._held.pop(name, None)
