"""A server of logs by Arrow Flight: their files unchanged, and their records as columns.

It runs in a process of its own (`callboard log serve`), as its threads would hold the
interpreter lock that a node's thread needs. Requests are in JSON:

- the actions `names` and `size`, with `{"log": NAME, "file": FILE}`,
- a ticket `{"log", "file", "at", "size"}`: bytes of a file, in a column `data` of binary rows;
  the reader checks and decodes them,
- a ticket `{"log", "start", "end", "topic", "columns"}`, in which only `log` is required:
  records as the columns of `arrow_schema`, for programs without callboard. `get_flight_info` of
  a log's name returns that ticket and the schema, `list_flights` lists all logs.

A reader sends `authorization: Bearer TOKEN`.
"""

import errno
import json
import logging
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import flight

from callboard.commitlog.arrow import arrow_schema
from callboard.commitlog.errors import LogError
from callboard.commitlog.folder import SERVED_NAME
from callboard.commitlog.reader import LogReader, open_folder
from callboard.commitlog.remote.disk import BUSY, ROW
from callboard.commitlog.remote.guard import LogGuard, ServedCall
from callboard.commitlog.remote.served import ServedFolders, is_log_file, is_position
from callboard.support import after_fork
from callboard.support.nesting import parse_json

#: A function of a token: patterns of the logs that it may read; None if it is not valid.
Readers = Callable[[str | None], Sequence[str] | None]

_BYTES: Final = pa.schema({"data": pa.binary()})
#: Bytes of a ticket, or of the body of an action.
_REQUEST_LIMIT: Final = 4096

_WRONG: Final = "the token is wrong or missing; it is one of the secrets of --permissions"
#: Temporary errors: too many open files, no memory.
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_log = logging.getLogger("callboard.commitlog")


