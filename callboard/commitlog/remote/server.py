"""Serving logs by Arrow Flight: their files as they are, and their records as columns.

It runs in a process of its own (`callboard log serve`): its threads would take the interpreter
from a node's runner. What it is asked, all in JSON:

- the actions `names` and `size`, with `{"log": NAME, "file": FILE}`,
- a ticket `{"log", "file", "at", "size"}`: bytes of a file, in a column `data` of binary rows
  (who reads checks and decodes them),
- a ticket `{"log", "start", "end", "topic", "columns"}`, of which only the first is needed:
  records as the columns of `arrow_schema`, for programs without callboard; `get_flight_info` of
  a path with a log's name returns that ticket and the schema, `list_flights` all there are.

Who reads sends `authorization: Bearer TOKEN`.
"""

import errno
import json
import logging
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import flight

from callboard.commitlog.arrow import arrow_schema
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.errors import LogError
from callboard.commitlog.folder import SERVED, SERVED_NAME
from callboard.commitlog.reader import LogReader
from callboard.commitlog.remote.disk import BUSY, ROW
from callboard.commitlog.remote.guard import LogGuard, ServedCall
from callboard.support import after_fork
from callboard.support.nesting import parse_json

#: Patterns of the logs that who shows a token may read; None if nobody has that token.
Readers = Callable[[str | None], Sequence[str] | None]

_BYTES: Final = pa.schema({"data": pa.binary()})
#: Bytes of a ticket or of an action's body.
_QUESTION: Final = 4096

_WRONG: Final = "the token is wrong or missing; it is one of the secrets of --permissions"
#: Errors that pass.
_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_log = logging.getLogger("callboard.commitlog")


