"""`callboard store …`."""

from typing import TYPE_CHECKING, Annotated

import typer

from callboard.cli.credentials import Credentials, SecretFile, TlsFolder, read_credentials

if TYPE_CHECKING:
    from callboard.cli.storing import StoreAccess

store_app = typer.Typer(
    help="Read and write stores.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="STORE", help="Its name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="JSON, or else text.")]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="ADDRESS",
        help="basp://HOST:PORT of a node, or HOST:PORT of an endpoint with its own encryption; "
        "repeatable.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.0, help="Seconds to reach peer and master.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@store_app.callback()
def store() -> None:
    """Read and write stores."""


@store_app.command()
def get(
    store: Name,
    key: Key,
    *,
    peer: Peers = None,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print the value of a key; exit code 1 when there is none.

    \b
    Examples:
      callboard store get things colour --peer basp://127.0.0.1:4222
      callboard store get things colour --peer 127.0.0.1:9999
    """  # noqa: D301
    _access(store, peer, timeout, read_credentials(secret_file, tls), as_json=as_json).get(key)


@store_app.command()
def put(
    store: Name,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or else text.")],
    *,
    peer: Peers = None,
    expiry: Annotated[
        float, typer.Option(min=0.0, help="Seconds until the key is removed; 0 is never.")
    ] = 0.0,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Set the value of a key, and wait until the master has acknowledged it.

    \b
    Examples:
      callboard store put things colour '"red"' --peer basp://127.0.0.1:4222
      callboard store put things leader me --expiry 30 --peer basp://127.0.0.1:4222
    """  # noqa: D301
    access = _access(store, peer, timeout, read_credentials(secret_file, tls), as_json=as_json)
    access.put(key, value, expiry or None)


@store_app.command()
def keys(
    store: Name,
    *,
    peer: Peers = None,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print all keys, one a line.

    \b
    Examples:
      callboard store keys things --peer basp://127.0.0.1:4222
    """  # noqa: D301
    _access(store, peer, timeout, read_credentials(secret_file, tls), as_json=as_json).keys()


@store_app.command()
def watch(
    store: Name,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="What keys begin with; default: all.")
    ] = "",
    *,
    peer: Peers = None,
    count: Annotated[
        int, typer.Option(min=0, help="End after so many changes; 0 is no end.")
    ] = 0,
    timeout: Timeout = 10.0,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print changes as they happen, until Ctrl-C or SIGTERM.

    \b
    Examples:
      callboard store watch things --peer basp://127.0.0.1:4222
      callboard store watch things sensors/ --json --peer basp://127.0.0.1:4222 | jq .value
    """  # noqa: D301
    access = _access(store, peer, timeout, read_credentials(secret_file, tls), as_json=as_json)
    access.watch(prefix, count)


def _access(
    name: str,
    peers: list[str] | None,
    timeout: float,
    credentials: Credentials,
    *,
    as_json: bool,
) -> "StoreAccess":
    from callboard.cli.storing import StoreAccess

    return StoreAccess(name, tuple(peers or ()), timeout, credentials, as_json)
