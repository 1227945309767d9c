"""Compare the structure of the source with its limits: `python -m scripts.structure`."""

import argparse
import gc
import sys
from pathlib import Path

from scripts.structure.figures import measure
from scripts.structure.limits import Limits
from scripts.structure.source import select_source, select_tests, tracked_files

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Print the figures that are worse than their limits; return 1 if any is."""
    parser = argparse.ArgumentParser(prog="python -m scripts.structure", description=__doc__)
    parser.add_argument("--all", action="store_true", help="print all figures")
    parser.add_argument(
        "--find", metavar="FIGURE", help="print the places that one figure counts"
    )
    parser.add_argument("--tighten", action="store_true", help="write better figures as limits")
    options = parser.parse_args()

    # Some million nodes of syntax trees live to the end: looking for garbage among them took a
    # quarter of the time.
    gc.disable()
    files = tracked_files(ROOT)
    figures = measure(select_source(files), select_tests(files))
    limits = Limits()
    if options.tighten:
        limits.tighten(figures)
    for figure in figures:
        if options.all:
            print(f"{figure.name} = {figure.value:g}  # {figure.meaning}")
        if options.find == figure.name:
            print("\n".join(figure.found))

    failures = limits.failures(figures)
    if failures:
        print("the structure is worse than its limits:", *failures, sep="\n  ", file=sys.stderr)
    improvements = limits.improvements(figures)
    if improvements:
        print("better than the limits (--tighten writes them):", *improvements, sep="\n  ")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
