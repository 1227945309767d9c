"""Limits of a router: every table, queue and packet has a bound."""

from enum import Enum

from callboard.kernel.checks import seconds
from callboard.mqtt.router.datalog import SEGMENT_BYTES, SEGMENT_COUNT
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers

#: Seconds.
DAY = 86_400.0


class ShareStrategy(Enum):
    """Which member of a shared subscription gets the next message."""

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
    """How much the logs of some filters hold, other than the rest.

    Attributes:
        topic_filter: of subscriptions, or one with wildcards that covers them.
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
        connections: clients at a time; further ones are refused with *quota exceeded*.
        client_id_length: characters; longer ones are refused.
        inflight: messages with QoS 1 and 2 that a client may have unacknowledged; less if its
            receive maximum is less.
        receive_maximum: what MQTT 5 clients may have unacknowledged towards us.
        topic_alias_maximum: aliases that a client may set.
        packet_size: bytes of a packet, told to MQTT 5 clients; the network enforces it.
        session_expiry: seconds for which a session without its client lives at most.
        keep_alive: seconds; clients that want more, or none, are told this. 0 is no limit.
        subscriptions: filters of one client; further ones are refused with *quota exceeded*.
        subscription_bytes: what the filters, the will and the names of one client take; further
            filters and larger wills are refused with *quota exceeded*.
        sessions: persistent ones; further ones are refused with *quota exceeded*.
        sessions_bytes: the same of all sessions as `subscription_bytes` of one.
        message_bytes: messages in memory that readers have not read or acknowledged, of all
            filters; above it the largest logs lose theirs, then the sessions with most end.
        retained: retained messages.
        retained_bytes: the same in bytes of memory. Further ones are refused with *quota
            exceeded* where MQTT can say so (version 5, QoS 1 and 2); others go to those who are
            subscribed, the topic has no retained message then, and they are counted.
        delivery_quota: messages in the outgoing buffer of a link before it is unscheduled.
        delivery_bytes: the same in bytes.
        segment_bytes: of each filter's log.
        segment_count: of each filter's log; above it the oldest segment is lost to who has not
            read it.
        custom_segments: for logs of some filters; the first that fits holds.
        journal_bytes: of the journal, if there is one; above it the oldest messages go that
            persistent sessions have not read and memory does not hold. 0 keeps none of these.
        share_strategy: for all shared subscriptions.
        acknowledge_patience: seconds for which publishers wait for a reader with QoS 1 or 2
            that is half of its log behind, and takes and acknowledges nothing; 0 waits for
            nobody. See `brake`.
        max_hold: seconds for which they wait for one that does, but does not catch up; then
            it is passed over for as long. 0 is no limit.
        duplicate_client_id: what happens when a client names the client id of a session that
            belongs to another user; `"refuse"` or `"take over"`.
    """

    connections: int = 10_010
    client_id_length: int = 256
    inflight: int = 100
    receive_maximum: int = 65_535
    topic_alias_maximum: int = 64
    packet_size: int = 1 << 20
    session_expiry: float = 7 * DAY
    keep_alive: int = 0
    subscriptions: int = 1_000
    subscription_bytes: int = 8 << 20
    sessions: int = 100_000
    sessions_bytes: int = 512 << 20
    message_bytes: int = 512 << 20
    retained: int = 100_000
    retained_bytes: int = 128 << 20
    delivery_quota: int = 1_000
    delivery_bytes: int = 1 << 20
    segment_bytes: int = SEGMENT_BYTES
    segment_count: int = SEGMENT_COUNT
    custom_segments: tuple[CustomSegment, ...] = ()
    journal_bytes: int = 1 << 30
    share_strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN
    acknowledge_patience: float = 5.0
    max_hold: float = 0.0
    duplicate_client_id: DuplicateClientId = DuplicateClientId.REFUSE

    def __post_init__(self) -> None:
        try:
            duplicate = DuplicateClientId(self.duplicate_client_id)
        except ValueError:
            known = " or ".join(repr(each.value) for each in DuplicateClientId)
            message = f"duplicate_client_id is {known}, not {self.duplicate_client_id!r}"
            raise ValueError(message) from None
        object.__setattr__(self, "duplicate_client_id", duplicate)
        for name in ("session_expiry", "acknowledge_patience", "max_hold"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        check_numbers(self)
