"""The actor that serves the files of a node's logs, on its own thread."""

import errno
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from callboard.arguments import require
from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.folder import SEGMENT, SERVED_NAME, Folder
from callboard.commitlog.following.follower import Growth, growth_of
from callboard.commitlog.reader import open_folder
from callboard.commitlog.remote.served import ServedFolders
from callboard.kernel.actors import handler
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import (
    CallboardError,
    MailboxFull,
    NotPermitted,
    NotRegistered,
    WrongArgument,
    WrongValue,
)
from callboard.kernel.reply import Promise
from callboard.kernel.topology import Topology
from callboard.log_service.messages import (
    PIECE,
    AwaitLogGrowth,
    FileBytes,
    ListLogFiles,
    ListLogs,
    LogQuestion,
    ReadLogFile,
    objection,
)
from callboard.log_service.read_scheduler import (
    TAKEN_WITHIN,
    Fetch,
    LogPlace,
    ReadScheduler,
    Refuse,
    ServedReader,
    Tell,
)

#: Seconds between checks for growth of a log: its writer may be another process, which does
#: not notify this one.
POLL_SECONDS: Final = 0.02
#: Seconds before checking again a link that was full.
_RETRY: Final = 0.01
#: Bytes of a message besides the bytes of the file.
_AROUND: Final = 1_024

#: Reason for refusing to wait for growth while the node drains.
_DRAINING: Final = "it is draining"

#: A served log: its folder, which may be created later, or a log object.
Served = str | Path | CommitLog | LogReader


class LogShelf(NamedTuple):
    """The folder of a served log, and the notifier of appends in this process."""

    folder: Folder
    growth: Growth


class ServedLog(NamedTuple):
    """A log that a node serves, for figures.

    Attributes:
        name: the name under which it is served.
        size: bytes in its segments.
        readers: number of readers with a request in the last minute.
        lag: bytes that the slowest of them has not read yet.
    """

    name: str
    size: int
    readers: int
    lag: int


def shelf_of(log: Served) -> LogShelf:
    """Return the folder and the notifier of a served log."""
    if isinstance(log, LogReader):
        return LogShelf(log.place, log.growth)
    folder = open_folder(log)
    return LogShelf(folder, growth_of(folder.path))


def checked_logs(logs: Mapping[str, Served] | None) -> dict[str, Served]:
    """Check the `serve_logs` of a node and return a copy.

    Raises:
        WrongArgument: `logs` does not map names to folders or logs.
        WrongValue: a name cannot be part of an address, or a folder is the address of a log.
    """
    needed = 'serve_logs takes folders or logs by their names: {"cpu": "/var/lib/shop/cpu"}'
    require(isinstance(logs, Mapping | None), needed, logs)
    for name, log in (logs or {}).items():
        kinds: tuple[object, object] = (name, log)
        is_so = isinstance(kinds[0], str) and isinstance(kinds[1], str | Path | LogReader)
        require(is_so, needed, kinds)
        if not SERVED_NAME.fullmatch(name):
            msg = f"{name!r:.80} is not a log name; use letters, digits and -_.+@="
            raise WrongValue(msg)
        if isinstance(log, str) and "://" in log:
            msg = f"{log!r:.200} is served elsewhere; a node serves folders of its machine"
            raise WrongValue(msg)
    return dict(logs or {})


def real_folders(logs: Mapping[str, Served]) -> dict[str, str]:
    """Return the folders of logs, to be read by another process on this machine.

    Raises:
        WrongValue: `logs` is empty, or a log is not on the machine's disk.
    """
    if not logs:
        msg = 'there are no logs to serve; make the node with serve_logs={"cpu": folder}'
        raise WrongValue(msg)
    for name, log in logs.items():
        if not isinstance(shelf_of(log).folder.disk, RealDisk):
            msg = f"the log {name!r} is in memory, where no other process can read it"
            raise WrongValue(msg)
    return {name: shelf_of(log).folder.path for name, log in logs.items()}


