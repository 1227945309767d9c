"""A read-only `Disk` with the files of a log that a node serves.

A reader that is not given a node uses a tool node in the background. All readers of one address
in a process share that node, which closes after the last of them. A request that finds no node
is repeated for some seconds, because links break and nodes restart. Requests are independent of
each other, so a reader continues from its position.
"""

import asyncio
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
from callboard.commitlog.errors import InvalidOption, LogFailed, LogsNotServed
from callboard.commitlog.folder import SERVED_NAME
from callboard.commitlog.following.follower import Growth
from callboard.commitlog.remote.disk import TOKEN_VARIABLE
from callboard.commitlog.remote.read_only import ReadOnlyDisk, ReadOnlyFile, are_names
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
from callboard.kernel.topology import LOG_SERVICE, parse_node_address
from callboard.log_service.messages import (
    PIECE,
    AwaitLogGrowth,
    FileBytes,
    ListLogFiles,
    ListLogs,
    ReadLogFile,
    unpack_file_bytes,
)
from callboard.log_service.read_scheduler import WAIT_SECONDS
from callboard.tls.contexts import Tls

#: Environment variable with the folder of certificates, as for the command line.
TLS_VARIABLE: Final = "CALLBOARD_TLS"
#: Seconds for which a node may be unreachable, and seconds between two attempts.
PATIENCE: Final = 10.0
_PAUSE: Final = 0.05
#: Requests in flight for a sequential reader: together 2 MiB.
AHEAD: Final = 8


class _ReaderNode:
    """The shared node of readers that were given none; closes after the last of them."""

    def __init__(self, secret: str | None, tls: Tls | None) -> None:
        self.node = Node("callboard log", secret=secret, tls=tls, is_tool=True)
        finalize(self, _close, self.node).atexit = False


def _close(node: Node) -> None:
    """Close a node on a new thread; the caller may be the node's own, which must not block."""
    threading.Thread(target=node.close, name="callboard-close", daemon=True).start()


_LOCK: Final = locks.lock("readers of remote logs", 480, runs_users=True)
_OWN: Final[WeakValueDictionary[tuple[int, str, str | None, str], _ReaderNode]] = (
    WeakValueDictionary()
)
_READERS: Final = itertools.count(1)


def _own(address: str, token: str | None, tls: str | Path | None) -> _ReaderNode:
    """Return the shared node of this process for readers of one address."""
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
    """A client for one log of a node; may be used from any thread."""

    def __init__(
        self, text: str, token: str | None, tls: str | Path | None, node: Node | None
    ) -> None:
        """Parse the address of a log; no request is sent yet.

        Args:
            text: `basp://HOST:PORT/NAME`, or `basp+unix:/PATH:/NAME`.
            token: the secret to prove, if `node` is None.
            tls: the folder of certificates, if `node` is None.
            node: the node that sends the requests; by default one in the background.

        Raises:
            InvalidOption: `text` is not the address of a log.
        """
        address, _, self.log = text.rpartition("/")
        try:
            parse_node_address(address)
        except CallboardError:
            address = ""
        if not address or not SERVED_NAME.fullmatch(self.log):
            msg = f"{text!r} does not name a log; write basp://HOST:PORT/NAME"
            raise InvalidOption(msg)
        self.text, self._address = text, address
        #: Referenced, because the shared node closes with its last reference.
        self._own = _own(address, token, tls) if node is None else None
        self._node: Node = node if self._own is None else self._own.node  # type: ignore[assignment]
        self.number = next(_READERS)
        self._peer: bytes | None = None

    def begin(self, question: Any, timeout: float = PATIENCE) -> Future[Any] | None:
        """Send a request to the node linked last; return None if no node is linked."""
        if self._peer is None:
            return None
        return self._node.context.ref_of(self._peer, LOG_SERVICE).ask(question, timeout)

    def ask(self, question: Any) -> Any:
        """Return the reply to a request, repeating it while the node is unreachable.

        Raises:
            LogFailed: no reply within `PATIENCE` seconds, or the node refuses.
        """
        return self.finish(None, question)

    def finish(self, future: Future[Any] | None, question: Any) -> Any:
        """Return the reply to a request from `begin`; send it if `future` is None."""
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
                msg = f"{self.text}: {error}"
                raise LogFailed(msg) from None
            future = None
            self._pause()

    def _judge(self, error: CallboardError, is_late: bool) -> None:  # noqa: FBT001
        """Raise the error for the reader, unless the request should be repeated."""
        if isinstance(error, ActorDown) and error.reason == "not_found":
            msg = f"{self.text}: that node does not serve logs; see Node(serve_logs=…)"
            raise LogsNotServed(msg) from None
        if not isinstance(error, MailboxFull):
            self._peer = None
        if is_late or isinstance(error, LinkError):
            msg = f"{self.text}: no answer; is that node running? {error}"
            raise LogFailed(msg) from None

    def _connect(self, timeout: float) -> bytes:
        """Link to the node at the address and return its id."""
        node = self._node
        if self._own is None:
            return node.connect(self._address, timeout)
        node.runner.start()
        linking = node.aconnect(self._address, timeout)
        return asyncio.run_coroutine_threadsafe(linking, node.context.loop).result()

    def _wait(self, future: Future[Any]) -> Any:
        """Wait for a reply. With the background node this may block, as a disk does.

        With a node of the program, other actors of that node run in the meantime.
        """
        return future.result() if self._own is None else future.as_concurrent().result()

    def _pause(self) -> None:
        """Wait until the next attempt, by the clock of the node."""
        over: Future[None] = Future()
        self._node.context.call_later(_PAUSE, over.set_result, None)
        self._wait(over)


