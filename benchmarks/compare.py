"""Compare this checkout with another one, in turns.

    python -m benchmarks.compare FOLDER [MEASURE…] [--turns 7] [--share 1.0] [--json FILE]
    python -m benchmarks.compare FOLDER [MEASURE…] --instructions [--turns 3] [--share 0.01]

FOLDER is another checkout of callboard, set up with `make setup`; a measure that it lacks is
run by the file of this one. Only our own subjects are measured. In each turn both checkouts do
the work once, and the one that begins changes from turn to turn, so that a machine whose speed
drifts hits both alike. A subject's line says the ratio of this checkout to the other one over
all turns, median and range, and the spread of the other checkout's own figures, which shows the
variation of the machine.

`--instructions` counts instructions instead, with valgrind's cachegrind, in all processes of a
run. This count does not depend on the load of the machine. The figure is the count for twice
the share less the count for the share, without the constant part of the work. The garbage
collector is off. The figure is of little use for measures that wait for a time, or kill their
processes.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import MEASURES
from benchmarks.measure import Measure, Subject
from benchmarks.processes import ROOT, RunFailedError, run_bounded

LEAST = 0.97
"""A median below this is marked: the change costs something."""

VALGRIND_LIMIT = 900.0
"""Seconds for one run that is counted; it takes some 30 times as long."""

COUNTER = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes")

STILL = """\
import atexit, gc, os, sys
gc.disable()
atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(0)))
"""
"""What each process that is counted does first: what its end costs says nothing."""

ONCE = """\
import sys
import benchmarks.once
benchmarks.__path__.append({here!r})
benchmarks.once.main(*sys.argv[1:])
"""
"""What runs a subject in a checkout; measures that it lacks are found here."""


@dataclass
class Pairs:
    """The figures of one subject in both checkouts, turn by turn.

    Attributes:
        here: This checkout's figures.
        there: The other checkout's.
        trouble: The error of a run that failed; the subject is not run again.
    """

    measure: str
    subject: str
    more_is_better: bool
    here: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)
    trouble: str = ""

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of this checkout to the other one, in each turn."""
        pairs = zip(self.here, self.there, strict=True)
        return [
            ours / theirs if self.more_is_better else theirs / ours for ours, theirs in pairs
        ]

    @property
    def range(self) -> str:
        """The lowest and the highest ratio."""
        return f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"

    @property
    def spread(self) -> float:
        """The range of the other checkout's figures, as a share of their median."""
        return (max(self.there) - min(self.there)) / median(self.there)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; return 1 where a run failed or a median is below `LEAST`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("folder", type=Path, help="another checkout, set up")
    parser.add_argument("measures", nargs="*", metavar="MEASURE")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0, help="of the full work")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--instructions", action="store_true", help="count them")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.measures) - set(MEASURES)):
        parser.error(f"no such measure: {', '.join(unknown)}")
    if not python_of(options.folder).exists():
        parser.error(f"{options.folder} has no .venv: run make setup there")
    console = Console(stderr=True)
    compared = []
    for name in options.measures or MEASURES:
        for pairs in of_measure(name, options):
            compared.append(pairs)
            console.print(spoken(pairs), highlight=False)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(each) for each in compared]) + "\n")
    console.print(table(compared))
    return int(any(each.trouble or median(each.ratios) < LEAST for each in compared))


def of_measure(name: str, options: argparse.Namespace) -> Iterator[Pairs]:
    """Compare all our subjects of one measure."""
    measure: Measure = import_module(f"benchmarks.{name}").MEASURE
    more_is_better = measure.more_is_better and not options.instructions
    for subject in measure.subjects:
        if subject.against is None:
            yield of_subject(Pairs(name, subject.name, more_is_better), subject, options)


def of_subject(pairs: Pairs, subject: Subject, options: argparse.Namespace) -> Pairs:
    """Run one subject in both checkouts, in turns."""
    run = instructions_in if options.instructions else run_in
    try:
        subject.prepare()
        for turn in range(options.turns):
            places = [(ROOT, pairs.here), (options.folder.resolve(), pairs.there)]
            for folder, figures in reversed(places) if turn % 2 else places:
                figures.append(run(folder, pairs, options.share))
    except RunFailedError as failed:
        pairs.trouble = str(failed)
        del pairs.here[len(pairs.there) :], pairs.there[len(pairs.here) :]
    return pairs


def run_in(folder: Path, pairs: Pairs, share: float) -> float:
    """Do the work once in a process of one checkout and return the figure."""
    measure: Measure = import_module(f"benchmarks.{pairs.measure}").MEASURE
    printed = run_bounded(once(folder, pairs, share), measure.limit, folder)
    return float(printed.rstrip().rpartition("\n")[2].removeprefix("figure "))


def instructions_in(folder: Path, pairs: Pairs, share: float) -> float:
    """Return the instructions that the work of one share takes in one checkout."""
    work, more = (counted_in(folder, once(folder, pairs, each)) for each in (share, 2 * share))
    return more - work


def counted_in(folder: Path, command: Sequence[str]) -> float:
    """Return the instructions of a command and all that it starts."""
    with TemporaryDirectory() as logs:
        Path(logs, "sitecustomize.py").write_text(STILL)
        settings = ["env", f"PYTHONPATH={logs}", "PYTHONHASHSEED=0"]
        files = ["--cachegrind-out-file=/dev/null", f"--log-file={logs}/%p.log"]
        printed = run_bounded([*settings, *COUNTER, *files, *command], VALGRIND_LIMIT, folder)
        if "figure " not in printed:
            message = f"it printed no figure under valgrind: {printed[-200:]}"
            raise RunFailedError(message)
        told = "".join(log.read_text() for log in Path(logs).glob("*.log"))
    return sum(int(count.replace(",", "")) for count in re.findall(r"I +refs: +(\S+)", told))


def once(folder: Path, pairs: Pairs, share: float) -> list[str]:
    """Return the command that does the work of a subject once."""
    program = ONCE.format(here=str(ROOT / "benchmarks"))
    return [str(python_of(folder)), "-c", program, pairs.measure, pairs.subject, f"{share}"]


def python_of(folder: Path) -> Path:
    """Return a checkout's own interpreter."""
    return folder / ".venv" / "bin" / "python"


def spoken(pairs: Pairs) -> str:
    """Return the comparison of one subject as a line."""
    if pairs.trouble or not pairs.ratios:
        return f"{pairs.measure}, {pairs.subject}: {pairs.trouble}"
    return f"{pairs.measure}, {pairs.subject}: {median(pairs.ratios):.3f} ({pairs.range})"


def table(compared: Sequence[Pairs]) -> Table:
    """Show all subjects as people read them."""
    shown = Table(
        "measure", "subject", "median", "range", "spread there", "", title="here / there"
    )
    for each in compared:
        if each.trouble or not each.ratios:
            shown.add_row(each.measure, each.subject, "", "", "", each.trouble)
            continue
        mark = f"below {LEAST}" if median(each.ratios) < LEAST else ""
        shown.add_row(
            each.measure,
            each.subject,
            f"{median(each.ratios):.3f}",
            each.range,
            f"{each.spread:.0%}",
            mark,
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
