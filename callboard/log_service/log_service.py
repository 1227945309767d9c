"""The actor that serves a node's logs: it reads their files on a thread of its own."""

import errno
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.folder import SEGMENT, SERVED, SERVED_NAME, Folder
from callboard.commitlog.following.follower import Growth, growth_of
from callboard.commitlog.reader import open_folder
from callboard.kernel.actors import handler
from callboard.kernel.checks import require
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
from callboard.kernel.topology import Overlay
from callboard.log_service.desk import (
    TAKEN_WITHIN,
    Fetch,
    LogDesk,
    LogPlace,
    Refuse,
    ServedReader,
    Tell,
)
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

#: Seconds between looks at a log that others wait for: its writer may be another process.
LOOK_SECONDS: Final = 0.02
#: Seconds until a link is looked at again that takes nothing.
_RETRY: Final = 0.01
#: Bytes of a message beside those of the file.
_AROUND: Final = 1_024

#: Why nobody is told of growth any more.
_DRAINING: Final = "it is draining"

#: What is served under a name: the folder of a log, which may be made later, or a log.
Served = str | Path | CommitLog | LogReader


class LogShelf(NamedTuple):
    """Where a served log is, and what tells of what is appended in this process."""

    folder: Folder
    growth: Growth


class ServedLog(NamedTuple):
    """A log that a node serves, for figures.

    Attributes:
        name: under which it is served.
        size: bytes of its segments.
        readers: how many have asked within the last minute.
        lag: bytes that the one furthest behind has not read.
    """

    name: str
    size: int
    readers: int
    lag: int


def shelf_of(log: Served) -> LogShelf:
    """Return where what is served is."""
    if isinstance(log, LogReader):
        return LogShelf(log.place, log.growth)
    folder = open_folder(log)
    return LogShelf(folder, growth_of(folder.path))


def checked_logs(logs: Mapping[str, Served] | None) -> dict[str, Served]:
    """Return what a node is to serve.

    Raises:
        WrongArgument: it is no map of names to folders or logs.
        WrongValue: a name could not stand in an address.
    """
    needed = 'serve_logs takes folders or logs by their names: {"cpu": "/var/lib/shop/cpu"}'
    require(isinstance(logs, Mapping | None), needed, logs)
    for name, log in (logs or {}).items():
        kinds: tuple[object, object] = (name, log)
        is_so = isinstance(kinds[0], str) and isinstance(kinds[1], str | Path | LogReader)
        require(is_so, needed, kinds)
        if not SERVED_NAME.fullmatch(name):
            msg = f"{name!r:.80} is no name for a log: letters, digits and -_.+@= are"
            raise WrongValue(msg)
        if isinstance(log, str) and "://" in log:
            msg = f"{log!r:.200} is served elsewhere; a node serves folders of its machine"
            raise WrongValue(msg)
    return dict(logs or {})


