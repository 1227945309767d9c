"""Metrics on topics: endpoints publish their metrics, and one of them serves all of them.

A message on `metrics_export_topic` is

    (name of the endpoint, time, ((metric, kind, help text, ((labels, value), …)), …))

with `counter` or `gauge` as the kind and the labels as a table of texts. An endpoint with
`metrics_import_topics` serves the last message of each name besides its own metrics.
"""

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

from callboard.broker.options import BrokerOptions
from callboard.figures import Metric, process_metrics
from callboard.kernel.wire import Timer
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item
from callboard.topics.machine.topic import checked_topic
from callboard.topics.monitoring import topic_metrics

#: Age in seconds after which another endpoint's metrics are dropped.
STALE_AFTER: Final = 60.0

#: Endpoints whose metrics are kept; those of further endpoints are refused.
NAMES_LIMIT: Final = 4096

_KINDS: Final = ("counter", "gauge")


class MetricExporter:
    """Publishes the metrics of a hub periodically."""

    def __init__(self, hub: Hub, options: BrokerOptions) -> None:
        """Start publishing.

        Args:
            hub: the hub.
            options: topic, interval and selection.
        """
        self._hub = hub
        self._topic = checked_topic(options.metrics_export_topic)
        self._interval = options.metrics_export_interval
        self._prefixes = options.metrics_export_prefixes or ("",)
        self._runtime = hub.node.context
        self._timer: Timer | None = None
        self._is_closed = False
        self._runtime.post(self._export)

    def close(self) -> None:
        """Stop publishing. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _export(self) -> None:
        if self._is_closed:
            return
        self._timer = self._runtime.call_later(self._interval, self._export)
        every = (*topic_metrics(self._hub), *process_metrics())
        own = (metric for metric in every if metric.name.startswith(self._prefixes))
        rows = []
        for metric in own:
            samples = [[dict(labels), value] for labels, value in metric.samples]
            rows.append([metric.name, metric.kind, metric.text, samples])
        now = datetime.datetime.now(datetime.UTC)
        self._hub.publish(self._topic, [self._hub.name, now, rows])


class MetricImporter:
    """Keeps the published metrics of endpoints; a receiver of a hub."""

    def __init__(self, hub: Hub, topics: tuple[str, ...]) -> None:
        """Subscribe to the topics."""
        #: Messages that are not metrics, or exceed the limit.
        self.refused = 0
        self._hub = hub
        self._now = hub.node.context.now
        self._by_name: dict[str, tuple[float, list[Metric]]] = {}
        hub.add_receiver(self, topics)
        hub.metric_sources.append(self.metrics)

    def take(self, items: list[Item]) -> None:
        """Store received metrics; on the node's thread."""
        now = self._now()
        for _, value in items:
            message = _read(value)
            if message is None or (
                message[0] not in self._by_name and len(self._by_name) >= NAMES_LIMIT
            ):
                self.refused += 1
            else:
                self._by_name[message[0]] = (now, message[1])

    def metrics(self) -> list[Metric]:
        """Return recent metrics. Can be called from any thread."""
        oldest = self._now() - STALE_AFTER
        entries = list(self._by_name.items())
        for name, (timestamp, _) in entries:
            if timestamp < oldest:
                self._by_name.pop(name, None)
        return [
            metric
            for _, (timestamp, metrics) in entries
            if timestamp >= oldest
            for metric in metrics
        ]

    def close(self) -> None:
        """Unsubscribe and stop serving the metrics."""
        self._hub.remove_receiver(self)
        self._hub.metric_sources.remove(self.metrics)


def export_and_import(
    hub: Hub, options: BrokerOptions
) -> Iterator[MetricExporter | MetricImporter]:
    """Start the exporter and importer of the options; the caller closes them."""
    if options.metrics_export_topic:
        yield MetricExporter(hub, options)
    if options.metrics_import_topics:
        yield MetricImporter(hub, options.metrics_import_topics)


def _read(value: Any) -> tuple[str, list[Metric]] | None:
    """Return the name and the metrics in a message; None if it is invalid."""
    try:
        name, _, rows = value
        metrics = [_metric(*row) for row in rows]
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
    return (name, metrics) if isinstance(name, str) else None


def _metric(name: Any, kind: Any, text: Any, samples: Iterable[Any]) -> Metric:
    if kind not in _KINDS or not (
        isinstance(name, str) and name.isidentifier() and name.isascii()
    ):
        raise ValueError
    parsed = []
    for labels, value in samples:
        pairs = tuple((str(label), str(label_value)) for label, label_value in labels.items())
        if not all(label.isidentifier() and label.isascii() for label, _ in pairs):
            raise ValueError
        parsed.append((pairs, float(value)))
    return Metric(name, kind, str(text), parsed)
