"""`callboard flow …`."""

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

flow_app = typer.Typer(
    help="Serve files as flows, send and take flows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT of the broker")
]
Credit = Annotated[int, typer.Option(min=1, help="DATs that may be under way.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that each wait may take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="For the BOT; repeatable."),
]


@flow_app.callback()
def flow() -> None:
    """Serve files as flows, send and take flows."""


@flow_app.command()
def serve(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="TOML or JSON file of rules.")],
    *,
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files are.")] = Path(),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients reach it.")
    ] = "127.0.0.1:0",
    file_format: Annotated[
        str, typer.Option("--format", help="Of the files: records or hdf5.")
    ] = "records",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on public addresses without secret or TLS."),
    ] = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Write flows to files, and give files as flows, until Ctrl-C or SIGTERM.

    The first rule that fits what a client says names its file, in the folder.

    \b
    Examples:
      callboard flow serve rules.toml --root data
      callboard flow serve rules.toml --listen 127.0.0.1:4222 --format hdf5
    """  # noqa: D301
    from callboard.cli.flowing import serve_files

    code = serve_files(
        rules,
        root=root,
        listen=listen,
        file_format=file_format,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        as_json=as_json,
    )
    raise typer.Exit(code)


@flow_app.command()
def send(
    address: Address,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE…", help="What to send; else stdin.")
    ] = None,
    *,
    attribute: Attributes = None,
    credit: Credit = 10,
    chunk: Annotated[int, typer.Option(min=1, help="Bytes of each DAT.")] = 65536,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Send files, or stdin, as one flow.

    With one file the attribute `name` is its name, unless it is given.

    \b
    Examples:
      callboard flow send basp://127.0.0.1:4222 -a stream=raw run1.dat
      tail -f log | callboard flow send basp://127.0.0.1:4222 -a stream=log
    """  # noqa: D301
    from callboard.cli.flowing import send_files

    raise typer.Exit(
        send_files(
            address,
            files or [],
            attributes=attribute or [],
            credit=credit,
            chunk=chunk,
            timeout=timeout,
            credentials=read_credentials(secret_file, tls),
            as_json=as_json,
        )
    )


@flow_app.command()
def recv(
    address: Address,
    *,
    attribute: Attributes = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Instead of stdout.")
    ] = None,
    credit: Credit = 10,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object for each DAT, bytes as hex.")
    ] = False,
) -> None:
    """Take a flow and write its payload to stdout or a file.

    \b
    Examples:
      callboard flow recv basp://127.0.0.1:4222 -a stream=raw -o run1.dat
    """  # noqa: D301
    from callboard.cli.flowing import receive_flow

    raise typer.Exit(
        receive_flow(
            address,
            output,
            attributes=attribute or [],
            credit=credit,
            timeout=timeout,
            credentials=read_credentials(secret_file, tls),
            as_json=as_json,
        )
    )


@flow_app.command("test-rules")
def try_rules(
    attributes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="What a client would say.")
    ] = None,
    *,
    rules: Annotated[
        Path, typer.Option("--rules", "-r", metavar="RULES", help="TOML or JSON file of rules.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say which rules fit some attributes, and the files that they name.

    The exit code is 0 when one fits, else 1.

    \b
    Examples:
      callboard flow test-rules -r rules.toml stream=raw host=a
    """  # noqa: D301
    from callboard.cli.flowing import print_rules

    raise typer.Exit(print_rules(rules, attributes or [], as_json=as_json))
