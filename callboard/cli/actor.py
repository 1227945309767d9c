"""`callboard actor …`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

actor_app = typer.Typer(help="Talk to actors.", no_args_is_help=True, rich_markup_mode=None)

Address = Annotated[str, typer.Argument(metavar="ADDRESS/NAME", help="basp://HOST:PORT/NAME")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="JSON, or else text as it is.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that it may take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TypeName = Annotated[
    str,
    typer.Option(
        "--type", metavar="NAME", help="Registered message type; MESSAGE holds its fields."
    ),
]
AppFile = Annotated[
    Path | None,
    typer.Option("--app", metavar="APP.py", help="File that registers the message types."),
]


@actor_app.callback()
def actor() -> None:
    """Talk to actors."""


@actor_app.command()
def call(
    address: Address,
    method: Annotated[str, typer.Argument(help="A public method of the actor's class.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Each JSON, or else text as it is."),
    ] = None,
    *,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
    app: AppFile = None,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Call a method of an actor and print what it returns.

    \b
    Examples:
      callboard actor call basp://127.0.0.1:4222/till add 5
      callboard actor call basp://127.0.0.1:4222/till greet '"5"' --json
    """  # noqa: D301
    from callboard.cli.calling import call_method

    proof = read_credentials(secret_file, tls)
    answer = call_method(
        address, method, arguments or [], timeout=timeout, app=app, credentials=proof
    )
    _print(answer, as_json=as_json)


@actor_app.command()
def ask(
    address: Address,
    message: Message,
    *,
    type_name: TypeName = "",
    app: AppFile = None,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Send a message to an actor and print its answer.

    \b
    Examples:
      callboard actor ask basp://127.0.0.1:4222/echo hello
      callboard actor ask basp://127.0.0.1:4222/till '{}' --type shop.Total --app shop.py
    """  # noqa: D301
    from callboard.cli.calling import ask_message

    proof = read_credentials(secret_file, tls)
    answer = ask_message(
        address, message, type_name=type_name, app=app, timeout=timeout, credentials=proof
    )
    _print(answer, as_json=as_json)


@actor_app.command()
def tell(
    address: Address,
    message: Message,
    *,
    type_name: TypeName = "",
    app: AppFile = None,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Send a message to an actor, and wait until its node confirms that it arrived.

    \b
    Examples:
      callboard actor tell basp://127.0.0.1:4222/echo hello
      callboard actor tell basp://127.0.0.1:4222/till '{"by": 5}' --type shop.Add --app shop.py
    """  # noqa: D301
    from callboard.cli.calling import tell_message

    proof = read_credentials(secret_file, tls)
    tell_message(
        address, message, type_name=type_name, app=app, timeout=timeout, credentials=proof
    )
    if as_json:
        _print({"delivered": True}, as_json=True)


@actor_app.command()
def stop(
    address: Address,
    *,
    kill: Annotated[
        bool, typer.Option("--kill", help="Do not wait for the messages in its mailbox.")
    ] = False,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """End an actor, behind the messages that it has, and wait until it has ended.

    Its supervisor may start it again.

    \b
    Examples:
      callboard actor stop basp://127.0.0.1:4222/till
      callboard actor stop basp://127.0.0.1:4222/till --kill --json
    """  # noqa: D301
    from callboard.cli.calling import stop_actor

    proof = read_credentials(secret_file, tls)
    reason = stop_actor(address, kill=kill, timeout=timeout, credentials=proof)
    _print({"reason": reason} if as_json else f"ended: {reason}", as_json=as_json)


def _print(value: Any, *, as_json: bool) -> None:
    if as_json:
        from callboard.cli.values import to_json

        typer.echo(to_json(value))
    elif value is not None:
        typer.echo(value if isinstance(value, str) else repr(value))
