"""The network side of a router: its listeners, its client connections, and a shared timer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import InitVar
from functools import partial
from typing import Final

from callboard.kernel.ports import is_loopback
from callboard.kernel.wire import Runner
from callboard.mqtt.access.acl import Ruled
from callboard.mqtt.access.auth import AuthGate, Security
from callboard.mqtt.port.hooks import Hooks, HookScreen
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import Listener, ListenerSettings, listen
from callboard.mqtt.port.mount import FilterChain, MountFilter
from callboard.mqtt.port.remote_link import ClientConnections, PacketFilter, RemoteLink
from callboard.mqtt.router.link import RouterMailbox
from callboard.mqtt.wire.errors import ListenError
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted

#: Seconds between two checks for silent connections.
CHECK_INTERVAL: Final = 1.0
#: Seconds for clients to read their last bytes, and to close, when the router ends.
FAREWELL: Final = 2.0


@dataclass(eq=False, repr=False)
class RouterNetwork:
    """All sockets of a router; used only on the thread of its loop."""

    mailbox: InitVar[RouterMailbox]
    _runner: Runner
    limits: InitVar[NetworkLimits]
    gate: AuthGate
    hooks: InitVar[Hooks]

    def __post_init__(
        self, mailbox: RouterMailbox, limits: NetworkLimits, hooks: Hooks
    ) -> None:
        self.connections = ClientConnections(mailbox, self._runner.now, limits, self.gate)
        self.connections.authenticate = self.gate.authenticate
        self.connections.is_unguarded = lambda listener: not any(self._guards(listener))
        self._hooks = hooks if hooks.publish or hooks.deliver else None
        if self._hooks is not None:
            self.connections.make_screen = partial(HookScreen, hooks)
        self.listeners: list[Listener] = []
        #: Listeners that were turned off while the router runs.
        self.disabled: list[ListenerSettings] = []
        self.loop = self._runner.loop
        #: Called after each check for silent connections.
        self.on_check: Callable[[], object] = int
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check)

    async def open(self, listeners: Iterable[ListenerSettings]) -> None:
        """Open ports, all or none.

        Raises:
            ListenError: a port cannot be opened; or it is open to other machines, and no
                setting says which clients are admitted.
            TlsError: a TLS file is unusable.
        """
        settings_of_all = list(listeners)
        mounts = {settings.address: settings.mount_point for settings in settings_of_all}
        self.connections.mounts = {place: prefix for place, prefix in mounts.items() if prefix}
        self.connections.maximum_qos = {
            settings.address: settings.maximum_qos
            for settings in settings_of_all
            if settings.maximum_qos < 2
        }
        if self.connections.mounts:
            self.connections.make_screen = self._make_filter
        try:
            for settings in settings_of_all:
                self._refuse_unguarded(settings)
                self.listeners.append(await listen(self.connections, settings, self._runner))
        except BaseException:
            self._close_ports()
            raise

    def _make_filter(self, remote: RemoteLink) -> PacketFilter:
        """Return the packet filter of a connection: its mount point, then the hooks."""
        filters: list[PacketFilter] = []
        prefix = self.connections.mounts.get(remote.peer.listener)
        if prefix:
            filters.append(MountFilter(prefix, remote))
        if self._hooks is not None:
            filters.append(HookScreen(self._hooks, remote))
        return FilterChain(filters)

    def _refuse_unguarded(self, settings: ListenerSettings) -> None:
        """Refuse a port that other machines can reach without any authentication."""
        scheme, host, _ = settings.parse()
        has_certificates = settings.tls is not None and settings.tls.mutual
        guards = (*self._guards(settings.address), has_certificates)
        if scheme != "unix" and not any(guards) and not is_loopback(host):
            message = (
                f"{redacted(settings.address)}"
                " is open to other machines, and every client may do "
                "everything; set users, an authenticator or client certificates, or "
                "anonymous = true to admit all clients"
            )
            raise ListenError(message)

    def _guards(self, listener: str) -> tuple[object, ...]:
        """Return the settings that define which clients are admitted; true ones are set."""
        gate, anonymous = self.gate, self.gate.security.of_listener(listener).anonymous
        return gate.authenticator, gate.is_guarded(listener), anonymous

    def disable(self, address: str) -> bool:
        """Close a port and disconnect its clients; return whether it was open.

        Args:
            address: the address of the listener, as set or with its real port.
        """
        for listener in self.listeners:
            if address in {listener.address, listener.settings.address}:
                listener.close()
                self.listeners.remove(listener)
                self.disabled.append(listener.settings)
                for remote in list(self.connections.links):
                    if remote.peer.listener == listener.settings.address:
                        remote.end(ReasonCode.ADMINISTRATIVE_ACTION)
                return True
        return False

    async def enable(self, address: str) -> bool:
        """Open a port again that was disabled; return whether it was.

        Raises:
            ListenError: the port cannot be opened.
        """
        for settings in self.disabled:
            if settings.address == address:
                self.listeners.append(await listen(self.connections, settings, self._runner))
                self.disabled.remove(settings)
                return True
        return False

    def reload(self, security: Security) -> None:
        """Apply other users, rules and bans, also to connected clients."""
        self.gate.security = security
        for remote in list(self.connections.links):
            link = remote.link
            if link is None or not isinstance(link.access, Ruled):
                continue
            ruling = self.gate.review(link.connect, remote.peer, remote.proof)
            if isinstance(ruling, ReasonCode):
                # The will of a removed user is not published either.
                remote.end(ruling, has_will=ruling is not ReasonCode.NOT_AUTHORIZED)
            else:
                link.access = ruling
                link.access_changed()

    async def close(self) -> None:
        """Close the ports and disconnect the clients; cut off slow ones after `FAREWELL`."""
        self._close_ports()
        for remote in list(self.connections.links):
            remote.end(ReasonCode.SERVER_SHUTTING_DOWN)
        if self.connections.links:
            emptied = asyncio.Event()
            self.connections.emptied = emptied.set
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(emptied.wait(), FAREWELL)
        self.cut()

    def cut(self) -> None:
        """Close the ports and all connections without DISCONNECT packets. Idempotent."""
        self._close_ports()
        for remote in list(self.connections.links):
            remote.cut()
        self.gate.close()

    def _close_ports(self) -> None:
        """Stop accepting clients."""
        self._timer.cancel()
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.close()

    def _check(self) -> None:
        """Check for silent connections and changed certificates, once a second."""
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check)
        self.connections.check()
        for listener in self.listeners:
            listener.check()
        self.on_check()
