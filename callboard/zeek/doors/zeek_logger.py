"""A logger for Zeek's nodes: what they write to logs is appended to ours.

Since Zeek 8.1 nodes push their logs over ZeroMQ to loggers that pull them. Each path (`conn`,
`dns`) becomes a log in a folder of its own, with Zeek's fields as declared columns. A message
is decoded and appended on one thread, all that came at once together.

PUSH and PULL know no acknowledgment. What a node has sent and this process has not appended is
lost when either ends; what was appended outlives this process, and `sync_interval` seconds
later the machine. When the disk refuses, nothing more is read: messages wait here, then in
TCP, then at the nodes, which drop what exceeds their `log_sndhwm`.
"""

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self
from weakref import WeakSet

import zmq

from callboard.commitlog import CommitLog, FieldConflict, LogError, Retention
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.columns import Cbor
from callboard.commitlog.errors import InvalidOption, InvalidRecord
from callboard.commitlog.folder import FileLock
from callboard.figures import PROCESS_SOURCES, Figure, Metric, by_label, figures_of, metrics_of
from callboard.kernel.wire import Runner
from callboard.model.errors import InvalidData
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.private_file import make_folder
from callboard.support.text import printable
from callboard.zeek.doors.zeromq_socket import (
    HIGH_WATER,
    CurveServer,
    LoopSocket,
    SocketChange,
    ZeroMqSockets,
)
from callboard.zeek.log_write import LogHeader, LogWriteDecoder

#: Where a logger listens: beside the ports 5555 and 5556 of Zeek's manager.
ADDRESS: Final = "tcp://127.0.0.1:5557"

#: Logs of one logger: each takes descriptors, and a thread that syncs.
LOGS_LIMIT: Final = 200
#: Logs of one path, where nodes give a field two types.
_VARIANTS: Final = 16
#: Nodes that are told apart in figures.
_NODES: Final = 1_000
_HEADERS: Final = 1_024
#: Bytes of a node's name, and of a log's.
_NODE_BYTES: Final = 256
_NAME_BYTES: Final = 200

#: Seconds until a disk that refused is tried again.
RETRY_INTERVAL: Final = 1.0
#: Seconds without a message that end the drain of a logger that is closed, and at most.
_QUIET: Final = 0.05
DRAIN_LIMIT: Final = 2.0
#: Seconds beyond that for logs to be closed.
_CLOSE_LIMIT: Final = 60.0

_KIND, _FORMAT = b"log-write", b"zeek-bin-v1"
_PARTS: Final = 4
#: Kinds of malformed messages that are told apart, and what differs within one.
_KINDS: Final = 100
_DETAIL: Final = re.compile(r": .*|'.*'|\d[\d,]*")
_ODD: Final = re.compile(rb"^\.|[^A-Za-z0-9_.@-]")

_log = logging.getLogger("callboard.zeek")


class _Run(NamedTuple):
    """Records of one log and node that came at once."""

    header: LogHeader
    node: str
    records: list[Cbor]


