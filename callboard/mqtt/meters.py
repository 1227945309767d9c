"""What a router counted since it began."""

from dataclasses import dataclass


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
