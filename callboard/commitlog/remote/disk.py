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
import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.errors import ExtraMissing, InvalidOption, LogFailed
from callboard.commitlog.folder import LAST_OFFSET
from callboard.support.nesting import parse_json
from callboard.support.redaction import redacted

T = TypeVar("T")

#: How a log is named that is served: with TLS, and plainly.
SCHEMES: Final = ("grpc+tls", "grpc")
#: Environment variables with the token and the file of the authority, where none is given.
TOKEN_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105
AUTHORITY_VARIABLE: Final = "CALLBOARD_LOG_AUTHORITY"
#: Bytes that are asked for first, of which most readers need less.
_FIRST: Final = 64 << 10
#: Bytes of a row of a stream; the last one may be shorter.
ROW: Final = 1 << 20
#: Files of which is kept what was read ahead, and for how many seconds.
_LEFT: Final = 2
_FRESH: Final = 1.0
#: How the text begins of a server that cannot answer now.
BUSY: Final = "the server of logs is busy"
#: Seconds that a server may be away, and between two calls.
_PATIENCE: Final = 10.0
_PAUSE: Final = 0.05
#: Bytes of one answer, which is a row, or the names of a log's files.
_ANSWER: Final = 64 << 20
#: A server that is back is found at once.
_DIALING: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", _ANSWER),
]

#: The process in which the first client was made.
_dialed_in: Final[dict[str, int]] = {}


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

    def __repr__(self) -> str:
        return f"<LogAddress {self}>"

    def __str__(self) -> str:
        """Return the address without the token."""
        return f"{self.server}/{self.name}"

    def with_tls(self, folder: str | Path | None) -> "LogAddress":
        """Return it with the authority of a folder, where none is known."""
        if folder is None or self.authority is not None:
            return self
        return self._replace(authority=str(Path(folder) / "authority.pem"))


def parse_address(text: str, token: str | None = None) -> LogAddress:
    """Return what a text like `grpc://HOST:PORT/NAME` says.

    Raises:
        InvalidOption: it has another form, or the token would travel where others can read it.
    """
    found = _parsed(text, token)
    if found is None or not found.name:
        what = f"{redacted(text)!r} names no log; write grpc://HOST:PORT/NAME, or grpc+tls://HOST:PORT/NAME"
        raise InvalidOption(what)
    return found


def names_at(text: str, token: str | None = None, tls: str | Path | None = None) -> list[str]:
    """Return the logs of a server, `grpc://HOST:PORT`, that who asks may read.

    Raises:
        InvalidOption: the text has another form.
        LogFailed: the server does not answer, or refuses.
    """
    address = _parsed(text, token)
    if address is None or address.name:
        what = f"{redacted(text)!r} names no server of logs; write grpc://HOST:PORT, or grpc+tls://HOST:PORT"
        raise InvalidOption(what)

    def ask(client: Any, how: Any) -> list[str]:
        found = client.list_flights(options=how)
        return sorted(each.descriptor.path[0].decode() for each in found)

    return _called(address.with_tls(tls), ask)


