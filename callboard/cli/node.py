"""`callboard node …`: run, inspect and stop nodes."""

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

from callboard.cli.cli_error import one_line
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
from callboard.cli.output import age_text, bytes_text, columns, milliseconds, say, to_json
from callboard.cli.work.actor_table import LISTED, RATED, loss_table, table
from callboard.support.inspection_tables import event_row

if TYPE_CHECKING:
    from callboard.kernel.actors import ActorRef
    from callboard.kernel.tables import ActorInfo, EventInfo, Inspection, LinkInfo

#: Name of these commands' own node.
NAME: Final = "callboard node"

#: Classes whose share of the time is shown, at most.
MOST_SHARES: Final = 5

#: Smallest share of the time that is shown.
LEAST_SHARE: Final = 0.005

#: Most events per request.
MOST_EVENTS: Final = 1_000

#: Seconds that the reply to a drain may take after the drain.
ANSWER_TIME: Final = 5.0

app = noun()

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT")]


@dataclass(frozen=True, kw_only=True)
class RunNodeOptions(AccessOptions):
    """Options that override the configuration of a node."""

    config: Path | None = option(None, "Configuration file.", metavar="NODE.toml")
    listen: str | None = option(
        None, "Address of the node for others (127.0.0.1:0).", metavar="HOST:PORT"
    )
    join: list[str] | None = option(
        None,
        "A node to link with, or a source of addresses: dns://NAME:PORT, srv://NAME, "
        "file:PATH; repeatable.",
        metavar="ADDRESS",
    )
    name: str | None = option(None, "Name for people; default is the file's name.")
    permissions: Path | None = option(
        None, "Named secrets, and the rights of each peer.", metavar="FILE.toml"
    )
    insecure: bool = flag("Listen on public addresses without secret or TLS.", "--insecure")
    health: str | None = option(
        None, "Serve /livez, /readyz and /metrics there.", metavar="HOST:PORT"
    )
    log_level: str | None = option(None, "debug, info (the default), warning, error, critical.")
    log_format: str | None = option(None, "text (the default) or json.", metavar="text|json")
    tracing: str | None = option(
        None,
        "Export spans of OpenTelemetry: off (the default), otlp, or console.",
        metavar="off|otlp|console",
    )
    drain_timeout: float | None = option(None, "Longest drain in seconds (30).", min=0.0)
    when_exhausted: str | None = option(
        None,
        "exit (the default) or stay, unready, after a supervisor gave up.",
        metavar="exit|stay",
    )
    as_json: bool = flag("Print the address as JSON.", "--json")

    def given(self, app: Path | None) -> dict[str, Any]:
        """Return the options that were given, as keys of a configuration."""
        keys = (
            *("listen", "join", "name", "insecure", "health", "log_level", "drain_timeout"),
            *("when_exhausted", "permissions", "log_format", "tracing"),
        )
        values = {"app": app} | {key: getattr(self, key) for key in keys}
        return {
            key: value
            for key, value in values.items()
            if value is not None and value is not False and value != []
        }


@dataclass(frozen=True, kw_only=True)
class PsOptions(AccessOptions):
    """Selection of the listed actors."""

    system: bool = flag("Also show system actors, proxies, links and routes.", "--system")
    tree: bool = flag("Show each actor below the one that spawned it.", "--tree")
    limit: int = option(100, "Most actors to list.", min=1, max=10_000)
    timeout: float = option(5.0, "Timeout in seconds.", min=0.001)


