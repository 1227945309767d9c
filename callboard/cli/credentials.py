"""What a command's node proves and demands: shared secret and TLS, never on the command line.

Arguments of a process can be read by everybody on its machine, so a secret comes from a file or
from the environment.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from callboard.cli.failure import MISUSED, Failure

if TYPE_CHECKING:
    from callboard import Node, Tls

SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the variable's name

SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        envvar="CALLBOARD_SECRET_FILE",
        help=f"File that holds the shared secret; or set {SECRET_VARIABLE} to the secret.",
    ),
]
TlsFolder = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="FOLDER",
        envvar="CALLBOARD_TLS",
        help="Folder with authority.pem, and with certificate.pem and key.pem of this node.",
    ),
]


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Shared secret and TLS of a command's node."""

    secret: str | None = None
    tls: "Tls | None" = None


def read_credentials(secret_file: Path | None, tls_folder: Path | None) -> Credentials:
    """Read what the options and the environment name.

    Raises:
        Failure: a file is missing or empty.
    """
    return Credentials(
        read_secret(secret_file), None if tls_folder is None else _tls(tls_folder)
    )


def open_node(name: str, credentials: Credentials) -> "Node":
    """Make the short-lived node with which a command talks to one that runs.

    Raises:
        TlsError: a file of the certificates is of no use.
    """
    from callboard import Node

    return Node(name, secret=credentials.secret, tls=credentials.tls)


def read_secret(path: Path | None) -> str | None:
    """Return the secret that a file holds, or else that of the environment; None for none.

    Raises:
        Failure: the file is missing or empty.
    """
    if path is None:
        return os.environ.get(SECRET_VARIABLE) or None
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise Failure(
            why=f"the secret cannot be read from {path}: {reason}",
            step="name a text file with --secret-file FILE",
            code=MISUSED,
        ) from error
    if not secret:
        raise Failure(
            why=f"{path} is empty", step="write the shared secret into it", code=MISUSED
        )
    return secret


def _tls(folder: Path) -> "Tls":
    from callboard import Tls

    authority, certificate, key = (
        folder / f"{name}.pem" for name in ("authority", "certificate", "key")
    )
    if not authority.is_file():
        raise Failure(
            why=f"{authority} is missing",
            step="put the certificate of the cluster's authority there",
            code=MISUSED,
        )
    if not certificate.exists():
        return Tls(authority=authority)
    return Tls(certificate, key if key.exists() else None, authority=authority)
