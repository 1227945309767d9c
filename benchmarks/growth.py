"""The growth of costs: measures every scale at every size, and draws it.

    python -m benchmarks.growth [SCALE…] [--most SIZE] [--json FILE]

Each size is measured once, in a separate process that is stopped at a time limit. A full run
writes `docs/benchmarks/growth.json`, a picture for each scale beside it, and the table of
`docs/performance.md`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import page
from benchmarks.processes import RunFailedError, run_bounded
from benchmarks.results import significant, spoken
from benchmarks.scale import Scale
from benchmarks.surroundings import machine, versions
from scripts.drawings.charts.curves import draw

SCALES: Final = ("actors", "nodes", "subscriptions", "payloads", "connections")
OURS: Final = ("callboard", "Python")
LIMIT: Final = 900.0
"""Seconds for one size."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the selected scales; return 1 if a size could not be measured."""
    options = parse(arguments)
    console = Console(stderr=True)
    ours = {name: version for name, version in versions().items() if name in OURS}
    report: dict[str, Any] = {"machine": machine(), "versions": ours, "scales": {}}
    failed = False
    for name in options.scales or SCALES:
        scale: Scale = import_module(f"benchmarks.scales.{name}").SCALE
        points, troubles = grow(name, scale, options.most, console)
        failed = failed or bool(troubles)
        console.print(table(scale, points))
        report["scales"][name] = {
            "title": scale.title,
            "size": scale.size,
            "is_binary": scale.is_binary,
            "points": points,
            "troubles": troubles,
        }
    is_full = not options.scales and options.most is None
    target: Path | None = options.json or (page.GROWTH if is_full else None)
    if target is not None:
        write(target, report)
        if target == page.GROWTH:
            page.renew()
        console.print(f"written: {escape(str(target))}")
    return int(failed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("scales", nargs="*", metavar="SCALE", help=f"of {', '.join(SCALES)}")
    parser.add_argument("--most", type=int, help="leave larger sizes out")
    parser.add_argument("--json", type=Path, help="write results there, and pictures beside it")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.scales) - set(SCALES)):
        parser.error(f"no such scale: {', '.join(unknown)}")
    return options


def grow(
    name: str, scale: Scale, most: int | None, console: Console
) -> tuple[list[dict[str, float]], list[str]]:
    """Measure all sizes; after one that failed no larger one is tried."""
    points: list[dict[str, float]] = []
    for size in scale.sizes:
        if most is not None and size > most:
            break
        console.print(f"{scale.title}: {size:,}", style="dim")
        command = [sys.executable, "-m", "benchmarks.growth_once", name, str(size)]
        try:
            last = run_bounded(command, LIMIT).rstrip().rpartition("\n")[2]
        except RunFailedError as error:
            return points, [f"{size:,}: {error}"]
        figures = {key: significant(value) for key, value in json.loads(last).items()}
        points.append({"size": size, **figures})
    return points, []


def table(scale: Scale, points: list[dict[str, float]]) -> Table:
    """Show one scale as people read it."""
    names = list(dict.fromkeys(name for point in points for name in point if name != "size"))
    shown = Table(scale.size, *names, title=scale.title)
    for point in points:
        told = (spoken(point[name]) if name in point else "" for name in names)
        shown.add_row(f"{point['size']:,}", *told)
    return shown


def write(target: Path, report: dict[str, Any]) -> None:
    """Write the results and, beside them, the pictures."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    for name, scale in report["scales"].items():
        picture = target.with_name(f"{target.stem}-{name}.svg")
        if scale["points"]:
            picture.write_text(draw(report, name))


if __name__ == "__main__":
    sys.exit(main())