@dataclass(frozen=True, kw_only=True)
class TopOptions(LookOptions, AccessOptions):
    """Interval of the updates, and the size of the table."""

    limit: int = option(40, "Most actors to list.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class EventsOptions(AccessOptions):
    """Selection of the printed events."""

    follow: bool = flag("Continue with new events until Ctrl-C.", "--follow", "-f")
    limit: int = option(100, "Most earlier events.", min=0, max=1_000)
    kind: str = option("*", "Only matching kinds (* and ?).", metavar="PATTERN")
    interval: float = option(0.5, "Seconds between updates with --follow.", min=0.05)
    count: int = option(0, "Updates with --follow; 0 continues until Ctrl-C.", min=0)
    as_json: bool = flag("Print JSON lines.", "--json")


@dataclass(frozen=True, kw_only=True)
class DeadLettersOptions(AccessOptions):
    """Timeout of the request."""

    timeout: float = option(5.0, "Timeout in seconds.", min=0.001)


@dataclass(frozen=True, kw_only=True)
class DrainOptions(AccessOptions):
    """Timeout of the drain."""

    timeout: float = option(30.0, "Timeout in seconds.", min=0.0)


@command(app)
def run(
    options: RunNodeOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="[APP.py]", help="Python file with your actors.")
    ] = None,
) -> int:
    """Host the actors of a file until Ctrl-C or SIGTERM.

    If the file defines setup(node), it is called first, to spawn and register actors. Other
    nodes can spawn each public Actor subclass of the file by its name; a mapping
    `spawnable = {"name": Class}` in the file replaces that list.

    Options override environment variables (CALLBOARD_LISTEN, CALLBOARD_JOIN, …), which override
    the configuration file.

    The first signal drains the node: pending asks are answered, and mailboxes emptied. A second
    signal ends it at once. The exit code is 0 if all work was finished, else 1. The node is
    also drained, with exit code 1, when a supervisor gives up and no other one restarts it.

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
    """Check a configuration file, and print all errors, one per line.

    Its app is loaded to check that the classes exist; no node is started.

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
    """List the actors of a running node, longest mailboxes first.

    \b
    Examples:
      callboard node ps basp://127.0.0.1:4222
      callboard node ps basp://127.0.0.1:4222 --system --limit 1000
      callboard node ps basp://127.0.0.1:4222 --tree
      callboard node ps basp://127.0.0.1:4222 --json | jq '.actors[].depth'
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    with inspector(address, options.timeout, options) as inspector_ref:
        question = Inspect(options.limit, options.system)
        inspection: Inspection = inspector_ref.ask(question, timeout=options.timeout).result()
    if options.tree:
        inspection = replace(inspection, actors=in_tree(inspection.actors))
    show = _parts_text if options.system else _actors_text
    say(to_json(inspection) if options.as_json else show(inspection))


@command(app)
def top(address: Address, options: TopOptions) -> None:
    """Watch the busiest actors of a running node.

    In a terminal the table is drawn in place; elsewhere each update is printed.

    \b
    Examples:
      callboard node top basp://127.0.0.1:4222
      callboard node top basp://127.0.0.1:4222 --interval 5 --count 12 --json
    """  # noqa: D301
    from callboard.kernel.tables import Inspect, ReadPart

    handled_before: dict[str, int] = {}
    seconds_before: dict[str, float] = {}
    since = time.monotonic()
    with (
        inspector(address, ANSWER_TIME, options) as inspector_ref,
        options.screen() as show,
    ):
        for look in options.updates():
            inspection: Inspection = inspector_ref.ask(Inspect(), timeout=ANSWER_TIME).result()
            since, elapsed = time.monotonic(), time.monotonic() - since
            rated = rates(inspection, handled_before, elapsed)[: options.limit]
            handled_before = {actor.address: actor.handled for actor in inspection.actors}
            shares = busy_shares(inspection, seconds_before, elapsed) if look > 1 else {}
            seconds_before = inspection.handler_seconds
            actors = [asdict(actor) | {"rate": rate} for actor, rate in rated]
            peers = inspector_ref.ask(ReadPart("peers"), timeout=ANSWER_TIME).result().rows
            row = asdict(inspection) | {"busy": shares, "actors": actors, "peers": peers}
            show(
                row, f"{summary(inspection, shares)}\n{_wires_text(peers)}{table(RATED, rated)}"
            )


def _wires_text(peers: "Sequence[dict[str, Any]]") -> str:
    """Return a line with the peers that use other protocols, or ""."""
    texts = [
        f"{peer['wire']} {peer['peer'] or peer['address']} ({peer['status']})"
        for peer in peers
        if peer["wire"] != "native"
    ]
    return f"on other wires: {', '.join(texts)}\n" if texts else ""


@command(app)
def events(address: Address, options: EventsOptions) -> None:
    """Print events of a running node: links, restarts, failures, losses, one per line.

    With --follow it continues with new events, including starts and ends of actors. Losses of
    one kind are reported once per second, with their number.

    \b
    Examples:
      callboard node events basp://127.0.0.1:4222
      callboard node events basp://127.0.0.1:4222 -f --kind '*Down'
      callboard node events basp://127.0.0.1:4222 -f --json
    """  # noqa: D301
    from callboard.kernel.tables import ReadEvents

    last, updates = -1, options.count if options.follow else 1
    with inspector(address, ANSWER_TIME, options) as inspector_ref:
        for look in itertools.count(1):
            limit = options.limit if last < 0 else MOST_EVENTS
            question = ReadEvents(last, limit)
            page = inspector_ref.ask(question, timeout=ANSWER_TIME).result()
            last = page.last
            if page.missed:
                missed = f"… {page.missed:,} events were too fast and are lost"
                options.say({"missed": page.missed}, missed)
            for event in page.events:
                if fnmatchcase(event.kind, options.kind):
                    print_event(event, options)
            sys.stdout.flush()
            if look == updates:
                return
            time.sleep(options.interval)


def print_event(event: "EventInfo", options: JsonOptions, node: str = "") -> None:
    """Print an event with its time, and with the name of its node if there are several."""
    row = ({"node": node} if node else {}) | event_row(event)
    values = "  ".join(f"{name}={one_line(value)}" for name, value in event.values.items())
    stamp = datetime.fromisoformat(row["time"]).astimezone().isoformat(" ", "milliseconds")
    options.say(row, f"{stamp[:23]} {node}{' ' if node else ''}{event.kind}  {values}".rstrip())


@command(app, "dead-letters")
def dead_letters(address: Address, options: DeadLettersOptions) -> None:
    """List messages to actors of a node that had ended, latest first.

    There is a row for each receiver, type and sender; the messages themselves are not kept.
    `callboard cluster losses` also lists messages lost in other ways.

    \b
    Examples:
      callboard node dead-letters basp://127.0.0.1:4222
      callboard node dead-letters basp://127.0.0.1:4222 --json | jq '.[].count'
    """  # noqa: D301
    from callboard.kernel.tables import Inspect

    with inspector(address, options.timeout, options) as inspector_ref:
        question = Inspect(0, history=True)
        inspection: Inspection = inspector_ref.ask(question, timeout=options.timeout).result()
    letters = [loss for loss in inspection.losses if loss.kind == "dead letter"]
    rows = loss_table([(inspection.name, loss) for loss in letters])
    options.say(letters, rows if letters else "no dead letters")


@command(app)
def drain(address: Address, options: DrainOptions) -> None:
    """Stop a running node after its work in progress is finished.

    The exit code is 0 if all work was finished, else 1.

    \b
    Examples:
      callboard node drain basp://127.0.0.1:4222
      callboard node drain basp://127.0.0.1:4222 --timeout 120 --json
    """  # noqa: D301
    from callboard.cli.work.host import complain_unless_clean, ending
    from callboard.kernel.tables import DrainNode

    timeout = options.timeout
    with inspector(address, ANSWER_TIME, options) as inspector_ref:
        report = inspector_ref.ask(DrainNode(timeout), timeout=timeout + ANSWER_TIME).result()
    options.say(report, f"{address} was drained in {ending(report)}")
    complain_unless_clean(report, address, "see the log of that node for unfinished work")


@dataclass(frozen=True, kw_only=True)
class LogLevelOptions(AccessOptions):
    """The logger whose level changes."""

    logger: str = option("", "A logger, such as callboard.nodes; the root by default.")
    timeout: float = option(5.0, "Timeout in seconds.", min=0.001)


@command(app, "log-level")
def log_level(
    address: Address,
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help="debug, info, warning, error or critical.")
    ],
    options: LogLevelOptions,
) -> None:
    """Change the log level of a running node, until it is changed again or the node ends.

    The level is that of the node's process. The change is written to the node's log.

    \b
    Examples:
      callboard node log-level basp://127.0.0.1:4222 debug
      callboard node log-level basp://127.0.0.1:4222 debug --logger callboard.nodes --json
    """  # noqa: D301
    from callboard.kernel.tables import SetLogLevel

    order = SetLogLevel(level.upper(), options.logger)
    with inspector(address, options.timeout, options) as inspector_ref:
        former: str = inspector_ref.ask(order, timeout=options.timeout).result()
    name = options.logger or "the root logger"
    row = {"logger": options.logger, "level": level.upper(), "former": former}
    options.say(row, f"{name} logs from {level.upper()} on; it was {former}")


@contextlib.contextmanager
def inspector(address: str, timeout: float, access: AccessOptions) -> "Iterator[ActorRef]":
    """Yield the inspector actor of a running node."""
    from callboard.kernel.topology import INSPECTOR

    with access.open_node(NAME) as node:
        yield node.context.ref_of(node.connect(address, timeout), INSPECTOR)


def in_tree(actors: "Sequence[ActorInfo]") -> "list[ActorInfo]":
    """Return actors in tree order, with their class names indented."""
    below: dict[str, list[ActorInfo]] = {}
    addresses = {actor.address for actor in actors}
    for actor in actors:
        below.setdefault(actor.parent if actor.parent in addresses else "", []).append(actor)
    rows: list[ActorInfo] = []
    waiting = [(0, actor) for actor in reversed(below.pop("", []))]
    while waiting:
        depth, actor = waiting.pop()
        rows.append(replace(actor, actor_class="  " * depth + actor.actor_class))
        children = below.pop(actor.address, [])
        waiting += [(depth + 1, child) for child in reversed(children)]
    return rows


def _actors_text(inspection: "Inspection") -> str:
    """Return the actors of a node as a table."""
    text = table(LISTED, ((actor, 0.0) for actor in inspection.actors))
    if inspection.exhausted:
        text = f"{inspection.exhausted:,} supervisors gave up; see the node's log\n{text}"
    count = sum(actor.actor_class != "Proxy" for actor in inspection.actors)
    if inspection.actor_count > count:
        text += f"\n… {inspection.actor_count - count:,} more; --limit shows them"
    return f"{text}\n{inspection.name}: {process_text(inspection)}"


def release_text(node: "Inspection | LinkInfo") -> str:
    """Return the release and build of a node as text."""
    return f"release {node.release}" + (f" ({node.build})" if node.build else "")


def process_text(info: "Inspection") -> str:
    """Return the release of a node, and the figures of its process, as text."""
    figures = info.process
    parts = [release_text(info)]
    if "resident_bytes" in figures:
        parts.append(f"{bytes_text(figures['resident_bytes'])} of memory")
    if "cpu_seconds" in figures:
        parts.append(f"{figures['cpu_seconds']:,.1f} s of processor time")
    for name, noun_text in (("threads", "threads"), ("descriptors", "open descriptors")):
        if name in figures:
            parts.append(f"{figures[name]:,.0f} {noun_text}")
    if "gc_collections" in figures:
        parts.append(f"{figures['gc_collections']:,.0f} garbage collections")
    return ", ".join(parts)


def _parts_text(inspection: "Inspection") -> str:
    """Return the actors, links and routes of a node as tables."""
    links = [
        (
            link.peer_name or "-",
            link.peer.hex()[:12],
            link.address or "-",
            f"{link.frames_sent:,}",
            f"{link.frames_received:,}",
            f"{link.bytes_waiting:,}",
            milliseconds(link.round_trip),
            link.guard,
            link.release,
        )
        for link in inspection.neighbours
    ]
    head = (
        *("LINK", "NODE", "DIALLED", "SENT", "RECEIVED", "B WAITING", "ROUND TRIP"),
        *("GUARD", "RELEASE"),
    )
    text = f"{_actors_text(inspection)}\n\n{columns(head, links, right=(3, 4, 5, 6))}"
    names = {link.peer: link.peer_name for link in inspection.neighbours}
    routes = [
        (
            route.name or "-",
            route.node_id.hex()[:12],
            f"{route.hops}",
            names.get(route.via) or route.via.hex()[:12],
        )
        for route in inspection.routes
    ]
    text += f"\n\n{columns(('ROUTE TO', 'NODE', 'HOPS', 'VIA'), routes, right=(2,))}"
    return text


def rates(
    inspection: "Inspection", before: dict[str, int], seconds: float
) -> "list[tuple[ActorInfo, float]]":
    """Return the actors with their rates, busiest first.

    Args:
        inspection: the node's report.
        before: handled messages by address in the previous report.
        seconds: between the two reports.
    """
    rises = [
        actor.handled - before.get(actor.address, actor.handled) for actor in inspection.actors
    ]
    rated = [
        (actor, max(0.0, rise / seconds))
        for actor, rise in zip(inspection.actors, rises, strict=True)
    ]
    return sorted(rated, key=lambda row: (-row[1], -row[0].depth, -row[0].handled))


def busy_shares(
    inspection: "Inspection", before: dict[str, float], seconds: float
) -> dict[str, float]:
    """Return the share of time of each class's handlers, busiest first.

    Args:
        inspection: the node's report.
        before: seconds in handlers by class in the previous report.
        seconds: between the two reports.
    """
    shares = {
        name: (spent - before.get(name, 0.0)) / seconds
        for name, spent in inspection.handler_seconds.items()
    }
    busiest = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    return {name: share for name, share in busiest[:MOST_SHARES] if share >= LEAST_SHARE}


def summary(info: "Inspection", shares: dict[str, float]) -> str:
    """Return the lines above the table; `shares` are from `busy_shares`."""
    state = "draining" if info.is_draining else "up"
    busy = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        f"{info.name}: {state} {age_text(info.uptime)}, {info.actor_count:,} actors, "
        f"{info.links:,} links, {info.nodes:,} nodes\n"
        f"{info.handled:,} handled, {info.waiting:,} waiting, {info.dead_letters:,} dead "
        f"letters, {info.overflows:,} overflows, {info.expired:,} expired, "
        f"{info.slow_handlers:,} slow handlers\n"
        f"{info.restarts:,} restarts, {info.exhausted:,} supervisors gave up\n"
        f"{process_text(info)}\n"
        f"time in handlers: {busy or '-'}"
    )
