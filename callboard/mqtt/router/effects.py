"""What a turn of the router brings about: counts, and effects gathered until its end.

Records, notifications, alerts and fetches are carried out in this order.
"""

from dataclasses import field

from callboard.mqtt.router.datalog import CursorJump, Segment
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import Link, Notification
from callboard.mqtt.router.record import JournalRecord
from callboard.mqtt.router.session import FilterLog
from callboard.support.dataclass import dataclass


@dataclass(slots=True)
class Meters:
    """Counts; messages unless said otherwise.

    Attributes:
        connects: clients that got a session.
        refused_connects: clients that did not.
        published: from clients and wills.
        published_bytes: of their packets.
        delivered: to subscribers, each one counted.
        refused: from clients, which were not allowed to publish them.
        refused_by_clients: answered by a subscriber with an error.
        expired: not sent because their time was over.
        too_large: not sent because the client takes no packet of that size.
        lost: overwritten in a log before a reader had read them.
        braked: times that a publisher waited for readers with QoS 1 or 2 far behind.
        passed_over: times that such a reader did nothing for too long.
        unknown_acks: acknowledgements of unknown identifiers.
        unscheduled: times that a link was full.
        wills: published.
        taken_over: sessions that a second connection took from the first.
        adopted: sessions that came from other routers of the cluster.
        handed_over: sessions that went to other routers.
        violations: connections that ended because the client broke a rule.
        not_retained: messages that were to be retained and found no room.
        over_quota: subscriptions, sessions and wills that found no room.
        crowded_out: sessions that ended because unread messages took too much memory.
    """

    connects: int = 0
    refused_connects: int = 0
    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
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


@dataclass(slots=True)
class Turn:
    """The effects of a turn, to be carried out in this order.

    Attributes:
        records: to make durable, all or none.
        transmits: notifications, by link.
        alerts: messages that readers have lost.
        fetches: shelved segments that readers want of the journal then, with their logs.
    """

    records: list[JournalRecord] = field(default_factory=list)
    transmits: list[tuple[Link, list[Notification]]] = field(default_factory=list)
    alerts: list[CursorJump] = field(default_factory=list)
    fetches: list[tuple[FilterLog, Segment]] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Effects(Turn):
    """The turn at hand, and its circumstances.

    Attributes:
        now: the time of this turn, in seconds of a clock that does not jump.
        limits: what the router allows now; clients keep what they were told as they connected.
        is_durable: whether there is a journal that takes the records.
        meters: counts over the router's life.
        held: bytes that sessions take beside messages.
    """

    now: float
    limits: Limits
    is_durable: bool
    meters: Meters = field(default_factory=Meters)
    held: int = 0

    def take(self) -> Turn:
        """Return the effects gathered so far, and begin again with none."""
        turn = Turn(self.records, self.transmits, self.alerts, self.fetches)
        self.records, self.transmits, self.alerts, self.fetches = [], [], [], []
        return turn
