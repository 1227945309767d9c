"""Tables of actors, and a page with the details of one actor."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from callboard.cli.output import age_text, columns
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.kernel.tables import ActorInfo, ActorPage, LossInfo

#: Columns of tables: each formats an actor and its rate of handled messages per second.
CELLS: "Final[dict[str, Callable[[ActorInfo, float], str]]]" = {
    "ACTOR": lambda actor, _: number_of(actor),
    "CLASS": lambda actor, _: actor.actor_class,
    "NAME": lambda actor, _: actor.name or "-",
    "STATE": lambda actor, _: actor.state,
    "DEPTH": lambda actor, _: f"{actor.depth:,}",
    "WAITED": lambda actor, _: age_text(actor.waited),
    "MSG/S": lambda _, rate: f"{rate:,.0f}",
    "HANDLED": lambda actor, _: f"{actor.handled:,}",
    "RESTARTS": lambda actor, _: f"{actor.restarts:,}",
    "AGE": lambda actor, _: age_text(actor.age),
    "BUSY": lambda actor, _: age_text(actor.busy) if actor.busy else "-",
    "HANDLER": lambda actor, _: actor.handler or "-",
    "AT": lambda actor, _: actor.place or "-",
    "WAITS FOR": lambda actor, _: actor.awaits or "-",
}

#: Columns of numbers, which are aligned right.
_FIGURES: Final = ("DEPTH", "WAITED", "MSG/S", "HANDLED", "RESTARTS", "AGE", "BUSY")

#: Columns of `top`.
RATED: Final = tuple(CELLS)[:10]

#: Columns of `top` that `ps` does not have.
_RATES: Final = ("WAITED", "MSG/S")
LISTED: Final = tuple(title for title in RATED if title not in _RATES)


def table(head: Sequence[str], rated: "Iterable[tuple[ActorInfo, float]]") -> str:
    """Return actors as a table."""
    rows = [[CELLS[title](actor, rate) for title in head] for actor, rate in rated]
    return columns(head, rows, right=right_of(head))


def table_of_nodes(head: Sequence[str], actors: "Iterable[tuple[str, ActorInfo]]") -> str:
    """Return actors of several nodes as a table whose first column is the node."""
    rows = [[node, *(CELLS[title](actor, 0.0) for title in head)] for node, actor in actors]
    titles = ["NODE", *head]
    return columns(titles, rows, right=right_of(titles))


def right_of(head: Sequence[str]) -> list[int]:
    """Return the indices of the columns of numbers."""
    return [index for index, title in enumerate(head) if title in _FIGURES]


def number_of(actor: "ActorInfo") -> str:
    """Return an actor's number and the start of its node id, to distinguish proxies."""
    number, _, node = actor.address.rpartition("/")[2].partition("@")
    return f"{number}@{node[:6]}"


def page(node: str, details: "ActorPage") -> str:
    """Return the details of one actor."""
    actor = details.actor
    oldest = f", the oldest for {age_text(actor.waited)}" if actor.waited else ""
    bounds = f"; {details.mailbox}" if details.mailbox else ""
    place = f" at {actor.place}" if actor.place else ""
    busy = f"{actor.handler or '?'}{place} for {age_text(actor.busy)}" if actor.busy else "-"
    message = f", with {actor.message}" if actor.message and actor.busy else ""
    parent = f", by {actor.parent}" if actor.parent else ""
    failures = [f"{age_text(item.age)} ago: {item.text}" for item in details.failures]
    lines = [
        ("address", [actor.address]),
        ("state", [actor.state]),
        ("mailbox", [f"{actor.depth:,} waiting{oldest}{bounds}"]),
        ("handler", [busy + message]),
        ("waits for", [actor.awaits]),
        ("handled", [f"{actor.handled:,} in {age_text(actor.age)}"]),
        ("restarts", [f"{actor.restarts:,}"]),
        ("spawned", [f"{age_text(actor.age)} ago{parent}"]),
        ("monitors", [f"{details.watchers:,} by other actors"]),
        ("watches", details.monitors),
        ("linked", details.links),
        ("children", details.children),
        ("errors", failures),
        ("lost", [loss_text(item) for item in details.losses]),
    ]
    name = f" ({actor.name})" if actor.name else ""
    rows = [f"{actor.actor_class}{name} on {node}"]
    for title, texts in lines:
        rows += [
            f"  {title if index == 0 else '':<10}{printable(text)}"
            for index, text in enumerate(item for item in texts if item)
        ]
    return "\n".join(rows)


def loss_text(loss: "LossInfo") -> str:
    """Return a loss in words."""
    message = f" {loss.message}" if loss.message else ""
    origin = f", from {loss.sender}" if loss.sender else ""
    return f"{loss.count:,}{message}: {loss.kind}{origin}, {age_text(loss.age)} ago"


def loss_table(losses: "Iterable[tuple[str, LossInfo]]") -> str:
    """Return losses as a table."""
    rows = [
        (
            node,
            loss.kind,
            loss.name or loss.actor_class or "-",
            f"{loss.count:,}",
            loss.message or "-",
            loss.sender or "-",
            f"{age_text(loss.age)} ago",
            loss.end or "-",
            loss.address,
        )
        for node, loss in losses
    ]
    head = ("NODE", "LOST", "BY", "COUNT", "MESSAGE", "FROM", "LAST", "ENDED", "RECEIVER")
    return columns(head, rows, right=(3, 6))
