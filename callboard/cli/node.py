"""`callboard node …`: run nodes, see into them, end them."""

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callboard.cli.loading import load_app
from callboard.cli.options import (
    AccessOptions,
    JsonOptions,
    LookOptions,
    command,
    flag,
    noun,
    option,
)
from callboard.cli.output import age_text, columns, say, to_json
from callboard.cli.problem import one_line
from callboard.cli.work.actor_table import LISTED, RATED, loss_table, table
from callboard.support.parts import event_row

if TYPE_CHECKING:
    from callboard.kernel.actors import ActorRef
    from callboard.kernel.tables import ActorInfo, EventInfo, EventPage, Inspection, LinkInfo

#: What the short-lived node of these commands calls itself.
NAME: Final = "callboard node"

#: Classes whose share of the time is shown.
MOST_SHARES: Final = 5

#: A smaller share of the time is not shown.
LEAST_SHARE: Final = 0.005

#: Events in one look at most.
MOST_EVENTS: Final = 1_000

#: Seconds that a drain's answer may take beyond the drain itself.
ANSWER_TIME: Final = 5.0

app = noun()

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT")]


@dataclass(frozen=True, kw_only=True)
class RunNodeOptions(AccessOptions):
    """What stands above the configuration of a node."""

    config: Path | None = option(None, "Configuration file.", metavar="NODE.toml")
    listen: str | None = option(
        None, "Where others reach the node (127.0.0.1:0).", metavar="HOST:PORT"
    )
    join: list[str] | None = option(
        None,
        "A node to be linked with, or where to find some: dns://NAME:PORT, srv://NAME, "
        "file:PATH; repeatable.",
        metavar="ADDRESS",
    )
    name: str | None = option(None, "What people see; default is the file's name.")
    permissions: Path | None = option(
        None, "Named secrets, and what each peer may do.", metavar="FILE.toml"
    )
    insecure: bool = flag("Listen on public addresses without secret or TLS.", "--insecure")
    health: str | None = option(
        None, "Serve /livez, /readyz and /metrics there.", metavar="HOST:PORT"
    )
    log_level: str | None = option(None, "debug, info (the default), warning, error, critical.")
    log_format: str | None = option(None, "text (the default) or json.", metavar="text|json")
    drain_timeout: float | None = option(None, "Seconds that a drain may take (30).", min=0.0)
    when_exhausted: str | None = option(
        None,
        "exit (the default) or stay, unready, when a supervisor gave up.",
        metavar="exit|stay",
    )
    as_json: bool = flag("Print the address as JSON.", "--json")

    def given(self, app: Path | None) -> dict[str, Any]:
        """Return what was given of the keys of a configuration."""
        keys = (
            *("listen", "join", "name", "insecure", "health", "log_level", "drain_timeout"),
            *("when_exhausted", "permissions", "log_format"),
        )
        values = {"app": app} | {key: getattr(self, key) for key in keys}
        return {
            key: value
            for key, value in values.items()
            if value is not None and value is not False and value != []
        }


@dataclass(frozen=True, kw_only=True)
class PsOptions(AccessOptions):
    """Which actors are listed."""

    system: bool = flag(
        "Show the node's own parts, its proxies, links and routes too.", "--system"
    )
    tree: bool = flag("Show each actor below the one that spawned it.", "--tree")
    limit: int = option(100, "Actors at most.", min=1, max=10_000)
    timeout: float = option(5.0, "Seconds that it may take.", min=0.001)


