"""What all connections share: the gate, limits, figures, and the way to the router."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from callboard.mqtt.holding import Holding
from callboard.mqtt.link import Access, RouterMailbox
from callboard.mqtt.network import PACKET_SIZE, PACKETS_PER_READ
from callboard.mqtt.packet import V5, Connect
from callboard.mqtt.rate import Limiter
from callboard.mqtt.reason_code import ReasonCode, reason_text

if TYPE_CHECKING:
    import asyncio

    from callboard.mqtt.authentication import Authentication
    from callboard.mqtt.remote_link import RemoteLink


_NO_CERTIFICATE: Final[Mapping[str, str]] = MappingProxyType({})


class Peer(NamedTuple):
    """Where a client comes from.

    Attributes:
        address: `HOST:PORT`, or the path of a Unix socket.
        host: without the port; empty for a Unix socket.
        listener: the address of the listener that it came to.
        certificate: subject of its certificate, name to value; empty without one.
        tenant: the organisation in it, on a listener for tenants.
        user: whom it has proved to be by a method of authentication; None without one.
    """

    address: str = ""
    host: str = ""
    listener: str = ""
    certificate: Mapping[str, str] = _NO_CERTIFICATE
    tenant: str = ""
    user: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits of each connection; times in seconds, sizes in bytes, 0 is no limit.

    Attributes:
        packet_size: of one packet.
        packets_per_read: handed to the router at once.
        connect_timeout: until the CONNECT is there.
        linger: until what was written last has to have left.
        keep_alive: the longest that a client of MQTT 5 may ask for.
        message_rate: packets a second that are read from one client.
        byte_rate: bytes a second that are read from one client.
        connection_rate: connections a second in all; further ones are refused.
        open_connections: at a time, also of those who did not send a CONNECT yet; further
            ones are closed at once.
        reader_patience: for which publishers wait for a reader that takes nothing; see
            `holding`.
    """

    packet_size: int = PACKET_SIZE
    packets_per_read: int = PACKETS_PER_READ
    connect_timeout: float = 60.0
    linger: float = 5.0
    keep_alive: int = 0
    message_rate: float = 0.0
    byte_rate: float = 0.0
    connection_rate: float = 0.0
    open_connections: int = 0
    reader_patience: float = 0.5


@dataclass(frozen=True, slots=True)
class Admission:
    """What the gate says to a CONNECT.

    Attributes:
        reason_code: 0 lets the client in.
        text: why not, for the client.
        access: what it may do; None is everything.
        client_id: the id to use in place of what the client said.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    text: str = ""
    access: Access | None = None
    client_id: str | None = None


NO_SUCH_METHOD: Final = Admission(
    ReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method here"
)
ADMITTED = Admission()
"""A client that may do everything."""


class Gate(Protocol):
    """Decides who comes in."""

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Decide; or return None, and call `answer` later, on the connections' thread."""


class OpenGate:
    """Lets everybody in."""

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Let the client in."""
        del connect, peer, answer
        return ADMITTED


class Screen(Protocol):
    """Sees the packets of one connection, and may change or drop them."""

    def incoming(self, chunk: bytes) -> bytes:
        """Return what the router gets in place of a chunk."""

    def outgoing(self, chunk: bytes) -> bytes:
        """Return what the client gets in place of a chunk."""


@dataclass(slots=True)
class Figures:
    """Counted since the router was started.

    Attributes:
        accepted: connections that sent a CONNECT.
        bytes_in: read from clients.
        bytes_out: written to clients.
        packets_in: read from clients.
        timeouts: connections that were silent for too long.
        slowed: times that a client was above its rate.
        held: times that a publisher waited for readers.
        refusals: connections that were not let in, by reason.
        ends: connections that the router ended, by reason.
    """

    accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    packets_in: int = 0
    timeouts: int = 0
    slowed: int = 0
    held: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def count_refusal(self, reason: ReasonCode) -> None:
        """Count a connection that was not let in."""
        self.refusals[reason_text(reason)] += 1

    def count_end(self, reason: ReasonCode) -> None:
        """Count a connection that was ended."""
        self.ends[reason_text(reason)] += 1


class Door:
    """The edge of a router.

    Attributes:
        mailbox: the router's.
        clock: monotonic seconds.
        links: all connections, admitted or not.
        gate: may be replaced while connections are open.
        make_screen: makes the screen of a connection, if there are hooks.
        authenticate: begins what a CONNECT with an authentication method asks for, or refuses.
    """

    def __init__(
        self,
        mailbox: RouterMailbox,
        clock: Callable[[], float],
        limits: NetworkLimits | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.mailbox = mailbox
        self.clock = clock
        self.limits = limits or NetworkLimits()
        self.gate: Gate = gate or OpenGate()
        self.figures = Figures()
        self.links: set[RemoteLink] = set()
        self.make_screen: Callable[[RemoteLink], Screen | None] | None = None
        self.authenticate: Callable[[Connect, RemoteLink], Authentication | Admission] = (
            lambda _connect, _remote: NO_SUCH_METHOD
        )
        #: Set when the last connection has left, for who waits for that.
        self.emptied: asyncio.Event | None = None
        self.holding = Holding(self.limits.reader_patience, clock)
        self._connections = Limiter(self.limits.connection_rate, 0)

    def set_limits(self, limits: NetworkLimits) -> None:
        """Let other limits hold, for connections that come from here on."""
        if limits.connection_rate != self.limits.connection_rate:
            self._connections = Limiter(limits.connection_rate, 0)
        self.limits = limits
        self.holding.patience = limits.reader_patience

    def limiter(self) -> Limiter | None:
        """Return the rate limits of one connection."""
        limits = self.limits
        if not limits.message_rate and not limits.byte_rate:
            return None
        return Limiter(limits.message_rate, limits.byte_rate)

    def is_full(self) -> bool:
        """Whether a connection more would be too many; counts it as refused then."""
        most = self.limits.open_connections
        if not most or len(self.links) < most:
            return False
        self.figures.count_refusal(ReasonCode.SERVER_BUSY)
        return True

    def leave(self, remote: "RemoteLink") -> None:
        """Take note that a connection is over."""
        self.links.discard(remote)
        self.holding.forget(remote)
        if self.emptied is not None and not self.links:
            self.emptied.set()

    def keep_alive(self, connect: Connect) -> int:
        """Return a client's keep-alive in seconds; 0 is none.

        A client of MQTT 5 is told a shorter one in its CONNACK; 3.1.1 has no way to say it.
        """
        asked, limit = connect.keep_alive, self.limits.keep_alive
        if connect.version >= V5 and limit and (not asked or asked > limit):
            return limit
        return asked

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Let the gate decide about a client; see `Gate.admit`."""
        self.figures.accepted += 1
        rate = self.limits.connection_rate
        if rate and not self._connections.allows(self.clock()):
            text = f"more than {rate:g} connections a second"
            return Admission(ReasonCode.CONNECTION_RATE_EXCEEDED, text)
        return self.gate.admit(connect, peer, answer)

    def check(self) -> None:
        """Look for connections that were silent for too long; about once a second."""
        now = self.clock()
        for remote in list(self.links):
            remote.check(now)
