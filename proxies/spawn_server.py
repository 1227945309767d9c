"""The spawn server of a node: creates actors of offered classes for other nodes."""

from collections.abc import Mapping

from callboard.actors.actor import Actor
from callboard.actors.dispatch import handler
from callboard.actors.errors import NotSpawnable, remote_error
from callboard.actors.reference import ActorRef
from callboard.actors.system_actor import SystemActor
from callboard.proxies.messages import Spawn


class SpawnServer(SystemActor):
    """Creates actors of the offered classes for other nodes, and of no other class."""

    def __init__(self, offered: Mapping[str, type[Actor]]) -> None:
        self._offered = offered

    @handler
    def make(self, request: Spawn) -> None:
        """Answer with the ref of the new actor, once its `__init__` has returned."""
        actor_class, node = self._find(request), self.node
        if node.is_draining:
            message = f"{node.name} is draining and spawns nothing; choose another node"
        elif actor_class is None:
            self.runtime.counters.refused_spawns += 1
            offers = ", ".join(sorted(self._offered)) or "nothing"
            message = f"{request.name!r} is not offered by {node.name}; it offers {offers}"
        else:
            self.answer_apart(lambda: self._construct(actor_class, request))
            return
        self.promise().set_exception(NotSpawnable(message))

    def _construct(self, actor_class: type[Actor], request: Spawn) -> ActorRef:
        """Create an actor, and convert an exception of its `__init__`."""
        try:
            return self.runtime.start_actor(actor_class, request.args, request.kwargs)
        except BaseException as error:  # noqa: BLE001  # also sys.exit() in `__init__`
            raise remote_error(error) from None

    def _find(self, request: Spawn) -> type[Actor] | None:
        """Return the class that a request names, if it is offered."""
        if not request.by_class:
            return self._offered.get(str(request.name))
        classes = (self._offered[name] for name in sorted(self._offered))
        return next(
            (offered for offered in classes if offered.__qualname__ == request.name), None
        )
