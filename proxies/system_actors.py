"""The actors that every node has: spawn server and directory."""

import traceback
from typing import TYPE_CHECKING, Any

from actors.actor import Actor
from actors.dispatch import handler
from actors.errors import NotSpawnable, RemoteError
from actors.reference import ActorRef
from proxies.messages import Describe, Lookup, Spawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxies.names import Names


class SpawnServer(Actor):
    """Makes actors of the offered classes for other nodes; nothing else can be made."""

    remote_methods = frozenset()

    def __init__(self, offered: "Mapping[str, type[Actor]]") -> None:
        self._offered = offered

    @handler
    def make(self, request: Spawn) -> ActorRef[Any] | None:
        """Answer with the ref of the new actor."""
        if self.node.is_draining:
            text = f"{self.node.name} is draining and spawns nothing; choose another node"
            self.promise().set_exception(NotSpawnable(text))
            return None
        actor_class = self._find(request)
        if actor_class is None:
            self._cell.runtime.counters.refused_spawns += 1
            offers = ", ".join(sorted(self._offered)) or "nothing"
            self.promise().set_exception(
                NotSpawnable(
                    f"{request.name!r} is not offered by {self.node.name}; it offers {offers}"
                )
            )
            return None
        try:
            return self._cell.runtime.spawn(actor_class, request.args, request.kwargs)
        except BaseException as error:  # noqa: BLE001  # the failure of __init__ is the asker's
            trace = "".join(traceback.format_exception(error))
            failure = RemoteError(type(error).__qualname__, str(error), trace)
            self.promise().set_exception(failure)
            return None

    def _find(self, request: Spawn) -> "type[Actor] | None":
        if not request.by_class:
            return self._offered.get(str(request.name))
        classes = (self._offered[name] for name in sorted(self._offered))
        return next((found for found in classes if found.__qualname__ == request.name), None)


class Directory(Actor):
    """Answers who is registered under a name, and what the node is called."""

    remote_methods = frozenset()

    def __init__(self, names: "Names", node_name: str) -> None:
        self._names = names
        self._node_name = node_name

    @handler
    def lookup(self, question: Lookup) -> ActorRef[Any] | None:
        """Return the actor of that name, or None."""
        return None if self._names.are_withdrawn else self._names.get(str(question.name))

    @handler
    def describe(self, _: Describe) -> str:
        """Return the node's name."""
        return self._node_name
