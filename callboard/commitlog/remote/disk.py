"""A served log as a disk that can only be read: its files as they are, checked by who reads.

So everything that reads a folder reads a served log alike. A call that finds no server is made
again for a while, since connections are cut and servers are started anew.

The server's side of each call is in `server`: actions `names`, `size`, and a stream of bytes
for a ticket.
"""

import errno
import ipaddress
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogFailed

T = TypeVar("T")

#: How a log is named that is served: with TLS, and plainly.
SCHEMES: Final = ("grpc+tls", "grpc")
#: Environment variables with the token and the file of the authority, where none is given.
TOKEN_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105
AUTHORITY_VARIABLE: Final = "CALLBOARD_LOG_AUTHORITY"
#: Bytes read at once, and at most, by who reads on from where it was.
_FIRST: Final = 64 << 10
_AHEAD: Final = 4 << 20
#: Seconds that a server may be away, and between two calls.
_PATIENCE: Final = 10.0
_PAUSE: Final = 0.05


class LogAddress(NamedTuple):
    """Where a log is served; as a text, what a user writes.

    Attributes:
        server: Scheme, host and port.
        name: That of the log.
        token: What proves who reads; None for nobody in particular.
        authority: File with the certificate of who signed the server's; None for the system's.
    """

    server: str
    name: str
    token: str | None = None
    authority: str | None = None

    def __str__(self) -> str:
        """Return the address without the token."""
        return f"{self.server}/{self.name}"


def parse_address(text: str, token: str | None = None) -> LogAddress:
    """Return what a text like `grpc://HOST:PORT/NAME` says.

    Raises:
        InvalidOption: it has another form, or the token would travel where others can read it.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    name = parts.path.strip("/")
    if parts.scheme not in SCHEMES or not parts.hostname or not port or not name:
        what = (
            f"{text!r} names no log; write grpc://HOST:PORT/NAME, or grpc+tls://HOST:PORT/NAME"
        )
        raise InvalidOption(what)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    given = token or os.environ.get(TOKEN_VARIABLE) or None
    authority = os.environ.get(AUTHORITY_VARIABLE) or None
    if given and parts.scheme == "grpc" and not _is_loopback(parts.hostname):
        what = (
            f"{text!r} speaks plainly, and on the way to {parts.hostname} others could read the"
            f" token (token=…, or {TOKEN_VARIABLE}); write grpc+tls://"
        )
        raise InvalidOption(what)
    return LogAddress(f"{parts.scheme}://{host}:{port}", name, given, authority)


def _is_loopback(host: str) -> bool:
    """Return whether what is sent to a host stays on this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_only(what: str, *_: object, **__: object) -> NoReturn:
    """Refuse to write."""
    text = f"{what} is served to read; write the log where it is"
    raise LogFailed(text)


class RemoteDisk:
    """A `Disk` with the files of one served log."""

    def __init__(self, address: LogAddress) -> None:
        """Name a log; nothing is asked yet."""
        self._address = address
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(
            read_only, address.name
        )

    def open(self, path: str, *, append: bool = False) -> "RemoteFile":
        """Open a file to read it."""
        if append:
            read_only(path)
        name = path.rpartition("/")[2]
        size_of(self._address, name)
        return RemoteFile(self._address, name)

    def listdir(self, path: str) -> list[str]:
        """Return the names of the log's files, sorted; its folders are not served."""
        if path != str(self._address):
            raise FileNotFoundError(errno.ENOENT, "it is not served", path)
        names: list[str] = _ask(self._address, "names")
        return names

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return size_of(self._address, path.rpartition("/")[2])


