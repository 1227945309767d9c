"""The work of `callboard node ps`, `top` and `drain`."""

import itertools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from basp.header import INSPECTOR
from callboard import ActorRef
from callboard.cli.columns import age_text, columns
from callboard.cli.credentials import Credentials, open_node
from callboard.cli.failure import FAILED, Failure
from callboard.cli.values import to_json
from proxies.inspection import ActorInfo, DrainNode, Inspect, Inspection

if TYPE_CHECKING:
    from collections.abc import Callable

    Show = Callable[["Inspection", dict[str, float], list["Rated"]], None]

NAME: Final = "callboard node"
"""What the short-lived node of these commands calls itself."""

MOST_SHARES: Final = 5
"""Classes whose share of the time is shown."""

LEAST_SHARE: Final = 0.005
"""A smaller share of the time is not shown."""

ANSWER_TIME: Final = 5.0
"""Seconds that a drain's answer may take beyond the drain itself."""


@dataclass(frozen=True, slots=True)
class Rated:
    """An actor, and how many messages a second it handled since the look before."""

    actor: ActorInfo
    rate: float


@contextmanager
def _inspector(
    address: str, timeout: float, credentials: Credentials
) -> Iterator[ActorRef[Any]]:
    with open_node(NAME, credentials) as node:
        yield node.runtime.ref_to(node.connect(address, timeout), INSPECTOR)


def inspect(
    address: str, *, system: bool, limit: int, timeout: float, credentials: Credentials
) -> Inspection:
    """Return what a running node tells about itself."""
    with _inspector(address, timeout, credentials) as inspector:
        found: Inspection = inspector.ask(Inspect(limit, system), timeout=timeout).result()
        return found


def show_actors(told: Inspection) -> str:
    """Return the actors of a node as a table."""
    rows = [
        (
            _number(actor),
            actor.actor_class,
            actor.name or "-",
            actor.state,
            f"{actor.depth:,}",
            f"{actor.handled:,}",
            age_text(actor.age),
        )
        for actor in told.actors
    ]
    head = ("ACTOR", "CLASS", "NAME", "STATE", "DEPTH", "HANDLED", "AGE")
    text = columns(head, rows, right=(4, 5, 6))
    shown = sum(actor.actor_class != "Proxy" for actor in told.actors)
    if told.actor_count > shown:
        text += f"\n… {told.actor_count - shown:,} more; --limit shows them"
    return text


def show_parts(told: Inspection) -> str:
    """Return the actors, the links and the routes of a node as tables."""
    links = [
        (
            link.peer_name or "-",
            link.peer.hex()[:12],
            link.address or "-",
            f"{link.frames_sent:,}",
            f"{link.frames_received:,}",
            f"{link.bytes_waiting:,}",
        )
        for link in told.neighbours
    ]
    head = ("LINK", "NODE", "DIALLED", "SENT", "RECEIVED", "B WAITING")
    text = f"{show_actors(told)}\n\n{columns(head, links, right=(3, 4, 5))}"
    names = {link.peer: link.peer_name for link in told.neighbours}
    routes = [
        (
            route.name or "-",
            route.node_id.hex()[:12],
            f"{route.hops}",
            names.get(route.via) or route.via.hex()[:12],
        )
        for route in told.routes
    ]
    return f"{text}\n\n{columns(('ROUTE TO', 'NODE', 'HOPS', 'VIA'), routes, right=(2,))}"


def _number(actor: ActorInfo) -> str:
    """Return the actor's number and, shortened, its node: that tells proxies apart."""
    number, _, node = actor.address.rpartition("/")[2].partition("@")
    return f"{number}@{node[:6]}"


def drain(address: str, *, timeout: float, as_json: bool, credentials: Credentials) -> int:
    """Drain a running node; returns the exit code."""
    with _inspector(address, ANSWER_TIME, credentials) as inspector:
        report = inspector.ask(DrainNode(timeout), timeout=timeout + ANSWER_TIME).result()
    text = f"{report.finished:,} messages finished, {report.left:,} left"
    if as_json:
        typer.echo(to_json(report))
    else:
        typer.echo(f"{address} was drained in {report.seconds:.1f} s: {text}")
    if report.is_clean:
        return 0
    raise Failure(
        why=f"{address} was closed at its deadline, {text}",
        step="see the log of that node for what was cut short",
        code=FAILED,
    )