class LogService(SystemActor):
    """Serves readers of logs. Requests come from other nodes, so all fields are checked."""

    detached: ClassVar[bool] = True

    def __init__(self, logs: Mapping[str, Served], overlay: Topology, payload: int) -> None:
        self._overlay = overlay
        #: File bytes in one reply; a message must not exceed the payload limit.
        self._piece = min(PIECE, payload - _AROUND)
        self._shelves = {name: shelf_of(log) for name, log in logs.items()}
        folders = {name: shelf.folder for name, shelf in self._shelves.items()}
        self._served = ServedFolders(folders)
        #: Callbacks for growth in this process. Logs of other processes are polled.
        self._wakes = {
            name: partial(self.call_soon, self._check_log, name) for name in self._shelves
        }
        self._desk = ReadScheduler()
        self._is_serving = self._is_polling = False

    def served(self) -> list["ServedLog"]:
        """Return figures of all logs and their readers; may be called from any thread."""
        readers = list(self._desk.readers(self.now()))
        return [
            self._figures(name, [reader for _, reader in readers if reader.log == name])
            for name in sorted(self._shelves)
        ]

    def _figures(self, name: str, readers: list[ServedReader]) -> "ServedLog":
        """Return the figures of one log."""
        folder = self._shelves[name].folder
        sizes = {}
        with suppress(OSError):
            for file in folder.disk.listdir(folder.path):
                if file.endswith(SEGMENT):
                    sizes[file] = folder.disk.size(folder.file(file))
        lags = [
            sum(size for file, size in sizes.items() if file >= reader.file)
            - min(reader.at, sizes.get(reader.file, 0))
            for reader in readers
        ]
        return ServedLog(name, sum(sizes.values()), len(readers), max(lags, default=0))

    # --- questions ---

    @handler
    def list_logs(self, _: ListLogs) -> tuple[str, ...]:
        """Return the names of the logs that the asker may read."""
        rights = self._overlay.rights(self._peer())
        return tuple(
            self._served.names(lambda name: rights is None or rights.permit("logs", name))
        )

    @handler
    def list_files(self, question: ListLogFiles) -> Any:
        """Return the names of the files of a log that readers need."""
        if self._refuses(question):
            return None
        if self._load(self._peer()) >= TAKEN_WITHIN:
            self._carry_out(Refuse(self.promise(), "the link to the reader is full"))
            return None
        try:
            return tuple(self._served.files(question.log))
        except FileNotFoundError:
            return ()
        except OSError as error:
            return self._refuse(f"{question.log} cannot be read: {error.strerror}")

    @handler
    def read_file(self, question: ReadLogFile) -> Any:
        """Queue a read of a file; the reply follows when it is the asker's turn."""
        if self._refuses(question):
            return
        promise = self.promise()
        refusal = self._desk.add_read(self._peer(), question, promise, self.now())
        if refusal is not None:
            self._carry_out(refusal)
        elif not self._is_serving:
            self._is_serving = True
            self.call_soon(self._serve)

    @handler
    def await_growth(self, question: AwaitLogGrowth) -> Any:
        """Reply with the end of a log once it differs from the one that the asker knows."""
        if self._refuses(question):
            return
        if self.node.is_draining:
            self._carry_out(Refuse(self.promise(), _DRAINING))
            return
        self._shelves[question.log].growth.add(self._wakes[question.log])
        place, now = self._end_of(question.log), self.now()
        answer = self._desk.add_wait(self._peer(), question, self.promise(), place, now)
        if answer is not None:
            self._carry_out(answer)
        elif not self._is_polling:
            self._poll()

    def _peer(self) -> bytes:
        """Return the node of the asker."""
        return self.context.sender_node

    def _refuses(self, question: LogQuestion) -> bool:
        """Return whether a request is refused; if so, the refusal is sent."""
        problem, rights = objection(question), self._overlay.rights(self._peer())
        error: CallboardError
        if problem:
            error = WrongArgument(problem)
        elif rights is not None and not rights.permit("logs", question.log):
            error = NotPermitted(f"no right 'logs' for {question.log!r:.200}")
        elif question.log not in self._served:
            available = ", ".join(self.list_logs(ListLogs())) or "none"
            text = f"no log is served as {question.log!r:.200} by {self.node.name}"
            error = NotRegistered(f"{text}; the logs that you may read are: {available}")
        else:
            return False
        self.promise().set_exception(error)
        return True

    def _refuse(self, reason: str) -> None:
        self.promise().set_exception(NotRegistered(reason))

    # --- answers ---

    def _serve(self) -> None:
        """Serve one read of each peer, then yield to other messages."""
        effects = self._desk.serve(self._load, self.now())
        for effect in effects:
            self._carry_out(effect)
        self._is_serving = self._desk.has_reads
        if self._is_serving and effects:
            self.call_soon(self._serve)
        elif self._is_serving:
            self.after(_RETRY, CallBack(self._serve))

    def _load(self, peer: bytes) -> int:
        """Return the number of bytes queued on the link towards a peer."""
        link = self._overlay.link_towards(peer)
        return 0 if link is None else link.waiting

    def _carry_out(self, effect: Fetch | Refuse | Tell) -> None:
        """Send the reply that an effect of the desk asks for."""
        promise: Promise = effect.ticket
        if isinstance(effect, Fetch):
            promise.set_result(self._read(effect.question).pack())
        elif isinstance(effect, Tell):
            promise.set_result(tuple(effect.place))
        else:
            promise.set_exception(MailboxFull(f"{self.node.name}: {effect.why}"))

    def _read(self, question: ReadLogFile) -> FileBytes:
        """Return bytes of a file, or the error number of the disk."""
        try:
            with self._served.opened(question.log, question.file) as file:
                size = min(question.size, self._piece)
                data = file.pread(size, question.at) if size else b""
                return FileBytes(max(file.size(), question.at + len(data)), data)
        except OSError as error:
            return FileBytes(-(error.errno or errno.EIO))

    def _end_of(self, log: str) -> LogPlace:
        """Return the end of a log; a default `LogPlace` if the log does not exist."""
        folder = self._shelves[log].folder
        try:
            names = folder.disk.listdir(folder.path)
            newest = max(name for name in names if name.endswith(SEGMENT))
            return LogPlace(newest, folder.disk.size(folder.file(newest)))
        except (OSError, ValueError):
            return LogPlace()

    def _check_log(self, log: str) -> None:
        """Answer the waits for growth of a log that has grown."""
        # registered before the check: growth between both would go unnoticed otherwise
        self._shelves[log].growth.add(self._wakes[log])
        for answer in self._desk.due_replies(log, self._end_of(log), self.now()):
            self._carry_out(answer)
        if log not in self._desk.awaited:
            self._shelves[log].growth.discard(self._wakes[log])

    def _poll(self) -> None:
        """Check all logs with pending waits, and schedule the next check if any remain."""
        if self.node.is_draining:  # a draining node waits until all replies are sent
            for refusal in self._desk.refuse_waits(_DRAINING):
                self._carry_out(refusal)
        for log in self._desk.awaited:
            self._check_log(log)
        self._is_polling = bool(self._desk.awaited)
        if self._is_polling:
            self.after(POLL_SECONDS, CallBack(self._poll))
