"""What a router is made of: ports, limits, users, where it keeps its journal."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from callboard.mqtt.auth import Authenticator, Security
from callboard.mqtt.door import NetworkLimits
from callboard.mqtt.limits import Limits
from callboard.mqtt.listener import ListenerSettings


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The configuration of a router.

    Attributes:
        listeners: ports; by default one on 127.0.0.1 that the system picks.
        limits: of sessions, queues and packets.
        network: of connections.
        security: users, topics and bans.
        authenticator: a function that lets clients in; it stands above the users.
        directory: of the journal; None keeps everything in memory only.
        name: of the router, for `$SYS`, the console and logs.
    """

    listeners: tuple[ListenerSettings, ...] = (ListenerSettings("127.0.0.1:0"),)
    limits: Limits = field(default_factory=Limits)
    network: NetworkLimits = field(default_factory=NetworkLimits)
    security: Security = field(default_factory=Security)
    authenticator: Authenticator | None = None
    directory: "Path | str | os.PathLike[str] | None" = None
    name: str = "callboard"
