"""Looking a name up on this node and on all that are in reach."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from actors.errors import NodeUnreachable, NotRegistered
from actors.future import Future
from actors.reference import ActorRef
from basp.header import DIRECTORY
from proxies.messages import Lookup

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.broker import Broker
    from proxies.names import Names

T = TypeVar("T")


class Search:
    """Asks the directories of the nodes in reach."""

    def __init__(self, runtime: "Runtime", broker: "Broker", names: "Names") -> None:
        self._runtime = runtime
        self._broker = broker
        self._names = names

    async def first(self, name: str, timeout: float) -> ActorRef[Any]:
        """Return this node's actor of that name, or else that of the first to answer.

        Raises:
            NotRegistered: nobody in reach has the name.
        """
        held = self._names.get(name)
        if held is not None:
            return held
        # The first answer counts: a node that is frozen must not hold the others up.
        for answer in asyncio.as_completed(self._ask_everywhere(name, timeout)):
            found = await answer
            if isinstance(found, ActorRef):
                return found
        msg = f"no actor in reach of {self._runtime.name} is registered as {name!r}"
        raise NotRegistered(msg)

    async def all(self, name: str, timeout: float) -> list[ActorRef[Any]]:
        """Return all actors of that name, this node's first."""
        held = self._names.get(name)
        found = [] if held is None else [held]
        for answer in await asyncio.gather(*self._ask_everywhere(name, timeout)):
            if isinstance(answer, ActorRef) and answer not in found:
                found.append(answer)
        return found

    def _ask_everywhere(self, name: str, timeout: float) -> list[Coroutine[Any, Any, Any]]:
        """Ask the directories of all nodes in reach."""
        return [
            _settled(self._runtime.ref_to(node, DIRECTORY).ask(Lookup(name), timeout))
            for node in sorted(self._broker.router.reachable)
        ]


async def _settled(future: Future[T]) -> T | None:
    """Await a future whose failure only means that there is no answer from there."""
    try:
        return await future
    except (NodeUnreachable, TimeoutError):
        return None
