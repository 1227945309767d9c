"""Figures for monitoring: tables of figures, metrics, Prometheus's text format.

Each package declares its figures in one table: name, text, and how each is read from a source.
`metrics_of` reads them for `/metrics` and for topics, `values_of` as plain numbers for `$SYS`,
pages and commands. They are read at each request, so they add no work to messages.

Format: Prometheus text exposition 0.0.4: HELP and TYPE lines, then one line for each sample
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar
from weakref import WeakSet

from callboard import locks
from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram

#: The Content-Type of the text over HTTP.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]

Kind = Literal["counter", "gauge", "histogram"]
S = TypeVar("S")

#: Name, text and reader of a figure.
FigureRow = tuple[str, str, str | Callable[[S], float | Samples]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its samples.

    Attributes:
        name: name as Prometheus requires it: counters end in `_total`.
        kind: counters never decrease, gauges may.
        text: description with the unit.
        samples: labels and value of each; a label without a name is a suffix of the name.
    """

    name: str
    kind: Kind
    text: str
    samples: Samples = field(default_factory=list)


#: The label that marks a sample as a bucket of a histogram.
_BUCKET: Final = ("", "_bucket")


@dataclass(frozen=True, slots=True)
class Figure(Generic[S]):
    """One row of a table of figures.

    Attributes:
        name: name of the metric; if it ends in `_total`, the metric is a counter, else a gauge.
        text: description with the unit.
        read: the attribute of the source (`"stats.handled"`), or a function of the source.
            Both return a number, or samples with their own labels.
    """

    name: str
    text: str
    read: str | Callable[[S], float | Samples]

    def value(self, source: S) -> Any:
        """Return the value read from a source: a number or samples."""
        read = attrgetter(self.read) if isinstance(self.read, str) else self.read
        return read(source)

    def metric(self, source: S, labels: Labels = ()) -> Metric:
        """Return the figure as a metric; `labels` precede the labels of each sample."""
        value = self.value(source)
        kind: Kind = "counter" if self.name.endswith("_total") else "gauge"
        if isinstance(value, Histogram):
            value, kind = list(value.samples()), "histogram"
        samples = value if isinstance(value, list) else [((), value)]
        if any(_BUCKET in own for own, _ in samples):  # several histograms with labels
            kind = "histogram"
        whole = [((*labels, *own), number) for own, number in samples]
        return Metric(self.name, kind, self.text, whole)


def figures_of(prefix: str, rows: Iterable[FigureRow[S]]) -> tuple[Figure[S], ...]:
    """Return a table of figures whose names have the same prefix.

    Args:
        prefix: start of all names.
        rows: rest of the name, text and reader of each figure.
    """
    return tuple(Figure(f"{prefix}{name}", text, read) for name, text, read in rows)


def metrics_of(table: Sequence[Figure[S]], source: S, labels: Labels = ()) -> list[Metric]:
    """Return a source's figures as metrics, in the order of the table.

    Args:
        table: the figures.
        source: the object that they are read from.
        labels: labels of all samples.
    """
    return [figure.metric(source, labels) for figure in table]


def values_of(table: Sequence[Figure[S]], source: S) -> dict[str, Any]:
    """Return the values of a source's figures by name."""
    return {figure.name: figure.value(source) for figure in table}


def by_label(label: str, counts: Mapping[str, float]) -> Samples:
    """Return a sample for each count; its key is the value of the label."""
    return [(((label, key),), count) for key, count in counts.items()]


def merged(metrics: Iterable[Metric]) -> list[Metric]:
    """Return one metric for each name, with all samples of this name and kind."""
    by_name: dict[str, Metric] = {}
    for metric in metrics:
        target = by_name.setdefault(metric.name, replace(metric, samples=[]))
        if target.kind == metric.kind:
            target.samples.extend(metric.samples)
    return list(by_name.values())


#: Kinds of objects that belong to no node, such as readers of logs.
_PROCESS_FIGURES: Final[list["ProcessFigures[Any]"]] = []


def process_metrics() -> list[Metric]:
    """Return the metrics of this process outside its nodes; may be called from any thread."""
    return [metric for figures in tuple(_PROCESS_FIGURES) for metric in figures.metrics()]


class ProcessFigures(Generic[S]):
    """The figures of all open objects of one kind that belong to no node."""

    def __init__(
        self,
        table: Sequence[Figure[Any]],
        sample: Callable[[S], tuple[Labels, Any]],
        *unreadable: type[Exception],
    ) -> None:
        """Start without objects.

        Args:
            table: the figures of each object.
            sample: returns the labels of an object, and the source of its figures.
            *unreadable: errors of `sample` and of figures; the object is then left out.
        """
        self._table, self._sample, self._unreadable = table, sample, unreadable
        self._open: WeakSet[Any] = WeakSet()
        self._lock = locks.lock("objects with figures", 602)

    def add(self, source: S) -> None:
        """Show the figures of an object until it is removed or no longer used."""
        with self._lock:
            self._open.add(source)
            if self not in _PROCESS_FIGURES:
                _PROCESS_FIGURES.append(self)

    def discard(self, source: S) -> None:
        """Remove an object."""
        with self._lock:
            self._open.discard(source)

    def __iter__(self) -> Iterator[S]:
        """Iterate over the objects that are open now."""
        with self._lock:
            sources = list(self._open)
        return iter(sources)

    def metrics(self) -> list[Metric]:
        """Return the metrics of all objects, in the order of their labels."""
        by_labels = []
        for source in self:
            with suppress(*self._unreadable):
                labels, values = self._sample(source)
                by_labels.append((labels, metrics_of(self._table, values, labels)))
        by_labels.sort(key=lambda pair: pair[0])
        return merged(metric for _, metrics in by_labels for metric in metrics)


def exposition(metrics: Iterable[Metric]) -> str:
    """Write metrics in Prometheus's text format."""
    lines: list[str] = []
    for metric in metrics:
        text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {metric.name} {text}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [
            f"{metric.name}{_suffix(labels)}{_label_text(labels)} {_number(value)}"
            for labels, value in metric.samples
        ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value != value or abs(value) == math.inf:  # values of other programs may be such
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    if value == int(value):
        return str(int(value))
    return repr(value) if abs(value) >= 0.0001 else f"{value:.9f}"


def _suffix(labels: Labels) -> str:
    return next((value for name, value in labels if not name), "")


def _label_text(labels: Labels) -> str:
    labels = tuple(label for label in labels if label[0])
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
