"""Store and forward: the queue of a module, on disk.

    publishers ──> log in a folder ──> the module's actor ──> position in that folder

A frame is in the log when `put` returns, so it survives the end of the process, and soon after
also the end of the machine. The position advances after the module has received a frame; after
a crash at most that one frame is received twice. Bounds and policies are the same as for every
inbox. If two instances of a module share a folder, as after a change of its entry, the newer
one reads the frames.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from callboard import locks
from callboard.commitlog import CommitLog, LogError
from callboard.gateway.errors import ModuleFailed
from callboard.gateway.inbox import FAILED, Inbox
from callboard.support import after_fork
from callboard.support.files.private_file import mode_in
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: Bytes of one file of the log; a file is removed when all its frames were received.
SEGMENT: Final = 4 << 20

#: Frames, and their bytes, that are read from the disk at once.
AHEAD: Final = (256, 1 << 20)

#: Frames that are received between two attempts to remove files.
TRIM: Final = 1024

#: The file with the position after the last received frame: a number of 20 digits.
POSITION: Final = "received"

#: Replaces a source's number of an earlier run, which is meaningless in this one.
_NO_SOURCE: Final = bytes(8)


class Spool:
    """Frames on disk, in order. Methods may be called from any thread."""

    def __init__(self, folder: Path, mode: int | None = None) -> None:
        """Open a folder; create it, with a mode, if it does not exist.

        Raises:
            LogError: another process uses it, or the disk reports an error.
            OSError: the disk reports an error.
        """
        self.folder = folder
        #: The inboxes that share the folder; the last one reads the frames.
        self.owners: list[SpooledInbox] = []
        self._lock = locks.lock("spool of a gateway", 250)
        #: Returns whether this thread is in a call of the spool.
        self.is_inside = locks.owner_test(self._lock)
        self._mode = mode
        self._log = CommitLog(folder, segment_bytes=SEGMENT, mode=mode)
        self._file = os.open(folder / POSITION, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if mode is not None:
            os.fchmod(self._file, mode_in(folder / POSITION))  # regardless of the umask
        digits = os.pread(self._file, 20, 0)
        position = int(digits) if digits.isdigit() else 0
        after_fork.register(self, Spool._drop_copy)
        self._begun = self._end = self._log.end
        self._position = self._trimmed = min(max(position, self._log.start), self._end)
        self._ahead: deque[tuple[int, bytes]] = deque()
        #: Bytes of the waiting frames.
        self.size = sum(len(frame) for _, frame in self._frames(has_sender=False))

    def __len__(self) -> int:
        position = self._position  # read first: the end may grow, and be received, in between
        return self._end - position

    def append(self, frame: bytes) -> None:
        """Store a frame.

        Raises:
            LogError: the disk reports an error.
        """
        with self._lock:
            # After a failure the log accepts nothing until it is opened again.
            if self._log.may_reopen:
                with suppress(LogError):
                    self._log.close()
                self._log = CommitLog(self.folder, segment_bytes=SEGMENT, mode=self._mode)
            self._log.append("", frame)
            self._end = self._log.end
            self.size += len(frame)

    def head(self) -> tuple[int, bytes] | None:
        """Return the oldest frame and its place; None if no frame waits."""
        with self._lock:
            if not self._ahead and self._position < self._end:
                self._read_ahead()
            return self._ahead[0] if self._ahead else None

    def _read_ahead(self) -> None:
        """Read some frames ahead; the caller must hold the lock."""
        most, size = AHEAD
        for offset, frame in self._frames():
            self._ahead.append((offset, frame))
            most, size = most - 1, size - len(frame)
            if most <= 0 or size <= 0:
                return
        if not self._ahead:
            self.size = 0  # the other frames cannot be read
            self._move_to(self._end)

    def _frames(self, *, has_sender: bool = True) -> Iterator[tuple[int, bytes]]:
        """Iterate over the waiting frames and their places.

        Damaged records, and records that are not frames, are skipped: they must not block
        others.
        """

        def report(error: object) -> None:
            if has_sender:
                text = "frames in %s cannot be read, and are skipped: %s"
                _log.error(text, self.folder, error)

        for record in self._log.read(self._position, on_damage=report):
            try:
                frame = record.payload
            except LogError as error:
                report(error)
                continue
            if not isinstance(frame, bytes):
                report(f"record {record.offset} is of type {type(frame).__name__}")
                continue
            if record.offset < self._begun:
                frame = _NO_SOURCE + frame[len(_NO_SOURCE) :]
            yield record.offset, frame

    def record_received(self, place: int) -> None:
        """Record that the frame at a place was received; does nothing the second time."""
        with self._lock:
            if not self._ahead or self._ahead[0][0] != place:
                return
            _, frame = self._ahead.popleft()
            self.size -= len(frame)
            self._move_to(place + 1)

    def _move_to(self, position: int) -> None:
        """Store the position of received frames; the caller must hold the lock."""
        self._position = position
        os.pwrite(self._file, b"%020d" % position, 0)
        if position - self._trimmed >= TRIM:
            self._trimmed = position
            with suppress(LogError):  # tried again after the next frames
                self._log.trim(position)

    def popleft(self) -> bytes:
        """Remove and return the oldest frame.

        Raises:
            IndexError: no frame waits.
        """
        if (entry := self.head()) is None:
            raise IndexError
        self.record_received(entry[0])
        return entry[1]

    def _drop_copy(self) -> None:
        """Abandon the files in a forked process; the log refuses appends of the copy."""
        after_fork.drop(self._file)
        _OPEN.pop(self.folder.resolve(), None)

    def close(self) -> None:
        """Close the files; waiting frames stay in them."""
        if after_fork.is_copy(self):
            return
        with self._lock:
            descriptor, self._file = self._file, -1
            os.close(descriptor)
            try:
                self._log.close()
            except LogError as error:
                _log.error("%s: %s", self.folder, error)


_LOCK: Final = locks.lock("open spools", 247)
#: The spools of this process, by their folders.
_OPEN: Final[dict[Path, Spool]] = {}


@dataclass(eq=False, repr=False)
class SpooledInbox(Inbox):
    """The queue of a module, on disk.

    Attributes:
        folder: the folder of the queue.
        broker: the url of the module's broker: a folder belongs to one module.
        mode: the mode of the folder if it is new, as for `CommitLog`.
    """

    folder: Path
    broker: str
    mode: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.room = self._usual_room = 0  # every frame goes through `put`
        folder = self.folder.resolve()
        with _LOCK:
            spool = _OPEN.get(folder)
            other = spool.owners[-1] if spool is not None else self
            if (other.name, other.broker) != (self.name, self.broker):
                msg = f"the store {folder} belongs to {other.name!r}; use separate folders"
                raise ModuleFailed(msg)
            try:
                spool = spool or Spool(folder, self.mode)
            except (LogError, OSError) as error:
                msg = f"module {self.name!r} cannot store in {folder}: {describe(error)}"
                raise ModuleFailed(msg) from error
            spool.owners.append(self)
            _OPEN[folder] = spool
        self.spool = spool
        self.items: Any = spool
        is_inside = self._is_inside
        self._is_inside = lambda: is_inside() or spool.is_inside()

    @property
    def is_taker(self) -> bool:
        """Whether this module reads the frames: no newer instance shares the folder."""
        return bool(self.spool.owners) and self.spool.owners[-1] is self

    def _push(self, frame: bytes) -> None:
        """Append a frame; the caller must hold the lock."""
        self.spool.append(frame)
        self.pressure.held = self.spool.size

    def _take(self, frame: bytes, times: int = 1) -> bool:
        """Append a frame if it fits; lose it if the disk fails."""
        try:
            self.pressure.held = self.spool.size
            return super()._take(frame, times)
        except LogError as error:
            self.on_lost(frame, FAILED, str(error))
            return True

    def received(self, place: int) -> None:
        """Record that the frame at a place was received, or lost."""
        self.spool.record_received(place)
        self.pressure.held = self.spool.size
        self.pressure.make_room(len(self.spool))

    def is_drained(self) -> bool:
        """Return whether this module has read all its frames."""
        return super().is_drained() or (not self.is_open and not self.is_taker)

    def _bury(self) -> None:
        """Keep the waiting frames for the next run."""
        self.wake_pending = False
        with _LOCK:
            owners = self.spool.owners
            if self not in owners:
                return
            owners.remove(self)
            if not owners:
                _OPEN.pop(self.folder.resolve(), None)
                self.spool.close()
                return
        owners[-1].wake()
