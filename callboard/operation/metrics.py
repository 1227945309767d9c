"""A node's figures for monitoring, read when somebody asks: they cost a message nothing."""

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from basp.header import FIRST_ACTOR
from callboard.endpoint.hub import Hub
from callboard.endpoint.topic_metrics import all_metrics
from callboard.exposition import Labels, Metric, counter, gauge

if TYPE_CHECKING:
    from callboard import Node

TOP: Final = 10
"""Actors with a depth of their own among the metrics: each is a time series to be stored."""


def node_metrics(node: "Node", *, top: int = TOP) -> list[Metric]:
    """Return what there is to say about a node, and about its topics if it has some.

    From any thread.

    Args:
        node: that runs.
        top: how many of the actors with the deepest mailboxes are named.
    """
    hub = Hub.found(node)
    topics = [] if hub is None else all_metrics(hub)
    return [*_actor_metrics(node, top), *_traffic_metrics(node), *topics]


def _actor_metrics(node: "Node", top: int) -> Iterator[Metric]:
    stats = node.stats()
    cells = list(node.runtime.cells.values())
    depths = [(cell.depth, cell) for cell in cells if cell.number >= FIRST_ACTOR]
    yield gauge("callboard_actors", "Actors that live here.", stats.actors)
    yield counter("callboard_actors_spawned_total", "Actors spawned.", stats.spawned)
    yield Metric(
        "callboard_actors_ended_total",
        "counter",
        "Actors that ended, by exit reason.",
        [((("reason", reason),), count) for reason, count in sorted(stats.ends.items())],
    )
    yield gauge(
        "callboard_mailbox_messages",
        "Messages that wait in all mailboxes.",
        stats.mailbox_messages,
    )
    yield gauge(
        "callboard_mailbox_depth_max",
        "Messages that wait in the deepest mailbox.",
        stats.mailbox_depth_max,
    )
    deepest = heapq.nlargest(top, (pair for pair in depths if pair[0]), lambda pair: pair[0])
    yield Metric(
        "callboard_mailbox_depth",
        "gauge",
        f"Messages that wait, for the {top} actors with the deepest mailboxes.",
        [
            ((("actor", str(cell.number)), ("class", type(cell.actor).__qualname__)), depth)
            for depth, cell in deepest
        ],
    )
    yield counter("callboard_messages_handled_total", "Handlers called.", stats.handled)
    yield Metric(
        "callboard_handler_seconds_total",
        "counter",
        "Seconds in handlers by class, sampled.",
        [((("class", name),), spent) for name, spent in sorted(stats.handler_seconds.items())],
    )
    yield counter(
        "callboard_slow_handlers_total",
        "Handlers that held their thread for more than a second.",
        stats.slow_handlers,
    )
    yield counter(
        "callboard_dead_letters_total", "Messages to ended actors.", stats.dead_letters
    )
    yield counter(
        "callboard_overflows_total", "Messages that full mailboxes dropped.", stats.overflows
    )
    yield counter(
        "callboard_expired_total", "Asks that were too late before their turn.", stats.expired
    )
    yield counter("callboard_unexpected_total", "Messages without a handler.", stats.unexpected)
    yield counter("callboard_failures_total", "Handlers that raised.", stats.failures)
    yield gauge(
        "callboard_asks_pending", "Asks of this node to other nodes.", stats.waiting_asks
    )
    yield gauge("callboard_draining", "1 while the node drains.", int(node.is_draining))


def _traffic_metrics(node: "Node") -> Iterator[Metric]:
    stats, links, accounts = node.stats(), node.links(), node.accounts()
    yield gauge("callboard_links", "Links to neighbours.", len(links))
    yield gauge("callboard_nodes_reachable", "Nodes with a path to them.", len(node.nodes()))
    yield gauge("callboard_proxies", "Remote actors that this node knows.", stats.proxies)
    for name, attribute, text in _LINK_COUNTERS:
        samples = [(_peer(link.peer), float(getattr(link, attribute))) for link in links]
        yield Metric(name, "counter", f"{text}, of each link since it was made.", samples)
    yield Metric(
        "callboard_link_bytes_waiting",
        "gauge",
        "Bytes that the neighbour has not taken yet.",
        [(_peer(link.peer), link.bytes_waiting) for link in links],
    )
    for name, attribute, text in _ACCOUNT_COUNTERS:
        total = sum(getattr(account, attribute) for account in accounts.values())
        yield counter(name, text, total)
    yield gauge(
        "callboard_messages_in_flight",
        "Messages sent to other nodes and neither confirmed nor lost.",
        sum(account.in_flight for account in accounts.values()),
    )
    yield counter("callboard_forwarded_total", "Frames passed on.", stats.forwarded)
    yield counter(
        "callboard_undeliverable_total", "Frames without a path.", stats.undeliverable
    )
    yield counter(
        "callboard_connections_refused_total",
        "Connections closed at a limit.",
        stats.refused_connections,
    )


_LINK_COUNTERS: Final = (
    ("callboard_link_frames_sent_total", "frames_sent", "Frames sent"),
    ("callboard_link_frames_received_total", "frames_received", "Frames received"),
    ("callboard_link_bytes_sent_total", "bytes_sent", "Bytes sent"),
    ("callboard_link_bytes_received_total", "bytes_received", "Bytes received"),
)

_ACCOUNT_COUNTERS: Final = (
    ("callboard_messages_sent_total", "sent", "Messages sent to other nodes."),
    ("callboard_messages_confirmed_total", "confirmed", "Of those: handled there."),
    ("callboard_messages_lost_total", "lost", "Of those: lost or unconfirmed."),
)


def _peer(node_id: bytes) -> Labels:
    return (("peer", node_id.hex()),)
