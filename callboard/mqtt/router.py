"""The router that a program runs: an actor with its ports, on a node.

    with Router() as router:                 # or: async with Router() as router
        router.port

The actor has a thread of its own, and all connections live on its loop. A read's packets go to
the actor's mailbox as whole chunks; it takes its turn when the loop has seen all sockets that
were ready, and what the turn gives is written at once.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from actors.errors import ActorDown, CallboardError
from actors.reference import ActorRef
from callboard.mqtt.annex import Annex
from callboard.mqtt.auth import Security
from callboard.mqtt.bridge import Bridge
from callboard.mqtt.config import RouterConfig
from callboard.mqtt.door import NetworkLimits
from callboard.mqtt.edge import Edge
from callboard.mqtt.errors import ListenError, RouterClosed
from callboard.mqtt.limits import Limits
from callboard.mqtt.link import LinkEvent
from callboard.mqtt.local_link import LocalLink, Message
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.router_actor import (
    Call,
    Leave,
    Mailbox,
    OpenPorts,
    RouterActor,
    check_journal,
)
from callboard.mqtt.rules import RuleRunner
from callboard.mqtt.shadow import last_message
from proxies.node import Node

T = TypeVar("T")

START_TIMEOUT: Final = 30.0
"""Seconds in which ports have to be open and the journal read."""
STOP_TIMEOUT: Final = 10.0
"""Seconds for the clients' farewell and the journal."""


class Router:
    """An MQTT router in this process."""

    def __init__(self, config: RouterConfig | None = None, *, node: Node | None = None) -> None:
        """Make a router that is not started; use it as a context manager, or call `start`.

        Args:
            config: what it is made of.
            node: where it is an actor; otherwise it has a node of its own.

        Raises:
            ListenError: the configuration has no listener.
        """
        self.config = config or RouterConfig()
        if not self.config.listeners:
            msg = "a router needs a listener; give it one, such as ListenerSettings()"
            raise ListenError(msg)
        self._owns_node = node is None
        self._node = node
        self._mailbox = Mailbox()
        self._ref: ActorRef[Any] | None = None
        self._actor: RouterActor | None = None
        self._annex: Annex | None = None
        self._is_closed = False

    # --- life ---

    def start(self) -> Self:
        """Open the ports; returns when they are.

        Raises:
            ListenError: one cannot be opened.
            LogError: the journal cannot be read.
            RouterClosed: it was closed before.
        """
        if self._is_closed or self._ref is not None:
            msg = "a router starts once; make another one"
            raise RouterClosed(msg)
        node = self._node = self._node or Node(self.config.name)
        try:
            self._ref = node.spawn(RouterActor, self._mailbox, self.config)
            self._actor = node.runtime.cells[self._ref.actor_id].actor
            trouble = self._ref.ask(OpenPorts(), timeout=START_TIMEOUT).result(START_TIMEOUT)
            if trouble is not None:
                raise trouble
            self._annex = Annex(self)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Say farewell to the clients and end. Idempotent; blocks until it is done."""
        if self._is_closed:
            return
        if self._annex is not None:
            self._annex.close()
        self._is_closed = True
        try:
            if self._ref is not None:
                with contextlib.suppress(ActorDown):  # its journal failed, say
                    self._ref.ask(Leave(), timeout=STOP_TIMEOUT).result(STOP_TIMEOUT)
        finally:
            if self._owns_node and self._node is not None:
                self._node.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    # --- what it is ---

    @property
    def ref(self) -> ActorRef[Any]:
        """The router's actor."""
        self._running()
        assert self._ref is not None
        return self._ref

    @property
    def port(self) -> int:
        """The TCP port of the first listener; 0 for a Unix socket."""
        return self.edge.listeners[0].port

    @property
    def addresses(self) -> list[str]:
        """The addresses of all listeners, with the ports that were picked."""
        return [listener.address for listener in self.edge.listeners]

    @property
    def console_url(self) -> str | None:
        """Where the console answers; None without one."""
        console = None if self._annex is None else self._annex.console
        return None if console is None else console.url

    @property
    def bridges(self) -> list[Bridge]:
        """The bridges to other brokers."""
        return [] if self._annex is None else self._annex.bridges

    @property
    def rules(self) -> RuleRunner | None:
        """What runs the rules; None without any."""
        return None if self._annex is None else self._annex.rules

    @property
    def machine(self) -> RouterMachine:
        """The machine, to be looked at through `call` only."""
        return self._running().machine

    @property
    def edge(self) -> Edge:
        """What touches the network, to be looked at through `call` only."""
        edge = self._running().edge
        assert edge is not None
        return edge

    def _running(self) -> RouterActor:
        if self._actor is None or self._is_closed:
            msg = "the router does not run; use it in a with block, or call start()"
            raise RouterClosed(msg)
        return self._actor

    def reload(
        self,
        security: Security | None = None,
        *,
        limits: Limits | None = None,
        network: NetworkLimits | None = None,
    ) -> None:
        """Let something of the configuration be other than before; the rest stays.

        Args:
            security: users, rules and bans; they hold for connected clients as well.
            limits: for clients that connect from here on, and logs that are made.
            network: limits of connections that come from here on.

        Raises:
            JournalFailed: larger packets are allowed than fit into the journal.
            RouterClosed: it does not run.
        """
        config = replace(
            self.config,
            security=security or self.config.security,
            limits=limits or self.config.limits,
            network=network or self.config.network,
        )
        check_journal(config)
        self.call(self._reload, config)
        self.config = config

    def _reload(self, config: RouterConfig) -> None:
        if config.security is not self.config.security:
            self.edge.reload(config.security)
        machine = self.machine
        machine.limits = machine.routes.limits = config.limits
        machine.retained.most = config.limits.retained
        self.edge.door.set_limits(config.network_limits())

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the router's thread and return what it returns.

        Raises:
            RouterClosed: it does not run; and whatever the function raises.
        """
        if self._running().is_here():
            return function(*args)
        assert self._ref is not None
        try:
            done, value = self._ref.ask(Call(function, args), timeout=STOP_TIMEOUT).result()
        except CallboardError as error:
            if self._is_closed:
                msg = "the router was closed meanwhile"
                raise RouterClosed(msg) from error
            raise
        if not done:
            raise value
        result: T = value
        return result

    # --- clients within the process ---

    def link(self, client_id: str = "", **options: Any) -> LocalLink:
        """Return a client of this router without a socket; the options are `LocalLink`'s.

        Raises:
            RouterClosed: it does not run.
        """
        self._running()
        return LocalLink(self, client_id, **options)

    def shadow(self, topic_filter: str) -> Message | None:
        """Return the last message of a filter that somebody reads, None if there is none.

        Raises:
            RouterClosed: it does not run.
        """
        return self.call(last_message, self.machine, topic_filter)

    # --- the mailbox ---

    def post(self, event: LinkEvent) -> None:
        """Append an event of a link, and wake the router if it is parked."""
        self._mailbox.post(event)
