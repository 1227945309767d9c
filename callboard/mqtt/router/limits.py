"""Limits of a router: every table, queue and packet has a bound."""

from dataclasses import field
from enum import Enum
from typing import Any, Final, TypeVar

from callboard.arguments import seconds
from callboard.mqtt.router.datalog import SEGMENT_BYTES, SEGMENT_COUNT
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers

T = TypeVar("T")

#: Seconds of a day.
DAY: Final = 86_400.0

#: Largest number of two bytes on the wire.
_SHORT: Final = 65_535

#: Bytes of the smallest bound on memory: one page.
_PAGE: Final = 4096


def limit(default: T, key: str = "", **bounds: float) -> T:
    """Return the field of a limit that a configuration file may set in `[limits]`.

    Args:
        default: the value if the file has none.
        key: the name of the limit in the file; "" for the name of the field.
        bounds: the bounds of values in a file: `ge`, `gt`, `le`.
    """
    value: Any = field(default=default, metadata={"key": key, "bounds": bounds})
    return value  # type: ignore[no-any-return]


class ShareStrategy(Enum):
    """The choice of the member of a shared subscription that gets the next message."""

    ROUND_ROBIN = "round-robin"
    STICKY = "sticky"
    RANDOM = "random"


class DuplicateClientId(Enum):
    """The answer to a client whose client id has a session of another user.

    Attributes:
        REFUSE: *not authorized*; the session stays with its user.
        TAKE_OVER: the client gets the session, and the other connection ends.
    """

    REFUSE = "refuse"
    TAKE_OVER = "take over"


