"""Options of commands that inspect all nodes of a cluster, and the tables that they print."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from callboard.cli.cli_error import CliError
from callboard.cli.node import inspector, release_text
from callboard.cli.options import AccessOptions, LookOptions, flag, option
from callboard.cli.output import cell_text, columns, is_number
from callboard.support.inspection_tables import found_rows
from callboard.support.platform.release import RELEASE

if TYPE_CHECKING:
    from callboard.kernel.tables import ClusterInspection, Inspect, NodeAnswer, ReadPart

#: Further seconds for the node that collects the answers.
ANSWER_TIME: Final = 2.0

T = TypeVar("T")

#: Results, each with the name of its node.
Found = list[tuple[str, T]]

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

    def ask_table(self, address: str, question: "ReadPart") -> "ClusterInspection":
        """Return the answers of the selected nodes to a question about a table.

        Raises:
            CliError: no node is selected, or the releases of all nodes lack the table.
        """
        inspection = self.ask(address, question)
        answered = [node for node in inspection.nodes if node.answer is not None]
        lacking = [node for node in answered if not node.answer.is_known]
        if not lacking:
            return inspection
        reasons = _reasons(lacking, self.ask(address, _question_of_releases()))
        if len(lacking) == len(answered):
            reason = "; ".join(f"{node.name}: {reasons[node.node]}" for node in lacking)
            raise CliError(why=reason, step=f"upgrade callboard there to {RELEASE}")
        for node in lacking:
            index = inspection.nodes.index(node)
            inspection.nodes[index] = replace(node, error=reasons[node.node], answer=None)
        return inspection

    def show(self, results: "Found[Any]", text: str, inspection: "ClusterInspection") -> None:
        """Print results, and the nodes that did not answer."""
        rows, silent = found_rows(results), silent_nodes(inspection)
        missing = unanswered(silent)
        self.say({"rows": rows, "silent": silent}, "\n".join([text, *missing]))

    def show_table(
        self,
        inspection: "ClusterInspection",
        head: Sequence[str],
        empty: str,
        formats: "Mapping[str, Callable[[Any], str]]" = MappingProxyType({}),
        sort: str = "",
    ) -> None:
        """Print the rows of a table.

        Args:
            inspection: the answers of the nodes.
            head: the columns.
            empty: the text that is printed if there are no rows.
            formats: functions that format the values of columns, by column.
            sort: the column to sort by, largest first; "" keeps the order of nodes and rows.
        """
        rows = [
            {"node": answer.name or answer.node[:12], **row}
            for answer in inspection.nodes
            if answer.answer is not None
            for row in answer.answer.rows
        ]
        silent = silent_nodes(inspection)
        if sort:
            rows.sort(key=lambda row: -row[sort])
        cells = [[formats.get(name, cell_text)(row.get(name)) for name in head] for row in rows]
        right = [
            index for index, name in enumerate(head) if rows and is_number(rows[0].get(name))
        ]
        titles = [name.upper().replace("_", " ") for name in head]
        text = columns(titles, cells, right=right) if rows else empty
        self.say({"rows": rows, "silent": silent}, "\n".join([text, *unanswered(silent)]))


def silent_nodes(inspection: "ClusterInspection") -> dict[str, str]:
    """Return why nodes gave no answer, by name."""
    return {
        answer.name or answer.node[:12]: answer.error
        for answer in inspection.nodes
        if answer.error
    }


def unanswered(silent: dict[str, str]) -> list[str]:
    """Return a line for each node that gave no answer."""
    return [f"no answer from {name}: {error}" for name, error in silent.items()]


@dataclass(frozen=True, kw_only=True)
class ClusterTopOptions(LookOptions, ClusterOptions):
    """Interval of the updates, and the size of the table of actors."""

    limit: int = option(20, "Most actors to list.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class ClusterEventsOptions(LookOptions, ClusterOptions):
    """Selection of the printed events."""

    follow: bool = flag("Continue with new events until Ctrl-C.", "--follow", "-f")
    limit: int = option(100, "Most earlier events of each node.", min=0, max=1_000)
    kind: str = option("*", "Only matching kinds (* and ?).", metavar="PATTERN")
    interval: float = option(0.5, "Seconds between updates with --follow.", min=0.05)
    count: int = option(0, "Updates with --follow; 0 continues until Ctrl-C.", min=0)
    as_json: bool = flag("Print JSON lines.", "--json")


def _question_of_releases() -> "Inspect":
    """Return the shortest question whose answer names the release of a node."""
    from callboard.kernel.tables import Inspect

    return Inspect(0)


def _reasons(lacking: "Sequence[NodeAnswer]", releases: "ClusterInspection") -> dict[str, str]:
    """Return for each node id why the node cannot answer a question about a table."""
    texts = {
        node.node: release_text(node.answer)
        for node in releases.nodes
        if node.answer is not None
    }
    return {
        node.node: f"it runs {texts.get(node.node, 'an older release')} of callboard, which "
        "cannot answer this command"
        for node in lacking
    }