class RemoteFile:
    """A `DiskFile` of a served log. Who reads on from where it was gets ever more at once."""

    def __init__(self, address: LogAddress, name: str) -> None:
        """Name a file."""
        self._address = address
        self._name = name
        self._at, self._kept = 0, b""
        self._ahead = _FIRST
        self.write = self.truncate = self.fsync = partial(read_only, name)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        start = offset - self._at
        if not 0 <= start <= len(self._kept) - size:
            self._read(offset, size)
            start = 0
        return self._kept[start : start + size]

    def _read(self, offset: int, size: int) -> None:
        """Keep what stands from an offset on, also what is known of it."""
        behind = self._at + len(self._kept)
        known = self._kept[offset - self._at :] if self._at <= offset <= behind else b""
        self._ahead = min(2 * self._ahead, _AHEAD) if known or offset == behind else _FIRST
        wanted = max(size, self._ahead) - len(known)
        place = {"file": self._name, "at": offset + len(known), "size": wanted}
        self._kept = known + b"".join(_read(self._address, place))
        self._at = offset

    def size(self) -> int:
        """Return the size in bytes, now."""
        return size_of(self._address, self._name)

    def close(self) -> None:
        """Keep nothing."""
        self._kept = b""


def size_of(address: LogAddress, file: str) -> int:
    """Return the size of a file of a served log.

    Raises:
        FileNotFoundError: there is no such file.
        LogFailed: the server does not answer, or refuses.
    """
    size: int | None = _ask(address, "size", file)
    if size is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", file)
    return size


def _ask(address: LogAddress, what: str, file: str = "") -> Any:
    """Return the answer to an action."""
    body = json.dumps({"log": address.name, "file": file}).encode()

    def ask(client: Any, how: Any) -> bytes:
        (answer,) = client.do_action((what, body), how)
        told: bytes = answer.body.to_pybytes()
        return told

    return json.loads(_called(address, ask))


def _read(address: LogAddress, place: Mapping[str, object]) -> list[memoryview]:
    """Return a piece of a file, in pieces."""
    flight = load_flight()
    ticket = flight.Ticket(json.dumps({"log": address.name, **place}).encode())

    def read(client: Any, how: Any) -> list[memoryview]:
        rows = (piece.data.column(0)[0] for piece in client.do_get(ticket, how))
        return [memoryview(row.as_buffer()) for row in rows]  # joined without a copy before

    return _called(address, read)


def load_flight() -> Any:
    """Return Arrow's Flight, which is a part of an extra.

    Raises:
        ExtraMissing: it is not installed.
    """
    load_pyarrow()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told by our errors
    try:
        import pyarrow.flight
    except ImportError:
        what = "this pyarrow has no Flight; install: pip install 'callboard[arrow]'"
        raise ExtraMissing(what) from None
    return pyarrow.flight


@lru_cache(maxsize=64)
def _client(process: int, address: LogAddress) -> Any:
    """Return the client of a process: one from before a fork does not work behind it."""
    try:
        roots = None if address.authority is None else Path(address.authority).read_bytes()
    except OSError as error:
        what = f"the authority {address.authority} cannot be read: {error.strerror or error}"
        raise LogFailed(what) from error
    return load_flight().FlightClient(address.server, tls_root_certs=roots)


def _called(address: LogAddress, call: Callable[[Any, Any], T]) -> T:
    """Return what a call of a client returns; one that finds no server is made again.

    Raises:
        LogFailed: there is no server for some seconds, or it refuses.
    """
    flight, deadline = load_flight(), time.monotonic() + _PATIENCE
    token = (
        []
        if address.token is None
        else [(b"authorization", f"Bearer {address.token}".encode())]
    )
    how = flight.FlightCallOptions(timeout=_PATIENCE, headers=token)
    while True:
        try:
            return call(_client(os.getpid(), address), how)
        except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
            if time.monotonic() >= deadline:
                what = f"{address}: nobody answers; is it served (callboard log serve)? {error}"
                raise LogFailed(what) from None
            time.sleep(_PAUSE)
        except load_pyarrow().ArrowException as error:
            what = f"{address}: {str(error).partition('. gRPC')[0]}"
            raise LogFailed(what) from None
