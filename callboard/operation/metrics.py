"""Metrics of a node. They are read when a client scrapes them and cost nothing per message."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

from callboard.figures import (
    FigureRow,
    Metric,
    Samples,
    by_label,
    figures_of,
    metrics_of,
    process_metrics,
)
from callboard.kernel.topology import FIRST_ACTOR
from callboard.support.inspection_tables import Row
from callboard.support.platform.process_usage import read_figures
from callboard.support.platform.release import RELEASE, build_id
from callboard.topics.hub import Hub
from callboard.topics.monitoring import all_metrics

if TYPE_CHECKING:
    from callboard.node import Node

#: Actors whose mailbox depth is a separate metric. Each one is a time series to store.
TOP: Final = 10


def node_metrics(node: "Node", *, top: int = TOP) -> list[Metric]:
    """Return the metrics of a node, of its topics, and of its process. Thread-safe.

    Args:
        node: the running node.
        top: number of actors with the deepest mailboxes that get a metric each.
    """
    hub = Hub.found(node)
    topics = [] if hub is None else all_metrics(hub)
    own = metrics_of(_FIGURES, _NodeSample(node, top))
    node.context.post(node.overlay.measure_links)  # for the next request; counted there, too
    return [*own, *topics, *process_metrics()]


class _NodeSample:
    """A snapshot of a node, from which its metrics are computed."""

    def __init__(self, node: "Node", top: int) -> None:
        self.node = node
        self.process = read_figures()
        self.stats = node.stats()
        self.links = [link for link in node.links() if not link.is_tool]
        names = Counter(link.peer_name for link in self.links)
        #: A unique label for each neighbor: its name, with a part of its id if two share it.
        self.peers = [
            link.peer_name
            if names[link.peer_name] == 1 and link.peer_name
            else f"{link.peer_name or 'node'}-{link.peer.hex()[:12]}"
            for link in self.links
        ]
        self.logs = node.served_logs()
        self.entities = node.entity_stats()
        self.queues = _queue_rows(node)
        self.accounts = list(node.accounts().values())
        actors = list(node.context.contexts.values())
        waiting = [(cell.depth, cell) for cell in actors if cell.number >= FIRST_ACTOR]
        deepest = heapq.nlargest(top, waiting, lambda pair: pair[0])
        self.deepest = [pair for pair in deepest if pair[0]]

    def depths(self) -> Samples:
        """Return the depths of the deepest mailboxes."""
        return [
            ((("actor", str(cell.number)), ("class", type(cell.actor).__qualname__)), depth)
            for depth, cell in self.deepest
        ]


def _queue_rows(node: "Node") -> list[Row]:
    """Return the rows of the node's table of work queues."""
    rows: list[Row] = []
    for source in node.overlay.parts.get("queues", ()):
        rows += cast("Iterable[Row]", source("", None))
    return rows


def _jobs(snapshot: _NodeSample) -> Samples:
    """Return the number of jobs of each work queue by status."""
    return [
        ((("queue", row["queue"]), ("status", status)), row[status])
        for row in snapshot.queues
        for status in ("ready", "delayed", "taken", "dead")
    ]


def _of_queues(column: str) -> Callable[[_NodeSample], Samples]:
    """Return a function that reads a column of each work queue."""
    return lambda snapshot: by_label(
        "queue", {row["queue"]: row[column] for row in snapshot.queues}
    )


def _of_links(attribute: str) -> Callable[[_NodeSample], Samples]:
    """Return a function that reads an attribute of each link."""

    def read(snapshot: _NodeSample) -> Samples:
        figures = (float(getattr(link, attribute)) for link in snapshot.links)
        return [
            ((("peer", peer),), figure)
            for peer, figure in zip(snapshot.peers, figures, strict=True)
        ]

    return read


def _of_accounts(attribute: str) -> Callable[[_NodeSample], float]:
    """Return a function that sums an attribute over all accounts."""
    return lambda snapshot: sum(getattr(account, attribute) for account in snapshot.accounts)


def _of_types(attribute: str) -> Callable[[_NodeSample], Samples]:
    """Return a function that reads an attribute of each entity type."""
    return lambda snapshot: by_label(
        "type",
        {
            entity_type.type: getattr(entity_type, attribute)
            for entity_type in snapshot.entities
        },
    )


