"""Finding actors by their names, on this node and on all in reach, or by an address."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from callboard.actors.errors import (
    ActorDown,
    InvalidAddress,
    NodeUnreachable,
    NotRegistered,
)
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef
from callboard.actors.runtime import Runtime
from callboard.basp.handshake import Published
from callboard.basp.header import DIRECTORY, SPAWN_SERVER
from callboard.basp.node_id import NodeId
from callboard.proxies.address import (
    Endpoint,
    check_node_id,
    endpoint_text,
    parse_address,
    parse_node_address,
)
from callboard.proxies.errors import NotPermitted
from callboard.proxies.link.dialer import Dial, Dialer
from callboard.proxies.link.ports import Ports
from callboard.proxies.messages import Lookup, Spawn
from callboard.proxies.names.directory import Names
from callboard.proxies.rights.rights import OWN
from callboard.proxies.route_table import RouteTable
from callboard.support.dataclass import dataclass

T = TypeVar("T")


async def _settled(future: Future[T]) -> T | NotPermitted | None:
    """Await a future whose failure only means that there is no answer from there."""
    try:
        return await future
    except NotPermitted as error:  # others may permit it
        return error
    except (NodeUnreachable, ActorDown, TimeoutError):  # it is lost, closing or slow
        return None


#: Seconds that `connect`, `remote_actor` and `remote_spawn` wait for a link by default.
CONNECT_TIMEOUT: Final = 5.0


@dataclass(eq=False)
class Reach:
    """The way from names and addresses to nodes and their actors."""

    _runtime: Runtime
    _routes: RouteTable
    _names: Names
    _dialer: Dialer
    _ports: Ports

    async def first(self, name: str, timeout: float) -> ActorRef[Any]:
        """Return this node's actor of that name, or else that of the first to answer.

        Raises:
            NotPermitted: this node may look the name up nowhere.
            NotRegistered: nobody in reach has the name.
        """
        held = self._names.get(name)
        if held is not None:
            return held
        answers: list[Any] = []
        # The first answer counts: a node that is frozen must not hold the others up. Leaves are
        # asked last: none can take the place of a name that a full member has.
        for leaves in (False, True):
            for answer in asyncio.as_completed(self._ask(name, timeout, leaves=leaves)):
                found = await answer
                if isinstance(found, ActorRef):
                    return found
                answers.append(found)
        if answers and all(isinstance(answer, NotPermitted) for answer in answers):
            raise answers[0]
        msg = f"no actor in reach of {self._runtime.name} is registered as {name!r}"
        raise NotRegistered(msg)

    async def all(self, name: str, timeout: float) -> list[ActorRef[Any]]:
        """Return all actors of that name, this node's first."""
        held = self._names.get(name)
        found = [] if held is None else [held]
        members = self._ask(name, timeout, leaves=False)
        for answer in await asyncio.gather(*members, *self._ask(name, timeout, leaves=True)):
            if isinstance(answer, ActorRef) and answer not in found:
                found.append(answer)
        return found

    def _ask(
        self, name: str, timeout: float, *, leaves: bool
    ) -> list[Coroutine[Any, Any, Any]]:
        """Ask the directories of all full members in reach, or of all leaves.

        Leaves have none of callboard's own names.
        """
        known, reachable = self._routes.rights, sorted(self._routes.router.reachable)
        asked = [node for node in reachable if (node in known) is leaves]
        if leaves and name.startswith(OWN):
            asked = []
        directories = [self._runtime.ref_of(node, DIRECTORY) for node in asked]
        return [_settled(each.ask(Lookup(name), timeout)) for each in directories]

    def dial(self, endpoint: Endpoint, *, keep: bool) -> Future[Dial]:
        """Begin to make a link; from any thread."""
        waiter: Future[Dial] = Future()
        self._runtime.post(partial(self._dialer.dial, endpoint, waiter, keep=keep))
        return waiter

    async def linked(
        self, endpoint: Endpoint, timeout: float, *, keep: bool = False
    ) -> tuple[NodeId, Published | None]:
        """Return who is linked there, and the actor that it shows.

        With `keep`, the link is made again whenever it is lost.

        Raises:
            NodeUnreachable: there is none in time.
        """
        waiter = self.dial(endpoint, keep=False)
        text = f"no node answered at {endpoint_text(endpoint)} within {timeout:g} s"
        try:
            dial = await self._runtime.in_time(waiter, timeout, NodeUnreachable(text))
        finally:
            self._runtime.post(self._dialer.forget_waiter, endpoint, waiter)
        dial.keep = dial.keep or keep
        assert dial.peer is not None, "a dial that succeeded knows its peer"
        return dial.peer, dial.published

    async def node_at(self, on: str | bytes) -> bytes:
        """Return the id of the node at an address; an id stands for itself."""
        if isinstance(on, bytes):
            return check_node_id(on, "on=")
        endpoint = parse_node_address(on)
        if self._ports.find_own(endpoint) is not None:
            return self._runtime.node_id
        return (await self.linked(endpoint, CONNECT_TIMEOUT))[0]

    async def actor_at(self, address: str, timeout: float) -> ActorRef[Any]:
        """Return the actor that has a name at an address, or is published there.

        Raises:
            InvalidAddress: the text does not say where.
            NodeUnreachable: no node answers there.
            NotRegistered: nobody has that name, or is published there.
        """
        parsed = parse_address(address)
        if parsed.endpoint is None:
            msg = f"{address!r} does not say where the actor is"
            raise InvalidAddress(msg)
        own = self._ports.find_own(parsed.endpoint)
        if own is None:
            peer, shown = await self.linked(parsed.endpoint, timeout)
            if parsed.name is not None:
                return await self._registered(peer, parsed.name, address, timeout)
            if shown is not None:
                return self._runtime.ref_of(peer, shown[0])
        elif parsed.name is not None:
            return await self.first(parsed.name, timeout)
        elif (published := self._ports.published[own]) is not None:
            return published
        msg = f"no actor is published at {address}; add /NAME"
        raise NotRegistered(msg)

    async def _registered(
        self, node: bytes, name: str, address: str, timeout: float
    ) -> ActorRef[Any]:
        """Return the actor that a node's directory knows by a name."""
        directory = self._runtime.ref_of(node, DIRECTORY)
        found = await directory.ask(Lookup(name), timeout)
        if found is None:
            msg = f"nobody is registered as {name!r} at {address}"
            raise NotRegistered(msg)
        return found  # type: ignore[no-any-return]

    async def spawn(self, on: str | bytes, request: Spawn) -> ActorRef[Any]:
        """Ask the spawn server of a node for an actor."""
        server = self._runtime.ref_of(await self.node_at(on), SPAWN_SERVER)
        return await server.ask(request)  # type: ignore[no-any-return]
