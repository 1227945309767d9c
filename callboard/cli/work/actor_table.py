"""Actors of nodes as tables, and one of them as a page."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from callboard.cli.output import age_text, columns
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.kernel.tables import ActorInfo, ActorPage, LossInfo

#: What tables show of an actor, and of the messages a second that it handles.
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

#: Columns that stand at their right edge, as figures do.
_FIGURES: Final = ("DEPTH", "WAITED", "MSG/S", "HANDLED", "RESTARTS", "AGE", "BUSY")

#: What `top` shows.
RATED: Final = tuple(CELLS)[:10]

#: What `ps` leaves to `top`.
_RATES: Final = ("WAITED", "MSG/S")
LISTED: Final = tuple(title for title in RATED if title not in _RATES)


def table(head: Sequence[str], rated: "Iterable[tuple[ActorInfo, float]]") -> str:
    """Return actors as a table; figures stand at their right edge."""
    rows = [[CELLS[title](actor, rate) for title in head] for actor, rate in rated]
    return columns(head, rows, right=right_of(head))


def table_of_nodes(head: Sequence[str], actors: "Iterable[tuple[str, ActorInfo]]") -> str:
    """Return actors of several nodes as a table that begins with the node."""
    rows = [[node, *(CELLS[title](actor, 0.0) for title in head)] for node, actor in actors]
    titles = ["NODE", *head]
    return columns(titles, rows, right=right_of(titles))


def right_of(head: Sequence[str]) -> list[int]:
    """Return the indexes of the columns that hold figures."""
    return [index for index, title in enumerate(head) if title in _FIGURES]


def number_of(actor: "ActorInfo") -> str:
    """Return the actor's number and, shortened, its node: that tells proxies apart."""
    number, _, node = actor.address.rpartition("/")[2].partition("@")
    return f"{number}@{node[:6]}"


def page(node: str, told: "ActorPage") -> str:
    """Return all that is told of one actor."""
    actor = told.actor
    oldest = f", the oldest for {age_text(actor.waited)}" if actor.waited else ""
    bounds = f"; {told.mailbox}" if told.mailbox else ""
    place = f" at {actor.place}" if actor.place else ""
    busy = f"{actor.handler or '?'}{place} for {age_text(actor.busy)}" if actor.busy else "-"
    about = f", with {actor.message}" if actor.message and actor.busy else ""
    by = f", by {actor.parent}" if actor.parent else ""
    failures = [f"{age_text(each.age)} ago: {each.text}" for each in told.failures]
    lines = [
        ("address", [actor.address]),
        ("state", [actor.state]),
        ("mailbox", [f"{actor.depth:,} waiting{oldest}{bounds}"]),
        ("handler", [busy + about]),
        ("waits for", [actor.awaits]),
        ("handled", [f"{actor.handled:,} in {age_text(actor.age)}"]),
        ("restarts", [f"{actor.restarts:,}"]),
        ("spawned", [f"{age_text(actor.age)} ago{by}"]),
        ("monitors", [f"{told.watchers:,} of others"]),
        ("watches", told.monitors),
        ("linked", told.links),
        ("children", told.children),
        ("errors", failures),
        ("lost", [loss_text(each) for each in told.losses]),
    ]
    name = f" ({actor.name})" if actor.name else ""
    rows = [f"{actor.actor_class}{name} on {node}"]
    for title, texts in lines:
        rows += [
            f"  {title if index == 0 else '':<10}{printable(text)}"
            for index, text in enumerate(each for each in texts if each)
        ]
    return "\n".join(rows)


def loss_text(loss: "LossInfo") -> str:
    """Return a row of losses in words."""
    what = f" {loss.message}" if loss.message else ""
    origin = f", from {loss.sender}" if loss.sender else ""
    return f"{loss.count:,}{what}: {loss.kind}{origin}, {age_text(loss.age)} ago"


def loss_table(found: "Iterable[tuple[str, LossInfo]]") -> str:
    """Return losses as a table."""
    rows = [
        (
            node,
            each.kind,
            each.name or each.actor_class or "-",
            f"{each.count:,}",
            each.message or "-",
            each.sender or "-",
            f"{age_text(each.age)} ago",
            each.end or "-",
            each.address,
        )
        for node, each in found
    ]
    head = ("NODE", "LOST", "BY", "COUNT", "MESSAGE", "FROM", "LAST", "ENDED", "RECEIVER")
    return columns(head, rows, right=(3, 6))
