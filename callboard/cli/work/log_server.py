"""The work of `callboard log serve`: who may read, and the server's life."""

import hmac
from collections.abc import Sequence
from pathlib import Path

from callboard.cli.options import JsonOptions
from callboard.cli.own_node import catch_signals
from callboard.cli.problem import Misuse, Problem, Problems
from callboard.commitlog import LogReader
from callboard.commitlog.remote.disk import load_flight
from callboard.configuration.host_port import parse_host_port
from callboard.proxies.link.ports import is_loopback
from callboard.proxies.rights.permissions import LinkAccess


def serve_logs(
    folders: Sequence[Path],
    listen: str,
    permissions: Path | None,
    tls: Path | None,
    options: JsonOptions,
) -> None:
    """Serve logs until a signal comes.

    Args:
        folders: of the logs.
        listen: `HOST:PORT`.
        permissions: the file of secrets and rights; None lets everybody read.
        tls: the folder of the certificate; None speaks plainly.
        options: of the command.

    Raises:
        Problem: an argument makes no sense, or the port cannot be opened.
        LogFailed: there is no log in a folder.
        ExtraMissing: pyarrow is not installed.
    """
    load_flight()
    from callboard.commitlog.remote.server import LogServer, names_of

    try:
        (host, port), logs = parse_host_port(listen), names_of(folders)
    except ValueError as error:
        raise Misuse(why=str(error), step="see callboard log serve --help") from None
    for folder in logs.values():
        LogReader(folder)
    if not is_loopback(host) and (tls is None or permissions is None):
        why = f"{host} can be reached from other machines"
        raise Misuse(why=why, step="give --permissions FILE.toml and --tls FOLDER")
    scheme = "grpc" if tls is None else "grpc+tls"
    place = f"[{host}]" if ":" in host else host
    with catch_signals() as stop:
        try:
            server = LogServer(
                logs,
                f"{scheme}://{place}:{port}",
                _Readers(permissions),
                certificates=() if tls is None else [_certificate(tls)],
            )
        except OSError as error:
            why = f"nothing can be served at {listen}: {str(error).partition('. gRPC')[0]}"
            raise Problem(why=why, step="choose another --listen") from None
        for name, folder in logs.items():
            address = f"{scheme}://{place}:{server.port}/{name}"
            row = {"name": name, "folder": folder, "address": address}
            options.say(row, f"{folder} is served at {address}")
        stop.wait()
        server.shutdown()


class _Readers:
    """Says what who shows a token may read, by the file of permissions."""

    def __init__(self, file: Path | None) -> None:
        """Read the file.

        Raises:
            Problem: with a line for each mistake.
        """
        self._access: LinkAccess | None = None
        if file is not None:
            from callboard.operation.configuration import InvalidConfiguration
            from callboard.operation.permissions import load_permissions

            try:
                given = load_permissions(file)
                self._access = LinkAccess.of(None, given.secrets, given.permissions)
            except InvalidConfiguration as error:
                raise Problems(error.lines) from None

    def __call__(self, token: str | None) -> Sequence[str] | None:
        """Return patterns of logs; None where the token is none of ours."""
        if self._access is None:
            return ("*",)
        shown = (token or "").encode()
        names = [name for name, key in self._access.keys if hmac.compare_digest(key, shown)]
        if not names or self._access.permissions is None:
            return None
        standing = self._access.permissions.admit(names[0], ())
        return None if standing is None else tuple(standing.rights.logs)


def _certificate(folder: Path) -> tuple[bytes, bytes]:
    """Return the chain and the key in a folder."""
    try:
        chain = (folder / "certificate.pem").read_bytes()
        key = folder / "key.pem"
        return chain, key.read_bytes() if key.exists() else chain
    except OSError as error:
        why = f"{folder}/certificate.pem cannot be read: {error.strerror or error}"
        raise Misuse(why=why, step="put the server's certificate and key there") from None