def real_folders(logs: Mapping[str, Served]) -> dict[str, str]:
    """Return the folders of logs, for another process of this machine.

    Raises:
        WrongValue: there are none, or one is not on the machine's disk.
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
    """Answers readers of logs. What it is asked came from another node, and is checked."""

    detached: ClassVar[bool] = True

    def __init__(self, logs: Mapping[str, Served], overlay: Overlay, payload: int) -> None:
        self._overlay = overlay
        #: Bytes of one answer: a message holds no more.
        self._piece = min(PIECE, payload - _AROUND)
        self._shelves = {name: shelf_of(log) for name, log in logs.items()}
        #: What growth of a log in this process calls; others are looked at.
        self._wakes = {
            name: partial(self.call_soon, self._look_at, name) for name in self._shelves
        }
        self._desk = LogDesk()
        self._is_serving = self._is_looking = False

    def served(self) -> list["ServedLog"]:
        """Return who reads what, for figures; from any thread."""
        readers = list(self._desk.readers(self.now()))
        return [
            self._figures(name, [each for _, each in readers if each.log == name])
            for name in sorted(self._shelves)
        ]

    def _figures(self, name: str, readers: list[ServedReader]) -> "ServedLog":
        """Return the figures of one log."""
        folder = self._shelves[name].folder
        sizes = {}
        with suppress(OSError):
            for each in folder.disk.listdir(folder.path):
                if each.endswith(SEGMENT):
                    sizes[each] = folder.disk.size(folder.file(each))
        lags = [
            sum(size for file, size in sizes.items() if file >= each.file)
            - min(each.at, sizes.get(each.file, 0))
            for each in readers
        ]
        return ServedLog(name, sum(sizes.values()), len(readers), max(lags, default=0))

    # --- questions ---

    @handler
    def list_logs(self, _: ListLogs) -> tuple[str, ...]:
        """Tell which logs the asker may read."""
        rights = self._overlay.rights(self._peer())
        names = sorted(self._shelves)
        return tuple(each for each in names if rights is None or rights.permit("logs", each))

    @handler
    def list_files(self, question: ListLogFiles) -> Any:
        """Tell which files a log has; only those that readers need."""
        if self._refuses(question):
            return None
        if self._load(self._peer()) >= TAKEN_WITHIN:
            self._carry_out(Refuse(self.promise(), "this node takes nothing"))
            return None
        folder = self._shelves[question.log].folder
        try:
            names = folder.disk.listdir(folder.path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return self._refuse(f"{question.log} cannot be read: {error.strerror}")
        return tuple(name for name in names if SERVED.fullmatch(name))

    @handler
    def read_file(self, question: ReadLogFile) -> Any:
        """Read bytes of a file, when it is the asker's turn."""
        if self._refuses(question):
            return
        promise = self.promise()
        refused = self._desk.take_read(self._peer(), question, promise, self.now())
        if refused is not None:
            self._carry_out(refused)
        elif not self._is_serving:
            self._is_serving = True
            self.call_soon(self._serve)

    @handler
    def await_growth(self, question: AwaitLogGrowth) -> Any:
        """Tell where a log ends, when that changes."""
        if self._refuses(question):
            return
        if self.node.is_draining:
            self._carry_out(Refuse(self.promise(), _DRAINING))
            return
        self._shelves[question.log].growth.add(self._wakes[question.log])
        place, now = self._end_of(question.log), self.now()
        answer = self._desk.take_wait(self._peer(), question, self.promise(), place, now)
        if answer is not None:
            self._carry_out(answer)
        elif not self._is_looking:
            self._look()

    def _peer(self) -> bytes:
        """Return the node of who asks."""
        return self.context.sender_node

    def _refuses(self, question: LogQuestion) -> bool:
        """Return whether a question is not served; then it is answered."""
        wrong, rights = objection(question), self._overlay.rights(self._peer())
        error: CallboardError
        if wrong:
            error = WrongArgument(wrong)
        elif rights is not None and not rights.permit("logs", question.log):
            error = NotPermitted(f"no right 'logs' for {question.log!r:.200}")
        elif question.log not in self._shelves:
            here = ", ".join(self.list_logs(ListLogs())) or "none"
            text = f"no log is served as {question.log!r:.200} by {self.node.name}"
            error = NotRegistered(f"{text}; those that may be read are: {here}")
        else:
            return False
        self.promise().set_exception(error)
        return True

    def _refuse(self, why: str) -> None:
        self.promise().set_exception(NotRegistered(why))

    # --- answers ---

    def _serve(self) -> None:
        """Fetch one read of each peer, then others have a turn."""
        effects = self._desk.serve(self._load, self.now())
        for effect in effects:
            self._carry_out(effect)
        self._is_serving = self._desk.has_reads
        if self._is_serving and effects:
            self.call_soon(self._serve)
        elif self._is_serving:
            self.after(_RETRY, CallBack(self._serve))

    def _load(self, peer: bytes) -> int:
        """Return how many bytes wait on the way to a peer."""
        link = self._overlay.link_towards(peer)
        return 0 if link is None else link.waiting

    def _carry_out(self, effect: Fetch | Refuse | Tell) -> None:
        """Answer who put a question."""
        promise: Promise = effect.ticket
        if isinstance(effect, Fetch):
            promise.set_result(self._read(effect.question).pack())
        elif isinstance(effect, Tell):
            promise.set_result(tuple(effect.place))
        else:
            promise.set_exception(MailboxFull(f"{self.node.name}: {effect.why}"))

    def _read(self, question: ReadLogFile) -> FileBytes:
        """Read bytes of a file."""
        folder = self._shelves[question.log].folder
        try:
            with closing(folder.disk.open(folder.file(question.file))) as file:
                size = min(question.size, self._piece)
                data = file.pread(size, question.at) if size else b""
                return FileBytes(max(file.size(), question.at + len(data)), data)
        except OSError as error:
            return FileBytes(-(error.errno or errno.EIO))

    def _end_of(self, log: str) -> LogPlace:
        """Return where a log ends; a log that is not there has no such place."""
        folder = self._shelves[log].folder
        try:
            names = folder.disk.listdir(folder.path)
            newest = max(each for each in names if each.endswith(SEGMENT))
            return LogPlace(newest, folder.disk.size(folder.file(newest)))
        except (OSError, ValueError):
            return LogPlace()

    def _look_at(self, log: str) -> None:
        """Answer who waits for the growth of a log that has grown."""
        self._shelves[log].growth.add(
            self._wakes[log]
        )  # before the look, so that none is missed
        for answer in self._desk.look(log, self._end_of(log), self.now()):
            self._carry_out(answer)
        if log not in self._desk.awaited:
            self._shelves[log].growth.discard(self._wakes[log])

    def _look(self) -> None:
        """Look at the logs whose growth is awaited, again and again while they are."""
        if self.node.is_draining:  # which waits for what it owes
            for refusal in self._desk.refuse_waits(_DRAINING):
                self._carry_out(refusal)
        for log in self._desk.awaited:
            self._look_at(log)
        self._is_looking = bool(self._desk.awaited)
        if self._is_looking:
            self.after(LOOK_SECONDS, CallBack(self._look))
