"""Limits on the resources of a node that unproven connections and peers may use."""

import ipaddress
from collections import Counter
from dataclasses import fields
from functools import lru_cache
from typing import Final

from callboard.basp.frame import DEFAULT_PAYLOAD_LIMIT
from callboard.basp.header import HEADER
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers
from callboard.support.token_bucket import TrafficLimit

#: A link needs at least these for heartbeats and routes.
LEAST_BYTES_PER_SECOND: Final = 1_024

#: Containers in one message.
ITEMS: Final = 500_000

#: Proxies of our actors that one node may announce: about 500 B each here.
PROXIES: Final = 500_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a node for its peers; for `Node(limits=…)`.

    Attributes:
        links: connections; further ones are closed at once. Connections made by the node itself
            count, and are never refused.
        handshakes: accepted connections that have not proven their identity; further ones are
            closed at once.
        links_per_address: accepted connections of one address (an IPv6 network of 64 bits
            counts as one); further ones are closed at once.
        handshakes_per_address: unproven connections of one address.
        strangers_per_second: accepted connections per second, not counting proven nodes;
            further ones are closed at once.
        payload: bytes of the largest message sent or accepted; the same on all nodes of a
            cluster. A larger one that arrives ends the link.
        items: containers (lists, dicts, records) that one message may hold, or eight times as
            many scalars; the same on all nodes of a cluster. Decoding needs some 100 B and half
            a microsecond for each. A message that holds more is `MessageTooLarge`.
        proxies: proxies of this node's actors that one other node may hold. Monitors of further
            proxies fire at once, with `unreachable`.
        messages_per_second: messages that are read from one link, including forwarded ones;
            further messages wait at the sender. 0 for no limit.
        bytes_per_second: bytes that are read from one link; further bytes wait at the sender. 0
            for no limit.
    """

    # Connections of a node: this number is well below the descriptor limits of servers.
    links: int = 4_096
    # Each may hold 64 KiB for seconds.
    handshakes: int = 256
    # A quarter of all, so that one machine cannot take every place.
    links_per_address: int = 1_024
    # Half of all handshakes, so that one machine cannot keep all others out.
    handshakes_per_address: int = 128
    # Each costs about 0.1 ms. A connection that proves to be a node returns its place, so a
    # whole cluster that reconnects at the same time is accepted.
    strangers_per_second: int = 1_000
    payload: int = DEFAULT_PAYLOAD_LIMIT
    items: int = ITEMS
    proxies: int = PROXIES
    messages_per_second: int = 0
    bytes_per_second: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value is less than 1, and is not the value for no limit.
        """
        check_numbers(self)
        for field in fields(self):
            value = getattr(self, field.name)
            least = LEAST_BYTES_PER_SECOND if field.name == "bytes_per_second" else 1
            if type(value) is not int or (value < least and (value or field.default)):
                msg = f"limit {field.name} must be at least {least:,}, not {value!r:.80}"
                raise ValueError(msg)


class AcceptLimiter:
    """Decides which accepted connections may start. Pure; used by the acceptor alone."""

    def __init__(self, limits: Limits) -> None:
        """Create a limiter without connections."""
        self.limits = limits
        self.refused = 0
        #: Refused connections that are not reported yet.
        self.unreported = 0
        #: Accepted connections, by source address.
        self._sources: dict[object, str] = {}
        #: Connections that have not proven their identity.
        self._strangers: set[object] = set()
        self._links: Counter[str] = Counter()
        self._handshakes: Counter[str] = Counter()
        self._credit = float(limits.strangers_per_second)
        self._counted_at = 0.0

    def refusal(self, address: str, connections: int, now: float) -> str:
        """Return why a connection is refused; "" if it may start.

        Args:
            address: the source address of the connection.
            connections: number of connections of the node.
            now: monotonic seconds.
        """
        limits, source = self.limits, source_of(address)
        full = float(limits.strangers_per_second)
        self._credit = min(full, self._credit + (now - self._counted_at) * full)
        self._counted_at = now
        if connections >= limits.links:
            reason = f"the node has {limits.links:,} links"
        elif self._links[source] >= limits.links_per_address:
            reason = f"{source} has {limits.links_per_address:,} links"
        elif len(self._strangers) >= limits.handshakes:
            reason = f"{limits.handshakes:,} handshakes are in progress"
        elif self._handshakes[source] >= limits.handshakes_per_address:
            reason = f"{source} has {limits.handshakes_per_address:,} handshakes in progress"
        elif self._credit < 1.0:
            reason = (
                f"more than {limits.strangers_per_second:,} unproven connections in a second"
            )
        else:
            self._credit -= 1.0
            return ""
        self.refused += 1
        self.unreported += 1
        return reason

    def begin(self, connection: object, address: str) -> None:
        """Record an accepted connection that has not proven its identity."""
        source = self._sources[connection] = source_of(address)
        self._strangers.add(connection)
        self._links[source] += 1
        self._handshakes[source] += 1

    def proven(self, connection: object) -> None:
        """Record that a connection belongs to a node."""
        if connection in self._strangers:
            self._no_stranger(connection)
            self._credit += 1.0

    def ended(self, connection: object) -> None:
        """Record that a connection is closed."""
        if connection in self._strangers:
            self._no_stranger(connection)
        source = self._sources.pop(connection, None)
        if source is not None:
            take_one(self._links, source)

    def _no_stranger(self, connection: object) -> None:
        """Count a handshake as over."""
        self._strangers.remove(connection)
        take_one(self._handshakes, self._sources[connection])


def take_one(counts: dict[str, int], key: str) -> None:
    """Decrease the count of a key, and remove the key if its count becomes 0."""
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1


@lru_cache(4_096)
def source_of(address: str) -> str:
    """Return the unit in which connections from an address are counted.

    It is the address itself, or for IPv6 its network of 64 bits, which usually belongs to one
    customer.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


#: Bytes of the smallest read: one frame without payload.
LEAST_READ: Final = 64

_FRAME: Final = HEADER.size


class Throttle:
    """Measures the traffic of a link, and computes pauses before its next read."""

    def __init__(self, messages: int, octets: int, *, now: float, read_size: int) -> None:
        """Start with the allowance of one second.

        Args:
            messages: messages per second; 0 for no limit.
            octets: bytes per second; 0 for no limit.
            now: monotonic seconds.
            read_size: bytes of one read without limits.
        """
        limit = TrafficLimit(messages, octets)
        limit.spend(0, 0, now)
        #: Counts messages and bytes of one read at a time; returns the pause in seconds, 0.0
        #: for none.
        self.take = limit.spend
        #: Bytes of one read: the allowance of half a second at most.
        self.read_size = read_size
        if messages:
            self.read_size = min(self.read_size, max(LEAST_READ, messages // 2 * _FRAME))
        if octets:
            self.read_size = min(self.read_size, max(LEAST_READ, octets // 2))