@dataclass(frozen=True, kw_only=True)
class TopOptions(LookOptions, AccessOptions):
    """How often a node is looked at, and how much is shown."""

    limit: int = option(40, "Actors at most.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class EventsOptions(AccessOptions):
    """Which events are printed."""

    follow: bool = flag("Go on until Ctrl-C.", "--follow", "-f")
    limit: int = option(100, "Earlier events at most.", min=0, max=1_000)
    kind: str = option("*", "Only kinds that match (* and ?).", metavar="PATTERN")
    interval: float = option(0.5, "Seconds between looks with --follow.", min=0.05)
    count: int = option(0, "Looks with --follow; 0 goes on until Ctrl-C.", min=0)
    as_json: bool = flag("Print JSON lines.", "--json")


@dataclass(frozen=True, kw_only=True)
class DeadLettersOptions(AccessOptions):
    """How long a node has to answer."""

    timeout: float = option(5.0, "Seconds that it may take.", min=0.001)


@dataclass(frozen=True, kw_only=True)
class DrainOptions(AccessOptions):
    """How long a drain may take."""

    timeout: float = option(30.0, "Seconds that it may take.", min=0.0)


@command(app)
def run(
    options: RunNodeOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="[APP.py]", help="Python file with your actors.")
    ] = None,
) -> int:
    """Host the actors of a file until Ctrl-C or SIGTERM.

    If the file defines setup(node), that is called with the node first: spawn and register
    there. Each public Actor subclass that the file defines can be spawned by other nodes under
    its name; a mapping `spawnable = {"name": Class}` in the file replaces that list.

    Options stand above environment variables (CALLBOARD_LISTEN, CALLBOARD_JOIN, …), those above
    the configuration file.

    The first signal drains the node: asks under way are answered, mailboxes emptied. A second
    one ends it at once. The exit code is 0 when nothing was cut short, else 1. A supervisor
    that gives up, and that no other one starts again, drains the node too, with exit code 1.

    \b
    Examples:
      callboard node run shop.py
      callboard node run shop.py --listen 127.0.0.1:4222 --name shop --health 127.0.0.1:9464
      callboard node run till.py --join basp://127.0.0.1:4222
      callboard node run till.py --listen 0.0.0.0:4222 --join dns://till.default.svc:4222
      callboard node run shop.py --listen 0.0.0.0:4222 --secret-file cluster.secret
      callboard node run shop.py --listen 0.0.0.0:4222 --permissions peers.toml
      callboard node run --config node.toml
    """  # noqa: D301
    if file is None and options.config is None:
        raise typer.BadParameter("name an APP.py, or a file with --config")  # noqa: EM101
    from callboard.cli.work.host import configure, host

    return host(configure(options.config, options.given(file)), options)


@command(app)
def check(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="Configuration file.")],
    options: JsonOptions,
) -> None:
    """Check a configuration file: all mistakes at once, one line each.

    Its app is loaded, so that classes are known to be there; no node is started.

    \b
    Examples:
      callboard node check node.toml
      callboard node check node.toml --json && callboard node run --config node.toml
    """  # noqa: D301
    from callboard.cli.work.host import children, configure, peers, spawnable

    config = configure(file, {})
    peers(config)
    module = None if config.app is None else load_app(config.app)
    spawnable(config, module)
    children(config, module)
    options.say({"valid": True}, f"{file} is valid")


