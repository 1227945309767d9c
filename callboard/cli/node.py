"""`callboard node …`."""

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

node_app = typer.Typer(help="Run nodes.", no_args_is_help=True, rich_markup_mode=None)


@node_app.callback()
def node() -> None:
    """Run nodes."""


@node_app.command()
def run(
    app: Annotated[
        Path, typer.Argument(metavar="APP.py", help="Python file with your actors.")
    ],
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where others reach the node.")
    ] = ("127.0.0.1:0"),
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A node to be linked with; repeatable."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="What people see; default is the file's name.")
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on public addresses without secret or TLS."),
    ] = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds that a drain may take.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Host the actors of a file until Ctrl-C or SIGTERM.

    The first signal drains the node: asks under way are answered, mailboxes emptied. A second
    one ends it at once. The exit code is 0 when nothing was cut short, else 1.

    If the file defines setup(node), that is called with the node first: spawn and register
    there. Each public Actor subclass that the file defines can be spawned by other nodes under
    its name; a mapping
    `spawnable = {"name": Class}` in the file replaces that list.

    \b
    Examples:
      callboard node run shop.py
      callboard node run shop.py --listen 127.0.0.1:4222 --name shop
      callboard node run till.py --join basp://127.0.0.1:4222
      callboard node run shop.py --listen 0.0.0.0:4222 --secret-file cluster.secret
    """  # noqa: D301
    from callboard.cli.hosting import host

    code = host(
        app,
        listen=listen,
        join=tuple(join or ()),
        name=name,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        drain_timeout=drain_timeout,
        as_json=as_json,
    )
    raise typer.Exit(code)
