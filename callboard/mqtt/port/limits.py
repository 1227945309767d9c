"""Limits of a router's connections, and their figures."""

from collections import Counter
from dataclasses import field

from callboard.arguments import seconds
from callboard.mqtt.router.limits import limit
from callboard.mqtt.wire.framing import PACKET_SIZE, PACKETS_PER_READ
from callboard.mqtt.wire.reason_code import ReasonCode, reason_text
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Limits of each connection; times in seconds, sizes in bytes; 0 is unlimited.

    Attributes:
        packet_size: the largest size of one packet.
        packets_per_read: the number of packets given to the router at once.
        connect_timeout: the longest time from the connection to its CONNECT.
        linger: the time in which the last bytes are sent and the client closes; 0 means one
            second, the shortest.
        keep_alive: the longest that a client of MQTT 5 may use.
        message_rate: packets per second that are read from one client.
        byte_rate: bytes per second that are read from one client.
        connection_rate: all new connections per second; more are refused.
        open_connections: the number of connections at a time, with or without a CONNECT; more
            are closed at once.
        connections_per_address: the number of connections at a time from one address; an IPv6
            network of 64 bits counts as one address. A whole site may share one address, so the
            default is unlimited.
        strangers: connections at a time without a CONNECT.
        strangers_per_address: the same for one address.
        mqtt_3_1: whether clients of MQTT 3.1 (`MQIsdp`) are admitted.
        reader_patience: that publishers wait for a reader that does not read; see
            `backpressure`.
    """

    # Files set these two together with those of the router, and the third follows from them.
    packet_size: int = PACKET_SIZE
    keep_alive: int = 0
    open_connections: int = 0
    packets_per_read: int = limit(PACKETS_PER_READ, "max_packets_per_read", gt=0)
    connect_timeout: float = limit(60.0, ge=0)
    linger: float = limit(5.0, ge=0)
    message_rate: float = limit(0.0, ge=0)
    byte_rate: float = limit(0.0, ge=0)
    connection_rate: float = limit(0.0, ge=0)
    connections_per_address: int = limit(0, "max_connections_per_address", ge=0)
    strangers: int = limit(4_000, "max_strangers", ge=0)
    strangers_per_address: int = limit(2_000, "max_strangers_per_address", ge=0)
    reader_patience: float = limit(0.5, ge=0)
    mqtt_3_1: bool = limit(default=False, key="allow_mqtt_3_1")

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "linger", "reader_patience"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        check_numbers(self)


@dataclass(slots=True)
class NetworkFigures:
    """Counts since the router was started.

    Attributes:
        accepted: connections that sent a CONNECT.
        opened: connections that were accepted.
        bytes_in: read from clients.
        bytes_out: written to clients.
        packets_in: read from clients.
        timeouts: connections whose client was silent for too long.
        slowed: pauses of clients that exceeded their rate.
        held: pauses of publishers for slow readers.
        refusals: connections that were refused, by reason.
        ends: connections that the router ended, by reason.
        certificates_replaced: reloads of TLS files, including those by bridges.
        certificates_refused: reloads of TLS files that failed.
    """

    accepted: int = 0
    opened: int = 0
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
        """Count a refused connection."""
        self.refusals[reason_text(reason)] += 1
