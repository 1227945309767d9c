"""From the address of a flow broker to a link with it."""

import asyncio
import importlib
from types import ModuleType
from typing import Any, Final

from actors.reference import ActorRef
from callboard.flow.errors import FlowError, FlowTimeout
from callboard.flow.link import NAME, ActorLink, Link, Taker
from proxies.node import Node

__all__ = ["aopen_link", "is_zeromq", "open_link", "zeromq"]

CONNECT_TIME: Final = 10.0
"""Seconds to reach a broker's node when a flow sets no limit."""


_SCHEMES: Final = ("tcp://", "ipc://", "tcp+draft://", "ipc+draft://")


def is_zeromq(address: object) -> bool:
    """Tell whether an address is one of ZeroMQ."""
    return isinstance(address, str) and address.startswith(_SCHEMES)


def zeromq() -> ModuleType:
    """Return the module of flows over ZeroMQ.

    Raises:
        FlowError: pyzmq is not installed.
    """
    try:
        return importlib.import_module("callboard.flow.zeromq")
    except ImportError:
        msg = "flows over ZeroMQ need pyzmq; pip install 'callboard[zmq]'"
        raise FlowError(msg) from None


def open_link(
    address: Any,
    taker: Taker,
    *,
    node: Node | None,
    secret: str | bytes | None,
    tls: Any,
    timeout: float | None,
) -> Link:
    """Link with the flow broker at an address.

    Raises:
        NodeUnreachable: nobody listens there.
        InvalidAddress: the text is no address.
    """
    if is_zeromq(address):
        return zeromq().ZmqLink(address, taker)  # type: ignore[no-any-return]
    if isinstance(address, ActorRef):
        own = address.home.node if node is None else node
        return ActorLink(own, address, taker)
    made = None if node is not None else Node(NAME, secret=secret, tls=tls)
    chosen = node or made
    assert chosen is not None
    try:
        ref = chosen.remote_actor(address, timeout or CONNECT_TIME)
    except BaseException as error:
        if made is not None:
            made.close()
        _translate(error, address)
        raise
    return ActorLink(chosen, ref, taker, owns_node=made is not None)


async def aopen_link(
    address: Any,
    taker: Taker,
    *,
    node: Node | None,
    secret: str | bytes | None,
    tls: Any,
    timeout: float | None,
) -> Link:
    """Awaitable twin of `open_link`."""
    if not isinstance(address, str) or is_zeromq(address):
        return open_link(address, taker, node=node, secret=secret, tls=tls, timeout=timeout)
    made = None if node is not None else Node(NAME, secret=secret, tls=tls)
    chosen = node or made
    assert chosen is not None
    try:
        ref = await chosen.aremote_actor(address, timeout or CONNECT_TIME)
    except BaseException as error:
        if made is not None:
            await asyncio.shield(made.aclose())
        _translate(error, address)
        raise
    return ActorLink(chosen, ref, taker, owns_node=made is not None)


def _translate(error: BaseException, address: str) -> None:
    """Let a time that ran out be a flow's, whoever noticed it."""
    if isinstance(error, TimeoutError):
        msg = f"{address} did not answer in time"
        raise FlowTimeout(msg) from error
