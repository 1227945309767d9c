"""Measures callboard and its peers; `make bench` calls it.

    python -m benchmarks [MEASURE…] [--runs 5] [--quick] [--peers] [--json FILE]

All subjects of a measure take turns (ours, peer, ours, peer, …), so other load of the machine
affects all of them. Every run is a separate process, which ends after a time limit with all its
children. Peers are installed before the first run; a peer that cannot be installed is reported
and is not an error. A measure that misses a floor, or is a tenth below its last recorded ratio,
is repeated once; if all its runs together still miss it, the command fails.

A full run writes `docs/benchmarks/results.json`, the charts next to it and the table of
`docs/performance.md`. A quick run, or one of named measures, only prints, and writes the file
of `--json`.
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
    "streams",
    "caf_ask",
    "caf_flood",
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
    "log_fields",
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
    "mqtt_bridge",
    "mqtt_connect",
    "mqtt_idle",
    "pipeline_batch",
    "pipeline_served",
    "pipeline_stream",
    "pipeline_copy",
    "pipeline_micro_batch",
    "pipeline_cluster",
    "pipeline_round",
    "history_check",
    "dashboard_paint",
    "dashboard_cpu",
    "dashboard_frames",
    "dashboard_lost",
)
PUBLISHED = page.RESULTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measures of the command line.

    Returns:
        1 if one of our own figures is missing or, except in a quick run, if a floor is missed
        or a ratio is a tenth lower than the last recorded one.
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
        if (
            target is not None
        ):  # after each measure, because a run takes long and may be stopped
            write(target, report, results)
    if target is not None:
        if target == PUBLISHED:
            page.renew()
            drawings.main([])
        console.print(f"written: {escape(str(target))}")
    for complaint in missed:
        console.print(escape(complaint), style="red")
    ours = (taken for result in results for taken in result.taken if not taken.subject.against)
    is_whole = all(taken.figures for taken in ours)
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
    """Run one measure: all subjects in turn, `--runs` times."""
    measure: Measure = import_module(f"benchmarks.{name}").MEASURE
    subjects = [peer for peer in measure.subjects if peer.against or not options.peers]
    taken = [prepared(Taken(subject), console) for subject in subjects]
    result = Result(name, measure, taken)
    more(result, options, console)
    return result


def more(result: Result, options: argparse.Namespace, console: Console) -> None:
    """Add `--runs` runs of all subjects to a result."""
    share = 0.1 if options.quick else 1.0
    for run in range(options.runs):
        for taken in result.taken:
            if not taken.trouble:
                console.print(
                    f"{result.measure.title}, run {run + 1}: {taken.subject.name}", style="dim"
                )
                run_once(result, taken, share)


def prepared(taken: Taken, console: Console) -> Taken:
    """Install a subject, or record why this was not possible."""
    try:
        with console.status(f"preparing {taken.subject.name}"):
            taken.subject.prepare()
    except PeerMissingError as missing:
        taken.trouble = str(missing)
    return taken


def run_once(result: Result, taken: Taken, share: float) -> None:
    """Add one figure, or record the error; a subject that failed is not run again."""
    subject = taken.subject.name
    command = [sys.executable, "-m", "benchmarks.once", result.name, subject, f"{share}"]
    try:
        last = run_bounded(command, result.measure.limit).rstrip().rpartition("\n")[2]
    except RunFailedError as failed:
        taken.trouble = str(failed)
    else:
        taken.figures.append(float(last.removeprefix("figure ")))


def table(result: Result) -> Table:
    """Return the table of one measure."""
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
    """Return the file for the results; only a full run replaces the published one."""
    full = not (options.quick or options.peers or options.measures)
    target: Path | None = options.json or (PUBLISHED if full else None)
    return target


def write(target: Path, report: dict[str, Any], results: Sequence[Result]) -> None:
    """Write the results and a chart next to them; published results have several charts."""
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = {**report, "measures": {result.name: result.as_json() for result in results}}
    target.write_text(json.dumps(whole, indent=2) + "\n")
    if target != PUBLISHED:
        chart = bars.draw(whole, list(whole["measures"]), "callboard beside its peers")
        target.with_suffix(".svg").write_text(chart)


if __name__ == "__main__":
    sys.exit(main())
