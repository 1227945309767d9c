"""Who is not let in: `client:ID`, `user:NAME`, `host:ADDRESS` or `host:NETWORK/BITS`."""

import ipaddress
from collections.abc import Iterable

from callboard.mqtt.door import Peer


class BanList:
    """Client ids, users, hosts and networks."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Read entries.

        Raises:
            ValueError: one has another form.
        """
        self.entries = tuple(entries)
        self._clients: set[str] = set()
        self._users: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in self.entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        kind, colon, name = entry.partition(":")
        if colon and name and kind == "client":
            self._clients.add(name)
        elif colon and name and kind == "user":
            self._users.add(name)
        elif colon and kind == "host":
            try:
                self._networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                msg = f"{name!r} is no address and no network; write host:192.0.2.0/24"
                raise ValueError(msg) from None
        else:
            msg = f"{entry!r} bans nobody; write client:ID, user:NAME or host:ADDRESS"
            raise ValueError(msg)

    def holds(self, client_id: str, user: str, peer: Peer) -> bool:
        """Whether somebody is on the list."""
        if client_id in self._clients or user in self._users:
            return True
        if not self._networks or not peer.host:
            return False
        try:
            address = ipaddress.ip_address(peer.host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)
