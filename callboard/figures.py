"""Figures for monitoring: tables of them, metrics as values, Prometheus's text format.

A room says once, in a table, which figures it has: name, text, and how each is read from one
source. `metrics_of` reads them for `/metrics` and for topics, `values_of` as plain numbers for
`$SYS`, pages and commands. They are read when a client asks and cost a message nothing.

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

#: How the text is labelled when it is offered over HTTP.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[Labels, float]]

Kind = Literal["counter", "gauge", "histogram"]
S = TypeVar("S")

#: Of a figure: name, text, and how it is read from a source.
Row = tuple[str, str, str | Callable[[S], float | Samples]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its samples.

    Attributes:
        name: as Prometheus wants it: counters end in `_total`.
        kind: whether it only rises.
        text: what it says, with its unit.
        samples: labels and value of each; a label without a name is how the name ends.
    """

    name: str
    kind: Kind
    text: str
    samples: Samples = field(default_factory=list)


#: Marks the sample of a class of a histogram.
_BUCKET: Final = ("", "_bucket")

#: What a process has beside its nodes, such as readers of logs, tells its metrics here.
PROCESS_SOURCES: Final[list[Callable[[], list[Metric]]]] = []


@dataclass(frozen=True, slots=True)
class Figure(Generic[S]):
    """One row of a table of figures.

    Attributes:
        name: of the metric; one that ends in `_total` is a counter, any other a gauge.
        text: what it says, with its unit.
        read: the attribute of the source that holds it (`"stats.handled"`), or a function of
            the source. Either gives a number, or samples with labels of their own.
    """

    name: str
    text: str
    read: str | Callable[[S], float | Samples]

    def value(self, source: S) -> Any:
        """Return what is read from a source: a number or samples."""
        read = attrgetter(self.read) if isinstance(self.read, str) else self.read
        return read(source)

    def metric(self, source: S, labels: Labels = ()) -> Metric:
        """Return it as a metric; `labels` stand before those of each sample."""
        value = self.value(source)
        kind: Kind = "counter" if self.name.endswith("_total") else "gauge"
        if isinstance(value, Histogram):
            value, kind = list(value.samples()), "histogram"
        samples = value if isinstance(value, list) else [((), value)]
        if any(_BUCKET in own for own, _ in samples):  # one for each value of a label
            kind = "histogram"
        whole = [((*labels, *own), number) for own, number in samples]
        return Metric(self.name, kind, self.text, whole)


def figures_of(prefix: str, rows: Iterable[Row[S]]) -> tuple[Figure[S], ...]:
    """Return a table of figures whose names begin alike.

    Args:
        prefix: of all names.
        rows: the rest of the name, text, and how it is read, as `Figure` takes them.
    """
    return tuple(Figure(f"{prefix}{name}", text, read) for name, text, read in rows)


def metrics_of(table: Sequence[Figure[S]], source: S, labels: Labels = ()) -> list[Metric]:
    """Return a source's figures as metrics, in the order of the table.

    Args:
        table: the figures.
        source: what they are read from.
        labels: of all samples.
    """
    return [figure.metric(source, labels) for figure in table]


def values_of(table: Sequence[Figure[S]], source: S) -> dict[str, Any]:
    """Return a source's figures by name, as they are read."""
    return {figure.name: figure.value(source) for figure in table}


def by_label(label: str, counts: Mapping[str, float]) -> Samples:
    """Return samples for counts by key: the key is the value of the label."""
    return [(((label, key),), count) for key, count in counts.items()]


def exposition(metrics: Iterable[Metric]) -> str:
    """Write metrics in Prometheus's text format."""
    lines: list[str] = []
    for metric in metrics:
        text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {metric.name} {text}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [
            f"{metric.name}{_ending(labels)}{_label_text(labels)} {_number(value)}"
            for labels, value in metric.samples
        ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value != value or abs(value) == math.inf:  # others may tell such a one
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    if value == int(value):
        return str(int(value))
    return repr(value) if abs(value) >= 0.0001 else f"{value:.9f}"


def _ending(labels: Labels) -> str:
    return next((value for name, value in labels if not name), "")


def _label_text(labels: Labels) -> str:
    labels = tuple(label for label in labels if label[0])
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
