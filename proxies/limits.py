"""The limits of a node's wire: what strangers and peers may make it hold."""

from dataclasses import dataclass, fields
from typing import Final

from basp.frame import DEFAULT_PAYLOAD_LIMIT

LINKS: Final = 4_096
"""Connections of a node: that many fit well below the descriptor limits of servers."""

HANDSHAKES: Final = 256
"""Accepted connections that have not proven who they are: each may hold 64 KiB for seconds."""

STRANGERS_PER_SECOND: Final = 1_000
"""Connections accepted in a second that prove nothing: each costs about 0.1 ms.

Who proves to be a node gives the place back, so a cluster that comes back at once is let in.
"""

PROXIES: Final = 1_000_000
"""Proxies of our actors that one other node may announce: about 200 B each here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node takes from others; for `Node(limits=…)`.

    Attributes:
        links: connections; further ones are closed at once. Those that the node makes itself
            count, and are never refused.
        handshakes: accepted connections that have not proven who they are; further ones are
            closed at once.
        strangers_per_second: accepted connections in a second, those of proven nodes not
            counted; further ones are closed at once.
        payload: bytes of the largest message sent or accepted; the same on all nodes of a
            cluster. A larger one that arrives ends the link.
        proxies: proxies of actors here that one other node may hold; those of further ones
            there are down at once, `unreachable`.
    """

    links: int = LINKS
    handshakes: int = HANDSHAKES
    strangers_per_second: int = STRANGERS_PER_SECOND
    payload: int = DEFAULT_PAYLOAD_LIMIT
    proxies: int = PROXIES

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one is less than 1.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                msg = f"limit {field.name} must be at least 1, not {value}"
                raise ValueError(msg)


class Gate:
    """Decides which accepted connections may begin. Pure; used by the connector alone."""

    def __init__(self, limits: Limits) -> None:
        """Make an open gate."""
        self.limits = limits
        self.refused = 0
        #: Refused and not told yet.
        self.untold = 0
        #: Accepted connections that have not proven who they are.
        self.strangers: set[object] = set()
        self._credit = float(limits.strangers_per_second)
        self._counted_at = 0.0

    def refusal(self, connections: int, now: float) -> str:
        """Return why a connection is refused; "" when it may begin.

        Args:
            connections: those that the node has.
            now: monotonic seconds.
        """
        limits = self.limits
        full = float(limits.strangers_per_second)
        self._credit = min(full, self._credit + (now - self._counted_at) * full)
        self._counted_at = now
        if connections >= limits.links:
            why = f"{limits.links:,} links are there"
        elif len(self.strangers) >= limits.handshakes:
            why = f"{limits.handshakes:,} handshakes are under way"
        elif self._credit < 1.0:
            why = f"{limits.strangers_per_second:,} strangers came within a second"
        else:
            self._credit -= 1.0
            return ""
        self.refused += 1
        self.untold += 1
        return why

    def proven(self, connection: object) -> None:
        """Take note that a connection is a node's."""
        if connection in self.strangers:
            self.strangers.remove(connection)
            self._credit += 1.0

    def ended(self, connection: object) -> None:
        """Take note that a connection is gone."""
        self.strangers.discard(connection)
