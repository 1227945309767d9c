"""The ports of a node, the check who can reach them, and the actor that each publishes."""

import errno
import ipaddress
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from callboard.actors.errors import InvalidAddress, WrongArgument
from callboard.actors.reference import ActorRef
from callboard.actors.runner.runner import Runner
from callboard.arguments import require
from callboard.proxies.address import (
    UNIX,
    Endpoint,
    endpoint_text,
    is_path,
    parse_node_address,
)
from callboard.proxies.errors import PortUnavailable, PublicAddress
from callboard.proxies.link.connector import Connector
from callboard.proxies.link.discovery import is_of_this_machine
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import Encryption
from callboard.proxies.rights.permissions import LinkAccess
from callboard.support.dataclass import dataclass
from callboard.tls.certificates import Certificates

_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to
_LOCALHOST: Final = frozenset({"127.0.0.1", "::1"})

#: Next steps for the user when a port is unavailable.
_NEXT_STEPS: Final = {
    errno.EADDRINUSE: "choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EACCES: "ports below 1024 need rights; choose a higher one",
}


@dataclass(eq=False, repr=False)
class Ports:
    """Opens ports. Its methods may be called from any thread."""

    _runner: Runner
    _network: Network
    _connector: Connector
    #: Called with the address of each new port.
    _opened: Callable[[Endpoint], object]
    #: The actor published at each port of this node.
    published: dict[Endpoint, ActorRef | None] = field(default_factory=dict)

    def open(
        self,
        address: str,
        port: int,
        *,
        published: ActorRef | None,
        access: LinkAccess,
        tls: Encryption | None,
        insecure: bool,
    ) -> int:
        """Accept links on a port; return the port.

        Raises:
            InvalidAddress: the path of a Unix socket is too long.
            PublicAddress: other machines can reach the port, and it has neither a secret nor
                TLS.
            TlsError: a file of `tls` is missing or invalid.
            PortUnavailable: the address is not on this machine, or the port is taken.
        """
        needed = "listen() takes the address, then the port, as in listen('127.0.0.1', 4000)"
        require(isinstance(address, str), needed, address)
        host, _, number = address.rpartition(":")
        if number.isdecimal() and ":" not in host and host:
            msg = f"{address!r} is not an address; write listen({host!r}, {number})"
            raise InvalidAddress(msg)
        if type(port) is not int:
            msg = f"port={port!r}: a port must be a number"
            raise WrongArgument(msg)
        if address.startswith(UNIX):
            address, port = parse_node_address(address)
        is_local = is_path(address)
        if not 0 <= port < 65536:
            msg = f"port {port} is not between 0 and 65535"
            raise InvalidAddress(msg)
        tls = None if is_local else tls
        if tls is not None:
            tls.listening()  # checks its files
        is_guarded = bool(access.keys) or tls is not None
        if not insecure:
            refuse_unguarded(address, is_guarded=is_guarded)
        actor_id = None if published is None else published.actor_id
        sock = bind(self._network, address, port)
        endpoint: Endpoint = (address, 0) if is_local else sock.getsockname()[:2]
        self.published[endpoint] = published
        self._opened(endpoint)
        self._runner.post(self._connector.acceptor.listen, sock, (access, actor_id), tls)
        if isinstance(tls, Certificates):
            self._runner.post(self._connector.watch, tls)
        return endpoint[1]

    def find_own(self, endpoint: Endpoint) -> Endpoint | None:
        """Return the port of this node that an address leads to, or None."""
        host, port = endpoint
        for bound in self.published:
            if bound == endpoint:
                return bound
            if bound[1] != port:
                continue
            is_same = host == "localhost" and bound[0] in _LOCALHOST
            if is_same or (bound[0] in _ANY_HOST and is_loopback(host)):
                return bound
        return None

    def is_own(self, endpoint: Endpoint) -> bool:
        """Return whether an address leads to a port of this node."""
        host, port = endpoint
        if self.find_own(endpoint) is not None:
            return True
        bound = [place for place, number in self.published if number == port]
        return any(place in _ANY_HOST for place in bound) and is_of_this_machine(host)


def bind(network: Network, address: str, port: int) -> Any:
    """Return a socket bound to an address; port 0 picks one.

    Raises:
        PortUnavailable: the address is not on this machine, or the port is taken.
    """
    try:
        return network.bind(address, port)
    except OSError as error:
        step = _NEXT_STEPS.get(error.errno or 0, "choose another address or port")
        place = endpoint_text((address, port))
        reason = (error.strerror or str(error)).partition(" (while")[0]
        message = f"cannot listen at {place}: {reason}; {step}"
        raise PortUnavailable(error.errno, message) from error


def refuse_unguarded(address: str, *, is_guarded: bool) -> None:
    """Refuse a port that other machines can reach and that does not authenticate peers.

    Raises:
        PublicAddress: other machines can reach the address, and peers are not authenticated.
    """
    if not is_guarded and not is_loopback(address):
        msg = (
            f"{address} can be reached from other machines; pass tls=… or secret=…, "
            "or insecure=True if any peer may do everything"
        )
        raise PublicAddress(msg)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    if address == "localhost" or is_path(address):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
