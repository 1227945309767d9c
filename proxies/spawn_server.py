"""The spawn server that every node has: it makes actors of offered classes for other nodes."""

from collections.abc import Mapping
from typing import Any

from callboard.actors.actor import Actor
from callboard.actors.dispatch import handler
from callboard.actors.errors import NotSpawnable, remote_error
from callboard.actors.reference import ActorRef
from callboard.actors.system_actor import SystemActor
from callboard.proxies.messages import Spawn


class SpawnServer(SystemActor):
    """Makes actors of the offered classes for other nodes; nothing else can be made."""

    def __init__(self, offered: Mapping[str, type[Actor]]) -> None:
        self._offered = offered

    @handler
    def make(self, request: Spawn) -> None:
        """Answer with the ref of the new actor, once its `__init__` has returned."""
        found, node = self._find(request), self.node
        if node.is_draining:
            why = f"{node.name} is draining and spawns nothing; choose another node"
        elif found is None:
            self.runtime.counters.refused_spawns += 1
            offers = ", ".join(sorted(self._offered)) or "nothing"
            why = f"{request.name!r} is not offered by {node.name}; it offers {offers}"
        else:
            self.answer_apart(lambda: self._construct(found, request))
            return
        self.promise().set_exception(NotSpawnable(why))

    def _construct(self, found: type[Actor], request: Spawn) -> ActorRef[Any]:
        """Make an actor; a constructor of the user may do what it likes."""
        try:
            return self.runtime.start_actor(found, request.args, request.kwargs)
        except BaseException as error:  # noqa: BLE001  # sys.exit() in it is the asker's, too
            raise remote_error(error) from None

    def _find(self, request: Spawn) -> type[Actor] | None:
        """Return the class that an order means, if it is offered."""
        if not request.by_class:
            return self._offered.get(str(request.name))
        classes = (self._offered[name] for name in sorted(self._offered))
        return next((found for found in classes if found.__qualname__ == request.name), None)
