"""Implementation of `callboard log serve`: the server and the rights of its readers."""

import hmac
import logging
import math
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from callboard import locks
from callboard.cli.cli_error import MISUSED, CliError, CliErrors, UsageError, problem_of
from callboard.cli.options import JsonOptions
from callboard.cli.own_node import catch_signals
from callboard.commitlog import LogReader
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.remote.disk import load_flight
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.access import LinkAccess
from callboard.kernel.errors import TlsError
from callboard.kernel.ports import is_loopback
from callboard.tls.certificates import CERTIFICATE_POLL_SECONDS
from callboard.tls.contexts import Tls

#: Seconds between checks of the file of rights.
_POLL_SECONDS: Final = 1.0

_log = logging.getLogger("callboard.commitlog")


def serve_logs(
    folders: Sequence[Path],
    listen: str,
    permissions: Path | None,
    tls: Path | None,
    options: JsonOptions,
) -> None:
    """Serve logs until a signal.

    Args:
        folders: the folders of the logs.
        listen: `HOST:PORT`.
        permissions: file of secrets and rights; None permits reading to all.
        tls: folder of the certificate; None for no TLS.
        options: the options of the command.

    Raises:
        CliError: an argument is invalid, or the port cannot be opened.
        LogFailed: a folder has no log.
        ExtraMissing: pyarrow is not installed.
    """
    load_flight()
    from callboard.commitlog.remote.server import names_of
    from callboard.log_service.flight_log_server import FlightLogServer

    try:
        (host, port), logs = parse_host_port(listen), names_of(folders)
    except ValueError as error:
        raise UsageError(why=str(error), step="see callboard log serve --help") from None
    for folder in logs.values():
        LogReader(folder)
    if not is_loopback(host) and (tls is None or permissions is None):
        reason = f"{host} can be reached from other machines"
        raise UsageError(why=reason, step="use --permissions FILE.toml and --tls FOLDER")
    scheme = "grpc" if tls is None else "grpc+tls"
    url_host = f"[{host}]" if ":" in host else host
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # for connections
    with catch_signals() as stop:
        try:
            certificate = None if tls is None else _certificate_of(tls)
            server = FlightLogServer(
                logs, f"{scheme}://{url_host}:{port}", _Readers(permissions), certificate
            )
        except (OSError, load_pyarrow().ArrowException) as error:
            cause = _bind_error(host, port) or str(error).partition(". gRPC")[0]
            reason = f"cannot serve logs at {listen}: {cause}"
            raise CliError(why=reason, step="choose another --listen") from None
        for name, folder in logs.items():
            address = f"{scheme}://{url_host}:{server.port}/{name}"
            row = {"name": name, "folder": folder, "address": address}
            options.say(row, f"{folder} is served at {address}")
        while not stop.wait(CERTIFICATE_POLL_SECONDS):
            server.check()
        server.shutdown()


class _Readers:
    """Returns the logs that a token may read, from the current file of rights."""

    def __init__(self, file: Path | None) -> None:
        """Read the file.

        Raises:
            CliErrors: the options have errors; there is a line for each.
        """
        self._file = file
        self._lock = locks.lock("readers of the command log serve", 120)
        self._checked_at = -math.inf
        self._last_error = ""
        self._access: LinkAccess | None = None
        if file is not None and (mistakes := self._load(file)):
            raise CliErrors(mistakes.splitlines(), code=MISUSED)

    def __call__(self, token: str | None) -> Sequence[str] | None:
        """Return patterns of logs; None for an unknown token."""
        if self._file is not None:
            self._reload(self._file)
        if self._access is None:
            return ("*",)
        token_bytes = (token or "").encode()
        names = [
            name for name, key in self._access.keys if hmac.compare_digest(key, token_bytes)
        ]
        rights = self._access.rights_of(names[0]) if names else None
        return None if rights is None else tuple(rights.logs)

    def _reload(self, file: Path) -> None:
        """Read the file and its secrets; an invalid file leaves the old rights in force."""
        with self._lock:
            if (now := time.monotonic()) - self._checked_at < _POLL_SECONDS:
                return
            self._checked_at, previous = now, self._last_error
            self._last_error = self._load(file)
            if self._last_error not in ("", previous):
                _log.error("%s is invalid, the old rights hold: %s", file, self._last_error)

    def _load(self, file: Path) -> str:
        """Read the file; return its errors, one per line."""
        from callboard.operation.configuration import InvalidConfiguration
        from callboard.operation.permissions import load_permissions

        try:
            permissions = load_permissions(file)
            self._access = LinkAccess.of(None, permissions.secrets, permissions.permissions)
        except InvalidConfiguration as error:
            return "\n".join(error.lines)
        return ""


def _bind_error(host: str, port: int) -> str:
    """Return why an address cannot be bound, which Flight does not report; empty if it can."""
    try:
        family, kind, _, _, socket_address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with closing(socket.socket(family, kind)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(socket_address)
            probe.listen()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _certificate_of(folder: Path) -> Tls:
    """Return the certificate chain and the key in a folder.

    Raises:
        UsageError: the files cannot be read or used.
    """
    chain, key = folder / "certificate.pem", folder / "key.pem"
    tls = Tls(chain, key if key.exists() else None, mutual=False)
    try:
        tls.for_listening()  # Flight would not report the reason
    except TlsError as error:
        raise problem_of(error, "put the server's certificate and key there", MISUSED) from None
    return tls
