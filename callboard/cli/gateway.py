"""`callboard gateway …`: run gateways, modules that are linked by a configuration."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callboard.cli.options import JsonOptions, command, flag, noun, option
from callboard.cli.output import columns, say, to_json
from callboard.cli.own_node import catch_signals
from callboard.cli.problem import FAILED, MISUSED, Misuse, Problem, Problems
from callboard.support.named_file import read_named

if TYPE_CHECKING:
    from callboard.gateway import Gateway, Message, ModuleStatus
    from callboard.gateway.configuration import Configuration

app = noun()

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML or JSON file.")]


@dataclass(frozen=True, kw_only=True)
class RunGatewayOptions(JsonOptions):
    """How a gateway runs."""

    given: Path | None = option(
        None, "Publish these lines, then end.", "--input", metavar="FILE.jsonl"
    )
    watch: bool = flag("Follow changes of the configuration.", "--watch")
    timeout: float = option(60.0, "Seconds until all of --input is received.", min=0.001)


@command(app)
def run(config: Config, options: RunGatewayOptions) -> int:
    """Run a gateway until Ctrl-C or SIGTERM.

    With --input it is a dry run: each line of the file, {"source": MODULE, "content": TEXT,
    "properties": {…}}, is published as if that module had; those modules are not started. When
    all was received, what became of it is printed; the exit code is 1 if anything was lost.

    \b
    Examples:
      callboard gateway run gateway.toml
      callboard gateway run gateway.toml --watch
      callboard gateway run gateway.toml --input recorded.jsonl --json
    """  # noqa: D301
    if options.given is not None:
        return _run_dry(config, options.given, options)
    with catch_signals() as stop, _made(config, watch=options.watch) as gateway:
        gateway.on("destroyed", lambda _: stop.set())
        names = ", ".join(status.name for status in gateway.modules())
        about = {"url": gateway.url, "modules": len(gateway.modules())}
        options.say(about, f"{config} runs: {names}   (Ctrl-C stops it)")
        gateway.start()
        stop.wait()
        gateway.settle(1.0)
        statuses = gateway.modules()
    _print(statuses, options)
    return 0


@command(app)
def check(config: Config, options: JsonOptions) -> None:
    """Say what is wrong with a configuration; nothing is made or started.

    Every mistake is told, with its path in the file; the exit code is 2 if there are some.

    \b
    Examples:
      callboard gateway check gateway.toml
    """  # noqa: D301
    found = _read(config)
    modules, links = len(found.modules), len(found.links)
    text = f"{config} is fine: {modules} modules, {links} links"
    options.say({"modules": modules, "links": links}, text)


@command(app, "list")
def list_modules(config: Config, options: JsonOptions) -> None:
    """List the modules of a configuration and their links.

    \b
    Examples:
      callboard gateway list gateway.toml
      callboard gateway list gateway.toml --json | jq .links
    """  # noqa: D301
    found = _read(config)
    if options.as_json:
        modules = [
            {
                "name": spec.name,
                "loader": spec.loader.name,
                "entrypoint": spec.entrypoint,
                "args": spec.args,
            }
            for spec in found.modules.values()
        ]
        links = [{"source": source, "sink": sink} for source, sink in found.links]
        say(to_json({"modules": modules, "links": links}))
        return
    rows = []
    for spec in found.modules.values():
        sources = ", ".join(source for source, sink in found.links if sink == spec.name)
        what = " ".join(str(value) for value in spec.entrypoint.values())
        rows.append((spec.name, spec.loader.name, what, sources))
    say(columns(("MODULE", "LOADER", "IS", "RECEIVES FROM"), rows))


def _run_dry(config: Path, given: Path, options: RunGatewayOptions) -> int:
    """Publish what a file holds, and say what became of it; returns the exit code."""
    lines = _lines(given)
    with _made(config, watch=False) as gateway:
        known = {status.name for status in gateway.modules()}
        for number, (source, _) in enumerate(lines, 1):
            if source not in known:
                why = f"{given}:{number}: there is no module {source!r} in {config}"
                raise Misuse(why=why, step="name one of its modules as source")
        gateway.start(leave_out={source for source, _ in lines})
        for source, message in lines:
            gateway.publish(source, message)
        is_settled = gateway.settle(options.timeout)
        statuses = gateway.modules()
    _print(statuses, options)
    if not is_settled:
        why = f"not all was received within {options.timeout:g} s"
        raise Problem(why=why, step="give it longer with --timeout SECONDS")
    return FAILED if any(each.counters.failed or each.counters.lost for each in statuses) else 0


def _read(config: Path) -> "Configuration":
    """Return a configuration, or raise a problem with a line for each mistake."""
    from callboard.gateway.configuration import read_configuration_file
    from callboard.gateway.errors import ConfigurationError

    try:
        return read_configuration_file(config)
    except ConfigurationError as error:
        raise Problems(error.lines, code=MISUSED) from None


def _made(config: Path, *, watch: bool) -> "Gateway":
    """Make the gateway of a configuration; nothing is started."""
    from callboard.gateway import ConfigurationError, Gateway, ModuleFailed

    try:
        return Gateway.from_file(config, start=False, watch=watch)
    except ConfigurationError as error:
        raise Problems(error.lines, code=MISUSED) from None
    except ModuleFailed as error:
        raise Problem(why=f"{config}: {error}", step="correct its args; nothing runs") from None


def _lines(given: Path) -> "list[tuple[str, Message]]":
    """Read the messages of a dry run, with their sources."""
    from callboard.gateway.errors import MalformedMessage
    from callboard.gateway.wire.message import message_of, read_line

    found: list[tuple[str, Message]] = []
    try:
        for number, text in enumerate(read_named(given).splitlines(), 1):
            fields = read_line(text)
            source = fields.get("source")
            if not isinstance(source, str):
                why = f"{given}:{number}: source = {source!r}: it is the name of a module"
                raise Misuse(why=why, step="correct that line")
            found.append((source, message_of(fields)))
    except OSError as error:
        raise Misuse(why=f"{given}: {error.strerror}", step="give the path of a file") from None
    except MalformedMessage as error:
        where = f"{given}:{len(found) + 1}"
        raise Misuse(why=f"{where}: {error}", step="correct that line") from None
    return found


def _print(statuses: "Sequence[ModuleStatus]", options: JsonOptions) -> None:
    """Print what became of the messages of each module."""
    told: list[dict[str, Any]] = [
        {"name": each.name, "waiting": each.waiting, **asdict(each.counters)}
        for each in statuses
    ]
    head = ("name", "received", "failed", "lost", "waiting")
    shown = [each | {"lost": sum(each["lost"].values())} for each in told]
    rows = [[str(each[key]) for key in head] for each in shown]
    titles = ["MODULE", *map(str.upper, head[1:])]
    options.say(told, columns(titles, rows, right=range(1, 5)))