class LogServer(flight.FlightServerBase):
    """A log server, from its creation until `shutdown`; `serve` would only handle signals."""

    def __init__(
        self,
        logs: Mapping[str, str],
        location: str,
        readers: Readers,
        *,
        certificates: Sequence[tuple[bytes, bytes]] = (),
        authority: bytes | None = None,
    ) -> None:
        """Start the server.

        Args:
            logs: Folders by the names under which they are served.
            location: Address in the form of Flight: `grpc://HOST:PORT`, `grpc+tls://HOST:PORT`.
            readers: Returns the logs that a token may read.
            certificates: Certificate chain and key, in PEM, for TLS.
            authority: Authority of client certificates, if clients must present one.

        Raises:
            OSError: the address cannot be used.
        """
        self._logs = dict(logs)
        self._served = ServedFolders({name: open_folder(path) for name, path in logs.items()})
        self._readers = readers
        self._next_line = 0.0
        self._is_open = readers(None) is not None
        self._guard = LogGuard()
        super().__init__(
            location,
            tls_certificates=list(certificates) or None,
            verify_client=authority is not None,
            root_certificates=authority,
            middleware={"guard": self._guard},
        )
        after_fork.register(self, LogServer._drop_copy)
        self._guard.start(self.port)

    def _drop_copy(self) -> None:
        """Drop the port and its connections in a forked process.

        The server is not shut down: gRPC would wait for threads, which a fork does not copy.
        """
        after_fork.keep_for_ever(self)
        after_fork.drop_accepted("", self.port)

    def shutdown(self) -> None:
        """End at once; readers are disconnected, and retry with the next server."""
        if after_fork.is_copy(self):
            return
        self._guard.close()
        super().shutdown()
        self._guard.join()

    def list_actions(self, _: Any) -> list[tuple[str, str]]:
        """Return the actions of the server."""
        return [("names", "The files of a log."), ("size", "The size of a file, or null.")]

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answer an action."""
        request = self._request(context, action.body.to_pybytes())
        log, file = self._log(context, request), request.get("file")
        answer: Any
        if action.type == "names":
            try:
                answer = self._served.files(log)
            except OSError as error:
                raise _disk_error(error) from None
        elif action.type == "size":
            answer = self._size(log, file)
        else:
            _refuse(f"there is no action {action.type[:20]!r}")
        return iter([json.dumps(answer).encode()])

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a ticket."""
        request = self._request(context, ticket.ticket)
        log = self._log(context, request)
        call = context.get_middleware("guard")
        if "file" in request:
            rows = self._bytes(log, request)
            return flight.GeneratorStream(_BYTES, self._stream(call, request, rows))
        start, topic = _number(request.get("start", 0)), request.get("topic", "")
        end = None if request.get("end") is None else _number(request["end"])
        if type(topic) is not str:
            _refuse("a topic is a text")
        columns = _columns(request.get("columns"))
        self._guard.decode(call)
        rows = _records(self._logs[log], start, end, topic, columns)
        return flight.GeneratorStream(_schema_of(columns), self._stream(call, request, rows))

    def _stream(
        self, call: ServedCall, request: Mapping[str, Any], rows: Iterator[Any]
    ) -> Iterator[Any]:
        """Iterate over the rows of a stream, as long as its reader has the right to them."""
        for row in rows:
            call.since = time.monotonic()
            yield row
            call.since = None
            self._check(call.token, request["log"])

    def list_flights(self, context: Any, _: Any) -> Iterator[Any]:
        """Return the logs that the caller may read."""
        allowed = self._allowed(context)
        return map(self._info, self._served.names(lambda name: _matches(name, allowed)))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return the ticket and the schema for the records of a log."""
        name = b"/".join(descriptor.path or ()).decode(errors="replace")
        self._log(context, self._request(context, json.dumps({"log": name}).encode()))
        return self._info(name)

    def _info(self, name: str) -> Any:
        ticket = flight.Ticket(json.dumps({"log": name}).encode())
        descriptor = flight.FlightDescriptor.for_path(name)
        endpoints = [flight.FlightEndpoint(ticket, [])]
        return flight.FlightInfo(arrow_schema(), descriptor, endpoints, -1, -1)

    def _allowed(self, context: Any) -> Sequence[str]:
        """Return the patterns of the logs that the caller may read, and admit the call."""
        call = context.get_middleware("guard")
        allowed = self._readers(call.token)
        if allowed is None:
            if (now := time.monotonic()) >= self._next_line:  # at most one line a second
                self._next_line = now + 1.0
                _log.warning("a reader of logs from %s has no valid token", context.peer())
            raise flight.FlightUnauthenticatedError(_WRONG)
        self._guard.admit(call, context.peer(), is_open=self._is_open)
        return allowed

    def _check(self, token: str | None, log: str) -> None:
        """Raise unless a token may (still) read a log."""
        allowed = self._readers(token)
        if allowed is None:
            raise flight.FlightUnauthenticatedError(_WRONG)
        if not _matches(log, allowed):
            message = f"no right to read the log {log[:64]!r}"
            raise flight.FlightUnauthorizedError(message)

    def _request(self, context: Any, body: bytes) -> dict[str, Any]:
        """Parse a request, and check the rights of its sender."""
        self._allowed(context)
        try:
            request = parse_json(body) if len(body) <= _REQUEST_LIMIT else None
        except ValueError:
            request = None
        if not isinstance(request, dict) or type(request.get("log")) is not str:
            _refuse('ask with JSON, such as {"log": "cpu"}')
        self._check(context.get_middleware("guard").token, request["log"])
        return request

    def _log(self, context: Any, request: dict[str, Any]) -> str:
        """Return the name of the log of a request, which is served."""
        log: str = request["log"]
        if log not in self._served:
            allowed = self._allowed(context)
            names = self._served.names(lambda name: _matches(name, allowed))
            _refuse(f"no log is served as {log[:64]!r}; the names are {names}")
        return log

    def _size(self, log: str, file: Any) -> int | None:
        """Return the size of a file; None if it does not exist, or is not one of a log."""
        try:
            return self._served.size(log, file) if is_log_file(file) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _disk_error(error) from None

    def _bytes(self, log: str, request: Mapping[str, Any]) -> Iterator[Any]:
        """Iterate over rows with a range of a file; empty if the file does not exist."""
        file, size = request["file"], _number(request.get("size"))
        position = _number(request.get("at"))
        if not is_log_file(file):
            _refuse("this is not a file of a log")
        try:
            with self._served.opened(log, file) as source:
                end = position + size
                while position < end and (
                    data := source.pread(min(ROW, end - position), position)
                ):
                    position += len(data)
                    yield pa.record_batch([_one_row(data)], schema=_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _disk_error(error) from None


def _records(
    folder: str, start: int, end: int | None, topic: str, columns: Sequence[str]
) -> Iterator[Any]:
    """Iterate over records as columns."""
    try:
        for records in LogReader(folder).arrow_batches(start, end, topic=topic):
            yield records.select(columns)
    except LogError as error:
        _refuse(str(error))


def _columns(names: Any) -> list[str]:
    """Check the requested columns; the default are all columns."""
    columns = arrow_schema().names
    if names is None:
        return columns  # type: ignore[no-any-return]
    if not isinstance(names, list) or not names or not all(name in columns for name in names):
        _refuse(f"columns are some of {', '.join(columns)}")
    return list(dict.fromkeys(names))


def _schema_of(columns: Sequence[str]) -> Any:
    schema = arrow_schema()
    return pa.schema([schema.field(name) for name in columns])


def _one_row(data: bytes) -> Any:
    """Return a column of one row without a copy."""
    borders = pa.py_buffer(struct.pack("<2i", 0, len(data)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, borders, pa.py_buffer(data)])


def _disk_error(error: OSError) -> Any:
    """Return the error for a client: with the number of the disk's, or to ask again."""
    if error.errno in _SCARCE:
        message = f"{BUSY}: {error.strerror}; ask again"
        return flight.FlightUnavailableError(message)
    number = "" if error.errno is None else str(error.errno)
    return flight.FlightServerError(error.strerror or str(error), extra_info=number.encode())


def _refuse(message: str) -> NoReturn:
    """Raise the error for a client."""
    raise flight.FlightServerError(message) from None


def _number(value: Any) -> int:
    """Check an offset, position or size."""
    if not is_position(value):
        _refuse("at, size, start and end are numbers from 0 on")
    return value  # type: ignore[no-any-return]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def names_of(folders: Sequence[Path]) -> dict[str, str]:
    """Return folders by the names under which they are served: the names of the folders.

    Raises:
        ValueError: two folders have one name, or a name cannot be part of an address.
    """
    folders_by_name: dict[str, str] = {}
    for folder in folders:
        path = str(folder.resolve())
        name = Path(path).name
        if not SERVED_NAME.fullmatch(name):
            message = f"{name!r} cannot be served: use letters, digits and -_.+@= in the name"
            raise ValueError(message)
        if folders_by_name.setdefault(name, path) != path:
            message = f"{folders_by_name[name]} and {path} would both be served as {name}"
            raise ValueError(message)
    return folders_by_name
