"""A log that a node serves, as a disk that can only be read; and the node that reads it.

A reader outside any node makes one of its own, a tool in the background, which its process's
readers of one address share and which ends with the last of them. A call that finds no node is
made again for some seconds, since links are cut and nodes are started anew: each question
stands for itself, so reading goes on where it was.
"""

import asyncio
import errno
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakMethod, WeakValueDictionary, finalize

from callboard import locks
from callboard.commitlog.errors import InvalidOption, LogFailed
from callboard.commitlog.folder import SERVED_NAME
from callboard.commitlog.following.follower import Growth
from callboard.commitlog.remote.disk import TOKEN_VARIABLE, read_only
from callboard.kernel.context import Node
from callboard.kernel.errors import (
    ActorDown,
    AskTimeout,
    CallboardError,
    LinkError,
    MailboxFull,
    NodeClosed,
    NodeUnreachable,
    TlsError,
    WouldBlock,
    WouldDeadlock,
)
from callboard.kernel.reply import Future
from callboard.kernel.tls import Tls
from callboard.kernel.topology import LOG_SERVICE, parse_node_address
from callboard.log_service.desk import WAIT_SECONDS
from callboard.log_service.messages import (
    PIECE,
    AwaitLogGrowth,
    FileBytes,
    ListLogFiles,
    ListLogs,
    ReadLogFile,
    unpack_file_bytes,
)

#: Environment variable with the folder of certificates, as for commands.
TLS_VARIABLE: Final = "CALLBOARD_TLS"
#: Seconds that a node may be away, and between two calls.
PATIENCE: Final = 10.0
_PAUSE: Final = 0.05
#: Answers that may be under way to one who reads on: 2 MiB.
AHEAD: Final = 8


class _ReaderNode:
    """The node of readers that have none; it closes when the last one is gone."""

    def __init__(self, secret: str | None, tls: Tls | None) -> None:
        self.node = Node("callboard log", secret=secret, tls=tls, is_tool=True)
        finalize(self, _close, self.node).atexit = False


def _close(node: Node) -> None:
    """Close a node on a thread that may wait: this one may be the node's own."""
    threading.Thread(target=node.close, name="callboard-close", daemon=True).start()


_LOCK: Final = locks.lock("readers of remote logs", 480, runs_users=True)
_OWN: Final[WeakValueDictionary[tuple[int, str, str | None, str], _ReaderNode]] = (
    WeakValueDictionary()
)
_READERS: Final = itertools.count(1)


def _own(address: str, token: str | None, tls: str | Path | None) -> _ReaderNode:
    """Return the node of this process's readers of one address."""
    secret = token or os.environ.get(TOKEN_VARIABLE) or None
    folder = str(tls or os.environ.get(TLS_VARIABLE, ""))
    key = os.getpid(), address, secret, folder
    with _LOCK:
        own = _OWN.get(key)
        if own is None:
            try:
                papers = Tls.of_folder(Path(folder)) if folder else None
                own = _OWN[key] = _ReaderNode(secret, papers)
            except TlsError as error:
                raise LogFailed(str(error)) from None
    return own


