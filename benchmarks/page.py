"""The tables of `docs/performance.md`, written from the JSON of the last published runs.

    python -m benchmarks.page

A full `make bench` or `make growth` calls it. Only the text between two marks is replaced.
"""

import json
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import Any, Final

from benchmarks.processes import ROOT
from benchmarks.results import spoken
from scripts.drawings.charts.numbers import short

__all__ = ["renew", "rewritten"]

PAGE: Final = ROOT / "docs" / "performance.md"
RESULTS: Final = ROOT / "docs" / "benchmarks" / "results.json"
GROWTH: Final = ROOT / "docs" / "benchmarks" / "growth.json"


def rewritten(page: str, results: dict[str, Any], growth: dict[str, Any]) -> str:
    """Return the page with its tables written anew.

    Raises:
        ValueError: a mark is missing, or there twice.
    """
    parts = {
        "peers": "\n".join([taken(results), "", *peers(results["measures"])]),
        "growth": "\n".join([taken(growth), "", *largest(growth["scales"])]),
    }
    for name, content in parts.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            message = f"{PAGE.name} needs one place between {begin.strip()} and {end}"
            raise ValueError(message)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{content}\n{end}{rest.partition(end)[2]}"
    return page


def taken(report: dict[str, Any]) -> str:
    """Return the machine, the date and the versions of a run, in lines of 100 characters."""
    machine = report["machine"]
    versions = ", ".join(
        f"{name} {version}" for name, version in report["versions"].items() if version != "none"
    )
    text = (
        f"{machine['cores']} cores of an {machine['processor']}, {machine['memory_gib']} GiB, "
        f"{machine['system']}, load {machine['load']} before it began, {machine['taken'][:10]}"
        f"; {versions}."
    )
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def peers(measures: dict[str, Any]) -> Iterator[str]:
    """Write the table of us beside each peer, a line for each pair, or for us alone."""
    yield from head("measure", "unit", "callboard", "peer", "its figure", "we are", "made by")
    for name, measure in measures.items():
        figures = {each["name"]: each["median"] for each in measure["subjects"]}
        compared = {
            each["against"] for each in measure["subjects"] if each["ratio"] is not None
        }
        for each in measure["subjects"]:
            if each["median"] is None or each["name"] in compared:
                continue
            ours = each["against"] or each["name"]
            beside = ["", "", ""]
            if each["ratio"] is not None:
                beside = [each["name"], spoken(each["median"]), f"{each['ratio']:.3g}x"]
            yield row(
                measure["title"] + ours.removeprefix("callboard"),
                measure["unit"],
                spoken(figures[ours]),
                *beside,
                f"`{name}`",
            )


def largest(scales: dict[str, Any]) -> Iterator[str]:
    """Write the table of the figures at the largest sizes."""
    yield from head("what grows", "to", "figures there", "made by")
    for name, scale in scales.items():
        if not scale["points"]:
            continue
        figures = dict(scale["points"][-1])
        size = figures.pop("size")
        told = ", ".join(f"{label} {figure(label, value)}" for label, value in figures.items())
        yield row(scale["title"], short(size, scale["is_binary"]), told, f"`{name}`")


def figure(label: str, value: float) -> str:
    """Write one figure of a scale."""
    if label.startswith("bytes"):
        return short(value, is_binary=True)
    return f"{value:.0%}" if label == "kernel's part" else spoken(value)


def head(*names: str) -> Iterable[str]:
    """Write the head of a table."""
    return row(*names), "|---" * len(names) + "|"


def row(*cells: str) -> str:
    """Write a row of a table."""
    return f"| {' | '.join(cells)} |"


def renew() -> None:
    """Write the tables of the page anew."""
    results, growth = (json.loads(file.read_text()) for file in (RESULTS, GROWTH))
    PAGE.write_text(rewritten(PAGE.read_text(), results, growth))


if __name__ == "__main__":
    renew()
