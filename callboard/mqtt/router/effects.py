"""The effects of a turn of the router, gathered until its end, and counts.

They are carried out in this order: records, notifications, alerts, fetches.
"""

from dataclasses import field

from callboard.mqtt.router.datalog import CursorJump, Segment
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import Notification, RouterLink
from callboard.mqtt.router.record import JournalRecord
from callboard.mqtt.router.session import FilterLog
from callboard.support.dataclass import dataclass


@dataclass(slots=True)
class Meters:
    """Counts; they count messages unless stated otherwise.

    Attributes:
        connects: clients that got a session.
        refused_connects: clients that were refused.
        published: messages from clients and wills.
        published_bytes: bytes of the packets of these messages.
        delivered: messages to subscribers, each delivery counted.
        delivered_bytes: bytes of the packets of these deliveries.
        refused: messages from clients without the permission to publish them.
        refused_by_clients: answered by a subscriber with an error.
        expired: not sent because they had expired.
        too_large: not sent because the client does not accept packets of that size.
        lost: dropped from a log before a reader had read them.
        braked: how often a publisher was held for a slow reader with QoS 1 or 2.
        passed_over: how often such a reader made no progress for too long.
        unknown_acks: acknowledgements of unknown identifiers.
        unscheduled: how often a link was full.
        wills: wills that were published.
        taken_over: sessions whose client connected a second time.
        adopted: sessions that came from other routers of the cluster.
        handed_over: sessions that went to other routers.
        violations: connections that ended because the client violated the protocol.
        not_retained: messages that could not be retained within the limits.
        over_quota: subscriptions, sessions and wills that exceeded the limits.
        crowded_out: sessions that ended because unread messages used too much memory.
        expired_sessions: sessions whose clients were away for too long.
    """

    connects: int = 0
    refused_connects: int = 0
    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    refused: int = 0
    refused_by_clients: int = 0
    expired: int = 0
    too_large: int = 0
    lost: int = 0
    braked: int = 0
    passed_over: int = 0
    unknown_acks: int = 0
    unscheduled: int = 0
    wills: int = 0
    taken_over: int = 0
    adopted: int = 0
    handed_over: int = 0
    violations: int = 0
    not_retained: int = 0
    over_quota: int = 0
    crowded_out: int = 0
    expired_sessions: int = 0


@dataclass(slots=True)
class RouterTurn:
    """The effects of a turn, to be carried out in this order.

    Attributes:
        records: the records to be made durable, all or none.
        transmits: notifications, by link.
        alerts: reports of lost messages.
        fetches: shelved segments that readers need from the journal, with their logs.
    """

    records: list[JournalRecord] = field(default_factory=list)
    transmits: list[tuple[RouterLink, list[Notification]]] = field(default_factory=list)
    alerts: list[CursorJump] = field(default_factory=list)
    fetches: list[tuple[FilterLog, Segment]] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Effects(RouterTurn):
    """The current turn, and its circumstances.

    Attributes:
        now: the time of this turn, in seconds of a monotonic clock.
        limits: the current limits; connected clients keep the ones in their CONNACK.
        is_durable: whether the records go to a journal.
        meters: counts over the router's life.
        held: bytes of all sessions, without messages.
    """

    now: float
    limits: Limits
    is_durable: bool
    meters: Meters = field(default_factory=Meters)
    held: int = 0

    def take(self) -> RouterTurn:
        """Return the gathered effects, and start again without any."""
        turn = RouterTurn(self.records, self.transmits, self.alerts, self.fetches)
        self.records, self.transmits, self.alerts, self.fetches = [], [], [], []
        return turn