class LogCaller:
    """Asks a node about one of its logs; from any thread."""

    def __init__(
        self, text: str, token: str | None, tls: str | Path | None, node: Node | None
    ) -> None:
        """Name a log; nothing is asked yet.

        Args:
            text: `basp://HOST:PORT/NAME`, or `basp+unix:/PATH:/NAME`.
            token: the secret to prove, where `node` is None.
            tls: the folder of certificates; the same.
            node: the node that asks; one of its own by default.

        Raises:
            InvalidOption: the text has another form.
        """
        address, _, self.log = text.rpartition("/")
        try:
            parse_node_address(address)
        except CallboardError:
            address = ""
        if not address or not SERVED_NAME.fullmatch(self.log):
            what = f"{text!r} names no log; write basp://HOST:PORT/NAME"
            raise InvalidOption(what)
        self.text, self._address = text, address
        #: Kept, so that its node lives as long as this.
        self._own = _own(address, token, tls) if node is None else None
        self._node: Node = node if self._own is None else self._own.node  # type: ignore[assignment]
        self.number = next(_READERS)
        self._peer: bytes | None = None

    def begin(self, question: Any, timeout: float = PATIENCE) -> Future[Any] | None:
        """Put a question to the node that was linked last; None where none was."""
        if self._peer is None:
            return None
        return self._node.context.ref_of(self._peer, LOG_SERVICE).ask(question, timeout)

    def ask(self, question: Any) -> Any:
        """Return the answer; a question that finds nobody is put again.

        Raises:
            LogFailed: nobody answers for some seconds, or the answer is no.
        """
        return self.finish(None, question)

    def finish(self, future: Future[Any] | None, question: Any) -> Any:
        """Return the answer to a question that was begun, or begin it."""
        now = self._node.context.now
        deadline = now() + PATIENCE
        while True:
            try:
                if self._peer is None:
                    self._peer, future = self._connect(max(deadline - now(), _PAUSE)), None
                future = future or self.begin(question)
                if future is not None:
                    return self._wait(future)
            except (WouldBlock, WouldDeadlock, NodeClosed):
                raise
            except (NodeUnreachable, AskTimeout, ActorDown, MailboxFull) as error:
                self._judge(error, now() >= deadline)
            except CallboardError as error:
                what = f"{self.text}: {error}"
                raise LogFailed(what) from None
            future = None
            self._pause()

    def _judge(self, error: CallboardError, is_late: bool) -> None:  # noqa: FBT001
        """Raise what an error means for who reads, unless the question is put again."""
        if isinstance(error, ActorDown) and error.reason == "not_found":
            what = f"{self.text}: that node serves no logs; see Node(serve_logs=…)"
            raise LogFailed(what) from None
        if not isinstance(error, MailboxFull):
            self._peer = None
        if is_late or isinstance(error, LinkError):
            what = f"{self.text}: nobody answers; is that node running? {error}"
            raise LogFailed(what) from None

    def _connect(self, timeout: float) -> bytes:
        """Return the node at the address, linked."""
        node = self._node
        if self._own is None:
            return node.connect(self._address, timeout)
        node.runner.start()
        linking = node.aconnect(self._address, timeout)
        return asyncio.run_coroutine_threadsafe(linking, node.context.loop).result()

    def _wait(self, future: Future[Any]) -> Any:
        """Wait for an answer: as for a disk, but in actors of the node that asks."""
        return future.result() if self._own is None else future.as_concurrent().result()

    def _pause(self) -> None:
        """Let some time pass, that of the node."""
        over: Future[None] = Future()
        self._node.context.call_later(_PAUSE, over.set_result, None)
        self._wait(over)


def names_at(text: str, token: str | None = None, tls: str | Path | None = None) -> list[str]:
    """Return the logs of a node, `basp://HOST:PORT`, that who asks may read.

    Raises:
        InvalidOption: the text has another form.
        LogFailed: nobody answers for some seconds, or the answer is no.
    """
    try:
        parse_node_address(text)
    except CallboardError as error:
        raise InvalidOption(str(error)) from None
    caller = LogCaller(f"{text}/-", token, tls, None)
    caller.text = text
    return sorted(map(str, caller.ask(ListLogs())))