@command(app)
def ps(address: Address, options: PsOptions) -> None:
    """List the actors of a running node, those with the deepest mailboxes first.

    \b
    Examples:
      callboard node ps basp://127.0.0.1:4222
      callboard node ps basp://127.0.0.1:4222 --system --limit 1000
      callboard node ps basp://127.0.0.1:4222 --tree
      callboard node ps basp://127.0.0.1:4222 --json | jq '.actors[].depth'
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    with inspector(address, options.timeout, options) as found:
        question = Inspect(options.limit, options.system)
        told: Inspection = found.ask(question, timeout=options.timeout).result()
    if options.tree:
        told = replace(told, actors=in_tree(told.actors))
    show = _parts_text if options.system else _actors_text
    say(to_json(told) if options.as_json else show(told))


@command(app)
def top(address: Address, options: TopOptions) -> None:
    """Watch the busiest actors of a running node.

    In a terminal the table is drawn in place; elsewhere each look is printed.

    \b
    Examples:
      callboard node top basp://127.0.0.1:4222
      callboard node top basp://127.0.0.1:4222 --interval 5 --count 12 --json
    """  # noqa: D301
    from callboard.kernel.tables import Inspect, ReadPart

    before: dict[str, int] = {}
    spent: dict[str, float] = {}
    since = time.monotonic()
    with (
        inspector(address, ANSWER_TIME, options) as found,
        options.screen() as show,
    ):
        for look in options.looks():
            told: Inspection = found.ask(Inspect(), timeout=ANSWER_TIME).result()
            since, passed = time.monotonic(), time.monotonic() - since
            rated = rates(told, before, passed)[: options.limit]
            before = {actor.address: actor.handled for actor in told.actors}
            shares = busy_shares(told, spent, passed) if look > 1 else {}
            spent = told.handler_seconds
            actors = [asdict(actor) | {"rate": rate} for actor, rate in rated]
            peers = found.ask(ReadPart("peers"), timeout=ANSWER_TIME).result().rows
            row = asdict(told) | {"busy": shares, "actors": actors, "peers": peers}
            show(row, f"{summary(told, shares)}\n{_wires_text(peers)}{table(RATED, rated)}")


def _wires_text(peers: "Sequence[dict[str, Any]]") -> str:
    """Return a line of the peers on wires of other software; "" where there are none."""
    told = [
        f"{each['wire']} {each['peer'] or each['address']} ({each['status']})"
        for each in peers
        if each["wire"] != "native"
    ]
    return f"on other wires: {', '.join(told)}\n" if told else ""


@command(app)
def events(address: Address, options: EventsOptions) -> None:
    """Print what happened on a running node: links, restarts, failures, losses, a line each.

    With --follow it goes on with what happens next; starts and ends of actors are told then,
    too. Losses of one kind are told once a second, with their number.

    \b
    Examples:
      callboard node events basp://127.0.0.1:4222
      callboard node events basp://127.0.0.1:4222 -f --kind '*Down'
      callboard node events basp://127.0.0.1:4222 -f --json
    """  # noqa: D301
    from callboard.kernel.tables import ReadEvents

    last, looks = -1, options.count if options.follow else 1
    with inspector(address, ANSWER_TIME, options) as found:
        for look in itertools.count(1):
            limit = options.limit if last < 0 else MOST_EVENTS
            told: EventPage = found.ask(ReadEvents(last, limit), timeout=ANSWER_TIME).result()
            last = told.last
            if told.missed:
                missed = f"… {told.missed:,} events came too fast and are not kept"
                options.say({"missed": told.missed}, missed)
            for event in told.events:
                if fnmatchcase(event.kind, options.kind):
                    _say_event(event, options)
            sys.stdout.flush()
            if look == looks:
                return
            time.sleep(options.interval)


def _say_event(event: "EventInfo", options: JsonOptions) -> None:
    """Print an event with the time at which it happened."""
    row = event_row(event)
    told = "  ".join(f"{name}={one_line(value)}" for name, value in event.values.items())
    stamp = datetime.fromisoformat(row["time"]).astimezone().isoformat(" ", "milliseconds")
    options.say(row, f"{stamp[:23]} {event.kind}  {told}".rstrip())


@command(app, "dead-letters")
def dead_letters(address: Address, options: DeadLettersOptions) -> None:
    """List the messages that came to actors of a node which had ended, the latest first.

    A row for each receiver, type and sender; the messages themselves are not kept. callboard
    cluster losses lists what was lost in other ways, too.

    \b
    Examples:
      callboard node dead-letters basp://127.0.0.1:4222
      callboard node dead-letters basp://127.0.0.1:4222 --json | jq '.[].count'
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    with inspector(address, options.timeout, options) as found:
        question = Inspect(0, history=True)
        told: Inspection = found.ask(question, timeout=options.timeout).result()
    letters = [loss for loss in told.losses if loss.kind == "dead letter"]
    rows = loss_table([(told.name, loss) for loss in letters])
    options.say(letters, rows if letters else "no dead letters")


@command(app)
def drain(address: Address, options: DrainOptions) -> None:
    """Let a running node finish what is under way, take nothing new, and end.

    The exit code is 0 when nothing was cut short, else 1.

    \b
    Examples:
      callboard node drain basp://127.0.0.1:4222
      callboard node drain basp://127.0.0.1:4222 --timeout 120 --json
    """  # noqa: D301
    from callboard.cli.work.host import complain_unless_clean, ending
    from callboard.kernel.tables import DrainNode

    timeout = options.timeout
    with inspector(address, ANSWER_TIME, options) as found:
        report = found.ask(DrainNode(timeout), timeout=timeout + ANSWER_TIME).result()
    options.say(report, f"{address} was drained in {ending(report)}")
    complain_unless_clean(report, address, "see the log of that node for what was cut short")


