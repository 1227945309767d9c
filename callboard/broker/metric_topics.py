"""Metrics on topics: endpoints publish theirs, and one of them shows those of all.

What is published under `metrics_export_topic` is

    (name of the endpoint, time, ((metric, kind, help text, ((labels, value), …)), …))

with `counter` or `gauge` as the kind and the labels as a table of texts. An endpoint that takes
such topics (`metrics_import_topics`) shows what came last from each name beside its own.
"""

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

from callboard.broker.options import BrokerOptions
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item
from callboard.endpoint.machine.topic import checked_topic
from callboard.endpoint.monitoring import topic_metrics
from callboard.figures import PROCESS_SOURCES, Metric
from callboard.kernel.wire import Timer

#: Seconds after which what an endpoint told of itself is shown no more.
STALE_AFTER: Final = 60.0

#: Endpoints whose metrics are kept; what others tell is dropped then.
NAMES_LIMIT: Final = 4096

_KINDS: Final = ("counter", "gauge")


class MetricExporter:
    """Publishes the metrics of a hub again and again."""

    def __init__(self, hub: Hub, options: BrokerOptions) -> None:
        """Begin.

        Args:
            hub: whose metrics.
            options: where, how often, and which.
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
        """Publish no more. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _export(self) -> None:
        if self._is_closed:
            return
        self._timer = self._runtime.call_later(self._interval, self._export)
        process = (one for source in tuple(PROCESS_SOURCES) for one in source())
        every = (*topic_metrics(self._hub), *process)
        own = (one for one in every if one.name.startswith(self._prefixes))
        rows = []
        for one in own:
            samples = [[dict(labels), value] for labels, value in one.samples]
            rows.append([one.name, one.kind, one.text, samples])
        now = datetime.datetime.now(datetime.UTC)
        self._hub.publish(self._topic, [self._hub.name, now, rows])


class MetricImporter:
    """Keeps what endpoints published of themselves; a receiver of a hub."""

    def __init__(self, hub: Hub, topics: tuple[str, ...]) -> None:
        """Begin to take these topics."""
        #: Messages that were no metrics, or too many.
        self.refused = 0
        self._hub = hub
        self._now = hub.node.context.now
        self._kept: dict[str, tuple[float, list[Metric]]] = {}
        hub.add_receiver(self, topics)
        hub.metric_sources.append(self.metrics)

    def take(self, items: list[Item]) -> None:
        """Take what others tell; on the node's thread."""
        now = self._now()
        for _, value in items:
            found = _read(value)
            if found is None or (found[0] not in self._kept and len(self._kept) >= NAMES_LIMIT):
                self.refused += 1
            else:
                self._kept[found[0]] = (now, found[1])

    def metrics(self) -> list[Metric]:
        """Return what was told lately; from any thread."""
        oldest = self._now() - STALE_AFTER
        kept = list(self._kept.items())
        for name, (at, _) in kept:
            if at < oldest:
                self._kept.pop(name, None)
        return [metric for _, (at, metrics) in kept if at >= oldest for metric in metrics]

    def close(self) -> None:
        """Take and show nothing any more."""
        self._hub.remove_receiver(self)
        self._hub.metric_sources.remove(self.metrics)


def export_and_import(
    hub: Hub, options: BrokerOptions
) -> Iterator[MetricExporter | MetricImporter]:
    """Begin what the options want; what it returns is to be closed."""
    if options.metrics_export_topic:
        yield MetricExporter(hub, options)
    if options.metrics_import_topics:
        yield MetricImporter(hub, options.metrics_import_topics)


def _read(value: Any) -> tuple[str, list[Metric]] | None:
    """Return the name and the metrics of a message; None if it is none."""
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
    read = []
    for labels, value in samples:
        pairs = tuple((str(label), str(said)) for label, said in labels.items())
        if not all(label.isidentifier() and label.isascii() for label, _ in pairs):
            raise ValueError
        read.append((pairs, float(value)))
    return Metric(name, kind, str(text), read)
