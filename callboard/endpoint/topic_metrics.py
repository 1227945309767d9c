"""The metrics of a hub: Broker's under its names, and some of ours."""

from dataclasses import replace
from typing import TYPE_CHECKING

from callboard.endpoint.figures import EndpointFigures, figures_of
from callboard.exposition import Labels, Metric, counter, gauge

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["all_metrics", "topic_metrics"]


def topic_metrics(hub: "Hub") -> list[Metric]:
    """Return the metrics of a hub, and of the stores on it; from any thread."""
    figures = figures_of(hub)
    own = (("endpoint", figures.name),)
    others = [metric for meter in list(hub.meters) for metric in meter()]
    return [*_of_broker(figures, own), *_of_ours(figures, own), *others]


def all_metrics(hub: "Hub") -> list[Metric]:
    """Return the metrics of a hub and those that others told it; each name once."""
    found: dict[str, Metric] = {}
    told = [metric for source in tuple(hub.metric_sources) for metric in source()]
    for metric in (*topic_metrics(hub), *told):
        known = found.setdefault(metric.name, replace(metric, samples=[]))
        if known.kind == metric.kind:
            known.samples.extend(metric.samples)
    return list(found.values())


def _of_broker(figures: EndpointFigures, own: Labels) -> list[Metric]:
    return [
        gauge(
            "broker_connections",
            "Peers that are connected.",
            len(figures.peerings),
            (*own, ("type", "native")),
        ),
        Metric(
            "broker_processed_messages_total",
            "counter",
            "Messages that went through the core.",
            _by_type(own, figures.processed),
        ),
        Metric(
            "broker_buffered_messages",
            "gauge",
            "Messages that wait for the core, or for a peer that reads slowly.",
            _by_type(own, figures.buffered),
        ),
    ]


def _of_ours(figures: EndpointFigures, own: Labels) -> list[Metric]:
    return [
        gauge(
            "callboard_topic_subscribers",
            "Subscribers that are open.",
            figures.subscribers,
            own,
        ),
        gauge(
            "callboard_topic_publishers", "Publishers that are open.", figures.publishers, own
        ),
        counter(
            "callboard_topic_published_total",
            "Data messages that were published here.",
            figures.published,
            own,
        ),
        counter(
            "callboard_topic_delivered_total",
            "Messages handed to receivers here, once for each of them.",
            figures.delivered,
            own,
        ),
        counter(
            "callboard_topic_dropped_total",
            "Messages dropped because a peer did not read.",
            figures.dropped,
            own,
        ),
        counter(
            "callboard_topic_malformed_total",
            "Runs from other endpoints that were no messages.",
            figures.malformed,
            own,
        ),
    ]


def _by_type(own: Labels, counts: dict[str, int]) -> list[tuple[Labels, float]]:
    return [((*own, ("type", name)), count) for name, count in counts.items()]
