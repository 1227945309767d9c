"""`callboard cluster …`: inspect all nodes through one of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.node import process_text
from callboard.cli.options import command, noun, option
from callboard.cli.output import age_text, columns, milliseconds
from callboard.cli.work.actor_table import LISTED, loss_table, page, table_of_nodes
from callboard.cli.work.cluster_options import (
    Address,
    ClusterEventsOptions,
    ClusterOptions,
    ClusterTopOptions,
    Found,
)

if TYPE_CHECKING:
    from callboard.kernel.tables import (
        ActorInfo,
        ClusterInspection,
    )

#: Most rows of a table of one node.
_ROW_LIMIT: Final = 10_000

#: Sort keys of actors; texts sort in ascending order, numbers in descending order.
SORTS: Final = (
    *("depth", "handled", "age", "waited", "busy", "restarts"),
    *("name", "class", "state", "node"),
)

app = noun()


@dataclass(frozen=True, kw_only=True)
class ClusterPsOptions(ClusterOptions):
    """Selection and order of the listed actors."""

    sort: str = option("depth", f"Sort key, largest first: {', '.join(SORTS)}.")
    match: str = option(
        "", "Only actors with a matching class, name or number (* and ?).", metavar="PATTERN"
    )
    state: str = option("", "Only idle, ready, running, awaiting or blocked ones.")
    actor: str = option(
        "", "Details of one actor: its name, number or address.", metavar="ACTOR"
    )
    limit: int = option(100, "Most actors to list.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class HangsOptions(ClusterOptions):
    """Criterion for a hanging actor."""

    seconds: float = option(2.0, "Shortest time in one handler, in seconds.", min=0.1)
    limit: int = option(100, "Most actors to list.", min=1, max=10_000)


@command(app)
def ps(address: Address, options: ClusterPsOptions) -> None:
    """List the actors of all nodes, or print details of one.

    The node at ADDRESS asks all nodes that it can reach.

    \b
    Examples:
      callboard cluster ps basp://127.0.0.1:4222
      callboard cluster ps basp://127.0.0.1:4222 --sort waited --match 'Till*'
      callboard cluster ps basp://127.0.0.1:4222 --node shop --state awaiting
      callboard cluster ps basp://127.0.0.1:4222 --actor till
    """  # noqa: D301
    from callboard.kernel.tables import Inspect, InspectActor

    if options.sort not in SORTS:
        raise UsageError(
            why=f"actors cannot be sorted by {options.sort!r}",
            step=f"choose one of {', '.join(SORTS)}",
        )
    if options.actor:
        _show_pages(options, options.ask(address, InspectActor(options.actor)))
        return
    question = Inspect(
        options.limit, sort=options.sort, match=options.match, state=options.state
    )
    inspection = options.ask(address, question)
    actors = _sorted(inspection, options.sort)
    listed = actors[: options.limit]
    count = sum(
        answer.answer.actor_count for answer in inspection.nodes if answer.answer is not None
    )
    text = table_of_nodes((*LISTED, "BUSY", "WAITED"), listed)
    if count > options.limit:
        text += f"\n… {count - options.limit:,} more; --limit shows them"
    text += f"\n{_releases(inspection)}"
    options.show(listed, text, inspection)


def _releases(inspection: "ClusterInspection") -> str:
    """Return the release and process of each node: releases differ during an upgrade."""
    return "\n".join(
        f"{answer.name or answer.node[:12]}: {process_text(answer.answer)}"
        for answer in inspection.nodes
        if answer.answer is not None
    )


@command(app)
def hangs(address: Address, options: HangsOptions) -> None:
    """List the actors of all nodes that have been in one handler for a long time.

    Actors with the most waiting messages come first. The time is a lower bound, because nodes
    sample once per second. The table shows what a handler awaits, and its current line.

    \b
    Examples:
      callboard cluster hangs basp://127.0.0.1:4222
      callboard cluster hangs basp://127.0.0.1:4222 --seconds 30 --json
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    question = Inspect(options.limit, sort="busy", busy=options.seconds)
    inspection = options.ask(address, question)
    actors = _sorted(inspection, "depth")[: options.limit]
    head = ("ACTOR", "CLASS", "NAME", "STATE", "BUSY", "DEPTH", "WAITED")
    text = table_of_nodes((*head, "HANDLER", "AT", "WAITS FOR"), actors)
    if not actors:
        text = f"no actor has been in one handler for {options.seconds:g} s"
    options.show(actors, text, inspection)


@command(app)
def restarts(address: Address, options: ClusterOptions) -> None:
    """List the restarts by supervisors of all nodes, with reasons, latest first.

    \b
    Examples:
      callboard cluster restarts basp://127.0.0.1:4222
      callboard cluster restarts basp://127.0.0.1:4222 --json | jq '.rows[] | select(.gave_up)'
    """  # noqa: D301
    inspection, restarted = _history(address, options, "restarted")
    rows = [
        (
            node,
            child.child,
            f"{child.restarts:,}",
            f"{age_text(child.age)} ago",
            "gave up" if child.gave_up else "runs",
            child.reason.partition("\n")[0],
            child.supervisor,
        )
        for node, child in restarted
    ]
    head = ("NODE", "CHILD", "RESTARTS", "LAST", "SUPERVISOR", "WHY", "SUPERVISED BY")
    text = columns(head, rows, right=(2, 3)) if rows else "nothing was restarted"
    options.show(restarted, text, inspection)


