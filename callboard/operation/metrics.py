"""A node's figures for monitoring, read when a client asks: they cost a message nothing."""

import heapq
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from callboard.endpoint.hub import Hub
from callboard.endpoint.monitoring import all_metrics
from callboard.figures import (
    PROCESS_SOURCES,
    Metric,
    Row,
    Samples,
    by_label,
    figures_of,
    metrics_of,
)
from callboard.kernel.topology import FIRST_ACTOR
from callboard.support.release import RELEASE, build_id

if TYPE_CHECKING:
    from callboard.node import Node

#: Actors with a depth of their own among the metrics: each is a time series to be stored.
TOP: Final = 10


def node_metrics(node: "Node", *, top: int = TOP) -> list[Metric]:
    """Return what there is to say about a node, its topics, and what else its process has.

    From any thread.

    Args:
        node: that runs.
        top: how many of the actors with the deepest mailboxes are named.
    """
    hub = Hub.found(node)
    topics = [] if hub is None else all_metrics(hub)
    others = [metric for source in PROCESS_SOURCES for metric in source()]
    return [*metrics_of(_FIGURES, _Look(node, top)), *topics, *others]


class _Look:
    """What a node tells at one moment: the source of its figures."""

    def __init__(self, node: "Node", top: int) -> None:
        self.node = node
        self.stats = node.stats()
        self.links = [link for link in node.links() if not link.is_tool]
        names = Counter(link.peer_name for link in self.links)
        #: What each neighbor is called; two of one name are told apart.
        self.peers = [
            link.peer_name
            if names[link.peer_name] == 1 and link.peer_name
            else f"{link.peer_name or 'node'}-{link.peer.hex()[:12]}"
            for link in self.links
        ]
        self.logs = node.served_logs()
        self.entities = node.entity_stats()
        self.accounts = list(node.accounts().values())
        actors = list(node.context.contexts.values())
        waiting = [(each.depth, each) for each in actors if each.number >= FIRST_ACTOR]
        deepest = heapq.nlargest(top, waiting, lambda pair: pair[0])
        self.deepest = [pair for pair in deepest if pair[0]]

    def depths(self) -> Samples:
        """Return the depths of the deepest mailboxes."""
        return [
            ((("actor", str(each.number)), ("class", type(each.actor).__qualname__)), depth)
            for depth, each in self.deepest
        ]


def _of_links(attribute: str) -> Callable[[_Look], Samples]:
    """Return what reads an attribute of each link."""

    def read(look: _Look) -> Samples:
        figures = (float(getattr(link, attribute)) for link in look.links)
        return [
            ((("peer", peer),), figure)
            for peer, figure in zip(look.peers, figures, strict=True)
        ]

    return read


def _of_accounts(attribute: str) -> Callable[[_Look], float]:
    """Return what sums an attribute of all accounts."""
    return lambda look: sum(getattr(account, attribute) for account in look.accounts)


def _of_types(attribute: str) -> Callable[[_Look], Samples]:
    """Return what reads an attribute of each type of entities."""
    return lambda look: by_label(
        "type", {each.type: getattr(each, attribute) for each in look.entities}
    )


def _commit_seconds(look: _Look) -> Samples:
    """Return the histograms of commits of all types."""
    return [
        ((*labels[:1], ("type", each.type), *labels[1:]), value)
        for each in look.entities
        for labels, value in each.commit_seconds.samples()
    ]


def _builds(_: _Look) -> Samples:
    """Return a one that has release and build of the node's program as labels."""
    return [((("build", build_id()), ("release", RELEASE)), 1.0)]


def _unsealed(look: _Look) -> float:
    """Return how many links a relay could speak on though a secret was proven."""
    return sum(link.guard == "unsealed" for link in look.links)


