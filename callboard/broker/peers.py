"""Peers of an endpoint: made, ended, listed, and awaited."""

import asyncio
import datetime
import uuid
from collections.abc import Callable
from typing import Any, Final, overload

from actors.errors import WouldBlock
from actors.future import Future
from callboard.broker.topics import topic_text
from callboard.endpoint import (
    EndpointInfo,
    NetworkInfo,
    OptionalNetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    Topic,
)
from callboard.endpoint.core import Core
from callboard.endpoint.hub import Hub
from proxies.node import Node

__all__ = ["PeerHolder"]

RETRY: Final = 10.0
"""Seconds between attempts to reach a peer, at most."""

AWAIT_PEER_LIMIT: Final = 10.0
"""Seconds that `await_peer` waits by default."""

Seconds = float | datetime.timedelta


class PeerHolder:
    """The part of an endpoint that has peers."""

    hub: Hub
    node: Node

    def _refuse_shut(self) -> None:
        raise NotImplementedError

    def peer(self, address: str, port: int, retry: Seconds = RETRY) -> bool:
        """Peer with the endpoint at an address; True when both know each other's topics.

        Args:
            address: host name or address.
            port: TCP port.
            retry: how many seconds may lie between two attempts (the first follow sooner).
                With 0 there is one attempt, and no other when the peer is lost; otherwise
                this call waits until somebody answers, or the peer is removed.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self._peer(address, port, retry), "peer")

    async def apeer(self, address: str, port: int, retry: Seconds = RETRY) -> bool:
        """Awaitable twin of `peer`."""
        return await self._peer(address, port, retry)

    def peer_nosync(self, address: str, port: int, retry: Seconds = RETRY) -> None:
        """Peer without waiting; status subscribers tell what becomes of it."""
        self._peer(address, port, retry)

    def unpeer(self, address: str, port: int) -> bool:
        """End the peering with an address; True when there is none any more.

        Status subscribers here are told `PeerRemoved`, those of the peer `PeerLost`; an
        address that is no peer's gives an error with the code `PeerInvalid`.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self.hub.unpeer((address, port)), "unpeer")

    async def aunpeer(self, address: str, port: int) -> bool:
        """Awaitable twin of `unpeer`."""
        return await self.hub.unpeer((address, port))

    def unpeer_nosync(self, address: str, port: int) -> None:
        """End a peering without waiting."""
        self.hub.unpeer((address, port))

    def peers(self) -> list[PeerInfo]:
        """Return the peers, and the addresses where one is still looked for."""
        network = self.node.overlay
        retries = {dial.address: dial.retry for dial in network.dials()}
        found = []
        for node, endpoint, address, is_introduced in self.hub.core.peers():
            retry = 0.0 if address is None else retries.pop(address, 0.0)
            way = PeerFlags.Outbound if network.is_dialed_here(node) else PeerFlags.Inbound
            status = PeerStatus.Peered if is_introduced else PeerStatus.Connected
            found.append(_peer_info(endpoint, address, retry, way, status))
        linked = {node for node, _, _, _ in self.hub.core.peers()}
        for dial in network.dials():
            if dial.peer not in linked:
                status = PeerStatus.Connecting if dial.peer is None else PeerStatus.Reconnecting
                outbound = PeerFlags.Outbound
                found.append(_peer_info(None, dial.address, dial.retry, outbound, status))
        return found

    def peer_subscriptions(self) -> list[Topic]:
        """Return the topics that endpoints in reach take, sorted, each once."""
        return [Topic(topic) for topic in self.hub.core.peer_topics()]

    @overload
    def await_peer(self, whom: str, timeout: Seconds | None = None) -> bool: ...
    @overload
    def await_peer(
        self, whom: str, callback: Callable[[bool], object], timeout: Seconds | None = None
    ) -> None: ...
    def await_peer(self, whom: str, *args: Any, **kwargs: Any) -> bool | None:
        """Wait until an endpoint is in reach and its subscriptions have arrived here.

        It says nothing of the other direction: for that, ask the other endpoint too.

        Args:
            whom: the id of the endpoint, as `node_id()` returns it.
            args: a callback, if the call shall not block, and seconds to wait, 10 by default.
            kwargs: the same by name: `callback`, `timeout`.

        Returns:
            True when the endpoint is there, False when the time is over; with a callback
            None, and the callback is called with the one or the other, on the node's thread.

        Raises:
            WouldBlock: called on the thread of a running event loop without a callback.
            ValueError: `whom` is no id of an endpoint.
        """
        callback, timeout = _callback_and_timeout(*args, **kwargs)
        if callback is None:
            return self._wait(lambda: self._until_known(whom, timeout), "await_peer")
        told = callback
        self._until_known(whom, timeout).add_done_callback(lambda done: told(done.result()))
        return None

    async def aawait_peer(self, whom: str, timeout: Seconds | None = None) -> bool:
        """Awaitable twin of `await_peer`."""
        return await self._until_known(whom, timeout)

    def await_filter_entry(self, topic: str | Topic, timeout: Seconds | None = None) -> bool:
        """Wait until some endpoint in reach takes a topic, by exactly this prefix.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self._until_taken(topic, timeout), "await_filter_entry")

    async def aawait_filter_entry(
        self, topic: str | Topic, timeout: Seconds | None = None
    ) -> bool:
        """Awaitable twin of `await_filter_entry`."""
        return await self._until_taken(topic, timeout)

    # --- inside ---

    def _wait(self, begin: Callable[[], Future[bool]], name: str) -> bool:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = f"{name}() would block the event loop; await endpoint.a{name}(…) instead"
            raise WouldBlock(msg)
        return begin().result()

    def _peer(self, address: str, port: int, retry: Seconds) -> Future[bool]:
        self._refuse_shut()
        return self.hub.peer((address, port), _seconds(retry))

    def _until_known(self, whom: str, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        endpoint = uuid.UUID(str(whom)).bytes

        def is_known(core: Core) -> bool:
            return core.node_of(endpoint) is not None

        return self.hub.until(is_known, _seconds(timeout, AWAIT_PEER_LIMIT))

    def _until_taken(self, topic: str | Topic, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        text = topic_text(topic)

        def is_taken(core: Core) -> bool:
            return text in core.peer_topics()

        return self.hub.until(is_taken, _seconds(timeout, AWAIT_PEER_LIMIT))


def _seconds(value: Seconds | None, default: float = 0.0) -> float:
    if value is None:
        return default
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)
    if not seconds >= 0.0:
        msg = f"a time of {value!r} s is negative, or no number"
        raise ValueError(msg)
    return seconds


def _callback_and_timeout(
    *args: Any,
    callback: Callable[[bool], object] | None = None,
    timeout: Seconds | None = None,
) -> tuple[Callable[[bool], object] | None, Seconds | None]:
    for arg in args:
        if callable(arg):
            callback = arg
        else:
            timeout = arg
    return callback, timeout


def _peer_info(
    endpoint: bytes | None,
    address: tuple[str, int] | None,
    retry: float,
    way: PeerFlags,
    status: PeerStatus,
) -> PeerInfo:
    network = None if address is None else NetworkInfo(address[0], address[1], retry)
    name = "" if endpoint is None else str(uuid.UUID(bytes=endpoint))
    return PeerInfo(
        EndpointInfo(name, OptionalNetworkInfo(network)), PeerFlags.Remote | way, status
    )
