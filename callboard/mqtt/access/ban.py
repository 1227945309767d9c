"""Bans: `client:ID`, `user:NAME`, `host:ADDRESS` or `host:NETWORK/BITS`."""

import ipaddress
from collections.abc import Iterable

from callboard.mqtt.access.admission import Peer


class BanList:
    """Client ids, users, hosts and networks."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Parse entries.

        Raises:
            ValueError: an entry is malformed.
        """
        self.entries = tuple(entries)
        self._known = frozenset(self.entries)
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in self.entries:
            kind, colon, name = entry.partition(":")
            if name != name.strip() or "*" in name:
                message = (
                    f"{entry!r} contains a space or pattern, which bans do not support; write "
                    "client:ID, user:NAME or host:192.0.2.0/24"
                )
                raise ValueError(message)
            if colon and kind == "host":
                try:
                    network = ipaddress.ip_network(name, strict=False)
                except ValueError:
                    message = f"{name!r} is not an address or network; write host:192.0.2.0/24"
                    raise ValueError(message) from None
                if str(network.network_address) != str(ipaddress.ip_interface(name).ip):
                    message = (
                        f"{name!r} is one address of a network; write host:{network} for all"
                    )
                    raise ValueError(message)
                self._networks.append(network)
            elif not name or kind not in {"client", "user"}:
                message = f"{entry!r} is not a ban; write client:ID, user:NAME or host:ADDRESS"
                raise ValueError(message)

    def holds(self, client_id: str, user: str, peer: Peer) -> bool:
        """Return whether a client is on the list."""
        if f"client:{client_id}" in self._known or f"user:{user}" in self._known:
            return True
        if not self._networks or not peer.host:
            return False
        try:
            address = ipaddress.ip_address(peer.host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)
