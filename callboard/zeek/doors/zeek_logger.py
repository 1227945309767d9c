"""A logger for Zeek nodes: it appends their log records to commit logs.

Since release 8.1, Zeek nodes push log records over ZeroMQ to loggers that pull them. Each path
(`conn`, `dns`) becomes a log in its own folder, with Zeek's fields as declared columns. One
thread decodes and appends; it appends all messages that it has read together.

PUSH and PULL have no acknowledgment. Records that a node has sent and this process has not
appended are lost when either of them ends. Appended records survive the process, and after
`sync_interval` seconds the machine. When the disk fails, the logger stops reading: messages
wait here, then in TCP, then at the nodes, which drop messages above their `log_sndhwm`.
"""

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import zmq

from callboard.commitlog import CommitLog, FieldConflict, LogError, Retention
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.columns import Cbor
from callboard.commitlog.errors import InvalidOption, InvalidRecord
from callboard.commitlog.folder import FileLock
from callboard.figures import Figure, ProcessFigures, by_label, figures_of
from callboard.kernel.wire import Runner
from callboard.model.errors import InvalidData
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.files.private_file import make_folder
from callboard.support.text import printable
from callboard.zeek.doors.zeromq_socket import (
    HIGH_WATER,
    CurveServer,
    LoopSocket,
    SocketChange,
    ZeroMqSockets,
)
from callboard.zeek.log_write import LogHeader, LogWriteDecoder

#: Default address; Zeek's manager uses the ports 5555 and 5556.
ADDRESS: Final = "tcp://127.0.0.1:5557"

#: Logs of one logger: each needs file descriptors and a thread for syncs.
LOGS_LIMIT: Final = 200
#: Logs of one path, if nodes disagree about the type of a field.
_VARIANTS: Final = 16
#: Nodes that are counted separately in the figures.
_NODES: Final = 1_000
_HEADERS: Final = 1_024
#: Longest names of a node and of a log, in bytes.
_NODE_BYTES: Final = 256
_NAME_BYTES: Final = 200

#: Seconds between attempts to write after a disk error.
RETRY_INTERVAL: Final = 1.0
#: A logger that is being closed reads until no message arrives for `_QUIET` seconds, and for at
#: most `DRAIN_LIMIT` seconds.
_QUIET: Final = 0.05
DRAIN_LIMIT: Final = 2.0
#: Further seconds in which the logs must be closed.
_CLOSE_LIMIT: Final = 60.0

_KIND, _FORMAT = b"log-write", b"zeek-bin-v1"
_PARTS: Final = 4
#: Kinds of malformed messages that are counted apart; `_DETAIL` matches the parts of an error
#: text that vary within a kind.
_KINDS: Final = 100
_DETAIL: Final = re.compile(r": .*|'.*'|\d[\d,]*")
_ODD: Final = re.compile(rb"^\.|[^A-Za-z0-9_.@-]")

_log = logging.getLogger("callboard.zeek")


class _Run(NamedTuple):
    """Consecutive records of one log and node."""

    header: LogHeader
    node: str
    records: list[Cbor]


@dataclass(frozen=True, slots=True)
class ZeekLoggerStats:
    """Counters of a logger.

    Attributes:
        records: records appended.
        messages: log-write messages with these records.
        bytes: size of these messages.
        malformed: messages that could not be decoded, by kind of error.
        refused: records dropped because there are too many logs.
        lost: records that were read and could not be appended before the end.
        logs: records by log.
        nodes: records by node.
        connections: connected nodes.
        rejected: connections refused because of an unknown key.
        stalls: disk errors that stopped reading.
        stalled: why the logger does not read now; empty if it does.
    """

    records: int
    messages: int
    bytes: int
    malformed: Mapping[str, int]
    refused: int
    lost: int
    logs: Mapping[str, int]
    nodes: Mapping[str, int]
    connections: int
    rejected: int
    stalls: int
    stalled: str


