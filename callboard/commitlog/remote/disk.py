"""A served log as a read-only disk: its files unchanged; the reader checks their contents.

So every reader of folders can read served logs. A call that finds no server is repeated for
some seconds, as connections break and servers are restarted.

The calls are those of `server`: the actions `names` and `size`, and a stream of bytes for a
ticket.
"""

import errno
import ipaddress
import json
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from callboard.backoff import Backoff, retried
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogFailed
from callboard.commitlog.folder import LAST_OFFSET
from callboard.commitlog.remote.read_only import ReadOnlyDisk, ReadOnlyFile, are_names
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted

T = TypeVar("T")

#: Schemes of served logs: with TLS, and without.
SCHEMES: Final = ("grpc+tls", "grpc")
#: Environment variables with the default token, and the default file of the authority.
TOKEN_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105
AUTHORITY_VARIABLE: Final = "CALLBOARD_LOG_AUTHORITY"
#: Bytes of the first request; most readers need less.
_FIRST_REQUEST: Final = 64 << 10
#: Bytes of a row of a stream; the last one may be shorter.
ROW: Final = 1 << 20
#: Closed files whose prefetched bytes are kept, and for how many seconds.
_CACHED_FILES: Final = 2
_CACHE_SECONDS: Final = 1.0
#: Start of the error text of a server that is temporarily unable to answer.
BUSY: Final = "the server of logs is busy"
#: Seconds for which a call is repeated without a server, and the pause between attempts.
_RETRY_SECONDS: Final = 10.0
_PAUSE: Final = 0.05
#: Bytes of one answer: a row, or the names of a log's files.
_ANSWER_LIMIT: Final = 64 << 20
#: Short pauses between attempts to connect, so that a restarted server is found at once.
_DIALING: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", _ANSWER_LIMIT),
]

#: The process in which the first client was made.
_dialed_in: Final[dict[str, int]] = {}


class LogAddress(NamedTuple):
    """The address of a served log; its text is the address without the token.

    Attributes:
        server: Scheme, host and port.
        name: Name of the log.
        token: Token of the reader; None for a server that requires none.
        authority: File with the certificate of the server's authority; None for those of the
            system.
    """

    server: str
    name: str
    token: str | None = None
    authority: str | None = None

    def __repr__(self) -> str:
        return f"<LogAddress {self}>"

    def __str__(self) -> str:
        """Return the address without the token."""
        return f"{self.server}/{self.name}"

    def with_tls(self, folder: str | Path | None) -> "LogAddress":
        """Return the address with the authority of a folder, unless it has one."""
        if folder is None or self.authority is not None:
            return self
        return self._replace(authority=str(Path(folder) / "authority.pem"))


def parse_address(text: str, token: str | None = None) -> LogAddress:
    """Parse an address such as `grpc://HOST:PORT/NAME`.

    Raises:
        InvalidOption: the address is malformed, or the token would be sent without encryption.
    """
    address = _parsed(text, token)
    if address is None or not address.name:
        message = (
            f"{redacted(text)!r} is not the address of a log;"
            " use grpc://HOST:PORT/NAME or grpc+tls://HOST:PORT/NAME"
        )
        raise InvalidOption(message)
    return address


def names_at(text: str, token: str | None = None, tls: str | Path | None = None) -> list[str]:
    """Return the names of the logs of a server, `grpc://HOST:PORT`, that the token may read.

    Raises:
        InvalidOption: the address is malformed.
        LogFailed: the server does not answer, or refuses.
    """
    address = _parsed(text, token)
    if address is None or address.name:
        message = (
            f"{redacted(text)!r} is not the address of a log server;"
            " use grpc://HOST:PORT or grpc+tls://HOST:PORT"
        )
        raise InvalidOption(message)

    def ask(client: Any, options: Any) -> list[str]:
        flights = client.list_flights(options=options)
        return sorted(flight.descriptor.path[0].decode() for flight in flights)

    return _call(address.with_tls(tls), ask)