@dataclass(frozen=True, slots=True)
class CustomSegment:
    """The log size for some filters, if it differs from the rest.

    Attributes:
        topic_filter: the topic filter of subscriptions, or one with wildcards that covers them.
        segment_bytes: as in `Limits`.
        segment_count: as in `Limits`.
    """

    topic_filter: str
    segment_bytes: int = SEGMENT_BYTES
    segment_count: int = SEGMENT_COUNT


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a router; the defaults suit a few thousand clients.

    Attributes:
        connections: clients at a time; more are refused with *quota exceeded*.
        client_id_length: characters; longer client ids are refused.
        inflight: unacknowledged messages with QoS 1 and 2 to a client; fewer if its receive
            maximum is lower.
        queued_messages: unread messages of one client in all its filters. Above it, the oldest
            are dropped when the client connects or cannot receive more; 0 is unlimited.
        queued_bytes: the same in bytes of memory.
        receive_maximum: unacknowledged messages with QoS 1 and 2 from an MQTT 5 client.
        topic_alias_maximum: aliases that a client may define.
        packet_size: bytes of a packet; reported to MQTT 5 clients, enforced for all.
        session_expiry: the longest time in seconds that a session remains without its client.
        keep_alive: seconds; clients that ask for more, or for none, get this. 0 is unlimited.
        subscriptions: filters of one client; more are refused with *quota exceeded*.
        subscription_bytes: bytes of memory for the filters, the will and the names of one
            client; more filters and larger wills are refused with *quota exceeded*.
        sessions: persistent sessions; more are refused with *quota exceeded*.
        sessions_bytes: like `subscription_bytes`, for all sessions together.
        message_bytes: bytes of all messages in memory that are unread or unacknowledged. Above
            it the largest logs drop their messages, then the largest sessions end.
        retained: number of retained messages.
        retained_bytes: bytes of memory for retained messages. Above these two limits a retained
            message is refused with *quota exceeded* if MQTT has an answer (version 5, QoS 1 and
            2). Otherwise it goes to the current subscribers only, an older retained
            message of the topic is removed, and the refusal is counted.
        delivery_quota: messages in the outgoing buffer of a link before it is unscheduled.
        delivery_bytes: the same in bytes.
        segment_bytes: the size of a segment of each filter's log, in bytes.
        segment_count: the number of segments of each filter's log. Above it the oldest segment
            is dropped; readers that have not read it lose its messages.
        custom_segments: log sizes for some filters; the first that matches applies.
        journal_bytes: the size of the journal in bytes, if there is one. Above it the oldest
            shelved messages, which persistent sessions have not read, are dropped. 0 turns
            shelving off.
        share_strategy: the strategy of all shared subscriptions.
        acknowledge_patience: seconds that publishers wait for a reader with QoS 1 or 2 whose
            backlog is half of its log, and that neither receives nor acknowledges anything. 0
            does not make publishers wait. See `brake`.
        max_hold: seconds that publishers wait for such a reader if it makes progress but does
            not catch up. Then it is passed over for the same time. 0 is unlimited.
        duplicate_client_id: the answer to a client whose client id has a session of another
            user; `"refuse"` or `"take over"`.
        retain_available: whether clients may publish retained messages; if not, a client that
            does is disconnected with *retain not supported*.
        maximum_qos: the highest QoS. Subscriptions get no higher one, and a client that
            publishes with a higher one is disconnected with *QoS not supported*.
        zero_length_client_ids: whether the router chooses the ids of clients without one.
    """

    connections: int = limit(10_010, "max_connections", gt=0)
    client_id_length: int = limit(256, "max_client_id_length", ge=1, le=_SHORT)
    inflight: int = limit(100, "max_inflight", ge=1, le=_SHORT)
    queued_messages: int = limit(0, "max_queued_messages", ge=0)
    queued_bytes: int = limit(0, "max_queued_size", ge=0)
    receive_maximum: int = limit(_SHORT, ge=1, le=_SHORT)
    topic_alias_maximum: int = limit(64, ge=0, le=_SHORT)
    packet_size: int = limit(1 << 20, "max_packet_size", ge=128, le=268_435_460)
    session_expiry: float = limit(7 * DAY, "max_session_expiry", ge=0)
    keep_alive: int = limit(0, "max_keepalive", ge=0, le=_SHORT)
    subscriptions: int = limit(1_000, "max_subscriptions", gt=0)
    subscription_bytes: int = limit(8 << 20, "max_subscriptions_size", ge=_PAGE)
    sessions: int = limit(100_000, "max_sessions", ge=0)
    sessions_bytes: int = limit(512 << 20, "max_sessions_size", ge=_PAGE)
    message_bytes: int = limit(512 << 20, "max_messages_size", ge=0)
    retained: int = limit(100_000, "max_retained", ge=0)
    retained_bytes: int = limit(128 << 20, "max_retained_size", ge=0)
    delivery_quota: int = limit(1_000, "max_outgoing_packets", gt=0)
    delivery_bytes: int = limit(1 << 20, "max_outgoing_bytes", gt=0)
    segment_bytes: int = limit(SEGMENT_BYTES, "max_segment_size", ge=1024)
    segment_count: int = limit(SEGMENT_COUNT, "max_segment_count", ge=1)
    custom_segments: tuple[CustomSegment, ...] = ()
    journal_bytes: int = limit(1 << 30, "max_journal_size", ge=0)
    share_strategy: ShareStrategy = limit(ShareStrategy.ROUND_ROBIN)
    acknowledge_patience: float = limit(5.0, ge=0)
    max_hold: float = limit(0.0, ge=0)
    duplicate_client_id: DuplicateClientId = limit(DuplicateClientId.REFUSE)
    retain_available: bool = limit(default=True)
    maximum_qos: int = limit(2, ge=0, le=2)
    zero_length_client_ids: bool = limit(default=True, key="allow_zero_length_clientid")

    def __post_init__(self) -> None:
        try:
            duplicate = DuplicateClientId(self.duplicate_client_id)
        except ValueError:
            choices = " or ".join(repr(choice.value) for choice in DuplicateClientId)
            message = f"duplicate_client_id must be {choices}, not {self.duplicate_client_id!r}"
            raise ValueError(message) from None
        object.__setattr__(self, "duplicate_client_id", duplicate)
        for name in ("session_expiry", "acknowledge_patience", "max_hold"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        check_numbers(self)