_ROWS: Final[tuple[Row[_Look], ...]] = (
    ("build_info", "1, with the release and build of the node's program.", _builds),
    ("actors", "Actors that live here.", "stats.actors"),
    ("actors_spawned_total", "Actors spawned.", "stats.spawned"),
    (
        "actors_ended_total",
        "Actors that ended, by exit reason.",
        lambda look: by_label("reason", dict(sorted(look.stats.ends.items()))),
    ),
    ("mailbox_messages", "Messages that wait in all mailboxes.", "stats.mailbox_messages"),
    (
        "mailbox_depth_max",
        "Messages that wait in the deepest mailbox.",
        "stats.mailbox_depth_max",
    ),
    ("mailbox_depth", "Messages in the deepest mailboxes, by actor.", _Look.depths),
    ("messages_handled_total", "Handlers called.", "stats.handled"),
    (
        "handler_seconds_total",
        "Seconds in handlers by class, sampled.",
        lambda look: by_label("class", dict(sorted(look.stats.handler_seconds.items()))),
    ),
    (
        "slow_handlers_total",
        "Handlers that held their thread for more than a second.",
        "stats.slow_handlers",
    ),
    ("dead_letters_total", "Messages to ended actors.", "stats.dead_letters"),
    ("overflows_total", "Messages that full mailboxes dropped.", "stats.overflows"),
    ("expired_total", "Asks that were too late before their turn.", "stats.expired"),
    (
        "sends_handed_over_total",
        "Sends inside other calls, as by finalizers, that were carried out behind these.",
        "stats.handed_over",
    ),
    ("unexpected_total", "Messages without a handler.", "stats.unexpected"),
    ("failures_total", "Handlers that raised.", "stats.failures"),
    ("restarts_total", "Children that supervisors started again.", "stats.restarts"),
    ("supervisors_exhausted_total", "Supervisors that gave up.", "stats.exhausted"),
    (
        "ask_seconds",
        "Seconds from an ask of this node to its outcome, of a sample of them.",
        "stats.ask_seconds",
    ),
    (
        "mailbox_wait_seconds",
        "Seconds that messages waited for their handlers, of a sample of them.",
        "stats.waiting_seconds",
    ),
    ("asks_pending", "Asks of this node to other nodes.", "stats.waiting_asks"),
    ("draining", "1 while the node drains.", lambda look: int(look.node.is_draining)),
    ("links", "Links to neighbours.", lambda look: len(look.links)),
    ("links_unsealed", "Links to nodes of release 0.1 with a secret.", _unsealed),
    ("nodes_reachable", "Nodes with a path to them.", lambda look: len(look.node.nodes())),
    ("proxies", "Remote actors that this node knows.", "stats.proxies"),
    (
        "served_log_readers",
        "Who read a log of this node over BASP within the last minute, by log.",
        lambda look: by_label("log", {each.name: each.readers for each in look.logs}),
    ),
    (
        "served_log_lag_bytes",
        "What the one of them furthest behind has not read, by log.",
        lambda look: by_label("log", {each.name: each.lag for each in look.logs}),
    ),
    ("entity_slots", "Slots that this node owns, by type of entities.", _of_types("slots")),
    ("entities_active", "Entities that live here.", _of_types("active")),
    ("entity_activations_total", "Entities that were made here.", _of_types("activated")),
    ("entity_commits_total", "What entities stored at once.", _of_types("commits")),
    ("entity_events_total", "Events in that.", _of_types("events")),
    (
        "entity_commit_failures_total",
        "What could not be stored, or of which nobody knows.",
        _of_types("failures"),
    ),
    (
        "entity_commit_seconds",
        "Seconds until what entities stored was durable, of a sample.",
        _commit_seconds,
    ),
    ("entity_slots_gained_total", "Slots that came to this node.", _of_types("gained")),
    ("entity_slots_lost_total", "Slots that went to other nodes.", _of_types("moves")),
    (
        "entity_fenced_total",
        "Slots that were another node's when something was to be stored or read.",
        _of_types("fenced"),
    ),
    (
        "entity_messages_waiting",
        "Messages that wait for entities here, or for owners elsewhere.",
        _of_types("waiting"),
    ),
    *(
        (
            f"link_{attribute}_total",
            f"{attribute.capitalize().replace('_', ' ')}, of each link since it was made.",
            _of_links(attribute),
        )
        for attribute in ("frames_sent", "frames_received", "bytes_sent", "bytes_received")
    ),
    (
        "link_bytes_waiting",
        "Bytes that the neighbour has not taken yet.",
        _of_links("bytes_waiting"),
    ),
    ("messages_sent_total", "Messages sent to other nodes.", _of_accounts("sent")),
    ("messages_confirmed_total", "Of those: handled there.", _of_accounts("confirmed")),
    ("messages_lost_total", "Of those: lost or unconfirmed.", _of_accounts("lost")),
    (
        "messages_in_flight",
        "Messages sent to other nodes and neither confirmed nor lost.",
        _of_accounts("in_flight"),
    ),
    (
        "messages_waiting",
        "Messages to other nodes that wait here for a path, or for room in a mailbox.",
        _of_accounts("waiting"),
    ),
    ("forwarded_total", "Frames passed on.", "stats.forwarded"),
    ("undeliverable_total", "Frames without a path.", "stats.undeliverable"),
    (
        "connections_refused_total",
        "Connections closed at a limit.",
        "stats.refused_connections",
    ),
    (
        "not_permitted_total",
        "What peers asked for in vain, for lack of rights.",
        "stats.not_permitted",
    ),
)

_FIGURES: Final = figures_of("callboard_", _ROWS)
