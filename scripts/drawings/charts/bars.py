"""Bars: us beside the peers, one group of bars for each measure.

Bars begin at 0 and are linear within a measure: lengths may be compared there and only there.
A bar is the median of the runs, the thin line at its end goes from the lowest to the highest.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from scripts.drawings.charts.caption import surroundings
from scripts.drawings.charts.numbers import decimal, ticks
from scripts.drawings.picture import LINE, Picture, short, wrapped

__all__ = ["draw"]

LEFT, LENGTH, ROW, BAR = 212, 236, 22, 14
VARIANT = 20

Subject = dict[str, Any]
_OURS: Final = "callboard"


def draw(report: dict[str, Any], names: Sequence[str], title: str) -> str:
    """Return the chart of some measures of a report; those without figures are left out."""
    picture = Picture(title)
    y = 0.0
    told: set[str] = set()
    for name in names:
        measure = report["measures"].get(name)
        if measure and any(each["figures"] for each in measure["subjects"]):
            y = _measure(picture, measure, y) + 12
            told |= {each["name"] for each in measure["subjects"] if each["figures"]}
    picture.caption(
        y + 14,
        "~Bars: medians of the runs; thin lines: from the lowest run to the highest. Blue is "
        f"callboard. {surroundings(report, told)}",
    )
    return picture.svg()


def variants(measure: dict[str, Any]) -> Iterator[tuple[str, list[Subject]]]:
    """Return each method by which a figure was measured, with the subjects that used it.

    Callboard's come first, followed by the peers.
    """
    subjects = [each for each in measure["subjects"] if each["figures"]]
    own = [each for each in subjects if not each["against"]]
    for us in own:
        beside = [each for each in subjects if each["against"] == us["name"]]
        yield us["name"].removeprefix(_OURS).removeprefix(", "), [us, *beside]
    if not own:
        yield "", subjects


def _measure(picture: Picture, measure: dict[str, Any], y: float) -> float:
    """Draw one measure, and return where it ends."""
    better = "more is better" if measure["more_is_better"] else "less is better"
    title = wrapped(measure["title"], picture.width - 16, "*")
    picture.lines(8, y + 20, *title, f"~{measure['unit']}, {better}")
    top = y + 10 + LINE * (len(title) + 1)
    groups = list(variants(measure))
    are_named = len(groups) > 1
    rows = sum(len(subjects) for _, subjects in groups)
    bottom = top + ROW * rows + VARIANT * len(groups) * are_named + 2
    longest = max(max(each["figures"]) for _, subjects in groups for each in subjects)
    for tick in ticks(longest) if longest else [0.0]:
        x = LEFT + LENGTH * tick / (longest or 1.0)
        picture.add(f'<path class="grid" d="M{short(x)} {top:g}V{bottom:g}"/>', bottom)
        picture.text(x, bottom + 14, f"~{decimal(tick)}", "middle")
    for variant, subjects in groups:
        if are_named:
            picture.text(8, top + 14, f"~{variant}")
            top += VARIANT
        for subject in subjects:
            name = subject["name"].removesuffix(f", {variant}")
            _bar(picture, subject, name, top, LENGTH / (longest or 1.0))
            top += ROW
    return bottom + 14


def _bar(picture: Picture, subject: Subject, name: str, y: float, scale: float) -> None:
    """Draw one bar between its name and its figure."""
    length = max(1.0, scale * subject["median"])
    kind = "peer" if subject["against"] and not name.startswith(_OURS) else "f0"
    middle = y + BAR / 2 + 2
    picture.text(LEFT - 8, middle + 4.5, f"~{name}", "end")
    picture.add(
        f'<rect class="{kind}" x="{LEFT}" y="{y + 2:g}" width="{short(length)}" '
        f'height="{BAR}"/>',
        y + ROW,
    )
    low, high = (LEFT + scale * edge(subject["figures"]) for edge in (min, max))
    picture.add(f'<path class="range" d="M{short(low)} {middle:g}H{short(high)}"/>', y)
    end = max(LEFT + length, high)
    picture.text(end + 6, middle + 4.5, _figure(subject["median"]))


def _figure(figure: float) -> str:
    """Write a figure in three digits, as no run is more exact than that."""
    return decimal(figure) if figure >= 1000 else f"{figure:.3g}"
