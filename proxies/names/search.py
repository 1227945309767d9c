"""Finds actors by name, on all nodes in reach, or by address."""

import asyncio
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
from callboard.support.calls import AnyCoroutine
from callboard.support.dataclass import dataclass

T = TypeVar("T")


async def _settled(future: Future[T]) -> T | NotPermitted | None:
    """Await an answer; return None if the node does not answer."""
    try:
        return await future
    except NotPermitted as error:  # other nodes may permit it
        return error
    # The node was lost, is closing, or is slow.
    except (NodeUnreachable, ActorDown, TimeoutError):
        return None


#: Default timeout for a link in `connect`, `remote_actor` and `remote_spawn`, in seconds.
CONNECT_TIMEOUT: Final = 5.0


@dataclass(eq=False)
class Reach:
    """Resolves names and addresses to nodes and their actors."""

    _runtime: Runtime
    _routes: RouteTable
    _names: Names
    _dialer: Dialer
    _ports: Ports

    async def first(self, name: str, timeout: float) -> ActorRef:
        """Return this node's actor of that name, or else the first one that a node returns.

        Raises:
            NotPermitted: no node permits this one to look the name up.
            NotRegistered: no node in reach has the name.
        """
        own = self._names.get(name)
        if own is not None:
            return own
        answers: list[Any] = []
        # The first answer counts, so that a frozen node does not delay the others. Leaves are
        # asked last, so that none of them can replace a name of a full member.
        for leaves in (False, True):
            for answer in asyncio.as_completed(self._ask(name, timeout, leaves=leaves)):
                result = await answer
                if isinstance(result, ActorRef):
                    return result
                answers.append(result)
        if answers and all(isinstance(answer, NotPermitted) for answer in answers):
            raise answers[0]
        msg = f"no actor in reach of {self._runtime.name} is registered as {name!r}"
        raise NotRegistered(msg)

    async def all(self, name: str, timeout: float) -> list[ActorRef]:
        """Return all actors of that name, this node's first."""
        own = self._names.get(name)
        actors = [] if own is None else [own]
        members = self._ask(name, timeout, leaves=False)
        for answer in await asyncio.gather(*members, *self._ask(name, timeout, leaves=True)):
            if isinstance(answer, ActorRef) and answer not in actors:
                actors.append(answer)
        return actors

    def _ask(self, name: str, timeout: float, *, leaves: bool) -> list[AnyCoroutine]:
        """Ask the directories of all full members in reach, or of all leaves.

        Leaves are not asked for names that callboard itself uses.
        """
        rights, reachable = self._routes.rights, sorted(self._routes.router.reachable)
        nodes = [node for node in reachable if (node in rights) is leaves]
        if leaves and name.startswith(OWN):
            nodes = []
        directories = [self._runtime.ref_of(node, DIRECTORY) for node in nodes]
        return [_settled(directory.ask(Lookup(name), timeout)) for directory in directories]

    def dial(self, endpoint: Endpoint, *, keep: bool) -> Future[Dial]:
        """Start making a link. Can be called from any thread."""
        waiter: Future[Dial] = Future()
        self._runtime.post(partial(self._dialer.dial, endpoint, waiter, keep=keep))
        return waiter

    async def linked(
        self, endpoint: Endpoint, timeout: float, *, keep: bool = False
    ) -> tuple[NodeId, Published | None]:
        """Return the node linked at an address, and the actor published there.

        With `keep`, the link is made again whenever it is lost.

        Raises:
            NodeUnreachable: the link was not established in time.
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
        """Return the id of the node at an address; an id is returned as it is."""
        if isinstance(on, bytes):
            return check_node_id(on, "on=")
        endpoint = parse_node_address(on)
        if self._ports.find_own(endpoint) is not None:
            return self._runtime.node_id
        return (await self.linked(endpoint, CONNECT_TIMEOUT))[0]

    async def actor_at(self, address: str, timeout: float) -> ActorRef:
        """Return the actor with a name at an address, or the one published there.

        Raises:
            InvalidAddress: the text lacks the address of a node.
            NodeUnreachable: no node answers there.
            NotRegistered: the name is not registered, or no actor is published there.
        """
        parsed = parse_address(address)
        if parsed.endpoint is None:
            msg = f"{address!r} lacks the address of a node"
            raise InvalidAddress(msg)
        own = self._ports.find_own(parsed.endpoint)
        if own is None:
            peer, actor = await self.linked(parsed.endpoint, timeout)
            if parsed.name is not None:
                return await self._registered(peer, parsed.name, address, timeout)
            if actor is not None:
                return self._runtime.ref_of(peer, actor[0])
        elif parsed.name is not None:
            return await self.first(parsed.name, timeout)
        elif (published := self._ports.published[own]) is not None:
            return published
        msg = f"no actor is published at {address}; add /NAME"
        raise NotRegistered(msg)

    async def _registered(
        self, node: bytes, name: str, address: str, timeout: float
    ) -> ActorRef:
        """Return the actor registered under a name in a node's directory."""
        directory = self._runtime.ref_of(node, DIRECTORY)
        ref = await directory.ask(Lookup(name), timeout)
        if ref is None:
            msg = f"no actor is registered as {name!r} at {address}"
            raise NotRegistered(msg)
        return ref  # type: ignore[no-any-return]

    async def spawn(self, on: str | bytes, request: Spawn) -> ActorRef:
        """Ask the spawn server of a node for an actor."""
        server = self._runtime.ref_of(await self.node_at(on), SPAWN_SERVER)
        return await server.ask(request)  # type: ignore[no-any-return]
