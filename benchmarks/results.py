"""From single figures to what is published: medians, ranges and ratios."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.measure import Measure, Subject


@dataclass
class Taken:
    """What one subject gave.

    Attributes:
        figures: One for each run, in the order in which they were taken. trouble: Why there are
        none, or fewer: not installed, or the error of the last failed run.
    """

    subject: Subject
    figures: list[float] = field(default_factory=list)
    trouble: str = ""


@dataclass
class Result:
    """A measure with what all its subjects gave."""

    name: str
    measure: Measure
    taken: list[Taken]

    def ratio(self, peer: Taken) -> float | None:
        """How many times as good as this peer we are; None for ours or without figures."""
        us = next(
            (each for each in self.taken if each.subject.name == peer.subject.against), None
        )
        if us is None or not us.figures or not peer.figures:
            return None
        ratio = median(us.figures) / median(peer.figures)
        return ratio if self.measure.more_is_better else 1 / ratio

    def as_json(self) -> dict[str, Any]:
        """Give everything, single figures included."""
        return {
            "title": self.measure.title,
            "unit": self.measure.unit,
            "more_is_better": self.measure.more_is_better,
            "subjects": [self.subject_as_json(each) for each in self.taken],
        }

    def subject_as_json(self, taken: Taken) -> dict[str, Any]:
        """Give what one subject gave."""
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
    """Round to four digits; no run is more exact than that."""
    return float(f"{figure:.4g}")


def spoken(figure: float) -> str:
    """Write a figure as people read it: 1,234,000 or 12.3."""
    figure = significant(figure)
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
