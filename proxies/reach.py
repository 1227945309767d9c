"""Reaching other nodes by address: links made for a call, and what is asked over them."""

from typing import TYPE_CHECKING, Any, Final

from actors.errors import InvalidAddress, NodeUnreachable, NotRegistered
from actors.future import Future
from actors.reference import ActorRef
from basp.header import DIRECTORY, SPAWN_SERVER
from proxies.address import Endpoint, endpoint_text, parse_address, parse_node_address
from proxies.dial import Dial
from proxies.messages import Lookup, Spawn

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.broker import Broker
    from proxies.ports import Ports
    from proxies.search import Search

CONNECT_TIMEOUT: Final = 5.0
"""Seconds that `connect`, `remote_actor` and `remote_spawn` wait for a link by default."""


class Reach:
    """The way from addresses to nodes and their actors."""

    def __init__(
        self, runtime: "Runtime", broker: "Broker", ports: "Ports", search: "Search"
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._ports = ports
        self._search = search

    def dial(self, endpoint: Endpoint, *, keep: bool) -> Future[Dial]:
        """Begin to make a link; from any thread."""
        waiter: Future[Dial] = Future()
        self._runtime.runner.post(self._start_dial, endpoint, waiter, keep)
        return waiter

    def _start_dial(self, endpoint: Endpoint, waiter: Future[Dial], keep: bool) -> None:  # noqa: FBT001
        self._broker.connector.dial(endpoint, waiter, secret=self._broker.secret, keep=keep)

    async def linked(self, endpoint: Endpoint, timeout: float, *, keep: bool) -> Dial:
        """Return when there is a link; with `keep`, it is made again whenever it is lost.

        Raises:
            NodeUnreachable: there is none in time.
        """
        waiter = self.dial(endpoint, keep=False)
        timer = self._runtime.runner.call_later(
            timeout,
            waiter.set_exception,
            NodeUnreachable(
                f"no node answered at {endpoint_text(endpoint)} within {timeout:g} s"
            ),
        )
        try:
            dial = await waiter
        finally:
            timer.cancel()
            self._runtime.runner.post(self._broker.connector.forget_waiter, endpoint, waiter)
        dial.keep = dial.keep or keep
        assert dial.peer is not None, "a dial that succeeded knows its peer"
        return dial

    async def node_at(self, on: str | bytes) -> bytes:
        """Return the id of the node at an address; an id stands for itself."""
        if isinstance(on, bytes):
            return on
        endpoint = parse_node_address(on)
        if self._ports.find_own(endpoint) is not None:
            return self._runtime.node_id
        dial = await self.linked(endpoint, CONNECT_TIMEOUT, keep=False)
        assert dial.peer is not None
        return dial.peer

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
            dial = await self.linked(parsed.endpoint, timeout, keep=False)
            assert dial.peer is not None
            if parsed.name is not None:
                return await self._registered(dial.peer, parsed.name, address, timeout)
            if dial.published is not None:
                return self._runtime.ref_to(dial.peer, dial.published[0])
        elif parsed.name is not None:
            return await self._search.first(parsed.name, timeout)
        elif (published := self._ports.published(own)) is not None:
            return published
        msg = f"no actor is published at {address}; add /NAME"
        raise NotRegistered(msg)

    async def _registered(
        self, node: bytes, name: str, address: str, timeout: float
    ) -> ActorRef[Any]:
        directory = self._runtime.ref_to(node, DIRECTORY)
        found = await directory.ask(Lookup(name), timeout)
        if found is None:
            msg = f"nobody is registered as {name!r} at {address}"
            raise NotRegistered(msg)
        return found  # type: ignore[no-any-return]

    async def spawn(self, on: str | bytes, request: Spawn) -> ActorRef[Any]:
        """Ask the spawn server of a node for an actor."""
        server = self._runtime.ref_to(await self.node_at(on), SPAWN_SERVER)
        return await server.ask(request)  # type: ignore[no-any-return]
