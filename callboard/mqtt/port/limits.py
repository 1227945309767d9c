"""What the connections of a router are allowed, and what is counted of them."""

from collections import Counter
from dataclasses import field

from callboard.kernel.checks import seconds
from callboard.mqtt.wire.framing import PACKET_SIZE, PACKETS_PER_READ
from callboard.mqtt.wire.reason_code import ReasonCode, reason_text
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits of each connection; times in seconds, sizes in bytes, 0 is no limit.

    Attributes:
        packet_size: of one packet.
        packets_per_read: handed to the router at once.
        connect_timeout: until the CONNECT is there.
        linger: until what was written last has to have left, and the client to have closed;
            here 0 is the shortest, a second.
        keep_alive: the longest that a client of MQTT 5 may ask for.
        message_rate: packets a second that are read from one client.
        byte_rate: bytes a second that are read from one client.
        connection_rate: connections a second in all; further ones are refused.
        open_connections: at a time, also of those that did not send a CONNECT yet; further
            ones are closed at once.
        connections_per_address: of one address at a time; an IPv6 network of 64 bits counts as
            one. Behind one address may be a whole site, so there is no limit by default.
        strangers: connections at a time that have not brought their CONNECT.
        strangers_per_address: those of one address.
        reader_patience: for which publishers wait for a reader that takes nothing; see
            `backpressure`.
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
    connections_per_address: int = 0
    strangers: int = 4_000
    strangers_per_address: int = 2_000
    reader_patience: float = 0.5

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "linger", "reader_patience"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        check_numbers(self)


@dataclass(slots=True)
class NetworkFigures:
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
        certificates_replaced: times that files of TLS were read again, also by bridges.
        certificates_refused: times that they were of no use.
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
    certificates_replaced: int = 0
    certificates_refused: int = 0

    def count_refusal(self, reason: ReasonCode) -> None:
        """Count a connection that was not let in."""
        self.refusals[reason_text(reason)] += 1