class LogServer(flight.FlightServerBase):
    """Serves logs from its making until `shutdown`; `serve` would only take over signals."""

    def __init__(
        self,
        logs: Mapping[str, str],
        location: str,
        readers: Readers,
        *,
        certificates: Sequence[tuple[bytes, bytes]] = (),
        authority: bytes | None = None,
    ) -> None:
        """Listen.

        Args:
            logs: Folders by the names under which they are served.
            location: As Flight takes it: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`.
            readers: Who may read what.
            certificates: Chain and key, in PEM, where it speaks TLS.
            authority: Who signs the clients' certificates, where these have to show one.

        Raises:
            OSError: the address cannot be used.
        """
        self._logs = dict(logs)
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
        after_fork.register(self, LogServer._leave)
        self._guard.start(self.port)

    def _leave(self) -> None:
        """Drop the port and its connections in a forked process.

        The server is not ended: gRPC would wait for its threads, which are not here.
        """
        after_fork.keep_for_ever(self)
        after_fork.drop_accepted("", self.port)

    def shutdown(self) -> None:
        """End at once: who reads is cut off, and comes again where there is a server."""
        if after_fork.is_copy(self):
            return
        self._guard.close()
        super().shutdown()
        self._guard.join()

    def list_actions(self, _: Any) -> list[tuple[str, str]]:
        """Return what can be asked beside records."""
        return [("names", "The files of a log."), ("size", "The size of a file, or null.")]

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answer an action."""
        asked = self._asked(context, action.body.to_pybytes())
        folder, file = self._folder(context, asked), asked.get("file")
        answer: Any
        if action.type == "names":
            try:
                answer = [
                    each for each in RealDisk(folder).listdir("") if SERVED.fullmatch(each)
                ]
            except OSError as error:
                raise _of_disk(error) from None
        elif action.type == "size":
            answer = self._size(folder, file)
        else:
            _refuse(f"there is no action {action.type[:20]!r}")
        return iter([json.dumps(answer).encode()])

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a ticket."""
        asked = self._asked(context, ticket.ticket)
        folder = self._folder(context, asked)
        call = context.get_middleware("guard")
        if "file" in asked:
            return flight.GeneratorStream(
                _BYTES, self._waiting(call, asked, _bytes(folder, asked))
            )
        start, topic = _place(asked.get("start", 0)), asked.get("topic", "")
        end = None if asked.get("end") is None else _place(asked["end"])
        if type(topic) is not str:
            _refuse("a topic is a text")
        columns = _columns(asked.get("columns"))
        self._guard.decode(call)
        records = _records(folder, start, end, topic, columns)
        return flight.GeneratorStream(_schema_of(columns), self._waiting(call, asked, records))

    def _waiting(
        self, call: ServedCall, asked: Mapping[str, Any], rows: Iterator[Any]
    ) -> Iterator[Any]:
        """Iterate over what is sent, as long as who reads it may."""
        for row in rows:
            call.since = time.monotonic()
            yield row
            call.since = None
            self._check(call.token, asked["log"])

    def list_flights(self, context: Any, _: Any) -> Iterator[Any]:
        """Return the logs that who asks may read."""
        allowed = self._allowed(context)
        return (self._info(name) for name in self._logs if _matches(name, allowed))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return how the records of a log are read."""
        name = b"/".join(descriptor.path or ()).decode(errors="replace")
        self._folder(context, self._asked(context, json.dumps({"log": name}).encode()))
        return self._info(name)

    def _info(self, name: str) -> Any:
        ticket = flight.Ticket(json.dumps({"log": name}).encode())
        descriptor = flight.FlightDescriptor.for_path(name)
        endpoints = [flight.FlightEndpoint(ticket, [])]
        return flight.FlightInfo(arrow_schema(), descriptor, endpoints, -1, -1)

    def _allowed(self, context: Any) -> Sequence[str]:
        """Return what who asks may read."""
        call = context.get_middleware("guard")
        allowed = self._readers(call.token)
        if allowed is None:
            if (now := time.monotonic()) >= self._next_line:  # not a line for each attempt
                self._next_line = now + 1.0
                _log.warning("a reader of logs from %s has no token of ours", context.peer())
            raise flight.FlightUnauthenticatedError(_WRONG)
        self._guard.admit(call, context.peer(), is_open=self._is_open)
        return allowed

    def _check(self, token: str | None, log: str) -> None:
        """Look whether who showed a token may (still) read a log."""
        allowed = self._readers(token)
        if allowed is None:
            raise flight.FlightUnauthenticatedError(_WRONG)
        if not _matches(log, allowed):
            what = f"no right to read the log {log[:64]!r}"
            raise flight.FlightUnauthorizedError(what)

    def _asked(self, context: Any, body: bytes) -> dict[str, Any]:
        """Return a question of somebody who may ask it."""
        self._allowed(context)
        try:
            asked = parse_json(body) if len(body) <= _QUESTION else None
        except ValueError:
            asked = None
        if not isinstance(asked, dict) or type(asked.get("log")) is not str:
            _refuse('ask with JSON, such as {"log": "cpu"}')
        self._check(context.get_middleware("guard").token, asked["log"])
        return asked

    def _folder(self, context: Any, asked: dict[str, Any]) -> str:
        """Return the folder of a log that may be read."""
        folder = self._logs.get(asked["log"])
        if folder is None:
            allowed = self._allowed(context)
            here = sorted(name for name in self._logs if _matches(name, allowed))
            _refuse(f"no log is served as {asked['log'][:64]!r}; here are {here}")
        return folder

    @staticmethod
    def _size(folder: str, file: Any) -> int | None:
        """Return the size of a file; None if it is not there, or not one of a log."""
        if type(file) is not str or not SERVED.fullmatch(file):
            return None
        try:
            return RealDisk(folder).size(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _of_disk(error) from None


def _bytes(folder: str, asked: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over rows with a piece of a file; none if it is not there (any more)."""
    file, at, size = asked["file"], _place(asked.get("at")), _place(asked.get("size"))
    if type(file) is not str or not SERVED.fullmatch(file):
        _refuse("this is no file of a log")
    try:
        with closing(RealDisk(folder).open(file)) as source:
            end = at + size
            while at < end and (data := source.pread(min(ROW, end - at), at)):
                at += len(data)
                yield pa.record_batch([_one_row(data)], schema=_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _of_disk(error) from None


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
    """Return the columns that are asked for, by default all."""
    known = arrow_schema().names
    if names is None:
        return known  # type: ignore[no-any-return]
    if not isinstance(names, list) or not names or not all(name in known for name in names):
        _refuse(f"columns are some of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _schema_of(columns: Sequence[str]) -> Any:
    schema = arrow_schema()
    return pa.schema([schema.field(name) for name in columns])


def _one_row(data: bytes) -> Any:
    """Return a column of one row without a copy."""
    borders = pa.py_buffer(struct.pack("<2i", 0, len(data)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, borders, pa.py_buffer(data)])


def _of_disk(error: OSError) -> Any:
    """Return what a client gets where the disk refuses: its number, or a call made again."""
    if error.errno in _SCARCE:
        what = f"{BUSY}: {error.strerror}; ask again"
        return flight.FlightUnavailableError(what)
    number = "" if error.errno is None else str(error.errno)
    return flight.FlightServerError(error.strerror or str(error), extra_info=number.encode())


def _refuse(why: str) -> NoReturn:
    """Raise what a client gets."""
    raise flight.FlightServerError(why) from None


def _place(value: Any) -> int:
    """Return an offset, position or size, checked."""
    if type(value) is not int or not 0 <= value < 2**63:
        _refuse("at, size, start and end are numbers from 0 on")
    return value


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def names_of(folders: Sequence[Path]) -> dict[str, str]:
    """Return folders by the names under which they are served, which are their own.

    Raises:
        ValueError: two have one name, or one has a name that no address could have.
    """
    named: dict[str, str] = {}
    for folder in folders:
        place = str(folder.resolve())
        name = Path(place).name
        if not SERVED_NAME.fullmatch(name):
            what = f"{name!r} is no name to be served under: letters, digits and -_.+@= are"
            raise ValueError(what)
        if named.setdefault(name, place) != place:
            what = f"{named[name]} and {place} would both be served as {name}"
            raise ValueError(what)
    return named
