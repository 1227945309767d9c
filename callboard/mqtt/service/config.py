"""The configuration of a router: ports, limits, users, the directory of its journal."""

import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from callboard.arguments import require, seconds
from callboard.mqtt.access.auth import AuthenticationMethod, Authenticator, Security
from callboard.mqtt.port.hooks import Hooks
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.claims import SessionPolicy
from callboard.mqtt.service.rules import Rule
from callboard.support.dataclass import dataclass
from callboard.support.files.private_file import check_mode

#: Connections above the limit of clients: new ones without a CONNECT, and closing ones.
WAITING: Final = 1_000


#: The types of settings: elements of tuples, then single settings.
_LISTED: Final = (
    ("listeners", ListenerSettings),
    ("rules", Rule),
    ("bridges", BridgeSettings),
    ("hosts", str),
)
_SINGLE: Final[tuple[tuple[str, tuple[type, ...]], ...]] = (
    ("limits", (Limits,)),
    ("network", (NetworkLimits,)),
    ("security", (Security,)),
    ("hooks", (Hooks,)),
    ("methods", (Mapping,)),
    ("sessions", (SessionPolicy,)),
    ("console", (str, type(None))),
    ("name", (str,)),
)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The configuration of a router.

    Attributes:
        listeners: ports; by default one on 127.0.0.1 that the system picks.
        limits: the limits of sessions, queues and packets.
        network: limits of connections; packet size and keep-alive are taken from `limits`.
        security: users, topic rules and bans.
        authenticator: a function that decides about clients instead of the users.
        methods: the methods of enhanced authentication, by name; see `authentication`.
        hooks: functions that see the packets of clients.
        rules: functions that process messages.
        bridges: connections to other brokers.
        console: `HOST:PORT` of the console; None turns it off.
        sys_interval: seconds between two publications of `$SYS` topics; 0 turns them off.
        directory: the directory of the journal; None keeps everything in memory only.
        directory_mode: the mode of the journal's folder if it is made, such as 0o750 for
            readers of a group; by default only its user can read it.
        name: the name of the router, for `$SYS`, the console and logs.
        sessions: the treatment of a persistent session whose client connects to another router
            of the cluster.
        hosts: names of the console, in addition to addresses, `localhost` and the name of the
            machine; `*` for all.
    """

    listeners: tuple[ListenerSettings, ...] = (ListenerSettings("127.0.0.1:0"),)
    limits: Limits = field(default_factory=Limits)
    network: NetworkLimits = field(default_factory=NetworkLimits)
    security: Security = field(default_factory=Security)
    authenticator: Authenticator | None = None
    methods: Mapping[str, AuthenticationMethod] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    rules: tuple[Rule, ...] = ()
    bridges: tuple[BridgeSettings, ...] = ()
    console: str | None = None
    sys_interval: float = 10.0
    directory: "Path | str | os.PathLike[str] | None" = None
    name: str = "callboard"
    sessions: SessionPolicy = SessionPolicy.TAKE_OVER
    hosts: tuple[str, ...] = ()
    directory_mode: int | None = None

    def __post_init__(self) -> None:
        for name, kind in _LISTED:
            value = getattr(self, name)
            is_so = isinstance(value, list | tuple) and all(isinstance(e, kind) for e in value)
            require(is_so, f"RouterConfig: {name} must be a tuple of {kind.__name__}", value)
            object.__setattr__(self, name, tuple(value))
        for name, kinds in _SINGLE:
            value = getattr(self, name)
            names = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            require(isinstance(value, kinds), f"RouterConfig: {name} must be a {names}", value)
        check_mode(self.directory_mode)
        object.__setattr__(self, "sys_interval", seconds(self.sys_interval, "sys_interval"))

    def network_limits(self) -> NetworkLimits:
        """Return the limits of connections; some of them are taken from `limits`."""
        return replace(
            self.network,
            packet_size=self.limits.packet_size,
            keep_alive=self.limits.keep_alive,
            open_connections=self.limits.connections + WAITING,
        )