def top(
    address: str,
    *,
    interval: float,
    looks: int,
    limit: int,
    as_json: bool,
    credentials: Credentials,
) -> None:
    """Show the busiest actors again and again; `looks` 0 goes on until Ctrl-C."""
    before: dict[str, int] = {}
    spent: dict[str, float] = {}
    since = time.monotonic()
    with (
        _inspector(address, ANSWER_TIME, credentials) as inspector,
        _screen(as_json=as_json) as show,
    ):
        for look in itertools.count(1):
            told: Inspection = inspector.ask(Inspect(), timeout=ANSWER_TIME).result()
            since, passed = time.monotonic(), time.monotonic() - since
            rated = rate(told, before, passed)
            before = {actor.address: actor.handled for actor in told.actors}
            shares = busy_shares(told, spent, passed) if look > 1 else {}
            spent = told.handler_seconds
            show(told, shares, rated[:limit])
            if look == looks:
                return
            time.sleep(interval)


def rate(told: Inspection, before: dict[str, int], seconds: float) -> list[Rated]:
    """Return the actors with their rates, the busiest first.

    Args:
        told: by the node.
        before: messages handled by address, at the look before.
        seconds: since then.
    """
    rated = [
        Rated(
            actor,
            max(0.0, (actor.handled - before.get(actor.address, actor.handled)) / seconds),
        )
        for actor in told.actors
    ]
    return sorted(rated, key=lambda row: (-row.rate, -row.actor.depth, -row.actor.handled))


def busy_shares(told: Inspection, before: dict[str, float], seconds: float) -> dict[str, float]:
    """Return the classes whose handlers took time, with its share, the busiest first.

    Args:
        told: by the node.
        before: seconds in handlers by class, at the look before.
        seconds: since then.
    """
    shares = {
        name: (spent - before.get(name, 0.0)) / seconds
        for name, spent in told.handler_seconds.items()
    }
    busiest = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    return {name: share for name, share in busiest[:MOST_SHARES] if share >= LEAST_SHARE}


def _screen(*, as_json: bool) -> "AbstractContextManager[Show]":
    from rich.console import Console

    console = Console()
    if not as_json and console.is_terminal:
        from callboard.cli.live import live_view

        return live_view(console)
    return _lines(as_json=as_json)


@contextmanager
def _lines(*, as_json: bool) -> "Iterator[Show]":
    def show(told: Inspection, shares: dict[str, float], rated: list[Rated]) -> None:
        if as_json:
            actors = [{**_fields(row.actor), "rate": row.rate} for row in rated]
            typer.echo(to_json({**_fields(told), "busy": shares, "actors": actors}))
        else:
            typer.echo(f"{summary(told, shares)}\n{columns(HEAD, table(rated), right=RIGHT)}")

    yield show


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


HEAD: Final = ("ACTOR", "CLASS", "NAME", "STATE", "DEPTH", "WAITED", "MSG/S", "HANDLED", "AGE")
RIGHT: Final = (4, 5, 6, 7, 8)


def summary(told: Inspection, shares: dict[str, float]) -> str:
    """Return the lines above the table; `shares` as of `busy_shares`."""
    state = "draining" if told.is_draining else "up"
    busy = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        f"{told.name}: {state} {age_text(told.uptime)}, {told.actor_count:,} actors, "
        f"{told.links:,} links, {told.nodes:,} nodes\n"
        f"{told.handled:,} handled, {told.waiting:,} waiting, {told.dead_letters:,} dead "
        f"letters, {told.overflows:,} overflows, {told.expired:,} expired, "
        f"{told.slow_handlers:,} slow handlers\n"
        f"time in handlers: {busy or '-'}"
    )


def table(rated: list[Rated]) -> list[tuple[str, ...]]:
    """Return the cells of the table."""
    return [
        (
            _number(row.actor),
            row.actor.actor_class,
            row.actor.name or "-",
            row.actor.state,
            f"{row.actor.depth:,}",
            age_text(row.actor.waited),
            f"{row.rate:,.0f}",
            f"{row.actor.handled:,}",
            age_text(row.actor.age),
        )
        for row in rated
    ]