def _commit_seconds(snapshot: _NodeSample) -> Samples:
    """Return the commit time histograms of all entity types."""
    return [
        ((*labels[:1], ("type", entity_type.type), *labels[1:]), value)
        for entity_type in snapshot.entities
        for labels, value in entity_type.commit_seconds.samples()
    ]


def _of_process(figure: str) -> Callable[[_NodeSample], Samples]:
    """Return a function that reads a figure of the process; no sample if it is unknown."""

    def read(snapshot: _NodeSample) -> Samples:
        value = snapshot.process.get(figure)
        return [] if value is None else [((), value)]

    return read


def _round_trips(snapshot: _NodeSample) -> Samples:
    """Return the latest round trip of each link that was measured."""
    return [
        ((("peer", peer),), link.round_trip)
        for peer, link in zip(snapshot.peers, snapshot.links, strict=True)
        if link.round_trip
    ]


def _builds(_: _NodeSample) -> Samples:
    """Return 1, labelled with the release and build of the node's program."""
    return [((("build", build_id()), ("release", RELEASE)), 1.0)]


def _unsealed(snapshot: _NodeSample) -> float:
    """Return the number of links that a relay could use although a secret was proven."""
    return sum(link.guard == "unsealed" for link in snapshot.links)


_ROWS: Final[tuple[FigureRow[_NodeSample], ...]] = (
    ("build_info", "1, with the release and build of the node's program.", _builds),
    (
        "process_resident_memory_bytes",
        "Memory of the node's process in RAM.",
        _of_process("resident_bytes"),
    ),
    (
        "process_cpu_seconds_total",
        "Processor time of the node's process.",
        _of_process("cpu_seconds"),
    ),
    ("process_threads", "Threads of the node's process.", _of_process("threads")),
    ("process_open_fds", "Open descriptors of the process.", _of_process("descriptors")),
    (
        "process_max_fds",
        "Most descriptors that the process may open.",
        _of_process("descriptors_max"),
    ),
    (
        "process_gc_collections_total",
        "Collections of Python's garbage collector, of all generations.",
        _of_process("gc_collections"),
    ),
    (
        "process_gc_collected_total",
        "Objects that the garbage collector freed.",
        _of_process("gc_collected"),
    ),
    ("actors", "Actors running on this node.", "stats.actors"),
    ("actors_spawned_total", "Actors spawned.", "stats.spawned"),
    (
        "actors_ended_total",
        "Actors that ended, by exit reason.",
        lambda snapshot: by_label("reason", dict(sorted(snapshot.stats.ends.items()))),
    ),
    ("mailbox_messages", "Messages waiting in all mailboxes.", "stats.mailbox_messages"),
    (
        "mailbox_depth_max",
        "Messages waiting in the deepest mailbox.",
        "stats.mailbox_depth_max",
    ),
    ("mailbox_depth", "Messages in the deepest mailboxes, by actor.", _NodeSample.depths),
    ("messages_handled_total", "Handlers called.", "stats.handled"),
    (
        "handler_seconds_total",
        "Seconds in handlers by class, sampled.",
        lambda snapshot: by_label(
            "class", dict(sorted(snapshot.stats.handler_seconds.items()))
        ),
    ),
    (
        "slow_handlers_total",
        "Handlers that blocked their thread for more than a second.",
        "stats.slow_handlers",
    ),
    ("dead_letters_total", "Messages to ended actors.", "stats.dead_letters"),
    ("overflows_total", "Messages dropped by full mailboxes.", "stats.overflows"),
    ("expired_total", "Asks that expired in the mailbox.", "stats.expired"),
    (
        "sends_handed_over_total",
        "Sends made inside other calls, such as by finalizers, and executed after these.",
        "stats.handed_over",
    ),
    ("unexpected_total", "Messages without a handler.", "stats.unexpected"),
    ("failures_total", "Handlers that raised.", "stats.failures"),
    ("restarts_total", "Children restarted by supervisors.", "stats.restarts"),
    ("supervisors_exhausted_total", "Supervisors that gave up.", "stats.exhausted"),
    (
        "ask_seconds",
        "Seconds from an ask of this node to its outcome, sampled.",
        "stats.ask_seconds",
    ),
    (
        "mailbox_wait_seconds",
        "Seconds that messages waited for their handlers, sampled.",
        "stats.waiting_seconds",
    ),
    ("asks_pending", "Asks of this node to other nodes.", "stats.waiting_asks"),
    ("draining", "1 while the node drains.", lambda snapshot: int(snapshot.node.is_draining)),
    ("links", "Links to neighbours.", lambda snapshot: len(snapshot.links)),
    ("links_unsealed", "Links to nodes of release 0.1 with a secret.", _unsealed),
    (
        "nodes_reachable",
        "Nodes with a path from this node.",
        lambda snapshot: len(snapshot.node.nodes()),
    ),
    ("proxies", "Remote actors that this node knows.", "stats.proxies"),
    (
        "served_log_readers",
        "Remote readers of each log of this node within the last minute.",
        lambda snapshot: by_label("log", {log.name: log.readers for log in snapshot.logs}),
    ),
    (
        "served_log_lag_bytes",
        "Bytes that the slowest of these readers has not read, by log.",
        lambda snapshot: by_label("log", {log.name: log.lag for log in snapshot.logs}),
    ),
    ("entity_slots", "Slots owned by this node, by entity type.", _of_types("slots")),
    ("entities_active", "Entities active on this node.", _of_types("active")),
    ("entity_activations_total", "Entities activated on this node.", _of_types("activated")),
    (
        "entity_commits_total",
        "Commits of entities, each with one or more events.",
        _of_types("commits"),
    ),
    ("entity_events_total", "Events in these commits.", _of_types("events")),
    (
        "entity_commit_failures_total",
        "Commits that failed or whose outcome is unknown.",
        _of_types("failures"),
    ),
    (
        "entity_commit_seconds",
        "Seconds until commits were durable, sampled.",
        _commit_seconds,
    ),
    ("entity_slots_gained_total", "Slots acquired by this node.", _of_types("gained")),
    ("entity_slots_lost_total", "Slots handed over to other nodes.", _of_types("moves")),
    (
        "entity_fenced_total",
        "Stores and reads refused because another node owned the slot.",
        _of_types("fenced"),
    ),
    (
        "entity_messages_waiting",
        "Messages waiting for entities here or for owners elsewhere.",
        _of_types("waiting"),
    ),
    ("queue_jobs", "Jobs of the work queues that this node owns, by status.", _jobs),
    ("queue_jobs_max", "Most jobs that a work queue accepts.", _of_queues("limit")),
    ("queue_takers_waiting", "Takers that wait for a job of a queue.", _of_queues("waiting")),
    *(
        (
            f"link_{attribute}_total",
            f"{attribute.capitalize().replace('_', ' ')}, by link since it was opened.",
            _of_links(attribute),
        )
        for attribute in ("frames_sent", "frames_received", "bytes_sent", "bytes_received")
    ),
    (
        "link_round_trip_seconds",
        "Seconds from a question to the neighbour until its answer, measured when the metrics "
        "were requested before.",
        _round_trips,
    ),
    (
        "link_bytes_waiting",
        "Bytes queued for the neighbour.",
        _of_links("bytes_waiting"),
    ),
    ("messages_sent_total", "Messages sent to other nodes.", _of_accounts("sent")),
    (
        "messages_confirmed_total",
        "Sent messages that the other nodes handled.",
        _of_accounts("confirmed"),
    ),
    (
        "messages_lost_total",
        "Sent messages that were lost or never confirmed.",
        _of_accounts("lost"),
    ),
    (
        "messages_in_flight",
        "Messages sent to other nodes and neither confirmed nor lost.",
        _of_accounts("in_flight"),
    ),
    (
        "messages_waiting",
        "Messages to other nodes waiting here for a path or for mailbox space.",
        _of_accounts("waiting"),
    ),
    ("forwarded_total", "Frames forwarded to other nodes.", "stats.forwarded"),
    ("undeliverable_total", "Frames without a path.", "stats.undeliverable"),
    (
        "connections_refused_total",
        "Connections closed at a limit.",
        "stats.refused_connections",
    ),
    (
        "not_permitted_total",
        "Requests of peers refused for lack of rights.",
        "stats.not_permitted",
    ),
)

_FIGURES: Final = figures_of("callboard_", _ROWS)
