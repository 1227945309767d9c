"""Figures for monitoring: tables of figures, metrics, Prometheus's text format.

Each package declares its figures in one table: name, text, and how each is read from a source.
`metrics_of` reads them for `/metrics` and for topics, `values_of` as plain numbers for `$SYS`,
pages and commands. They are read at each request, so they add no work to messages.

Format: Prometheus text exposition 0.0.4: HELP and TYPE lines, then one line for each sample
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram

#: The Content-Type of the text over HTTP.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]

Kind = Literal["counter", "gauge", "histogram"]
S = TypeVar("S")

#: Name, text and reader of a figure.
Row = tuple[str, str, str | Callable[[S], float | Samples]]


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

#: Functions that return metrics of the process outside its nodes, such as those of log readers.
PROCESS_SOURCES: Final[list[Callable[[], list[Metric]]]] = []


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


def figures_of(prefix: str, rows: Iterable[Row[S]]) -> tuple[Figure[S], ...]:
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