def names_at(text: str, token: str | None = None, tls: str | Path | None = None) -> list[str]:
    """Return the names of the logs that the caller may read at a node.

    Raises:
        InvalidOption: `text` is not of the form `basp://HOST:PORT`.
        LogFailed: no reply within `PATIENCE` seconds, or the node refuses.
    """
    try:
        parse_node_address(text)
    except CallboardError as error:
        raise InvalidOption(str(error)) from None
    caller = LogCaller(f"{text}/-", token, tls, None)
    caller.text = text
    return sorted(map(str, caller.ask(ListLogs())))


class RemoteGrowth(Growth):
    """Notifier of growth of a remote log; asks its node for news while callbacks wait."""

    __slots__ = ("_asking", "_caller", "_known")

    def __init__(self, caller: LogCaller) -> None:
        """Send no request until the first `add`."""
        super().__init__()
        self._caller = caller
        self._known: tuple[str, int] = ("", -1)
        self._asking: Future[Any] | None = None

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` once at the next growth; check the log again after this call."""
        super().add(wake)
        if self._asking is None or self._asking.is_done:
            question = AwaitLogGrowth(self._caller.log, *self._known)
            self._asking = self._caller.begin(question, 2 * WAIT_SECONDS)
            if self._asking is not None:
                self._asking.on_done(partial(_deliver, WeakMethod(self._handle_reply)))

    def _handle_reply(self, answer: Future[Any]) -> None:
        """Call the callbacks at growth; after a failure, readers poll instead."""
        end = None if answer.exception() else answer.result()
        if type(end) is tuple and len(end) == 2:
            self._known = (str(end[0]), end[1] if type(end[1]) is int else -1)
            self.notify()


def _deliver(method: "WeakMethod[Callable[[Future[Any]], None]]", answer: Future[Any]) -> None:
    """Pass a reply to a `RemoteGrowth`, unless it has been freed."""
    handle_reply = method()
    if handle_reply is not None:
        handle_reply(answer)


class NodeDisk(ReadOnlyDisk["NodeFile"]):
    """A `Disk` with the files of one log that a node serves.

    Attributes:
        growth: notifies of appends to the log.
    """

    def __init__(
        self,
        text: str,
        token: str | None = None,
        tls: str | Path | None = None,
        node: Node | None = None,
    ) -> None:
        """Parse the address of a log; see `LogCaller`."""
        self._caller = LogCaller(text, token, tls, node)
        super().__init__(self._caller.text, self._caller.log)
        self.growth = RemoteGrowth(self._caller)

    def _open(self, name: str) -> "NodeFile":
        """Open a file of a known size."""
        return NodeFile(self._caller, name, self._size(name))

    def _names(self) -> tuple[str, ...]:
        """Ask for the names of the files."""
        names: tuple[str, ...] = self._caller.ask(ListLogFiles(self._caller.log))
        if not are_names(names):
            msg = f"{self._caller.text}: the reply is not a list of file names"
            raise LogFailed(msg)
        return names

    def _size(self, name: str) -> int:
        """Ask for the size of a file."""
        question = ReadLogFile(self._caller.log, name, reader=self._caller.number)
        return _checked(self._caller, self._caller.ask(question), name).size


class NodeFile(ReadOnlyFile):
    """A `DiskFile` of a remote log; prefetches more with each sequential read."""

    def __init__(self, caller: LogCaller, name: str, size: int) -> None:
        """Represent a file of a known size; nothing is read yet."""
        super().__init__(name)
        self._caller, self._name, self._size = caller, name, size
        self._offset, self._buffer = 0, b""
        #: Requests in flight, for consecutive pieces of the file.
        self._ahead: deque[tuple[ReadLogFile, Future[Any] | None]] = deque()
        self._depth = 1

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from an offset; fewer only at the end of the file."""
        start = offset - self._offset
        if not 0 <= start <= len(self._buffer):
            self._offset, self._buffer, self._depth = offset, b"", 1
            self._ahead.clear()
        elif len(self._buffer) - start < size:
            self._buffer = self._buffer[start:]
            self._offset = offset
        pieces = [self._buffer]
        have = len(self._buffer) - (offset - self._offset)
        while have < size and (
            piece := self._next(self._offset + sum(map(len, pieces)), size - have)
        ):
            pieces.append(piece)
            have += len(piece)
        if len(pieces) > 1:
            self._buffer = b"".join(pieces)
        start = offset - self._offset
        return self._buffer[start : start + size]

    def _next(self, offset: int, size: int) -> bytes:
        """Return the piece at an offset, and request the pieces that follow it."""
        ahead = self._ahead
        if ahead and ahead[0][0].at != offset:
            ahead.clear()
        if not ahead:
            is_whole = size >= PIECE or self._depth > 1
            self._ask(offset, PIECE if is_whole else max(size, 64 << 10))
        question, future = ahead.popleft()
        try:
            piece = _checked(self._caller, self._caller.finish(future, question), self._name)
        except FileNotFoundError:  # retention removed it
            return b""
        self._size = piece.size
        end = offset + len(piece.data)
        if len(piece.data) < question.size:
            ahead.clear()
        self._depth = min(2 * self._depth, AHEAD)
        last = ahead[-1][0] if ahead else None
        following = end if last is None else last.at + last.size
        while len(ahead) < self._depth - 1 and following < self._size:
            self._ask(following, PIECE)
            following += PIECE
        return piece.data

    def _ask(self, offset: int, size: int) -> None:
        """Request a piece."""
        caller = self._caller
        question = ReadLogFile(caller.log, self._name, offset, size, caller.number)
        self._ahead.append((question, caller.begin(question)))

    def size(self) -> int:
        """Return the current size in bytes."""
        caller = self._caller
        question = ReadLogFile(caller.log, self._name, reader=caller.number)
        reply = unpack_file_bytes(caller.ask(question))
        self._size = max(reply.size, self._size if reply.size < 0 else 0)
        return self._size

    def close(self) -> None:
        """Drop the buffer and the requests in flight."""
        self._buffer = b""
        self._ahead.clear()


def _checked(caller: LogCaller, answer: object, name: str) -> FileBytes:
    """Decode a reply with bytes of a file.

    Raises:
        LogFailed: the reply is malformed.
        OSError: the remote disk failed; `FileNotFoundError` if the file was removed.
    """
    try:
        piece = unpack_file_bytes(answer)
    except ValueError as error:
        msg = f"{caller.text}: {error}"
        raise LogFailed(msg) from None
    if piece.size < 0:
        raise OSError(-piece.size, os.strerror(-piece.size), name)
    return piece