def _parsed(text: str, token: str | None) -> LogAddress | None:
    """Return the parts of an address, whose name may be empty; None if it is none."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in SCHEMES or not parts.hostname or not port:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    given = token or os.environ.get(TOKEN_VARIABLE) or None
    authority = os.environ.get(AUTHORITY_VARIABLE) or None
    if given and parts.scheme == "grpc" and not _is_loopback(parts.hostname):
        what = (
            f"{redacted(text)!r} speaks plainly, and on the way to {parts.hostname} others"
            f" could read the token (token=…, or {TOKEN_VARIABLE}); write grpc+tls://"
        )
        raise InvalidOption(what)
    return LogAddress(
        f"{parts.scheme}://{host}:{port}", parts.path.strip("/"), given, authority
    )


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
    """A `Disk` with the files of one served log.

    What was read ahead of a file that is closed in its middle is kept: followers, and who reads
    so many records at a time, open it again and again.
    """

    def __init__(self, address: LogAddress) -> None:
        """Name a log; nothing is asked yet."""
        self._address = address
        self._left: dict[str, RemoteFile] = {}
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(
            read_only, address.name
        )

    def open(self, path: str, *, append: bool = False) -> "RemoteFile":
        """Open a file to read it."""
        if append:
            read_only(path)
        name = path.rpartition("/")[2]
        left = self._left.pop(name, None)  # in one step: another thread gets another one
        if left is not None and left.is_fresh():
            return left
        return RemoteFile(self._address, name, size_of(self._address, name), self._keep)

    def _keep(self, file: "RemoteFile") -> None:
        """Keep a file that was left in its middle; the oldest one makes room."""
        before = self._left.pop(file.name, None)
        self._left[file.name] = file
        if before is None and len(self._left) > _LEFT:
            before = self._left.pop(next(iter(self._left)), None)
        if before is not None:
            before.drop()

    def listdir(self, path: str) -> list[str]:
        """Return the names of the log's files, sorted; its folders are not served."""
        if path != str(self._address):
            raise FileNotFoundError(errno.ENOENT, "it is not served", path)
        names = _ask(self._address, "names")
        if type(names) is not list or not all(type(each) is str for each in names):
            raise _no_answer(self._address)
        return names

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return size_of(self._address, path.rpartition("/")[2])


class RemoteFile:
    """A `DiskFile` of a served log.

    Who reads on from where it was gets a stream of the rest, of which Arrow and the network
    hold what a fast reader needs next, and no more.

    Attributes:
        name: That of the file.
    """

    def __init__(
        self, address: LogAddress, name: str, size: int, keep: Callable[["RemoteFile"], None]
    ) -> None:
        """Open a file of so many bytes; `keep` is called where it is closed in its middle."""
        self.name = name
        self._process, self._closed = os.getpid(), 0.0
        self._address, self._size, self._keep = address, size, keep
        self._stream = _Stream(address, name, 0, 0)
        self._rows: list[memoryview] = []  # those of the stream that may be asked for again
        self._start = LAST_OFFSET  # of the first one, in the file
        self._is_at_end = False
        self._is_spent = False  # what was read ahead serves nobody else
        self.write = self.truncate = self.fsync = partial(read_only, name)

    def is_in_place(self) -> bool:
        """Return True: what is read elsewhere is checked by its reader."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file.

        Where that was seen the file ends until it is opened again.
        """
        if not self._start <= offset <= self._stream.at:
            self._begin(offset, max(size, _FIRST))
        while self._stream.at < offset + size and not self._is_at_end:
            row = self._stream.next()
            if row is not None:
                self._rows.append(row)
            elif self._stream.at < self._stream.end:
                self._is_at_end = self._is_spent = True
            else:  # who reads on gets all the rest
                self._stream = _Stream(self._address, self.name, self._stream.at)
        while len(self._rows) > 1 and self._start + len(self._rows[0]) <= offset:
            self._start += len(self._rows.pop(0))
        self._size = max(self._size, self._stream.at)
        parts, at = [], offset - self._start
        for row in self._rows:
            parts.append(row[at : at + size])
            at, size = max(0, at - len(row)), size - len(parts[-1])
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _begin(self, offset: int, size: int) -> None:
        """Ask for a piece of the file."""
        self.drop()
        self._stream = _Stream(self._address, self.name, offset, size)
        self._rows, self._start, self._is_at_end = [], offset, False

    def size(self) -> int:
        """Return the size in bytes when it was opened, or of what was read since."""
        self._is_spent = True  # who looks at the end may find torn bytes, and looks once more
        return self._size

    def close(self) -> None:
        """Keep what was read ahead, unless the end was seen: what stands there may change."""
        if self._is_spent or self._stream.end != LAST_OFFSET:
            self.drop()
        else:
            self._closed = time.monotonic()
            self._keep(self)

    def is_fresh(self) -> bool:
        """Return whether what was kept may serve once more."""
        return self._process == os.getpid() and time.monotonic() - self._closed < _FRESH

    def drop(self) -> None:
        """Keep nothing."""
        self._stream.close()
        self._rows, self._start = [], LAST_OFFSET


