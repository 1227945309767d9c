"""The work of `callboard log serve`: who may read, and the server's life."""

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
from callboard.cli.options import JsonOptions
from callboard.cli.own_node import catch_signals
from callboard.cli.problem import MISUSED, Misuse, Problem, Problems, problem_of
from callboard.commitlog import LogReader
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.remote.disk import load_flight
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.access import LinkAccess
from callboard.kernel.errors import TlsError
from callboard.kernel.tls import LOOK_INTERVAL, Tls, is_loopback

#: Seconds for which rights are not looked up again.
_LOOK_INTERVAL: Final = 1.0

_log = logging.getLogger("callboard.commitlog")


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
    from callboard.commitlog.remote.server import names_of
    from callboard.log_service.log_door import LogDoor

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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for connections
    with catch_signals() as stop:
        try:
            papers = None if tls is None else _papers(tls)
            door = LogDoor(logs, f"{scheme}://{place}:{port}", _Readers(permissions), papers)
        except (OSError, load_pyarrow().ArrowException) as error:
            told = _why_not(host, port) or str(error).partition(". gRPC")[0]
            why = f"nothing can be served at {listen}: {told}"
            raise Problem(why=why, step="choose another --listen") from None
        for name, folder in logs.items():
            address = f"{scheme}://{place}:{door.port}/{name}"
            row = {"name": name, "folder": folder, "address": address}
            options.say(row, f"{folder} is served at {address}")
        while not stop.wait(LOOK_INTERVAL):
            door.look()
        door.shutdown()


class _Readers:
    """Says what who shows a token may read, by the file of permissions as it is now."""

    def __init__(self, file: Path | None) -> None:
        """Read the file.

        Raises:
            Problem: with a line for each mistake.
        """
        self._file = file
        self._lock = locks.lock("readers of the command log serve", 120)
        self._looked = -math.inf
        self._told = ""
        self._access: LinkAccess | None = None
        if file is not None and (mistakes := self._load(file)):
            raise Problems(mistakes.splitlines(), code=MISUSED)

    def __call__(self, token: str | None) -> Sequence[str] | None:
        """Return patterns of logs; None where the token is none of ours."""
        if self._file is not None:
            self._look_again(self._file)
        if self._access is None:
            return ("*",)
        shown = (token or "").encode()
        names = [name for name, key in self._access.keys if hmac.compare_digest(key, shown)]
        if not names or self._access.permissions is None:
            return None
        standing = self._access.permissions.admit(names[0], ())
        return None if standing is None else tuple(standing.rights.logs)

    def _look_again(self, file: Path) -> None:
        """Read the file, and those of its secrets; what is of no use leaves the old rights."""
        with self._lock:
            if (now := time.monotonic()) - self._looked < _LOOK_INTERVAL:
                return
            self._looked, before = now, self._told
            self._told = self._load(file)
            if self._told not in ("", before):
                _log.error("%s is of no use, the old rights hold: %s", file, self._told)

    def _load(self, file: Path) -> str:
        """Read the file; returns its mistakes, one each line."""
        from callboard.operation.configuration import InvalidConfiguration
        from callboard.operation.permissions import load_permissions

        try:
            given = load_permissions(file)
            self._access = LinkAccess.of(None, given.secrets, given.permissions)
        except InvalidConfiguration as error:
            return "\n".join(error.lines)
        return ""


def _why_not(host: str, port: int) -> str:
    """Return why an address cannot be listened at; empty if it can. Flight does not tell."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _papers(folder: Path) -> Tls:
    """Return the chain and the key in a folder.

    Raises:
        Misuse: they cannot be read or used.
    """
    chain, key = folder / "certificate.pem", folder / "key.pem"
    found = Tls(chain, key if key.exists() else None, mutual=False)
    try:
        found.for_listening()  # Flight says no reason
    except TlsError as error:
        raise problem_of(error, "put the server's certificate and key there", MISUSED) from None
    return found
