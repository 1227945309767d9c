"""Results of measures: medians, ranges and ratios of single figures."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.measure import Measure, Subject


@dataclass
class Taken:
    """The figures of one subject.

    Attributes:
        figures: One for each run, in order.
        trouble: Reason for missing figures: not installed, or the error of a failed run.
    """

    subject: Subject
    figures: list[float] = field(default_factory=list)
    trouble: str = ""


@dataclass
class Result:
    """A measure with the figures of all its subjects."""

    name: str
    measure: Measure
    taken: list[Taken]

    def ratio(self, peer: Taken) -> float | None:
        """Return the ratio of our figure to a peer's, above 1 if we are better, or None."""
        us = next((own for own in self.taken if own.subject.name == peer.subject.against), None)
        if us is None or not us.figures or not peer.figures:
            return None
        ratio = median(us.figures) / median(peer.figures)
        return ratio if self.measure.more_is_better else 1 / ratio

    def as_json(self) -> dict[str, Any]:
        """Return the result with all single figures."""
        return {
            "title": self.measure.title,
            "unit": self.measure.unit,
            "more_is_better": self.measure.more_is_better,
            "subjects": [self.subject_as_json(taken) for taken in self.taken],
        }

    def subject_as_json(self, taken: Taken) -> dict[str, Any]:
        """Return the figures of one subject."""
        ratio = self.ratio(taken)
        return {
            "name": taken.subject.name,
            "against": taken.subject.against,
            "figures": [significant(figure) for figure in taken.figures],
            "median": significant(median(taken.figures)) if taken.figures else None,
            "ratio": significant(ratio) if ratio is not None else None,
            "trouble": taken.trouble or None,
        }


def significant(figure: float) -> float:
    """Round to four digits; the figures of a run are not more exact."""
    return float(f"{figure:.4g}")


def spoken(figure: float) -> str:
    """Write a figure as people read it: 1,234,000 or 12.3."""
    figure = significant(figure)
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
