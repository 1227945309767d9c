"""Metrics of an endpoint as Prometheus reads them, under Broker's names.

Format: Prometheus text exposition 0.0.4.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from callboard.broker.figures import EndpointFigures, figures_of

if TYPE_CHECKING:
    from callboard.broker.endpoint import Endpoint

__all__ = ["CONTENT_TYPE", "Metric", "metrics_of", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""How the text is labelled when it is offered over HTTP."""


class Metric(NamedTuple):
    """One metric with its samples, each with its labels."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[dict[str, str], float], ...]


def metrics_of(endpoint: "Endpoint") -> list[Metric]:
    """Return the metrics of an endpoint."""
    return _metrics(figures_of(endpoint))


def metrics_text(endpoint: "Endpoint", prefixes: Sequence[str] = ()) -> str:
    """Return them as text.

    Args:
        endpoint: whose.
        prefixes: only metrics whose names begin so; all by default.
    """
    metrics = [
        metric
        for metric in metrics_of(endpoint)
        if not prefixes or metric.name.startswith(tuple(prefixes))
    ]
    lines = [line for metric in metrics for line in _lines(metric)]
    return "".join(f"{line}\n" for line in lines)


def _metrics(figures: EndpointFigures) -> list[Metric]:
    own = {"endpoint": figures.name}
    return [
        Metric(
            "broker_connections",
            "gauge",
            "Peers that are connected.",
            (({**own, "type": "native"}, len(figures.peerings)),),
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


def _by_type(
    own: dict[str, str], counts: dict[str, int]
) -> tuple[tuple[dict[str, str], float], ...]:
    return tuple(({**own, "type": name}, count) for name, count in counts.items())


def _lines(metric: Metric) -> Iterable[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.samples:
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield (
            f"{metric.name}{{{shown}}} {value:g}"
            if value % 1
            else (f"{metric.name}{{{shown}}} {int(value)}")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
