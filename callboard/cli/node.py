"""`callboard node …`."""

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

node_app = typer.Typer(
    help="Run nodes, see into them, end them.", no_args_is_help=True, rich_markup_mode=None
)

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that it may take.")]


@node_app.callback()
def node() -> None:
    """Run nodes, see into them, end them."""


@node_app.command()
def run(
    app: Annotated[
        Path | None, typer.Argument(metavar="[APP.py]", help="Python file with your actors.")
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option(metavar="NODE.toml", help="Configuration file.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where others reach the node (127.0.0.1:0)."),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A node to be linked with; repeatable."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What people see; default is the file's name.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on public addresses without secret or TLS."),
    ] = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning, error or critical.")
    ] = None,
    drain_timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds that a drain may take (30).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Host the actors of a file until Ctrl-C or SIGTERM.

    If the file defines setup(node), that is called with the node first: spawn and register
    there. Each public Actor subclass that the file defines can be spawned by other nodes under
    its name; a mapping `spawnable = {"name": Class}` in the file replaces that list.

    Options stand above environment variables (CALLBOARD_LISTEN, CALLBOARD_JOIN, …), those above
    the configuration file.

    The first signal drains the node: asks under way are answered, mailboxes emptied. A second
    one ends it at once. The exit code is 0 when nothing was cut short, else 1.

    \b
    Examples:
      callboard node run shop.py
      callboard node run shop.py --listen 127.0.0.1:4222 --name shop --health 127.0.0.1:9464
      callboard node run till.py --join basp://127.0.0.1:4222
      callboard node run shop.py --listen 0.0.0.0:4222 --secret-file cluster.secret
      callboard node run --config node.toml
    """  # noqa: D301
    if app is None and config is None:
        raise typer.BadParameter("name an APP.py, or a file with --config")  # noqa: EM101
    from callboard.cli.hosting import configure, host

    given = {
        "app": app,
        "listen": listen,
        "join": join or None,
        "name": name,
        "insecure": insecure or None,
        "health": health,
        "log_level": log_level,
        "drain_timeout": drain_timeout,
    }
    options = {key: value for key, value in given.items() if value is not None}
    proof = read_credentials(secret_file, tls)
    raise typer.Exit(host(configure(config, options), credentials=proof, as_json=as_json))


@node_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="Configuration file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file: all mistakes at once, one line each.

    Its app is loaded, so that classes are known to be there; no node is started.

    \b
    Examples:
      callboard node check node.toml
      callboard node check node.toml --json && callboard node run --config node.toml
    """  # noqa: D301
    from callboard.cli import hosting
    from callboard.cli.values import to_json

    hosting.check(file)
    typer.echo(to_json({"valid": True}) if as_json else f"{file} is valid")


@node_app.command()
def ps(
    address: Address,
    *,
    system: Annotated[
        bool,
        typer.Option(
            "--system", help="Show the node's own parts, its proxies, links and routes too."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Actors at most.")] = 100,
    timeout: Timeout = 5.0,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """List the actors of a running node, those with the deepest mailboxes first.

    \b
    Examples:
      callboard node ps basp://127.0.0.1:4222
      callboard node ps basp://127.0.0.1:4222 --system --limit 1000
      callboard node ps basp://127.0.0.1:4222 --json | jq '.actors[].depth'
    """  # noqa: D301
    from callboard.cli.inspecting import inspect, show_actors, show_parts
    from callboard.cli.values import to_json

    proof = read_credentials(secret_file, tls)
    told = inspect(address, system=system, limit=limit, timeout=timeout, credentials=proof)
    show = show_parts if system else show_actors
    typer.echo(to_json(told) if as_json else show(told))


@node_app.command()
def top(
    address: Address,
    *,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="Looks; 0 goes on until Ctrl-C.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Actors at most.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a look.")] = (
        False
    ),
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Watch the busiest actors of a running node.

    In a terminal the table is drawn in place; elsewhere each look is printed.

    \b
    Examples:
      callboard node top basp://127.0.0.1:4222
      callboard node top basp://127.0.0.1:4222 --interval 5 --count 12 --json
    """  # noqa: D301
    from callboard.cli import inspecting

    inspecting.top(
        address,
        interval=interval,
        looks=count,
        limit=limit,
        as_json=as_json,
        credentials=read_credentials(secret_file, tls),
    )


@node_app.command()
def drain(
    address: Address,
    *,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds that it may take.")] = 30.0,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Let a running node finish what is under way, take nothing new, and end.

    The exit code is 0 when nothing was cut short, else 1.

    \b
    Examples:
      callboard node drain basp://127.0.0.1:4222
      callboard node drain basp://127.0.0.1:4222 --timeout 120 --json
    """  # noqa: D301
    from callboard.cli import inspecting

    proof = read_credentials(secret_file, tls)
    code = inspecting.drain(address, timeout=timeout, as_json=as_json, credentials=proof)
    raise typer.Exit(code)