class ToldGrowth(Growth):
    """Growth of a log that a node serves: the node is asked to tell while somebody waits."""

    __slots__ = ("_asking", "_caller", "_known")

    def __init__(self, caller: LogCaller) -> None:
        """Ask nothing yet."""
        super().__init__()
        self._caller = caller
        self._known: tuple[str, int] = ("", -1)
        self._asking: Future[Any] | None = None

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` at the next growth; look once more then."""
        super().add(wake)
        if self._asking is None or self._asking.is_done:
            question = AwaitLogGrowth(self._caller.log, *self._known)
            self._asking = self._caller.begin(question, 2 * WAIT_SECONDS)
            if self._asking is not None:
                self._asking.on_done(partial(_told, WeakMethod(self._note)))

    def _note(self, answer: Future[Any]) -> None:
        """Wake who waits; where the node does not tell, they look now and then."""
        told = None if answer.exception() else answer.result()
        if type(told) is tuple and len(told) == 2:
            self._known = (str(told[0]), told[1] if type(told[1]) is int else -1)
            self.tell()


def _told(note: "WeakMethod[Callable[[Future[Any]], None]]", answer: Future[Any]) -> None:
    """Hand an answer to a growth that is still there."""
    found = note()
    if found is not None:
        found(answer)


class NodeDisk:
    """A `Disk` with the files of one log that a node serves.

    Attributes:
        growth: tells of what is appended there.
    """

    def __init__(
        self,
        text: str,
        token: str | None = None,
        tls: str | Path | None = None,
        node: Node | None = None,
    ) -> None:
        """Name a log; see `LogCaller`."""
        self._caller = LogCaller(text, token, tls, node)
        self.growth = ToldGrowth(self._caller)
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(
            read_only, self._caller.log
        )

    def open(self, path: str, *, append: bool = False) -> "NodeFile":
        """Open a file to read it."""
        if append:
            read_only(path)
        name = path.rpartition("/")[2]
        return NodeFile(self._caller, name, self.size(path))

    def listdir(self, path: str) -> list[str]:
        """Return the names of the log's files, sorted; its folders are not served."""
        if path != self._caller.text:
            raise FileNotFoundError(errno.ENOENT, "it is not served", path)
        names = self._caller.ask(ListLogFiles(self._caller.log))
        if type(names) is not tuple or not all(type(each) is str for each in names):
            what = f"{self._caller.text}: the answer holds no names of files"
            raise LogFailed(what)
        return sorted(names)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        name = path.rpartition("/")[2]
        question = ReadLogFile(self._caller.log, name, reader=self._caller.number)
        return _checked(self._caller, self._caller.ask(question), name).size


class NodeFile:
    """A `DiskFile` of a log that a node serves. Who reads on gets ever more ahead."""

    def __init__(self, caller: LogCaller, name: str, size: int) -> None:
        """Name a file of a size."""
        self._caller, self._name, self._size = caller, name, size
        self._at, self._kept = 0, b""
        #: Questions that are under way, each behind the one before.
        self._ahead: deque[tuple[ReadLogFile, Future[Any] | None]] = deque()
        self._depth = 1
        self.write = self.truncate = self.fsync = partial(read_only, name)

    def is_in_place(self) -> bool:
        """Return True: what is read elsewhere is checked by its reader."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        start = offset - self._at
        if not 0 <= start <= len(self._kept):
            self._at, self._kept, self._depth = offset, b"", 1
            self._ahead.clear()
        elif len(self._kept) - start < size:
            self._kept = self._kept[start:]
            self._at = offset
        pieces = [self._kept]
        have = len(self._kept) - (offset - self._at)
        while have < size and (
            piece := self._next(self._at + sum(map(len, pieces)), size - have)
        ):
            pieces.append(piece)
            have += len(piece)
        if len(pieces) > 1:
            self._kept = b"".join(pieces)
        start = offset - self._at
        return self._kept[start : start + size]

    def _next(self, at: int, wanted: int) -> bytes:
        """Return what stands at a place, and ask for what stands behind it."""
        ahead = self._ahead
        if ahead and ahead[0][0].at != at:
            ahead.clear()
        if not ahead:
            self._ask(
                at, PIECE if wanted >= PIECE or self._depth > 1 else max(wanted, 64 << 10)
            )
        question, future = ahead.popleft()
        try:
            found = _checked(self._caller, self._caller.finish(future, question), self._name)
        except FileNotFoundError:  # retention removed it
            return b""
        self._size = found.size
        behind = at + len(found.data)
        if len(found.data) < question.size:
            ahead.clear()
        self._depth = min(2 * self._depth, AHEAD)
        last = ahead[-1][0] if ahead else None
        following = behind if last is None else last.at + last.size
        while len(ahead) < self._depth - 1 and following < self._size:
            self._ask(following, PIECE)
            following += PIECE
        return found.data

    def _ask(self, at: int, size: int) -> None:
        """Ask for a piece."""
        caller = self._caller
        question = ReadLogFile(caller.log, self._name, at, size, caller.number)
        self._ahead.append((question, caller.begin(question)))

    def size(self) -> int:
        """Return the size in bytes, now."""
        caller = self._caller
        question = ReadLogFile(caller.log, self._name, reader=caller.number)
        found = unpack_file_bytes(caller.ask(question))
        self._size = max(found.size, self._size if found.size < 0 else 0)
        return self._size

    def close(self) -> None:
        """Keep nothing."""
        self._kept = b""
        self._ahead.clear()


def _checked(caller: LogCaller, answer: object, name: str) -> FileBytes:
    """Return bytes of a file.

    Raises:
        LogFailed: the answer is of another form.
        OSError: the disk there refuses; `FileNotFoundError` where the file is gone.
    """
    try:
        found = unpack_file_bytes(answer)
    except ValueError as error:
        what = f"{caller.text}: {error}"
        raise LogFailed(what) from None
    if found.size < 0:
        raise OSError(-found.size, os.strerror(-found.size), name)
    return found
