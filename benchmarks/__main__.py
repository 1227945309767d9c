"""Measure us and the peers; `make bench` calls it.

    python -m benchmarks [MEASURE…] [--runs 5] [--quick] [--peers] [--json FILE]

All subjects of a measure take turns (ours, peer, ours, peer, …), so that whatever else the
machine does hits all of them. Every run is a process of its own, stopped after a limit, and
nothing that it started outlives it. Peers are installed before anything is timed; one that
cannot be is told, not an error. A measure that misses a floor, or a tenth of the ratio that was
recorded last, is taken once more; if all its runs together still do, the command fails.

A full run writes `docs/benchmarks/results.json`, the charts beside it and the table of
`docs/performance.md`; a quick one, or one of named measures, prints only, and writes where
`--json` says.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import page
from benchmarks.floors import FLOORS, complaints, recorded
from benchmarks.measure import Measure, PeerMissingError
from benchmarks.processes import RunFailedError, run_bounded
from benchmarks.results import Result, Taken, spoken
from benchmarks.surroundings import machine, versions
from scripts.drawings import __main__ as drawings
from scripts.drawings.charts import bars

MEASURES = (
    "local_ask",
    "local_tell",
    "spawn",
    "memory",
    "remote_flood",
    "remote_ask",
    "remote_pipeline",
    "chain_flood",
    "flow",
    "gateway",
    "down_after_kill",
    "restart",
    "workers",
    "blocked",
    "entity_commits",
    "entity_events",
    "entity_reads",
    "entity_first",
    "entity_replay",
    "entity_memory",
    "entity_recovery",
    "entity_moves",
    "work_queue",
    "log_append",
    "log_receipts",
    "log_read",
    "log_read_node",
    "log_table",
    "log_on_store",
    "log_served",
    "topic_flood",
    "topic_batches",
    "topic_chain",
    "topic_rounds",
    "topic_record",
    "zeek_peering",
    "zeek_broker_1_4",
    "zeek_transcode",
    "zeek_logger",
    "zeek_reconnect",
    "zeek_websocket",
    "zeek_zeromq",
    "store_put",
    "store_get",
    "store_to_clone",
    "store_to_master",
    "store_round",
    "store_sqlite",
    "store_snapshot",
    "mqtt_qos0",
    "mqtt_qos1",
    "mqtt_qos2",
    "mqtt_pairs",
    "mqtt_connect",
    "mqtt_idle",
    "pipeline_batch",
    "pipeline_served",
    "pipeline_stream",
    "pipeline_copy",
    "pipeline_micro_batch",
    "pipeline_cluster",
    "pipeline_round",
    "simulated_echo",
    "history_check",
    "dashboard_paint",
    "dashboard_cpu",
    "dashboard_frames",
    "dashboard_lost",
)
PUBLISHED = page.RESULTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for.

    Returns:
        1 when one of our own figures is missing or, unless the run is a quick one, when a floor
        is missed or a ratio is a tenth lower than the one recorded last.
    """
    options = parse(arguments)
    console = Console(stderr=True)
    target = target_of(options)
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "runs": options.runs,
    }
    earlier = recorded(PUBLISHED)
    results, missed = [], []
    for name in options.measures or MEASURES:
        result = take(name, options, console)
        if not options.quick and complaints(result, earlier):
            more(result, options, console)
        console.print(table(result))
        results.append(result)
        missed += complaints(result, earlier)
        if target is not None:  # after each one: a run takes long, and may be stopped
            write(target, report, results)
    if target is not None:
        if target == PUBLISHED:
            page.renew()
            drawings.main([])
        console.print(f"written: {escape(str(target))}")
    for complaint in missed:
        console.print(escape(complaint), style="red")
    ours = (each for result in results for each in result.taken if not each.subject.against)
    is_whole = all(each.figures for each in ours)
    return int(not is_whole or (bool(missed) and not options.quick))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each subject (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one run")
    parser.add_argument("--peers", action="store_true", help="leave callboard itself out")
    parser.add_argument("--json", type=Path, help="write results there, and a chart beside it")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.measures) - set(MEASURES)):
        parser.error(f"no such measure: {', '.join(unknown)}")
    if options.quick:
        options.runs = 1
    return options


def take(name: str, options: argparse.Namespace, console: Console) -> Result:
    """Take one measure: all subjects in turn, as often as asked for."""
    measure: Measure = import_module(f"benchmarks.{name}").MEASURE
    subjects = [each for each in measure.subjects if each.against or not options.peers]
    taken = [prepared(Taken(subject), console) for subject in subjects]
    result = Result(name, measure, taken)
    more(result, options, console)
    return result


def more(result: Result, options: argparse.Namespace, console: Console) -> None:
    """Add so many runs of all subjects; also when a first look may have met a busy machine."""
    share = 0.1 if options.quick else 1.0
    for run in range(options.runs):
        for each in result.taken:
            if not each.trouble:
                console.print(
                    f"{result.measure.title}, run {run + 1}: {each.subject.name}", style="dim"
                )
                run_once(result, each, share)


def prepared(taken: Taken, console: Console) -> Taken:
    """Install what a subject needs, or note why that was not possible."""
    try:
        with console.status(f"preparing {taken.subject.name}"):
            taken.subject.prepare()
    except PeerMissingError as missing:
        taken.trouble = str(missing)
    return taken


def run_once(result: Result, taken: Taken, share: float) -> None:
    """Add one figure, or note why there is none; a subject that failed is not run again."""
    subject = taken.subject.name
    command = [sys.executable, "-m", "benchmarks.once", result.name, subject, f"{share}"]
    try:
        last = run_bounded(command, result.measure.limit).rstrip().rpartition("\n")[2]
    except RunFailedError as failed:
        taken.trouble = str(failed)
    else:
        taken.figures.append(float(last.removeprefix("figure ")))


def table(result: Result) -> Table:
    """Show one measure as people read it."""
    measure = result.measure
    shown = Table("", f"median {measure.unit}", "range", "we are", "floor", title=measure.title)
    floors = FLOORS.get(result.name, {})
    for taken in result.taken:
        ratio = result.ratio(taken)
        figures = taken.figures
        floor = floors.get(taken.subject.name)
        shown.add_row(
            taken.subject.name,
            spoken(median(figures)) if figures else "",
            f"{spoken(min(figures))} to {spoken(max(figures))}" if figures else "",
            f"{ratio:.2f}x" if ratio is not None else escape(taken.trouble),
            "" if floor is None else spoken(floor) + "x" * (taken.subject.against is not None),
        )
    return shown


def target_of(options: argparse.Namespace) -> Path | None:
    """Tell where results go: only a full run replaces what is published."""
    full = not (options.quick or options.peers or options.measures)
    target: Path | None = options.json or (PUBLISHED if full else None)
    return target


def write(target: Path, report: dict[str, Any], results: Sequence[Result]) -> None:
    """Write the results and, beside them, a chart; those that are published have several."""
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = {**report, "measures": {result.name: result.as_json() for result in results}}
    target.write_text(json.dumps(whole, indent=2) + "\n")
    if target != PUBLISHED:
        chart = bars.draw(whole, list(whole["measures"]), "callboard beside its peers")
        target.with_suffix(".svg").write_text(chart)


if __name__ == "__main__":
    sys.exit(main())