def _parsed(text: str, token: str | None) -> LogAddress | None:
    """Parse an address, whose name may be empty; return None if it is malformed."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in SCHEMES or not parts.hostname or not port:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    authority = os.environ.get(AUTHORITY_VARIABLE) or None
    if token and parts.scheme == "grpc" and not _is_loopback(parts.hostname):
        message = (
            f"{redacted(text)!r} would send the token (token=…, or {TOKEN_VARIABLE}) to"
            f" {parts.hostname} without encryption; use grpc+tls://"
        )
        raise InvalidOption(message)
    return LogAddress(
        f"{parts.scheme}://{host}:{port}", parts.path.strip("/"), token, authority
    )


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RemoteDisk(ReadOnlyDisk["RemoteFile"]):
    """A `Disk` with the files of one served log.

    The prefetched bytes of a file are kept if it is closed before its end: followers, and
    readers of a limited number of records, open the same file repeatedly.
    """

    def __init__(self, address: LogAddress) -> None:
        """Use the log at an address; no request is sent yet."""
        super().__init__(str(address), address.name)
        self._address = address
        self._cached: dict[str, RemoteFile] = {}

    def _open(self, name: str) -> "RemoteFile":
        """Open a file, or take it from the cache."""
        cached = self._cached.pop(name, None)  # atomic, or two threads could share a file
        if cached is not None and cached.is_fresh():
            return cached
        return RemoteFile(self._address, name, self._size(name), self._keep)

    def _keep(self, file: "RemoteFile") -> None:
        """Cache a file that was closed before its end; drop the oldest one at the limit."""
        dropped = self._cached.pop(file.name, None)
        self._cached[file.name] = file
        if dropped is None and len(self._cached) > _CACHED_FILES:
            dropped = self._cached.pop(next(iter(self._cached)), None)
        if dropped is not None:
            dropped.drop()

    def _names(self) -> list[str]:
        """Ask for the names of the files."""
        names: list[str] = _ask(self._address, "names")
        if not are_names(names):
            raise _wrong_answer(self._address)
        return names

    def _size(self, name: str) -> int:
        """Ask for the size of a file."""
        return size_of(self._address, name)


class RemoteFile(ReadOnlyFile):
    """A `DiskFile` of a served log.

    A sequential reader gets a stream of the rest of the file; Arrow and the network buffer as
    much of it as a fast reader needs next.

    Attributes:
        name: Name of the file.
    """

    def __init__(
        self, address: LogAddress, name: str, size: int, keep: Callable[["RemoteFile"], None]
    ) -> None:
        """Open a file of `size` bytes; `keep` is called if it is closed before its end."""
        super().__init__(name)
        self.name = name
        self._process, self._closed_at = os.getpid(), 0.0
        self._address, self._size, self._keep = address, size, keep
        self._stream = _Stream(address, name, 0, 0)
        #: Rows of the stream that may be read again, and the position of the first.
        self._rows: list[memoryview] = []
        self._start = LAST_OFFSET
        self._is_at_end = False
        #: Whether the reader has seen the end, so that prefetched bytes must not be used again.
        self._is_spent = False

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file.

        After a read has reached the end, bytes that are appended later are not read until the
        file is opened again.
        """
        if not self._start <= offset <= self._stream.position:
            self._request(offset, max(size, _FIRST_REQUEST))
        while self._stream.position < offset + size and not self._is_at_end:
            row = self._stream.next()
            if row is not None:
                self._rows.append(row)
            elif self._stream.position < self._stream.end:
                self._is_at_end = self._is_spent = True
            else:  # the reader continues after the first request: stream the rest
                self._stream = _Stream(self._address, self.name, self._stream.position)
        while len(self._rows) > 1 and self._start + len(self._rows[0]) <= offset:
            self._start += len(self._rows.pop(0))
        self._size = max(self._size, self._stream.position)
        parts, first = [], offset - self._start
        for row in self._rows:
            parts.append(row[first : first + size])
            first, size = max(0, first - len(row)), size - len(parts[-1])
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _request(self, offset: int, size: int) -> None:
        """Request a range of the file."""
        self.drop()
        self._stream = _Stream(self._address, self.name, offset, size)
        self._rows, self._start, self._is_at_end = [], offset, False

    def size(self) -> int:
        """Return the size in bytes at its opening, or the end of the bytes read since."""
        # The reader may find a torn record at the end, and read it again after the next append.
        self._is_spent = True
        return self._size

    def close(self) -> None:
        """Keep prefetched bytes, unless the reader asked for the moving end of the file."""
        if self._is_spent or self._stream.end != LAST_OFFSET:
            self.drop()
        else:
            self._closed_at = time.monotonic()
            self._keep(self)

    def is_fresh(self) -> bool:
        """Return whether the prefetched bytes may be used again."""
        age = time.monotonic() - self._closed_at
        return self._process == os.getpid() and age < _CACHE_SECONDS

    def drop(self) -> None:
        """Close the stream, and drop prefetched bytes."""
        self._stream.close()
        self._rows, self._start = [], LAST_OFFSET