@dataclass(frozen=True, slots=True)
class ZeekLoggerStats:
    """What a logger has done.

    Attributes:
        records: appended.
        messages: log-writes they came in.
        bytes: of these.
        malformed: messages that are no log-write, by what was wrong.
        refused: records of logs that were not taken, as there are too many.
        lost: records that were read and could not be appended until the end.
        logs: records by log.
        nodes: records by node.
        connections: of nodes, now.
        rejected: connections whose keys were not accepted.
        stalls: times that the disk refused.
        stalled: why nothing is read now; empty while all is well.
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
    """Pulls the logs of Zeek's nodes into logs of a folder, one for each path.

        with ZeekLogger("logs", "tcp://127.0.0.1:5557") as logger:
            ...
        LogReader("logs/conn").to_arrow(fields=True)

    It listens from its making until `close`. Methods may be called from any thread.
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
        """Open the port; logs are opened when something comes for them.

        Args:
            folder: Of the logs, made if needed.
            address: `tcp://HOST:PORT`, or `HOST:PORT`; the port 0 picks a free one.
            curve: Keys, or a TOML file with them: which nodes may connect.
            insecure: Allow an address that other machines reach though nothing guards it.
            high_water_mark: Messages that wait for each node before its own begin to wait.
            sync_interval: Seconds between syncs of a log.
            retain: How long each log is kept; for ever by default.
            segment_bytes: As for `CommitLog`, as are all that follow.
            segment_seconds: When a new file begins at the latest.
            columns: Whether sealed segments are kept as Parquet as well.
            compression: Of batches.
            archive: An address under which each log is copied, by its name.

        Raises:
            LogLocked: another logger uses the folder.
            LogFailed: the folder cannot be made.
            PublicAddress: other machines reach the address, and no keys guard it.
            PortUnavailable: the port is taken.
            ValueError: an option makes no sense.
        """
        given = {
            "retain": retain,
            "sync_interval": sync_interval,
            "segment_bytes": segment_bytes,
            "segment_seconds": segment_seconds,
            "compression": compression,
        }
        if isinstance(curve, str | Path):
            curve = CurveServer.of_file(Path(curve))
        CommitLog(**given).close()  # type: ignore[arg-type]  # says what makes no sense
        if columns:
            load_pyarrow()
        self._options: dict[str, Any] = given | {"columns": columns}
        self._archive = archive.rstrip("/")
        self.folder = Path(folder).absolute()
        if high_water_mark < 1:
            what = f"high_water_mark={high_water_mark}: give at least 1"
            raise InvalidOption(what)
        self._lock = self._lock_folder()
        self._decoder = LogWriteDecoder()
        self._logs: dict[str, CommitLog] = {}
        self._of_header: dict[LogHeader, str] = {}
        self._names = {each.name for each in self.folder.iterdir() if each.is_dir()}
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
        if _metrics not in PROCESS_SOURCES:
            PROCESS_SOURCES.append(_metrics)
        self._runner.start()

    def _lock_folder(self) -> FileLock:
        """Make the folder, and hold it."""
        try:
            make_folder(self.folder)
            what, remedy = f"a logger writes to {self.folder}", "give another folder"
            return FileLock(str(self.folder), ".lock", what, remedy)
        except OSError as error:
            what = f"{self.folder} cannot be used: {error.strerror or error}; give another"
            raise InvalidOption(what) from error

    def _bind(self, address: str, high_water_mark: int, *, insecure: bool) -> LoopSocket:
        """Open the port."""
        # ZeroMQ's heartbeats would end connections while nothing is read, and what is in them.
        options: dict[int, int] = {
            zmq.RCVHWM: high_water_mark,
            zmq.HEARTBEAT_IVL: 0,
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: 60,
        }
        return self._sockets.bind(
            zmq.PULL,
            address if "://" in address else f"tcp://{address}",
            self._take,
            self._changed,
            frames=_PARTS,
            options=options,
            insecure=insecure,
        )

    @property
    def address(self) -> str:
        """Where nodes reach it: an item of Zeek's `connect_log_endpoints`."""
        return self._socket.address

    @property
    def logs(self) -> dict[str, Path]:
        """The folders of all logs, by name."""
        return {name: self.folder / name for name in sorted(self._names)}

    def stats(self) -> ZeekLoggerStats:
        """Return what was done so far."""
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
        """Make durable what was appended before.

        Raises:
            LogFailed: the disk refuses.
        """
        for log in list(self._logs.values()):
            log.flush()

    # --- on the thread of the logger ---

    def _changed(self, change: SocketChange) -> None:
        """Tell of a connection."""
        text = "a node connected" if change.is_up else f"a connection: {change.reason}"
        _log.info("%s; %d at %s", text, change.connections, self.folder)

    def _take(self, messages: list[list[bytes]]) -> None:
        """Take messages, and append what they hold."""
        runs: dict[tuple[LogHeader, str], _Run] = {}
        for parts in messages:
            try:
                node, payload = _checked(parts)
                header, records = self._decoder.decode(payload)
            except InvalidData as error:
                self._refuse(str(error))
                continue
            self._counts["messages"] += 1
            self._counts["bytes"] += len(payload)
            run = runs.setdefault((header, node), _Run(header, node, []))
            run.records.extend(records)
        self._pending.extend(runs.values())
        if self._pending and not self._stalled:
            self._write()

    def _refuse(self, why: str) -> None:
        """Count a message that is no log-write; each kind of trouble is told once."""
        kind = _DETAIL.sub("…", why)
        if kind not in self._malformed:
            if len(self._malformed) >= _KINDS:
                kind = "other"
            _log.warning("a message is no log-write and is left out: %s", printable(why))
        self._malformed[kind] += 1

    def _write(self) -> None:
        """Append what waits; where the disk refuses, read no more until it takes it."""
        while self._pending:
            header, node, records = self._pending[0]
            try:
                name = self._name_of(header)
                if name:
                    self._append(name, header, node, records)
                else:
                    self._counts["refused"] += len(records)
            except InvalidRecord as error:
                self._refuse(str(error))
            except LogError as error:
                self._stall(str(error))
                return
            self._pending.popleft()
        if self._stalled:
            _log.warning("the logs of %s are written again", self.folder)
            self._stalled = ""
            self._socket.resume()

    def _append(self, name: str, header: LogHeader, node: str, records: list[Cbor]) -> None:
        """Append records to a log.

        Raises:
            LogError: they were not.
        """
        log = self._logs[name]
        if log.may_reopen:  # a sync did, so nobody knows what the disk holds
            del self._logs[name]
            log.close()
            log = self._open(name)
        told = {"stream": header.stream, "writer": header.writer, "filter": header.filter}
        topic = f"/zeek/log/{header.path}"
        log.append_batch(records, topic=topic, headers=told, sender=node)
        count = len(records)
        self._counts["records"] += count
        self._by_log[name] += count
        is_told = node in self._by_node or len(self._by_node) < _NODES
        self._by_node[node if is_told else ""] += count

    def _stall(self, why: str) -> None:
        """Read nothing until the disk takes what waits."""
        if not self._stalled:
            _log.error("%s; nothing is read from Zeek's nodes until then", why)
            self._counts["stalls"] += 1
            self._socket.pause()
        self._stalled = why
        if not self._ending:
            self._runner.call_later(RETRY_INTERVAL, self._retry)

    def _retry(self) -> None:
        """Try again what the disk refused."""
        if self._stalled and not self._ending:
            self._write()

    # --- logs ---

    def _name_of(self, header: LogHeader) -> str:
        """Return the name of the log that takes records; empty if none does.

        Raises:
            LogError: it cannot be opened, or its fields not be declared.
        """
        name = self._of_header.get(header)
        if name is None:
            name = self._choose(header)
            if len(self._of_header) >= _HEADERS:
                self._of_header.clear()
            self._of_header[header] = name
        return name

    def _choose(self, header: LogHeader) -> str:
        """Declare the fields at the first log of a path that has none of another type."""
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
                _log.info("%s goes on in another log: %s", name, printable(str(conflict)))
            except InvalidOption:  # it has too many fields
                break
        shown = printable(header.path)
        _log.warning("records of %s are not taken: there are %d logs", shown, len(self._names))
        return ""

    def _open(self, name: str) -> CommitLog:
        """Open a log."""
        archive = f"{self._archive}/{name}" if self._archive else None
        log = CommitLog(self.folder / name, archive=archive, **self._options)
        self._names.add(name)
        self._logs[name] = log
        return log

    # --- the end ---

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Append what has come, make all durable, and end; a second call does nothing.

        Messages are read for as long as more come, for up to 2 seconds.

        Raises:
            LogError: something could not be written.
        """
        self._runner.post(self._begin_to_end)
        if not self._done.wait(DRAIN_LIMIT + _CLOSE_LIMIT):
            what = f"the logs of {self.folder} were not closed in time; see its disk"
            raise LogError(what)
        troubles, self._troubles = self._troubles, []
        if troubles:
            raise LogError("; ".join(troubles))

    def _begin_to_end(self) -> None:
        """Wait until no more comes."""
        if not self._ending:
            self._ending = True
            self._drain(self._runner.now() + DRAIN_LIMIT, -1)

    def _drain(self, until: float, before: int) -> None:
        """Look whether more came."""
        count, now = self._counts["messages"], self._runner.now()
        if self._stalled or count == before or now >= until:
            self._end()
        else:
            self._runner.call_later(_QUIET, partial(self._drain, until, count))

    def _end(self) -> None:
        """Close port and logs."""
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
        """Close it."""
        self.close()


def _checked(parts: list[bytes]) -> tuple[str, bytes]:
    """Return node and payload of a message.

    Raises:
        InvalidData: it is no log-write.
    """
    if len(parts) != _PARTS:
        what = f"a message of {len(parts)} parts, which are {_PARTS}"
        raise InvalidData(what)
    kind, node, form, payload = parts
    if kind != _KIND or form != _FORMAT:
        what = f"another kind of message: {kind[:32]!r}, {form[:32]!r}"
        raise InvalidData(what)
    if len(node) > _NODE_BYTES:
        what = f"the name of a node has {len(node):,} bytes"
        raise InvalidData(what)
    return node.decode(errors="backslashreplace"), payload


def _folder_name(path: str) -> str:
    """Return the name of the folder of a path: what files may not be called is `=2F`."""
    name = _ODD.sub(lambda found: b"=%02X" % ord(found[0]), path.encode()).decode()
    if len(name) <= _NAME_BYTES:
        return name
    return name[:_NAME_BYTES] + "=" + sha256(path.encode()).hexdigest()[:16]


# --- figures ---

_OPEN: Final[WeakSet[ZeekLogger]] = WeakSet()
_FIGURES: Final[tuple[Figure[ZeekLoggerStats], ...]] = figures_of(
    "callboard_zeek_logger_",
    (
        ("records_total", "Records appended, by log.", lambda s: by_label("log", s.logs)),
        ("messages_total", "Log-writes taken.", "messages"),
        ("bytes_total", "Bytes of these.", "bytes"),
        ("malformed_total", "Messages that are none.", lambda s: sum(s.malformed.values())),
        ("refused_total", "Records of logs beyond the limit.", "refused"),
        ("connections", "Connections of nodes.", "connections"),
        ("rejected_total", "Connections with other keys.", "rejected"),
        ("stalls_total", "Times that the disk refused.", "stalls"),
        ("stalled", "Whether it does, and nothing is read.", lambda s: bool(s.stalled)),
    ),
)


def _metrics() -> list[Metric]:
    """Return the figures of the loggers of this process."""
    told = [
        metrics_of(_FIGURES, each.stats(), (("folder", str(each.folder)),))
        for each in sorted(_OPEN, key=lambda each: each.folder)
    ]
    return [
        replace(same[0], samples=[sample for each in same for sample in each.samples])
        for same in zip(*told, strict=True)
    ]
