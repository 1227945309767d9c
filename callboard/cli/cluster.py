"""`callboard cluster …`: inspect all nodes through one of them."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.node import inspector, release_text
from callboard.cli.options import AccessOptions, command, noun, option
from callboard.cli.output import age_text, columns
from callboard.cli.work.actor_table import LISTED, loss_table, page, table_of_nodes
from callboard.support.inspection_tables import found_rows

if TYPE_CHECKING:
    from callboard.kernel.tables import ActorInfo, ClusterInspection

#: Further seconds for the node that collects the answers.
ANSWER_TIME: Final = 2.0

#: Sort keys of actors; texts sort in ascending order, numbers in descending order.
SORTS: Final = (
    *("depth", "handled", "age", "waited", "busy", "restarts"),
    *("name", "class", "state", "node"),
)

T = TypeVar("T")

#: Results, each with the name of its node.
Found = list[tuple[str, T]]

app = noun()

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT of any node of the cluster")
]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(AccessOptions):
    """Selection of the nodes, and their timeout."""

    node: str = option("*", "Only nodes with a matching name (* and ?).", metavar="PATTERN")
    timeout: float = option(3.0, "Timeout of each node in seconds.", min=0.001)

    def ask(self, address: str, question: Any) -> "ClusterInspection":
        """Return the answers of the selected nodes.

        Raises:
            CliError: no node is selected.
        """
        from callboard.kernel.tables import ClusterInspection, InspectCluster

        with inspector(address, self.timeout + ANSWER_TIME, self) as inspector_ref:
            order = InspectCluster(question, self.timeout)
            inspection = inspector_ref.ask(order, timeout=self.timeout + ANSWER_TIME).result()
        nodes = [answer for answer in inspection.nodes if fnmatchcase(answer.name, self.node)]
        if not nodes:
            names = ", ".join(sorted(answer.name for answer in inspection.nodes))
            raise CliError(why=f"no node matches {self.node!r}", step=f"there are {names}")
        return ClusterInspection(nodes)

    def show(self, results: "Found[Any]", text: str, inspection: "ClusterInspection") -> None:
        """Print results, and the nodes that did not answer."""
        rows = found_rows(results)
        silent = {
            answer.name or answer.node[:12]: answer.error
            for answer in inspection.nodes
            if answer.error
        }
        missing = [f"{name} did not answer: {error}" for name, error in silent.items()]
        self.say({"rows": rows, "silent": silent}, "\n".join([text, *missing]))


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
    """Return the releases and builds with their nodes: they differ during an upgrade."""
    names: dict[str, list[str]] = {}
    for answer in inspection.nodes:
        if answer.answer is not None:
            names.setdefault(release_text(answer.answer), []).append(
                answer.name or answer.node[:12]
            )
    return "; ".join(f"{release}: {', '.join(nodes)}" for release, nodes in names.items())


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