class _Stream:
    """A stream of the bytes of a file, in rows; it continues after a broken connection.

    Attributes:
        position: The position after the received bytes.
        end: The position after the requested bytes; the stream may end before it.
    """

    def __init__(
        self, address: LogAddress, file: str, position: int, size: int | None = None
    ) -> None:
        """Stream `size` bytes, or all, from a position on; no request is sent yet."""
        self.position = position
        self.end = LAST_OFFSET if size is None else position + size
        self._address, self._file = address, file
        self._reader: Any = None

    def next(self) -> memoryview | None:
        """Return the next bytes; None at the end.

        Raises:
            LogFailed: the server does not answer, or refuses.
        """
        row = _call(self._address, self._read) if self.position < self.end else None
        self.position += 0 if row is None else len(row)
        return row

    def _read(self, client: Any, options: Any) -> memoryview | None:
        """Return the next row; after a failed call, request it again."""
        if self._reader is None:
            size = self.end - self.position
            part = {"file": self._file, "at": self.position, "size": size}
            body = json.dumps({"log": self._address.name, **part}).encode()
            self._reader = client.do_get(load_flight().Ticket(body), options)
        try:
            return self._row(self._reader.read_chunk().data)
        except StopIteration:
            return None
        except load_pyarrow().ArrowException:
            self._reader = None
            raise

    def _row(self, rows: Any) -> memoryview:
        """Check a row of a server: it has bytes, but not more than were requested."""
        if rows.num_rows == 1 and rows.schema.types == [load_pyarrow().binary()]:
            data = memoryview(rows.column(0)[0].as_buffer() or b"")
            if 0 < len(data) <= self.end - self.position:
                return data
        raise _wrong_answer(self._address)

    def close(self) -> None:
        """Cancel the call."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None


def size_of(address: LogAddress, file: str) -> int:
    """Return the size of a file of a served log.

    Raises:
        FileNotFoundError: the log does not have the file.
        LogFailed: the server does not answer, or refuses.
    """
    size = _ask(address, "size", file)
    if size is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", file)
    if type(size) is not int or not 0 <= size <= LAST_OFFSET:
        raise _wrong_answer(address)
    return size


def _ask(address: LogAddress, action: str, file: str = "") -> Any:
    """Return the answer to an action."""
    body = json.dumps({"log": address.name, "file": file}).encode()

    def ask(client: Any, options: Any) -> list[bytes]:
        results = islice(client.do_action((action, body), options), 2)
        return [result.body.to_pybytes() for result in results]

    answers = _call(address, ask)
    try:
        (answer,) = map(parse_json, answers)
    except ValueError:
        raise _wrong_answer(address) from None
    return answer


def _wrong_answer(address: LogAddress) -> LogFailed:
    """Return the error for an answer that a log server does not send."""
    message = f"{address}: the server is not callboard log serve, or has another version"
    return LogFailed(message)


def load_flight() -> Any:
    """Return the module of Arrow Flight.

    Raises:
        ExtraMissing: Arrow Flight is not installed.
    """
    load_pyarrow()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors report its failures
    try:
        import pyarrow.flight
    except ImportError:
        message = "this pyarrow has no Flight; install: pip install 'callboard[arrow]'"
        raise ExtraMissing(message) from None
    return pyarrow.flight


@lru_cache(maxsize=64)
def _client(process: int, address: LogAddress) -> Any:
    """Return the client of a process.

    Raises:
        LogFailed: the authority cannot be read, or the process was forked after its first
            client was made: a fork does not copy gRPC's threads, and calls would hang.
    """
    if _dialed_in.setdefault("process", process) != process:
        message = (
            f"{address}: this process was forked from one that had already read served logs,"
            " where Flight does not work; start it by spawn, or fork before the first read"
        )
        raise LogFailed(message)
    try:
        roots = None if address.authority is None else Path(address.authority).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        message = f"the authority {address.authority} cannot be read: {reason}"
        raise LogFailed(message) from error
    return load_flight().FlightClient(
        address.server, tls_root_certs=roots, generic_options=_DIALING
    )


def _call(address: LogAddress, call: Callable[[Any, Any], T]) -> T:
    """Call a server with a client and options; repeat a call that finds no server.

    Raises:
        LogFailed: the server was not reached for some seconds, or it refuses.
    """
    flight = load_flight()
    token = (
        []
        if address.token is None
        else [(b"authorization", f"Bearer {address.token}".encode())]
    )
    options = flight.FlightCallOptions(timeout=_RETRY_SECONDS, headers=token)
    unavailable = (flight.FlightUnavailableError, flight.FlightTimedOutError)

    def attempt() -> T:
        return call(_client(os.getpid(), address), options)

    try:
        return retried(attempt, unavailable, Backoff.fixed(_PAUSE), _RETRY_SECONDS)
    except unavailable as error:
        message = _text_of(error)
        if not message.startswith(BUSY):
            message = f"no answer; is it served (callboard log serve)? {message}"
        message = f"{address}: {message}"
        raise LogFailed(message) from None
    except load_pyarrow().ArrowException as error:
        if (number := getattr(error, "extra_info", b"")).isdigit():  # of the server's disk
            raise OSError(int(number), _text_of(error), str(address)) from None
        message = f"{address}: {_text_of(error)}"
        raise LogFailed(message) from None


def _text_of(error: Exception) -> str:
    """Return the text of an error from Flight without the details that Flight adds."""
    return re.split(r"\. (?:Detail: |gRPC )", str(error))[0]