@command(app)
def losses(address: Address, options: ClusterOptions) -> None:
    """List the undelivered messages of all nodes, latest first.

    These are dead letters, messages dropped from full mailboxes, asks that expired in the
    mailbox, messages without a handler, and messages lost on the way to another node. Only
    their types and numbers are kept.

    \b
    Examples:
      callboard cluster losses basp://127.0.0.1:4222
      callboard cluster losses basp://127.0.0.1:4222 --node shop --json
    """  # noqa: D301
    inspection, lost = _history(address, options, "losses")
    text = loss_table(lost) if lost else "nothing was lost"
    options.show(lost, text, inspection)


def _history(
    address: str, options: ClusterOptions, attribute: str
) -> "tuple[ClusterInspection, Found[Any]]":
    """Return the answers of all nodes, and one kind of their history, latest first."""
    from callboard.kernel.tables import Inspect

    inspection = options.ask(address, Inspect(0, history=True))
    return inspection, sorted(_of_nodes(inspection, attribute), key=lambda pair: pair[1].age)


def _of_nodes(inspection: "ClusterInspection", attribute: str) -> "Found[Any]":
    """Return one kind of items in the answers, with the names of their nodes."""
    return [
        (node.name or node.node[:12], item)
        for node in inspection.nodes
        if node.answer is not None
        for item in getattr(node.answer, attribute)
    ]


def _sorted(inspection: "ClusterInspection", sort: str) -> "Found[ActorInfo]":
    """Return the actors of all nodes in order, with the names of their nodes."""
    actors = _of_nodes(inspection, "actors")
    if sort == "node":
        return sorted(actors, key=lambda pair: pair[0])
    name = {"class": "actor_class"}.get(sort, sort)
    is_text = name in ("name", "actor_class", "state")
    return sorted(actors, key=lambda pair: getattr(pair[1], name), reverse=not is_text)


def _show_pages(options: ClusterPsOptions, inspection: "ClusterInspection") -> None:
    """Print the details of the matching actors.

    Raises:
        CliError: there is no such actor.
    """
    pages = _of_nodes(inspection, "pages")
    options.show(pages, "\n\n".join(page(*entry) for entry in pages), inspection)
    if not pages:
        raise CliError(
            why=f"there is no actor {options.actor!r}",
            step="use a NAME, a number, or NUMBER@NODE, as shown by ps",
        )


@command(app)
def links(address: Address, options: ClusterOptions) -> None:
    """List the links of all nodes with their round trips, the slowest first.

    Each node asks its neighbours a short question, and measures the time until the answer. A
    link appears at both of its nodes.

    \b
    Examples:
      callboard cluster links basp://127.0.0.1:4222
      callboard cluster links basp://127.0.0.1:4222 --json | jq '.rows[0].peer'
    """  # noqa: D301
    from callboard.kernel.tables import ReadPart

    inspection = options.ask_table(address, ReadPart("links", limit=_ROW_LIMIT))
    head = (
        *("node", "peer", "round_trip", "bytes_waiting", "bytes_sent", "bytes_received"),
        *("pauses", "guard", "release"),
    )
    formats = {"round_trip": milliseconds}
    options.show_table(inspection, head, "there are no links", formats, sort="round_trip")


@dataclass(frozen=True, kw_only=True)
class SizesOptions(ClusterOptions):
    """Selection of the classes."""

    actor_class: str = option("", "Only actors of this class.", "--class", metavar="CLASS")
    limit: int = option(100, "Most classes to list for each node.", min=1, max=10_000)


@command(app)
def sizes(address: Address, options: SizesOptions) -> None:
    """Estimate the memory of the actors of all nodes by class, the largest first.

    Up to 20 actors of each class are measured, and count for the others. LARGEST is the largest
    one that was measured; `callboard cluster ps --actor` describes it. Memory of libraries in
    C, of mailboxes, and of objects of callboard, such as stores, is not included.

    \b
    Examples:
      callboard cluster sizes basp://127.0.0.1:4222
      callboard cluster sizes basp://127.0.0.1:4222 --class Cart --json
    """  # noqa: D301
    from callboard.kernel.tables import ReadPart

    question = ReadPart("sizes", options.actor_class, limit=options.limit)
    inspection = options.ask_table(address, question)
    head = ("node", "class", "actors", "measured", "bytes", "largest_bytes", "largest")
    options.show_table(inspection, head, "there are no such actors", sort="bytes")


@command(app)
def top(address: Address, options: ClusterTopOptions) -> None:
    """Watch all nodes: rates, mailboxes, processor, memory; and the busiest actors.

    In a terminal the tables are drawn in place; elsewhere each update is printed.

    \b
    Examples:
      callboard cluster top basp://127.0.0.1:4222
      callboard cluster top basp://127.0.0.1:4222 --interval 5 --count 12 --json
    """  # noqa: D301
    from callboard.cli.work.cluster_watch import watch_nodes

    watch_nodes(address, options)


@command(app)
def events(address: Address, options: ClusterEventsOptions) -> None:
    """Print the events of all nodes in the order of time, one per line.

    Nodes that appear later are included. The time is that of this machine, as far as a node's
    answer tells it.

    \b
    Examples:
      callboard cluster events basp://127.0.0.1:4222
      callboard cluster events basp://127.0.0.1:4222 -f --kind '*Down'
      callboard cluster events basp://127.0.0.1:4222 --kind ActorRestarted --json
    """  # noqa: D301
    from callboard.cli.work.cluster_watch import print_events

    print_events(address, options)
