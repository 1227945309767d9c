"""The edge of a router on an event loop: its listeners, its door, and the one timer of all."""

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Final

from callboard.mqtt.auth import AuthGate, Security
from callboard.mqtt.door import Door, NetworkLimits
from callboard.mqtt.errors import ListenError
from callboard.mqtt.hooks import Hooks, HookScreen
from callboard.mqtt.link import RouterMailbox
from callboard.mqtt.listener import Listener, ListenerSettings, listen
from callboard.mqtt.poller import make_poller
from callboard.mqtt.reason_code import ReasonCode
from proxies.ports import is_loopback

CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks at the silence of all connections."""
FAREWELL: Final = 1.0
"""Seconds that connections get to take their last bytes when the router ends."""


class Edge:
    """Everything of a router that touches the network; used on its loop's thread only."""

    def __init__(
        self,
        mailbox: RouterMailbox,
        loop: asyncio.AbstractEventLoop,
        limits: NetworkLimits | None = None,
        gate: AuthGate | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.gate = gate or AuthGate()
        self.door = Door(mailbox, loop.time, limits, self.gate)
        self.door.authenticate = self.gate.authenticate
        if hooks is not None and (hooks.publish or hooks.deliver):
            self.door.make_screen = partial(HookScreen, hooks)
        self.listeners: list[Listener] = []
        self.loop = loop
        self._poller = make_poller(loop)
        self._timer = loop.call_later(CHECK_INTERVAL, self._check)

    async def open(self, listeners: Iterable[ListenerSettings]) -> None:
        """Open ports, all or none.

        Raises:
            ListenError: one cannot be opened, or other machines reach it and nothing says who
                may come.
            TlsError: a file for TLS is of no use.
        """
        opened: list[Listener] = []
        try:
            for settings in listeners:
                self._refuse_unguarded(settings)
                listener = await listen(self.door, settings, self._poller)
                opened.append(listener)
        except BaseException:
            for listener in opened:
                listener.close()
            raise
        self.listeners += opened

    def _refuse_unguarded(self, settings: ListenerSettings) -> None:
        scheme, host, _ = settings.parse()
        gate = self.gate
        has_certificates = settings.tls is not None and settings.tls.mutual
        guards = (
            gate.authenticator,
            gate.is_guarded,
            gate.security.anonymous,
            has_certificates,
        )
        if scheme != "unix" and not any(guards) and not is_loopback(host):
            msg = (
                f"{settings.address} is reached from other machines, and everybody may do "
                "everything; set users, an authenticator or client certificates, or "
                "anonymous = true to let all of them in"
            )
            raise ListenError(msg)

    def reload(self, security: Security) -> None:
        """Let other users, rules and bans hold."""
        self.gate.replace(security, self.door)

    async def close(self) -> None:
        """Close the ports, tell the clients, and cut off who does not take it."""
        self._timer.cancel()
        for listener in self.listeners:
            listener.close()
        for remote in list(self.door.links):
            remote.end(ReasonCode.SERVER_SHUTTING_DOWN)
        if self.door.links:
            self.door.emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.door.emptied.wait(), FAREWELL)
        for remote in list(self.door.links):
            remote.cut()
        self._poller.close()
        self.gate.close()

    def cut(self) -> None:
        """Close the ports and all connections, without a word."""
        self._timer.cancel()
        for listener in self.listeners:
            listener.close()
        for remote in list(self.door.links):
            remote.cut()
        self._poller.close()
        self.gate.close()

    def _check(self) -> None:
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check)
        self.door.check()
