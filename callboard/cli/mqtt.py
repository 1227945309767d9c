"""`callboard mqtt …`."""

from pathlib import Path
from typing import Annotated

import typer

mqtt_app = typer.Typer(
    help="Run an MQTT router, and see into it.", no_args_is_help=True, rich_markup_mode=None
)

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the router.")]
ConsoleUrl = Annotated[
    str, typer.Argument(metavar="URL", help="Of the router's console: http://HOST:PORT")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Interval = Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")]


@mqtt_app.callback()
def mqtt() -> None:
    """Run an MQTT router, and see into it."""


@mqtt_app.command()
def run(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="TOML file of the router; none is needed."),
    ] = None,
    *,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where clients reach it, without a FILE.")
    ] = "127.0.0.1:1883",
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = (
        False
    ),
) -> None:
    """Run a router until Ctrl-C or SIGTERM.

    Without a file it lets everybody in and keeps everything in memory. With one, SIGHUP reads
    it again: users, topic rules and bans hold at once, for clients that are connected as well;
    a file with mistakes changes nothing.

    \b
    Examples:
      callboard mqtt run
      callboard mqtt run --listen ws://127.0.0.1:9001
      callboard mqtt run mqtt.toml --json
    """  # noqa: D301
    from callboard.cli.mqtt_running import run_router

    raise typer.Exit(run_router(file, listen=listen, as_json=as_json))


@mqtt_app.command()
def check(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """Check a configuration file: all mistakes at once, one line each.

    Its functions are found as well; no port is opened.

    \b
    Examples:
      callboard mqtt check mqtt.toml
      callboard mqtt check mqtt.toml --json && callboard mqtt run mqtt.toml
    """  # noqa: D301
    from callboard.cli.mqtt_running import load_router_config
    from callboard.cli.values import to_json

    load_router_config(file)
    typer.echo(to_json({"valid": True}) if as_json else f"{file} is valid")


@mqtt_app.command()
def passwd(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    *,
    password: Annotated[
        str | None,
        typer.Option(
            help="The password; else it is asked for, or read from a pipe.",
            envvar="MQTT_PASSWORD",
        ),
    ] = None,
    scram: Annotated[
        bool, typer.Option("--scram", help="Add what the method SCRAM-SHA-256 takes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a user's entry for the configuration file, with the hash of a password.

    A terminal asks for the password twice; elsewhere it is the first line of stdin, so that it
    need not stand in the command, which everybody on the machine can read.

    \b
    Examples:
      callboard mqtt passwd ann >> mqtt.toml
      pass show mqtt/ann | callboard mqtt passwd ann --json
    """  # noqa: D301
    from callboard.cli.mqtt_user import ask_password, user_entry

    if password is None:
        password = ask_password()
    typer.echo(user_entry(name, password, with_scram=scram, as_json=as_json))


@mqtt_app.command()
def top(
    url: ConsoleUrl = "http://127.0.0.1:9465",
    *,
    interval: Interval = 1.0,
    count: Annotated[int, typer.Option(min=0, help="Looks; 0 goes on until Ctrl-C.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a look.")] = (
        False
    ),
) -> None:
    """Watch a router: rates, and the clients that are furthest behind.

    In a terminal the table is drawn in place; elsewhere each look is printed.

    \b
    Examples:
      callboard mqtt top
      callboard mqtt top http://127.0.0.1:9465 --interval 5 --count 12 --json
    """  # noqa: D301
    from callboard.cli.mqtt_watching import watch

    watch(url, interval=interval, looks=count, as_json=as_json)


@mqtt_app.command()
def trace(
    url: ConsoleUrl = "http://127.0.0.1:9465",
    *,
    client: Annotated[str, typer.Option(metavar="ID", help="The client's id.")],
    seconds: Annotated[float, typer.Option(min=0, help="Length; 0 goes on until Ctrl-C.")] = 0,
    interval: Interval = 0.25,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a packet.")] = (
        False
    ),
) -> None:
    """Print the packets of one client as they pass.

    The client need not be connected yet.

    \b
    Examples:
      callboard mqtt trace --client sensor-1
      callboard mqtt trace http://127.0.0.1:9465 --client sensor-1 --seconds 10 --json
    """  # noqa: D301
    from callboard.cli.mqtt_watching import trace_client

    trace_client(url, client, seconds=seconds, interval=interval, as_json=as_json)
