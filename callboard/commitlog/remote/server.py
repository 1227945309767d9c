"""Serving logs by Arrow Flight: their files as they are, and their records as columns.

It runs in a process of its own (`callboard log serve`): its threads would take the interpreter
from a node's runner. What it is asked, all in JSON:

- the actions `names` and `size`, with `{"log": NAME, "file": FILE}`,
- a ticket `{"log", "file", "at", "size"}`: bytes of a file, in a column `data` of binary rows
  (who reads checks and decodes them),
- a ticket `{"log", "start", "end", "topic"}`, of which the last three may be missing: records
  as the columns of `arrow_schema`, for programs without callboard; `get_flight_info` of a path
  with a log's name returns that ticket and the schema, `list_flights` all there are.

Who reads sends `authorization: Bearer TOKEN`.
"""

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

#: Patterns of the logs that who shows a token may read; None if nobody has that token.
Readers = Callable[[str | None], Sequence[str] | None]

_BYTES: Final = pa.schema({"data": pa.binary()})
#: Bytes of a row, and of one answer at most.
_PIECE: Final = 1 << 20
_MOST: Final = 16 << 20
#: Bytes of a ticket or of an action's body.
_QUESTION: Final = 4096

_log = logging.getLogger("callboard.commitlog")


class _Shown(flight.ServerMiddleware):
    """The token that a call showed."""

    def __init__(self, token: str | None) -> None:
        self.token = token


class _Tokens(flight.ServerMiddlewareFactory):
    """Reads the token of each call."""

    def start_call(self, _: Any, headers: Mapping[str, Sequence[str]]) -> _Shown:
        """Return what one call showed."""
        given = headers.get("authorization") or ("",)
        scheme, _, token = str(given[0]).partition(" ")
        return _Shown(token.strip() if scheme.lower() == "bearer" else None)


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
        super().__init__(
            location,
            tls_certificates=list(certificates) or None,
            verify_client=authority is not None,
            root_certificates=authority,
            middleware={"token": _Tokens()},
        )

    def list_actions(self, _: Any) -> list[tuple[str, str]]:
        """Return what can be asked beside records."""
        return [("names", "The files of a log."), ("size", "The size of a file, or null.")]

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answer an action."""
        asked = self._asked(context, action.body.to_pybytes())
        folder, file = self._folder(asked), asked.get("file")
        answer: Any
        if action.type == "names":
            try:
                answer = [
                    each for each in RealDisk(folder).listdir("") if SERVED.fullmatch(each)
                ]
            except OSError as error:
                _refuse(f"{asked['log']} cannot be read: {error.strerror}")
        elif action.type == "size":
            answer = self._size(folder, file)
        else:
            _refuse(f"there is no action {action.type[:20]!r}")
        return iter([json.dumps(answer).encode()])

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a ticket."""
        asked = self._asked(context, ticket.ticket)
        folder = self._folder(asked)
        if "file" in asked:
            return flight.GeneratorStream(_BYTES, self._bytes(folder, asked))
        start, topic = _place(asked.get("start", 0)), asked.get("topic", "")
        end = None if asked.get("end") is None else _place(asked["end"])
        if type(topic) is not str:
            _refuse("a topic is a text")
        return flight.GeneratorStream(arrow_schema(), self._records(folder, start, end, topic))

    def list_flights(self, context: Any, _: Any) -> Iterator[Any]:
        """Return the logs that who asks may read."""
        allowed = self._allowed(context)
        return (self._info(name) for name in self._logs if _matches(name, allowed))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return how the records of a log are read."""
        name = b"/".join(descriptor.path or ()).decode(errors="replace")
        self._folder(self._asked(context, json.dumps({"log": name}).encode()))
        return self._info(name)

    def _info(self, name: str) -> Any:
        ticket = flight.Ticket(json.dumps({"log": name}).encode())
        descriptor = flight.FlightDescriptor.for_path(name)
        endpoints = [flight.FlightEndpoint(ticket, [])]
        return flight.FlightInfo(arrow_schema(), descriptor, endpoints, -1, -1)

    def _allowed(self, context: Any) -> Sequence[str]:
        """Return what who asks may read."""
        shown = context.get_middleware("token")
        allowed = self._readers(shown.token)
        if allowed is None:
            if (now := time.monotonic()) >= self._next_line:  # not a line for each attempt
                self._next_line = now + 1.0
                _log.warning("a reader of logs from %s has no token of ours", context.peer())
            what = "the token is wrong or missing; it is one of the secrets of --permissions"
            raise flight.FlightUnauthenticatedError(what)
        return allowed

    def _asked(self, context: Any, body: bytes) -> dict[str, Any]:
        """Return a question of somebody who may ask it."""
        allowed = self._allowed(context)
        try:
            asked = json.loads(body) if len(body) <= _QUESTION else None
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict) or type(asked.get("log")) is not str:
            _refuse('ask with JSON, such as {"log": "cpu"}')
        if not _matches(asked["log"], allowed):
            what = f"no right to read the log {asked['log'][:64]!r}"
            raise flight.FlightUnauthorizedError(what)
        return asked

    def _folder(self, asked: dict[str, Any]) -> str:
        """Return the folder of a log that may be read."""
        folder = self._logs.get(asked["log"])
        if folder is None:
            _refuse(f"no log is served as {asked['log'][:64]!r}; here are {sorted(self._logs)}")
        return folder

    @staticmethod
    def _size(folder: str, file: Any) -> int | None:
        """Return the size of a file; None if it is not there, or not one of a log."""
        if type(file) is not str or not SERVED.fullmatch(file):
            return None
        try:
            return RealDisk(folder).size(file)
        except OSError:
            return None

    @staticmethod
    def _bytes(folder: str, asked: dict[str, Any]) -> Iterator[Any]:
        """Iterate over rows with a piece of a file; none if it is not there (any more)."""
        file, at, size = asked["file"], _place(asked.get("at")), _place(asked.get("size"))
        if type(file) is not str or not SERVED.fullmatch(file):
            _refuse("this is no file of a log")
        try:
            source = RealDisk(folder).open(file)
        except OSError:
            return
        with closing(source):
            end = at + min(size, _MOST)
            while at < end and (data := source.pread(min(_PIECE, end - at), at)):
                at += len(data)
                yield pa.record_batch([_one_row(data)], schema=_BYTES)

    @staticmethod
    def _records(folder: str, start: int, end: int | None, topic: str) -> Iterator[Any]:
        """Iterate over records as columns."""
        try:
            yield from LogReader(folder).arrow_batches(start, end, topic=topic)
        except LogError as error:
            _refuse(str(error))


def _one_row(data: bytes) -> Any:
    """Return a column of one row without a copy."""
    borders = pa.py_buffer(struct.pack("<2i", 0, len(data)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, borders, pa.py_buffer(data)])


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
