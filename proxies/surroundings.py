"""What a node stands on: its runner, its network, its identity.

Real nodes stand on threads, TCP and this machine. The simulation puts others in their place,
and the same code runs on them.
"""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from actors.runner import Runner
from basp.node_id import NodeId
from proxies.machine import new_node_id
from proxies.unix_socket import is_path, listen_at, resolve


class Network(Protocol):
    """Makes sockets: real ones, or objects with the same methods."""

    def bind(self, host: str, port: int) -> Any:
        """Return a socket bound to an address; port 0 picks one."""

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the addresses that a host stands for; None where only a look-up can tell."""

    def connect(self, found: Any) -> tuple[Any, int]:
        """Begin to connect to one of them; returns the socket and an error number, or 0."""


class MachineNetwork:
    """The machine's own TCP, and its Unix sockets: there the path stands for the host."""

    def bind(self, host: str, port: int) -> socket.socket:
        """Return a socket bound to an address; port 0 picks one."""
        if is_path(host):
            return listen_at(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the addresses that a host stands for; None where only a look-up can tell.

        Looking a name up may block for seconds: with `numeric` that is not tried.
        """
        if is_path(host):
            return resolve(host)
        flags = socket.AI_NUMERICHOST if numeric else 0
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            if numeric:
                return None
            raise

    def connect(self, found: Any) -> tuple[socket.socket, int]:
        """Begin to connect; returns the socket and an error number, 0 when it is under way."""
        family, kind, protocol, _, address = found
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)  # noqa: FBT003  # its signature
        code = sock.connect_ex(address)
        return sock, 0 if code == errno.EINPROGRESS else code


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a node gets its runner, its sockets and its id."""

    make_runner: Callable[[str], Runner]
    network: Network
    make_node_id: Callable[[], NodeId]


def real_surroundings() -> Surroundings:
    """Return what nodes stand on outside of simulations."""
    return Surroundings(Runner, MachineNetwork(), new_node_id)
