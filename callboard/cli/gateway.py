"""`callboard gateway …`: run gateways, which connect modules by a configuration."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callboard.cli.cli_error import FAILED, MISUSED, CliError, CliErrors, UsageError
from callboard.cli.options import JsonOptions, command, flag, noun, option
from callboard.cli.output import columns, say, to_json
from callboard.cli.own_node import catch_signals
from callboard.support.files.user_file import read_user_file

if TYPE_CHECKING:
    from callboard.gateway import Gateway, Message, ModuleStatus
    from callboard.gateway.configuration import Configuration

app = noun()

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML or JSON file.")]


@dataclass(frozen=True, kw_only=True)
class RunGatewayOptions(JsonOptions):
    """Options of a gateway's run."""

    given: Path | None = option(
        None, "Publish these lines, then end.", "--input", metavar="FILE.jsonl"
    )
    watch: bool = flag("Apply changes of the configuration file.", "--watch")
    timeout: float = option(60.0, "Seconds until all of --input is received.", min=0.001)


@command(app)
def run(config: Config, options: RunGatewayOptions) -> int:
    """Run a gateway until Ctrl-C or SIGTERM.

    With --input it is a dry run: each line of the file, {"source": MODULE, "content": TEXT,
    "properties": {…}}, is published as a message of that module; these modules are not started.
    When all messages were received, the counts are printed; the exit code is 1 if any was lost.

    \b
    Examples:
      callboard gateway run gateway.toml
      callboard gateway run gateway.toml --watch
      callboard gateway run gateway.toml --input recorded.jsonl --json
    """  # noqa: D301
    if options.given is not None:
        return _run_dry(config, options.given, options)
    with catch_signals() as stop, _create(config, watch=options.watch) as gateway:
        gateway.on("destroyed", lambda _: stop.set())
        names = ", ".join(status.name for status in gateway.modules())
        summary = {"url": gateway.url, "modules": len(gateway.modules())}
        options.say(summary, f"{config} runs: {names}   (Ctrl-C stops it)")
        gateway.start()
        stop.wait()
        gateway.settle(1.0)
        statuses = gateway.modules()
    _print(statuses, options)
    return 0


@command(app)
def check(config: Config, options: JsonOptions) -> None:
    """Check a configuration; no module is created or started.

    All errors are printed with their paths in the file; the exit code is 2 if there are any.

    \b
    Examples:
      callboard gateway check gateway.toml
    """  # noqa: D301
    configuration = _read(config)
    modules, links = len(configuration.modules), len(configuration.links)
    text = f"{config} is valid: {modules} modules, {links} links"
    options.say({"modules": modules, "links": links}, text)


@command(app, "list")
def list_modules(config: Config, options: JsonOptions) -> None:
    """List the modules of a configuration and their links.

    \b
    Examples:
      callboard gateway list gateway.toml
      callboard gateway list gateway.toml --json | jq .links
    """  # noqa: D301
    configuration = _read(config)
    if options.as_json:
        modules = [
            {
                "name": spec.name,
                "loader": spec.loader.name,
                "entrypoint": spec.entrypoint,
                "args": spec.args,
            }
            for spec in configuration.modules.values()
        ]
        links = [{"source": source, "sink": sink} for source, sink in configuration.links]
        say(to_json({"modules": modules, "links": links}))
        return
    rows = []
    for spec in configuration.modules.values():
        sources = ", ".join(source for source, sink in configuration.links if sink == spec.name)
        entrypoint = " ".join(str(value) for value in spec.entrypoint.values())
        rows.append((spec.name, spec.loader.name, entrypoint, sources))
    say(columns(("MODULE", "LOADER", "IS", "RECEIVES FROM"), rows))


def _run_dry(config: Path, path: Path, options: RunGatewayOptions) -> int:
    """Publish the messages in a file, and print the counts; return the exit code."""
    lines = _lines(path)
    with _create(config, watch=False) as gateway:
        names = {status.name for status in gateway.modules()}
        for number, (source, _) in enumerate(lines, 1):
            if source not in names:
                reason = f"{path}:{number}: there is no module {source!r} in {config}"
                raise UsageError(why=reason, step="use one of its modules as source")
        gateway.start(leave_out={source for source, _ in lines})
        for source, message in lines:
            gateway.publish(source, message)
        is_settled = gateway.settle(options.timeout)
        statuses = gateway.modules()
    _print(statuses, options)
    if not is_settled:
        reason = f"not all messages were received within {options.timeout:g} s"
        raise CliError(why=reason, step="allow more time with --timeout SECONDS")
    return (
        FAILED
        if any(status.counters.failed or status.counters.lost for status in statuses)
        else 0
    )


def _read(config: Path) -> "Configuration":
    """Return a configuration, or raise a problem with a line per error."""
    from callboard.gateway.configuration import read_configuration_file
    from callboard.gateway.errors import ConfigurationError

    try:
        return read_configuration_file(config)
    except ConfigurationError as error:
        raise CliErrors(error.lines, code=MISUSED) from None


def _create(config: Path, *, watch: bool) -> "Gateway":
    """Create the gateway of a configuration without starting it."""
    from callboard.gateway import ConfigurationError, Gateway, ModuleFailed

    try:
        return Gateway.from_file(config, start=False, watch=watch)
    except ConfigurationError as error:
        raise CliErrors(error.lines, code=MISUSED) from None
    except ModuleFailed as error:
        raise CliError(
            why=f"{config}: {error}", step="correct its args; nothing runs"
        ) from None


def _lines(path: Path) -> "list[tuple[str, Message]]":
    """Read the messages of a dry run, with their sources."""
    from callboard.gateway.errors import MalformedMessage
    from callboard.gateway.wire.message import message_of, read_line

    messages: list[tuple[str, Message]] = []
    try:
        for number, text in enumerate(read_user_file(path).splitlines(), 1):
            fields = read_line(text)
            source = fields.get("source")
            if not isinstance(source, str):
                reason = f"{path}:{number}: source = {source!r} must be the name of a module"
                raise UsageError(why=reason, step="correct that line")
            messages.append((source, message_of(fields)))
    except OSError as error:
        raise UsageError(
            why=f"{path}: {error.strerror}", step="pass the path of a file"
        ) from None
    except MalformedMessage as error:
        location = f"{path}:{len(messages) + 1}"
        raise UsageError(why=f"{location}: {error}", step="correct that line") from None
    return messages


def _print(statuses: "Sequence[ModuleStatus]", options: JsonOptions) -> None:
    """Print the message counts of each module."""
    table_rows: list[dict[str, Any]] = [
        {"name": item.name, "waiting": item.waiting, **asdict(item.counters)}
        for item in statuses
    ]
    head = ("name", "received", "failed", "lost", "waiting")
    sums = [item | {"lost": sum(item["lost"].values())} for item in table_rows]
    rows = [[str(item[key]) for key in head] for item in sums]
    titles = ["MODULE", *map(str.upper, head[1:])]
    options.say(table_rows, columns(titles, rows, right=range(1, 5)))
