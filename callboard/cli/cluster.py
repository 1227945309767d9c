"""`callboard cluster …`: look at all nodes at once, through one of them."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from callboard.cli.node import inspector, release_text
from callboard.cli.options import AccessOptions, command, noun, option
from callboard.cli.output import age_text, columns
from callboard.cli.problem import Misuse, Problem
from callboard.cli.work.actor_table import LISTED, loss_table, page, table_of_nodes
from callboard.support.parts import found_rows

if TYPE_CHECKING:
    from callboard.kernel.tables import ActorInfo, ClusterInspection

#: Seconds beyond those of the nodes that the one that asks them may take.
ANSWER_TIME: Final = 2.0

#: What actors can be sorted by; those of texts rise.
SORTS: Final = (
    *("depth", "handled", "age", "waited", "busy", "restarts"),
    *("name", "class", "state", "node"),
)

T = TypeVar("T")

#: What was found, each with the name of its node.
Found = list[tuple[str, T]]

app = noun()

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT of any node of the cluster")
]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(AccessOptions):
    """Which nodes are asked, and how long they may take."""

    node: str = option("*", "Only nodes whose names match (* and ?).", metavar="PATTERN")
    timeout: float = option(3.0, "Seconds that each node has to answer.", min=0.001)

    def ask(self, address: str, question: Any) -> "ClusterInspection":
        """Return what the nodes answered that are meant.

        Raises:
            Problem: none of them is in reach.
        """
        from callboard.kernel.tables import ClusterInspection, InspectCluster

        with inspector(address, self.timeout + ANSWER_TIME, self) as found:
            order = InspectCluster(question, self.timeout)
            told = found.ask(order, timeout=self.timeout + ANSWER_TIME).result()
        nodes = [each for each in told.nodes if fnmatchcase(each.name, self.node)]
        if not nodes:
            names = ", ".join(sorted(each.name for each in told.nodes))
            raise Problem(why=f"no node matches {self.node!r}", step=f"there are {names}")
        return ClusterInspection(nodes)

    def show(self, found: "Found[Any]", text: str, told: "ClusterInspection") -> None:
        """Print what was found, and which nodes did not answer."""
        rows = found_rows(found)
        silent = {each.name or each.node[:12]: each.error for each in told.nodes if each.error}
        missing = [f"{name} did not answer: {error}" for name, error in silent.items()]
        self.say({"rows": rows, "silent": silent}, "\n".join([text, *missing]))


@dataclass(frozen=True, kw_only=True)
class ClusterPsOptions(ClusterOptions):
    """Which actors are listed, and in which order."""

    sort: str = option("depth", f"What the first ones have most of: {', '.join(SORTS)}.")
    match: str = option(
        "", "Only actors whose class, name or number matches (* and ?).", metavar="PATTERN"
    )
    state: str = option("", "Only idle, ready, running, awaiting or blocked ones.")
    actor: str = option(
        "", "All about one actor: its name, number or address.", metavar="ACTOR"
    )
    limit: int = option(100, "Actors at most.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class HangsOptions(ClusterOptions):
    """When an actor counts as one that hangs."""

    seconds: float = option(2.0, "In one handler for at least so long.", min=0.1)
    limit: int = option(100, "Actors at most.", min=1, max=10_000)


@command(app)
def ps(address: Address, options: ClusterPsOptions) -> None:
    """List the actors of all nodes, or tell all about one.

    The node at ADDRESS asks all others in its reach.

    \b
    Examples:
      callboard cluster ps basp://127.0.0.1:4222
      callboard cluster ps basp://127.0.0.1:4222 --sort waited --match 'Till*'
      callboard cluster ps basp://127.0.0.1:4222 --node shop --state awaiting
      callboard cluster ps basp://127.0.0.1:4222 --actor till
    """  # noqa: D301
    from callboard.kernel.tables import Inspect, InspectActor

    if options.sort not in SORTS:
        raise Misuse(
            why=f"actors cannot be sorted by {options.sort!r}",
            step=f"choose one of {', '.join(SORTS)}",
        )
    if options.actor:
        _show_pages(options, options.ask(address, InspectActor(options.actor)))
        return
    question = Inspect(
        options.limit, sort=options.sort, match=options.match, state=options.state
    )
    told = options.ask(address, question)
    actors = _sorted(told, options.sort)
    shown = actors[: options.limit]
    count = sum(each.answer.actor_count for each in told.nodes if each.answer is not None)
    text = table_of_nodes((*LISTED, "BUSY", "WAITED"), shown)
    if count > options.limit:
        text += f"\n… {count - options.limit:,} more; --limit shows them"
    text += f"\n{_releases(told)}"
    options.show(shown, text, told)


def _releases(told: "ClusterInspection") -> str:
    """Return which nodes are of which release and build: in an upgrade they differ."""
    names: dict[str, list[str]] = {}
    for each in told.nodes:
        if each.answer is not None:
            names.setdefault(release_text(each.answer), []).append(each.name or each.node[:12])
    return "; ".join(f"{release}: {', '.join(found)}" for release, found in names.items())


@command(app)
def hangs(address: Address, options: HangsOptions) -> None:
    """List the actors of all nodes that have been in one handler for long.

    Those with the most messages waiting come first. The time is a lower bound: nodes look every
    second. What a handler awaits is told, and the line where it stands.

    \b
    Examples:
      callboard cluster hangs basp://127.0.0.1:4222
      callboard cluster hangs basp://127.0.0.1:4222 --seconds 30 --json
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    question = Inspect(options.limit, sort="busy", busy=options.seconds)
    told = options.ask(address, question)
    actors = _sorted(told, "depth")[: options.limit]
    head = ("ACTOR", "CLASS", "NAME", "STATE", "BUSY", "DEPTH", "WAITED")
    text = table_of_nodes((*head, "HANDLER", "AT", "WAITS FOR"), actors)
    if not actors:
        text = f"no actor has been in one handler for {options.seconds:g} s"
    options.show(actors, text, told)