class _Stream:
    """The bytes of a file from a place on, in rows; a cut connection costs nothing but time.

    Attributes:
        at: The place behind what came.
        end: The place behind what was asked for; nothing comes any more where it ends before.
    """

    def __init__(
        self, address: LogAddress, file: str, at: int, size: int | None = None
    ) -> None:
        """Name a place, and how much is wanted; nothing is asked yet."""
        self.at, self.end = at, LAST_OFFSET if size is None else at + size
        self._address, self._file = address, file
        self._reader: Any = None

    def next(self) -> memoryview | None:
        """Return the next bytes; None where they end.

        Raises:
            LogFailed: the server does not answer, or refuses.
        """
        row = _called(self._address, self._read) if self.at < self.end else None
        self.at += 0 if row is None else len(row)
        return row

    def _read(self, client: Any, how: Any) -> memoryview | None:
        """Return a row; where the last call failed it is asked for again."""
        if self._reader is None:
            place = {"file": self._file, "at": self.at, "size": self.end - self.at}
            body = json.dumps({"log": self._address.name, **place}).encode()
            self._reader = client.do_get(load_flight().Ticket(body), how)
        try:
            return self._row(self._reader.read_chunk().data)
        except StopIteration:
            return None
        except load_pyarrow().ArrowException:
            self._reader = None
            raise

    def _row(self, rows: Any) -> memoryview:
        """Return the bytes of a row: some, and no more than were asked for."""
        if rows.num_rows == 1 and rows.schema.types == [load_pyarrow().binary()]:
            data = memoryview(rows.column(0)[0].as_buffer() or b"")
            if 0 < len(data) <= self.end - self.at:
                return data
        raise _no_answer(self._address)

    def close(self) -> None:
        """Let the server stop."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None


def size_of(address: LogAddress, file: str) -> int:
    """Return the size of a file of a served log.

    Raises:
        FileNotFoundError: there is no such file.
        LogFailed: the server does not answer, or refuses.
    """
    size = _ask(address, "size", file)
    if size is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", file)
    if type(size) is not int or not 0 <= size <= LAST_OFFSET:
        raise _no_answer(address)
    return size


def _ask(address: LogAddress, what: str, file: str = "") -> Any:
    """Return the answer to an action."""
    body = json.dumps({"log": address.name, "file": file}).encode()

    def ask(client: Any, how: Any) -> list[bytes]:
        answers = islice(client.do_action((what, body), how), 2)
        return [each.body.to_pybytes() for each in answers]

    told = _called(address, ask)
    try:
        (answer,) = map(parse_json, told)
    except ValueError:
        raise _no_answer(address) from None
    return answer


def _no_answer(address: LogAddress) -> LogFailed:
    """Return the error for what no server of logs answers."""
    what = f"{address}: what answers there is no callboard log serve, or another version of it"
    return LogFailed(what)


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
    """Return the client of a process.

    Raises:
        LogFailed: the authority cannot be read, or a fork came after the first client of all:
            gRPC's threads did not come along, and calls would wait for ever.
    """
    if _dialed_in.setdefault("process", process) != process:
        what = (
            f"{address}: this process was forked from one that had read served logs already,"
            " behind which Flight does not work; start it by spawn, or fork before the first"
        )
        raise LogFailed(what)
    try:
        roots = None if address.authority is None else Path(address.authority).read_bytes()
    except OSError as error:
        what = f"the authority {address.authority} cannot be read: {error.strerror or error}"
        raise LogFailed(what) from error
    return load_flight().FlightClient(
        address.server, tls_root_certs=roots, generic_options=_DIALING
    )


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
                what = _said(error)
                if not what.startswith(BUSY):
                    what = f"nobody answers; is it served (callboard log serve)? {what}"
                what = f"{address}: {what}"
                raise LogFailed(what) from None
            time.sleep(_PAUSE)
        except load_pyarrow().ArrowException as error:
            if (number := getattr(error, "extra_info", b"")).isdigit():  # its disk refuses
                raise OSError(int(number), _said(error), str(address)) from None
            what = f"{address}: {_said(error)}"
            raise LogFailed(what) from None


def _said(error: Exception) -> str:
    """Return the text of an error of Flight without what it adds."""
    return re.split(r"\. (?:Detail: |gRPC )", str(error))[0]
