"""Commands that watch all nodes of a cluster: `callboard cluster top` and `events`."""

import sys
import time
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from callboard.cli.node import MOST_EVENTS, NAME, print_event
from callboard.cli.output import age_text, bytes_text, columns
from callboard.cli.work.actor_table import CELLS, RATED, right_of
from callboard.cli.work.cluster_options import (
    ANSWER_TIME,
    ClusterEventsOptions,
    ClusterTopOptions,
    silent_nodes,
    unanswered,
)
from callboard.kernel.errors import CallboardError
from callboard.kernel.tables import Inspect, InspectCluster, Inspection, ReadEvents
from callboard.kernel.topology import INSPECTOR

if TYPE_CHECKING:
    from callboard.node import Node

_NODE_HEAD = (
    *("NODE", "STATE", "UP", "MSG/S", "WAITING", "ACTORS", "LINKS", "CPU", "MEMORY"),
    *("THREADS", "OPEN", "RELEASE"),
)


def watch_nodes(address: str, options: ClusterTopOptions) -> None:
    """Print the figures of all nodes and their busiest actors, again and again."""
    question = Inspect(options.limit, sort="rate", rates=True)
    former: dict[str, Inspection] = {}
    since = time.monotonic()
    with options.screen() as show:
        for _ in options.updates():
            inspection = options.ask(address, question)
            since, elapsed = time.monotonic(), time.monotonic() - since
            reports = {node.node: node.answer for node in inspection.nodes if node.answer}
            nodes = [
                _node_row(report, former.get(node_id), elapsed)
                for node_id, report in reports.items()
            ]
            former = reports
            actors = [
                (report.name, actor) for report in reports.values() for actor in report.actors
            ]
            actors.sort(key=lambda pair: (-pair[1].rate, -pair[1].depth, -pair[1].handled))
            actors = actors[: options.limit]
            silent = silent_nodes(inspection)
            row = {
                "nodes": nodes,
                "actors": [{"node": name, **asdict(actor)} for name, actor in actors],
                "silent": silent,
            }
            show(
                row,
                "\n".join([_nodes_text(nodes), "", _actors_text(actors)] + unanswered(silent)),
            )


def _node_row(report: Inspection, former: Inspection | None, elapsed: float) -> dict[str, Any]:
    """Return the figures of a node; rates are those since the former report."""
    figures = report.process
    row = {
        "node": report.name,
        "state": "draining" if report.is_draining else "up",
        "uptime": round(report.uptime, 1),
        "rate": 0.0,
        "waiting": report.waiting,
        "actors": report.actor_count,
        "links": report.links,
        "cpu": None,
        "process": figures,
        "release": report.release,
    }
    if former is not None and elapsed > 0.0:
        row["rate"] = round(max(0, report.handled - former.handled) / elapsed, 1)
        if "cpu_seconds" in figures and "cpu_seconds" in former.process:
            spent = figures["cpu_seconds"] - former.process["cpu_seconds"]
            row["cpu"] = round(max(0.0, spent) / elapsed, 3)
    return row


def _nodes_text(nodes: list[dict[str, Any]]) -> str:
    """Return the figures of nodes as a table."""
    rows = []
    for row in nodes:
        figures = row["process"]
        memory, threads = figures.get("resident_bytes"), figures.get("threads")
        rows.append(
            [
                row["node"],
                row["state"],
                age_text(row["uptime"]),
                f"{row['rate']:,.0f}",
                f"{row['waiting']:,}",
                f"{row['actors']:,}",
                f"{row['links']:,}",
                "-" if row["cpu"] is None else f"{row['cpu']:.0%}",
                "-" if memory is None else bytes_text(memory),
                "-" if threads is None else f"{threads:,.0f}",
                f"{figures['descriptors']:,.0f}" if "descriptors" in figures else "-",
                row["release"],
            ]
        )
    return columns(_NODE_HEAD, rows, right=range(2, len(_NODE_HEAD) - 1))


def _actors_text(actors: list[tuple[str, Any]]) -> str:
    """Return actors of several nodes as a table."""
    head = ("NODE", *RATED)
    rows = [
        [name, *(CELLS[title](actor, actor.rate) for title in RATED)] for name, actor in actors
    ]
    return columns(head, rows, right=right_of(head))


def print_events(address: str, options: ClusterEventsOptions) -> None:
    """Print the events of all nodes; each node is asked for those after its latest one."""
    last: dict[bytes, int] = {}
    with options.open_node(NAME) as node:
        first = node.connect(address, options.timeout + ANSWER_TIME)
        for _ in options.updates() if options.follow else (1,):
            for name, event in _new_events(node, first, last, options):
                is_shown = fnmatchcase(event.kind, options.kind)
                if is_shown and event.values.get("is_tool") != "True":
                    print_event(event, options, name)
            sys.stdout.flush()


def _new_events(
    node: "Node", first: bytes, last: dict[bytes, int], options: ClusterEventsOptions
) -> list[tuple[str, Any]]:
    """Return the events of all nodes that were not printed yet, the oldest first."""
    asks = []
    for node_id, name in _names_of_nodes(node, first, options).items():
        if fnmatchcase(name, options.node):
            after = last.get(node_id, -1)
            limit = options.limit if after < 0 else MOST_EVENTS
            ref = node.context.ref_of(node_id, INSPECTOR)
            asks.append((node_id, name, ref.ask(ReadEvents(after, limit), options.timeout)))
    events: list[tuple[str, Any]] = []
    for node_id, name, ask in asks:
        try:
            page = ask.result()
        except CallboardError as error:
            options.say({"silent": name}, f"no answer from {name}: {error}", err=True)
            continue
        last[node_id] = page.last
        events += [(name, event) for event in page.events]
    return sorted(events, key=lambda pair: -pair[1].age)


def _names_of_nodes(
    node: "Node", first: bytes, options: ClusterEventsOptions
) -> dict[bytes, str]:
    """Return the ids and names of the nodes that the first node can reach, and its own."""
    timeout = options.timeout + ANSWER_TIME
    order = InspectCluster(Inspect(0), options.timeout)
    inspection = node.context.ref_of(first, INSPECTOR).ask(order, timeout).result()
    return {
        bytes.fromhex(answer.node): answer.name or answer.node[:12]
        for answer in inspection.nodes
    }