@contextlib.contextmanager
def inspector(address: str, timeout: float, access: AccessOptions) -> "Iterator[ActorRef[Any]]":
    """Yield the actor of a running node that tells about it."""
    from callboard.kernel.topology import INSPECTOR

    with access.open_node(NAME) as node:
        yield node.context.ref_of(node.connect(address, timeout), INSPECTOR)


def in_tree(actors: "Sequence[ActorInfo]") -> "list[ActorInfo]":
    """Return actors with each below the one that spawned it, its class as far to the right."""
    below: dict[str, list[ActorInfo]] = {}
    known = {actor.address for actor in actors}
    for actor in actors:
        below.setdefault(actor.parent if actor.parent in known else "", []).append(actor)
    rows: list[ActorInfo] = []
    waiting = [(0, actor) for actor in reversed(below.pop("", []))]
    while waiting:
        depth, actor = waiting.pop()
        rows.append(replace(actor, actor_class="  " * depth + actor.actor_class))
        children = below.pop(actor.address, [])
        waiting += [(depth + 1, child) for child in reversed(children)]
    return rows


def _actors_text(told: "Inspection") -> str:
    """Return the actors of a node as a table."""
    text = table(LISTED, ((actor, 0.0) for actor in told.actors))
    if told.exhausted:
        text = f"{told.exhausted:,} supervisors gave up; see the node's log\n{text}"
    shown = sum(actor.actor_class != "Proxy" for actor in told.actors)
    if told.actor_count > shown:
        text += f"\n… {told.actor_count - shown:,} more; --limit shows them"
    return text


def release_text(told: "Inspection | LinkInfo") -> str:
    """Return release and build of a node for people."""
    return f"release {told.release}" + (f" ({told.build})" if told.build else "")


def _parts_text(told: "Inspection") -> str:
    """Return the actors, the links and the routes of a node as tables."""
    links = [
        (
            link.peer_name or "-",
            link.peer.hex()[:12],
            link.address or "-",
            f"{link.frames_sent:,}",
            f"{link.frames_received:,}",
            f"{link.bytes_waiting:,}",
            link.guard,
            link.release,
        )
        for link in told.neighbours
    ]
    head = ("LINK", "NODE", "DIALLED", "SENT", "RECEIVED", "B WAITING", "GUARD", "RELEASE")
    text = f"{_actors_text(told)}\n\n{columns(head, links, right=(3, 4, 5))}"
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
    text += f"\n\n{columns(('ROUTE TO', 'NODE', 'HOPS', 'VIA'), routes, right=(2,))}"
    return f"{text}\n\n{told.name} is of {release_text(told)}"


def rates(
    told: "Inspection", before: dict[str, int], seconds: float
) -> "list[tuple[ActorInfo, float]]":
    """Return the actors with their rates, the busiest first.

    Args:
        told: by the node.
        before: messages handled by address, at the look before.
        seconds: since then.
    """
    rises = [actor.handled - before.get(actor.address, actor.handled) for actor in told.actors]
    rated = [
        (actor, max(0.0, rise / seconds))
        for actor, rise in zip(told.actors, rises, strict=True)
    ]
    return sorted(rated, key=lambda row: (-row[1], -row[0].depth, -row[0].handled))


def busy_shares(
    told: "Inspection", before: dict[str, float], seconds: float
) -> dict[str, float]:
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


def summary(told: "Inspection", shares: dict[str, float]) -> str:
    """Return the lines above the table; `shares` as of `busy_shares`."""
    state = "draining" if told.is_draining else "up"
    busy = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        f"{told.name}: {state} {age_text(told.uptime)}, {told.actor_count:,} actors, "
        f"{told.links:,} links, {told.nodes:,} nodes, {release_text(told)}\n"
        f"{told.handled:,} handled, {told.waiting:,} waiting, {told.dead_letters:,} dead "
        f"letters, {told.overflows:,} overflows, {told.expired:,} expired, "
        f"{told.slow_handlers:,} slow handlers\n"
        f"{told.restarts:,} restarts, {told.exhausted:,} supervisors gave up\n"
        f"time in handlers: {busy or '-'}"
    )
