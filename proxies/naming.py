"""Names of actors: registered on this node, found anywhere in reach."""

from typing import TYPE_CHECKING, Any

from actors.future import Future
from actors.reference import ActorRef
from proxies.background import Background
from proxies.reach import CONNECT_TIMEOUT

if TYPE_CHECKING:
    from proxies.names import Names
    from proxies.search import Search


class Naming(Background):
    """The part of a node that gives actors names and looks them up."""

    _names: "Names"
    _search: "Search"

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Let other nodes find an actor under a name, until it ends or `unregister`.

        Raises:
            InvalidAddress: the name could not stand in an address.
        """
        self._names.register(name, ref)

    def unregister(self, name: str) -> bool:
        """Take a name back; False when nobody had it."""
        return self._names.withdraw(name)

    def find(self, name: str, timeout: float = CONNECT_TIMEOUT) -> Future[ActorRef[Any]]:
        """Look a name up on this node and on all that are in reach.

        The future fails with `NotRegistered` when nobody has the name.
        """
        return self._start(self._search.first(name, timeout))

    def find_all(
        self, name: str, timeout: float = CONNECT_TIMEOUT
    ) -> Future[list[ActorRef[Any]]]:
        """Return all actors of that name in reach, this node's first."""
        return self._start(self._search.all(name, timeout))
