"""Names of actors: registered on this node, found and watched anywhere in reach; groups."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from actors.future import Future
from actors.reference import ActorRef
from proxies.address import check_name
from proxies.background import Background
from proxies.group import Group, Members
from proxies.name_watch import NameChange, watch_name
from proxies.reach import CONNECT_TIMEOUT

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.names import Names
    from proxies.search import Search


class Naming(Background):
    """The part of a node that gives actors names and looks them up."""

    runtime: "Runtime"
    _names: "Names"
    #: Who joined a group on this node.
    _groups: "Names"
    #: The groups that this node has looked at.
    _members: dict[str, Members]
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

    async def watch(self, name: str) -> AsyncGenerator[NameChange, None]:
        """Iterate over who has a name in reach: those that have it, then each change.

        `NameAdded` and `NameRemoved` come in the order in which this node learns of them; a
        holder whose node is lost is removed with reason `unreachable`. The iteration ends when
        the node is closed.

        Raises:
            InvalidAddress: nobody could have such a name.
        """
        check_name(name)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[NameChange | None] = asyncio.Queue()

        def put(change: NameChange | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody iterates
                loop.call_soon_threadsafe(queue.put_nowait, change)

        watcher = watch_name(self.runtime, name, is_group=False, told=put)
        self.runtime.monitor(watcher).add_done_callback(lambda _: put(None))
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            watcher.kill()

    def group(
        self,
        name: str,
        *,
        routing: str = "round_robin",
        key: Callable[[Any], Any] | str | None = None,
    ) -> Group[Any]:
        """Return the group of that name: actors of all nodes in reach that joined it.

        Args:
            name: as for `register`; names of groups and of actors do not meet.
            routing: who gets a message: `round_robin`, `random`, `least_busy` (by the asks of
                this node that are outstanding) or `hash` (by a key, consistently).
            key: for `hash`: an attribute of the message, or a function of it.

        Raises:
            InvalidAddress: the name could not stand in an address.
            ValueError: the routing is not known, or `key` does not go with it.
        """
        members = self._members.get(check_name(name))
        if members is None:
            made = Members(self.runtime, name)
            members = self._members.setdefault(name, made)
            if members is not made:
                made.close()
        return Group(self.runtime, self._groups, members, name, routing, key)