@command(app)
def restarts(address: Address, options: ClusterOptions) -> None:
    """List what supervisors of all nodes started again, and why, the latest first.

    \b
    Examples:
      callboard cluster restarts basp://127.0.0.1:4222
      callboard cluster restarts basp://127.0.0.1:4222 --json | jq '.rows[] | select(.gave_up)'
    """  # noqa: D301
    told, found = _history(address, options, "restarted")
    rows = [
        (
            node,
            each.child,
            f"{each.restarts:,}",
            f"{age_text(each.age)} ago",
            "gave up" if each.gave_up else "runs",
            each.reason.partition("\n")[0],
            each.supervisor,
        )
        for node, each in found
    ]
    head = ("NODE", "CHILD", "RESTARTS", "LAST", "SUPERVISOR", "WHY", "SUPERVISED BY")
    text = columns(head, rows, right=(2, 3)) if rows else "nothing was started again"
    options.show(found, text, told)


@command(app)
def losses(address: Address, options: ClusterOptions) -> None:
    """List the messages that nobody handled on all nodes, the latest first.

    Dead letters, what full mailboxes dropped, asks that were too late before their turn,
    messages without a handler, and those that were lost on the way to another node. The
    messages themselves are not kept: their types and numbers are.

    \b
    Examples:
      callboard cluster losses basp://127.0.0.1:4222
      callboard cluster losses basp://127.0.0.1:4222 --node shop --json
    """  # noqa: D301
    told, found = _history(address, options, "losses")
    text = loss_table(found) if found else "nothing was lost"
    options.show(found, text, told)


def _history(
    address: str, options: ClusterOptions, what: str
) -> "tuple[ClusterInspection, Found[Any]]":
    """Return the answers of all nodes, and what they keep of one kind, the latest first."""
    from callboard.kernel.tables import Inspect

    told = options.ask(address, Inspect(0, history=True))
    return told, sorted(_of_nodes(told, what), key=lambda pair: pair[1].age)


def _of_nodes(told: "ClusterInspection", what: str) -> "Found[Any]":
    """Return what the answers of all nodes hold of one kind, with their nodes."""
    return [
        (node.name or node.node[:12], each)
        for node in told.nodes
        if node.answer is not None
        for each in getattr(node.answer, what)
    ]


def _sorted(told: "ClusterInspection", sort: str) -> "Found[ActorInfo]":
    """Return the actors of all nodes in order, with their nodes."""
    actors = _of_nodes(told, "actors")
    if sort == "node":
        return sorted(actors, key=lambda pair: pair[0])
    name = {"class": "actor_class"}.get(sort, sort)
    is_text = name in ("name", "actor_class", "state")
    return sorted(actors, key=lambda pair: getattr(pair[1], name), reverse=not is_text)


def _show_pages(options: ClusterPsOptions, told: "ClusterInspection") -> None:
    """Print what is told of the actors that are meant.

    Raises:
        Problem: there is none.
    """
    found = _of_nodes(told, "pages")
    options.show(found, "\n\n".join(page(*each) for each in found), told)
    if not found:
        raise Problem(
            why=f"no actor is called {options.actor!r}",
            step="name one as ps shows it: its NAME, its number, or NUMBER@NODE",
        )