class ZeekLogger:
    """Pulls log records from Zeek nodes into one log per path, in one folder.

        with ZeekLogger("logs", "tcp://127.0.0.1:5557") as logger:
            ...
        LogReader("logs/conn").to_arrow(fields=True)

    It listens as soon as it is created, until `close`. Methods may be called from any thread.
    """

    def __init__(
        self,
        folder: str | Path,
        address: str = ADDRESS,
        *,
        curve: CurveServer | str | Path | None = None,
        insecure: bool = False,
        high_water_mark: int = HIGH_WATER,
        sync_interval: float = 0.2,
        retain: Retention | None = None,
        segment_bytes: int | None = None,
        segment_seconds: float | None = None,
        columns: bool = False,
        compression: Literal["zlib", "zstd"] | None = None,
        archive: str = "",
    ) -> None:
        """Open the port; a log is opened when its first record arrives.

        Args:
            folder: Folder of the logs; created if necessary.
            address: `tcp://HOST:PORT` or `HOST:PORT`; port 0 picks a free one.
            curve: Keys, or a TOML file with keys, that select the nodes that may connect.
            insecure: Allow a public address although nodes need no key.
            high_water_mark: Messages queued here per node; the node queues further ones itself.
            sync_interval: Seconds between syncs of a log.
            retain: How long records are kept; by default for ever.
            segment_bytes: As for `CommitLog`, like the arguments below.
            segment_seconds: Largest age of a segment.
            columns: Whether sealed segments are also kept as Parquet.
            compression: Compression of batches.
            archive: Address for copies of the logs; each log's name is added to it.

        Raises:
            LogLocked: another logger uses the folder.
            LogFailed: the folder cannot be created.
            PublicAddress: other machines can reach the address, and no key is required.
            PortUnavailable: the port is in use.
            ValueError: an option is invalid.
        """
        options = {
            "retain": retain,
            "sync_interval": sync_interval,
            "segment_bytes": segment_bytes,
            "segment_seconds": segment_seconds,
            "compression": compression,
        }
        if isinstance(curve, str | Path):
            curve = CurveServer.of_file(Path(curve))
        CommitLog(**options).close()  # type: ignore[arg-type]  # raises for invalid options
        if columns:
            load_pyarrow()
        self._options: dict[str, Any] = options | {"columns": columns}
        self._archive = archive.rstrip("/")
        self.folder = Path(folder).absolute()
        if high_water_mark < 1:
            message = f"high_water_mark is {high_water_mark}; it must be at least 1"
            raise InvalidOption(message)
        self._lock = self._lock_folder()
        self._decoder = LogWriteDecoder()
        self._logs: dict[str, CommitLog] = {}
        self._of_header: dict[LogHeader, str] = {}
        self._names = {child.name for child in self.folder.iterdir() if child.is_dir()}
        self._pending: deque[_Run] = deque()
        self._counts, self._malformed = Counter[str](), Counter[str]()
        self._by_log, self._by_node = Counter[str](), Counter[str]()
        self._stalled, self._ending = "", False
        self._done = threading.Event()
        self._troubles: list[str] = []
        self._socket: LoopSocket
        self._runner = Runner("zeek logger", may_block=True)
        self._sockets = ZeroMqSockets(self._runner, curve)
        try:
            self._socket = self._bind(address, high_water_mark, insecure=insecure)
        except BaseException:
            self._lock.release()
            self._runner.start()  # closes the sockets
            self._runner.stop()
            raise
        _OPEN.add(self)
        after_fork.register(self)
        self._runner.start()

    def _lock_folder(self) -> FileLock:
        """Create the folder and lock it."""
        try:
            make_folder(self.folder)
            problem, remedy = f"another logger writes to {self.folder}", "use another folder"
            return FileLock(str(self.folder), ".lock", problem, remedy)
        except OSError as error:
            reason = error.strerror or error
            message = f"{self.folder} cannot be used: {reason}; use another folder"
            raise InvalidOption(message) from error

    def _bind(self, address: str, high_water_mark: int, *, insecure: bool) -> LoopSocket:
        """Open the port."""
        # No heartbeats: while the logger does not read, they would time out, and the messages
        # in the closed connections would be lost. TCP keep-alive detects dead nodes instead.
        options: dict[int, int] = {
            zmq.RCVHWM: high_water_mark,
            zmq.HEARTBEAT_IVL: 0,
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: 60,
        }
        return self._sockets.bind(
            zmq.PULL,
            address if "://" in address else f"tcp://{address}",
            self._on_messages,
            self._changed,
            frames=_PARTS,
            options=options,
            insecure=insecure,
        )

    @property
    def address(self) -> str:
        """Address for nodes: an item of Zeek's `connect_log_endpoints`."""
        return self._socket.address

    @property
    def logs(self) -> dict[str, Path]:
        """Folders of all logs, by name."""
        return {name: self.folder / name for name in sorted(self._names)}

    def stats(self) -> ZeekLoggerStats:
        """Return the counters."""
        counts = self._counts
        return ZeekLoggerStats(
            counts["records"],
            counts["messages"],
            counts["bytes"],
            dict(self._malformed),
            counts["refused"],
            counts["lost"],
            dict(self._by_log),
            dict(self._by_node),
            self._socket.connections,
            self._sockets.refused,
            counts["stalls"],
            self._stalled,
        )

    def flush(self) -> None:
        """Sync the appended records.

        Raises:
            LogFailed: a sync failed.
        """
        for log in list(self._logs.values()):
            log.flush()

    # --- on the thread of the logger ---

    def _changed(self, change: SocketChange) -> None:
        """Log a connection that was established or ended."""
        text = "a node connected" if change.is_up else f"a connection failed: {change.reason}"
        _log.info("%s; %d at %s", text, change.connections, self.folder)

    def _on_messages(self, messages: list[list[bytes]]) -> None:
        """Decode messages and append their records."""
        runs: dict[tuple[LogHeader, str], _Run] = {}
        for parts in messages:
            try:
                node, payload = _checked(parts)
                header, records = self._decoder.decode(payload)
            except InvalidData as error:
                self._reject(str(error))
                continue
            self._counts["messages"] += 1
            self._counts["bytes"] += len(payload)
            run = runs.setdefault((header, node), _Run(header, node, []))
            run.records.extend(records)
        self._pending.extend(runs.values())
        if self._pending and not self._stalled:
            self._write()

    def _reject(self, reason: str) -> None:
        """Count a malformed message; log the first of each kind, `other` being one of them."""
        kind = _DETAIL.sub("…", reason)
        if kind not in self._malformed and len(self._malformed) >= _KINDS:
            kind = "other"
        if kind not in self._malformed:
            _log.warning("skipped a message that is not a log-write: %s", printable(reason))
        self._malformed[kind] += 1

    def _write(self) -> None:
        """Append pending records; after a disk error, stop reading until it succeeds."""
        while self._pending:
            header, node, records = self._pending[0]
            try:
                name = self._name_of(header)
                if name:
                    self._append(name, header, node, records)
                else:
                    self._counts["refused"] += len(records)
            except InvalidRecord as error:
                self._reject(str(error))
            except LogError as error:
                self._stall(str(error))
                return
            self._pending.popleft()
        if self._stalled:
            _log.warning("writing to the logs of %s works again", self.folder)
            self._stalled = ""
            self._socket.resume()

    def _append(self, name: str, header: LogHeader, node: str, records: list[Cbor]) -> None:
        """Append records to a log.

        Raises:
            LogError: the records were not appended.
        """
        log = self._logs[name]
        if log.may_reopen:  # a sync failed: only reopening shows which records are on disk
            del self._logs[name]
            log.close()
            log = self._open(name)
        headers = {"stream": header.stream, "writer": header.writer, "filter": header.filter}
        topic = f"/zeek/log/{header.path}"
        log.append_batch(records, topic=topic, headers=headers, sender=node)
        count = len(records)
        self._counts["records"] += count
        self._by_log[name] += count
        is_counted = node in self._by_node or len(self._by_node) < _NODES
        self._by_node[node if is_counted else ""] += count

    def _stall(self, reason: str) -> None:
        """Stop reading until the disk accepts the pending records."""
        if not self._stalled:
            _log.error("%s; reading from Zeek nodes stops until writing works again", reason)
            self._counts["stalls"] += 1
            self._socket.pause()
        self._stalled = reason
        if not self._ending:
            self._runner.call_later(RETRY_INTERVAL, self._retry)

    def _retry(self) -> None:
        """Try again to append the pending records."""
        if self._stalled and not self._ending:
            self._write()

    # --- logs ---

    def _name_of(self, header: LogHeader) -> str:
        """Return the name of the log for a header; empty if there are too many logs.

        Raises:
            LogError: the log cannot be opened, or its fields cannot be declared.
        """
        name = self._of_header.get(header)
        if name is None:
            name = self._choose(header)
            if len(self._of_header) >= _HEADERS:
                self._of_header.clear()
            self._of_header[header] = name
        return name

    def _choose(self, header: LogHeader) -> str:
        """Declare the fields at the first log of the path whose types do not conflict."""
        columns = [field.column for field in header.fields]
        for number in range(1, _VARIANTS + 1):
            name = _folder_name(header.path) + (f"+{number}" if number > 1 else "")
            if name not in self._names and len(self._names) >= LOGS_LIMIT:
                break
            log = self._logs.get(name) or self._open(name)
            try:
                log.declare(columns)
                return name
            except FieldConflict as conflict:
                _log.info("%s continues in another log: %s", name, printable(str(conflict)))
            except InvalidOption:  # the log would have too many fields
                break
        path = printable(header.path)
        text = "records of %s are dropped: there are %d logs already"
        _log.warning(text, path, len(self._names))
        return ""

    def _open(self, name: str) -> CommitLog:
        """Open a log."""
        archive = f"{self._archive}/{name}" if self._archive else None
        log = CommitLog(self.folder / name, archive=archive, **self._options)
        self._names.add(name)
        self._logs[name] = log
        return log

    # --- closing ---

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Append and sync the received messages, and stop. Idempotent.

        Messages are read while more arrive, for up to 2 seconds.

        Raises:
            LogError: records could not be written.
        """
        self._runner.post(self._begin_drain)
        if not self._done.wait(DRAIN_LIMIT + _CLOSE_LIMIT):
            msg = f"the logs of {self.folder} were not closed in time; check the disk"
            raise LogError(msg)
        troubles, self._troubles = self._troubles, []
        if troubles:
            raise LogError("; ".join(troubles))

    def _begin_drain(self) -> None:
        """Start draining."""
        if not self._ending:
            self._ending = True
            self._drain(self._runner.now() + DRAIN_LIMIT, -1)

    def _drain(self, deadline: float, previous: int) -> None:
        """Close everything once messages stop arriving, or at the deadline."""
        count, now = self._counts["messages"], self._runner.now()
        if self._stalled or count == previous or now >= deadline:
            self._end()
        else:
            self._runner.call_later(_QUIET, partial(self._drain, deadline, count))

    def _end(self) -> None:
        """Write the rest, and close the port and all logs."""
        self._ending = True
        if self._pending:
            self._write()
        lost = sum(len(run.records) for run in self._pending)
        if lost:
            self._counts["lost"] += lost
            self._troubles.append(f"{lost:,} records were not written: {self._stalled}")
        self._sockets.close(0)
        for name, log in self._logs.items():
            try:
                log.close()
            except LogError as error:
                self._troubles.append(f"{name}: {error}")
        self._logs.clear()
        self._lock.release()
        _OPEN.discard(self)
        self._done.set()
        self._runner.stop()

    def __enter__(self) -> Self:
        """Return the logger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the logger."""
        self.close()


def _checked(parts: list[bytes]) -> tuple[str, bytes]:
    """Return the node and the payload of a message.

    Raises:
        InvalidData: the message is not a log-write.
    """
    if len(parts) != _PARTS:
        msg = f"a message has {len(parts)} parts instead of {_PARTS}"
        raise InvalidData(msg)
    kind, node, form, payload = parts
    if kind != _KIND or form != _FORMAT:
        msg = f"a message of another kind: {kind[:32]!r}, {form[:32]!r}"
        raise InvalidData(msg)
    if len(node) > _NODE_BYTES:
        msg = f"the name of a node has {len(node):,} bytes, more than {_NODE_BYTES}"
        raise InvalidData(msg)
    return node.decode(errors="backslashreplace"), payload


def _folder_name(path: str) -> str:
    """Return the folder name of a path; characters unsafe in file names become `=2F`."""
    name = _ODD.sub(lambda match: b"=%02X" % ord(match[0]), path.encode()).decode()
    if len(name) <= _NAME_BYTES:
        return name
    return name[:_NAME_BYTES] + "=" + sha256(path.encode()).hexdigest()[:16]


# --- figures ---

_FIGURES: Final[tuple[Figure[ZeekLoggerStats], ...]] = figures_of(
    "callboard_zeek_logger_",
    (
        ("records_total", "Records appended, by log.", lambda s: by_label("log", s.logs)),
        ("messages_total", "Log-write messages received.", "messages"),
        ("bytes_total", "Size of these messages.", "bytes"),
        ("malformed_total", "Malformed messages.", lambda s: sum(s.malformed.values())),
        ("refused_total", "Records dropped: too many logs.", "refused"),
        ("connections", "Connected nodes.", "connections"),
        ("rejected_total", "Connections with an unknown key.", "rejected"),
        ("stalls_total", "Disk errors that stopped reading.", "stalls"),
        ("stalled", "Whether reading is stopped.", lambda s: bool(s.stalled)),
    ),
)

_OPEN: Final[ProcessFigures[ZeekLogger]] = ProcessFigures(
    _FIGURES, lambda logger: ((("folder", str(logger.folder)),), logger.stats())
)
