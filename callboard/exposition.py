"""Metrics as values, and as the text that Prometheus and most other systems read.

Format: Prometheus text exposition 0.0.4: HELP and TYPE lines, then one line for each sample
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["CONTENT_TYPE", "Labels", "Metric", "counter", "exposition", "gauge"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""How the text is labelled when it is offered over HTTP."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its samples.

    Attributes:
        name: as Prometheus wants it: counters end in `_total`.
        kind: whether it only rises.
        text: what it says, with its unit.
        samples: labels and value of each.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)


def gauge(name: str, text: str, value: float, labels: Labels = ()) -> Metric:
    """Return a metric with one sample that rises and falls."""
    return Metric(name, "gauge", text, [(labels, value)])


def counter(name: str, text: str, value: float, labels: Labels = ()) -> Metric:
    """Return a metric with one sample that only rises."""
    return Metric(name, "counter", text, [(labels, value)])


def exposition(metrics: Iterable[Metric]) -> str:
    """Write metrics in Prometheus's text format."""
    lines: list[str] = []
    for metric in metrics:
        text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {metric.name} {text}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [
            f"{metric.name}{_label_text(labels)} {_number(value)}"
            for labels, value in metric.samples
        ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
