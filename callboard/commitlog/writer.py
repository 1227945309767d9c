"""The writing end of a log: the file that grows, and what of it is durable.

Two locks: `_sync_lock`, held while something is synced or a segment ends, is always taken
before `_lock`, held for every look at or change of the place. Appends go on during a sync.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from callboard import locks
from callboard.commitlog.batch import Compression, compressor, encode_batch
from callboard.commitlog.columns import Columns
from callboard.commitlog.disk import DiskFile
from callboard.commitlog.errors import (
    LogClosed,
    LogError,
    LogFailed,
    LogInUse,
    LogReplaced,
    ProducerError,
)
from callboard.commitlog.folder import (
    COLUMNS,
    INDEX,
    MARKS,
    SEGMENT,
    FileLock,
    Folder,
    Mark,
    Marks,
    read_mark,
    write_all,
)
from callboard.commitlog.producing.restore import restored
from callboard.commitlog.producing.table import Claim, ProducerEntry, ProducerOpening
from callboard.commitlog.recovery import LogRecovery, recover
from callboard.commitlog.retention import Retention, SegmentLimits
from callboard.commitlog.segment import LogSegment, LogSegmentTable
from callboard.support import reentry
from callboard.support.file_place import CHECK_SECONDS, replaced

_NO_LIMIT: Final = 1 << 62
_CHECK_NS: Final = round(CHECK_SECONDS * 1e9)
#: A run of records, and what its producer says of it.
Claimed = tuple[Claim, Columns]


class Writer:
    """Appends batches, begins segments, syncs, and removes what is too old.

    Attributes:
        table: The segments, the last of which grows.
        durable: The offset behind all that is durable.
        recovery: What was found when it was opened.
        producers: How far each producer has come; looked at with `open_producer`.
    """

    def __init__(
        self,
        folder: Folder,
        limits: SegmentLimits,
        retention: Retention,
        clock: Callable[[], int],
        compression: Compression | None = None,
        copied: Callable[[], int] | None = None,
        lock: FileLock | None = None,
    ) -> None:
        """Open the log in a folder, or make one there.

        Args:
            folder: Where it is.
            limits: When a segment ends.
            retention: How long records are kept.
            clock: Nanoseconds since 1970.
            compression: Of batches.
            copied: Returns the offset from which on no record may be removed.
            lock: The writer's lock; its file has to stay where it is.

        Raises:
            OSError: the disk refuses.
        """
        self._folder = folder
        self._limits = limits
        self._full_size = limits.bytes
        self._retention = retention
        self._clock = clock
        self._compress = None if compression is None else compressor(compression)
        self._sync_lock = locks.lock("syncing of a log", 610)
        self._lock = locks.lock("writing of a log", 611)
        self._is_inside = locks.owner_test(self._lock)
        self._trouble: OSError | None = None
        self._is_closed = False
        self._copied = copied
        self._held = lock
        #: When an append last checked the places of the files, by the clock.
        self._checked_at = 0
        #: Called when a segment was sealed, on the thread that appended.
        self.on_sealed: list[Callable[[], object]] = []
        bases = folder.bases()
        marked = read_mark(folder).end
        self.recovery = LogRecovery(damaged=marked > 0, end=marked)
        segments = [LogSegment(base) for base in bases]
        if bases:
            segments[-1].index, self.recovery = recover(folder, bases[-1])
        if self.recovery.damaged:
            what = "the last segment of %s is damaged or gone; the log goes on at %d; verify it"
            _log.error(what, folder.path, self.recovery.end)
        self._marks = Marks(folder)
        if not segments or self.recovery.damaged:
            segments.append(LogSegment(self.recovery.end))
        self._active = segments[-1]
        self._file = folder.disk.open(folder.segment(self._active.base), append=True)
        # BatchNames may have been left by a writer that failed before it had synced them.
        folder.sync()
        if not folder.read(folder.file(MARKS)):
            folder.sync_above()
        self._active.is_covered = True
        self.table = LogSegmentTable(folder, segments)
        self.producers = restored(self.table)
        self._index = self._active.index
        self.durable = self._index.end
        self._first_time = self._index.latest if self._index.size else 0
        self._marks.add(Mark(self._active.base, self._index.size, self.durable))
        if text := self._trimmed():
            _log.warning("%s", text)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._index.end

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed so that nothing is taken before the log is opened again."""
        return self._trouble is not None

    @property
    def is_replaced(self) -> bool:
        """Whether a file of the log was removed or replaced."""
        return isinstance(self._trouble, LogReplaced)

    def append(self, runs: Sequence[Columns]) -> int:
        """Write runs of records, each as a batch; returns the offset of the first one.

        When it returns, the system has the bytes: they outlive this process.

        Raises:
            LogFailed: the disk refuses; nothing was appended.
            LogInUse: this thread is in another call of this writer; nothing was appended.
            LogClosed: the log was closed.
        """
        now = self._clock()
        if self._is_full(now):
            self._begin_segment(now)
        # Two calls into C, as nearly always; `enter` alone would do the same.
        if self._is_inside() or not self._lock.acquire(False):  # noqa: FBT003
            reentry.enter(self._lock, "an append", LogInUse)
        try:
            self._check()
            if not 0 <= now - self._checked_at < _CHECK_NS:
                self._check_places(now)
            first, note = self._index.end, b""
            if not self._index.size:
                note = self.producers.note(None, now, is_head=True)
                self._full_size = self._limits.bytes + len(note)  # a table fills no segment
            parts, covers = [], []
            end, compress = first, self._compress
            for columns in runs:
                base, end = end, end + len(columns.payloads)
                data, latest = encode_batch(base, now, columns, compress, note)
                parts.append(data)
                covers.append((base, end, len(data), latest))
                note = b""
            self._write(parts, covers, now)
        finally:
            self._lock.release()
        return first

    def take(self, claimed: Sequence[Claimed]) -> list[int | LogError]:
        """Write what producers claim, each as a batch, all at once; returns offsets.

        Of one that was taken before, which is not written, -1 is returned; of one that is not
        taken why: a `ProducerError`, or a `LogFailed` of the disk.
        """
        told: list[int | LogError] = []
        while len(told) < len(claimed):
            now = self._clock()
            try:
                if self._is_full(now):
                    self._begin_segment(now)
                reentry.enter(self._lock, "an append", LogInUse)
                try:
                    self._check()
                    if not 0 <= now - self._checked_at < _CHECK_NS:
                        self._check_places(now)
                    told += self._take(claimed[len(told) :], now)
                finally:
                    self._lock.release()
            except LogError as error:
                told += [error] * (len(claimed) - len(told))
        return told

    def _take(self, claimed: Sequence[Claimed], now: int) -> list[int | LogError]:
        """Write what producers claim, until the segment is full; the lock is held."""
        end, size, compress = self._index.end, self._index.size, self._compress
        told: list[int | LogError] = []
        parts: list[bytes] = []
        covers: list[tuple[int, int, int, int]] = []
        entries: dict[str, ProducerEntry] = {}
        for claim, columns in claimed:
            if parts and self._is_filled(size, end):
                break
            try:
                entry = self.producers.admit(claim, end, now, entries.get(claim.name))
            except ProducerError as error:
                told.append(error)
                continue
            if entry is None:
                told.append(-1)
                continue
            note = self.producers.note(entry, now, is_head=not size)
            if not size:
                self._full_size = self._limits.bytes + len(note)
            data, latest = encode_batch(end, now, columns, compress, note)
            told.append(end)
            base, end, size = end, end + claim.records, size + len(data)
            parts.append(data)
            covers.append((base, end, len(data), latest))
            entries.pop(claim.name, None)  # the latest stand last
            entries[claim.name] = entry
        try:
            if parts:
                self._write(parts, covers, now)
        except LogFailed as error:
            return [error if type(each) is int and each >= 0 else each for each in told]
        for entry in entries.values():
            self.producers.put(entry)
        return told

    def _write(
        self, parts: list[bytes], covers: list[tuple[int, int, int, int]], now: int
    ) -> None:
        """Write batches, and note of each what an index has to know; the lock is held."""
        index = self._index
        try:
            write_all(self._file, parts[0] if len(parts) == 1 else b"".join(parts))
        except OSError as error:
            self._take_back(error)
        if not index.size:
            self._first_time = now
        for cover in covers:
            index.cover(*cover)

    def open_producer(self, name: str, epoch: int = 0) -> ProducerOpening:
        """Give a producer its next epoch, or let it go on with the one that it has.

        Raises:
            LogFailed: the disk has failed before.
            LogClosed: the log was closed.
            ProducerFenced: its epoch is not the latest.
            LogInUse: this thread is in another call of this writer.
        """
        reentry.enter(self._lock, "open_producer()", LogInUse)
        try:
            self._check()
            now = self._clock()
            if epoch:
                return self.producers.resume(name, epoch, now)
            return self.producers.open(name, now)
        finally:
            self._lock.release()

    def refuse_inside(self, call: str) -> None:
        """Raise if this thread is in another call of this writer, before anything is done.

        Raises:
            LogInUse: it is, as in a finalizer; what it calls would wait for itself.
        """
        if locks.is_owned(self._lock) or locks.is_owned(self._sync_lock):
            reentry.refuse_inside(call, LogInUse)

    @contextmanager
    def _syncing(self, call: str, longest: float = reentry.LONGEST) -> Iterator[None]:
        """Hold the lock of syncing, which is taken before that of writing.

        Raises:
            LogInUse: this thread is in another call of this writer.
        """
        self.refuse_inside(call)
        reentry.enter(self._sync_lock, call, LogInUse, longest)
        try:
            yield
        finally:
            self._sync_lock.release()

    def sync(self, longest: float = reentry.LONGEST) -> None:
        """Make durable what was appended before; several threads share one sync.

        Args:
            longest: seconds to wait for the sync of another thread; -1 for no limit.

        Raises:
            LogFailed: the disk refuses; what is durable is unknown until a new opening.
            LogReplaced: a file of the log was removed or replaced.
            LogInUse: this thread is in another call of this writer.
            LogClosed: the log was closed.
        """
        target = self.end
        with self._syncing("a sync", longest):
            with self._lock:
                self._check()
                self._check_places(self._checked_at)
                if self.durable >= target:
                    return
                mark = Mark(self._active.base, self._index.size, self._index.end)
            self._sync(mark)

    def _sync(self, mark: Mark) -> None:
        """Sync the file, and note it; the sync lock is held."""
        with self._at_stake():
            self._file.fsync()
        self.durable = mark.end
        self._marks.add(mark)

    def trim(self, before: int | None) -> int:
        """Remove segments that retention or an offset ends; returns the new start."""
        with self._syncing("trim()"):
            return self._trim(before)

    def _trim(self, before: int | None) -> int:
        """Remove segments; the sync lock is held, as no other one may be made meanwhile."""
        segments = self.table.segments
        gone = 0
        if not self._retention.is_unlimited:
            gone = self._retention.count_expired(self.table.infos(), self._clock())
        if before is not None:
            gone = max(gone, sum(each.base <= before for each in segments[1:]))
        if gone and self._copied is not None:
            copied = self._copied()
            gone = min(gone, sum(each.base <= copied for each in segments[1:]))
        for at, segment in enumerate(segments[:gone]):
            self.table.segments = segments[at + 1 :]
            try:
                for kind in (INDEX, COLUMNS, SEGMENT):
                    self._folder.remove(self._folder.segment(segment.base, kind))
            except OSError as error:  # it stays, and is removed with the next ones
                self.table.segments = segments[at:]
                path, why = self._folder.segment(segment.base), error.strerror or error
                what = f"{path} is too old and is not removed: {why}; see its disk"
                raise LogFailed(what) from error
        return self.table.segments[0].base

    def _trimmed(self) -> str:
        """Remove what retention ends; returns why not, which keeps nobody from appending."""
        try:
            self._trim(None)
        except LogFailed as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Make all durable and close the files; a second call does nothing.

        Raises:
            LogFailed: the disk refuses.
        """
        if self._is_closed:
            return
        try:
            if self._trouble is None:
                self.sync()
        finally:
            self._is_closed = True
            self._file.close()
            with self._at_stake():
                self._marks.close()

    # --- segments ---

    def _is_full(self, now: int) -> bool:
        """Return whether the active segment has reached a limit."""
        index, seconds = self._index, self._limits.seconds
        if not index.size:
            return False
        return self._is_filled(index.size, index.end) or (
            seconds is not None and now - self._first_time > seconds * 1e9
        )

    def _is_filled(self, size: int, end: int) -> bool:
        """Return whether a segment of a size that ends there takes no more."""
        records = self._limits.records or _NO_LIMIT
        return size >= self._full_size or end - self._active.base >= records

    def _begin_segment(self, now: int) -> None:
        """Seal the active segment and begin the next one."""
        untrimmed = ""
        with self._syncing("an append"):
            with self._lock:
                self._check()
                if not self._is_full(now):
                    return  # another thread was here
                self._check_places(now)
                index, active = self._index, self._active
                self._sync(Mark(active.base, index.size, index.end))
                path = self._folder.segment(active.base, INDEX)
                with suppress(OSError):  # it is built again where it is missing
                    self._folder.write(path, index.encode(), durably=False)
                file = self._make(index.end)
                self._file.close()
                self._file, self._active = file, LogSegment(index.end, is_covered=True)
                self._index = self._active.index
                self.table.segments = [*self.table.segments, self._active]
            untrimmed = self._trimmed()
        if untrimmed:  # without the lock: a logging handler may append here
            _log.warning("%s", untrimmed)
        for tell in self.on_sealed:
            tell()

    def _make(self, base: int) -> DiskFile:
        """Make the file of a segment, durably."""
        try:
            file = self._folder.disk.open(self._folder.segment(base), append=True)
        except OSError as error:
            self._refuse(error)
        try:
            with self._at_stake():
                self._folder.sync()
        except OSError:
            file.close()
            raise
        return file

    # --- trouble ---

    def _check(self) -> None:
        """Raise unless the writer is open and its disk has not failed."""
        if self._is_closed:
            what = (
                f"the log {self._folder.path} is closed; open it again with CommitLog(folder)"
            )
            raise LogClosed(what)
        if self._trouble is not None and self.is_replaced:
            raise LogReplaced(*self._trouble.args)
        if self._trouble is not None:
            what = f"the log {self._folder.path} failed before ({self._trouble}); open it again"
            raise LogFailed(what) from self._trouble

    def _check_places(self, now: int) -> None:
        """End the use of this writer if a file of the log is no longer at its path.

        Appends check it a few times a second, and each sync does; the lock is held.

        Raises:
            LogReplaced: one was removed or replaced.
        """
        self._checked_at = now
        if path := self._misplaced():
            remedy = "put it back, close the log and open it again with CommitLog(folder)"
            self._trouble = LogReplaced(replaced(path, remedy))
            raise self._trouble

    def _misplaced(self) -> str:
        """Return the path of a file that is no longer there; empty if all are."""
        with suppress(OSError):  # the next write fails on such a disk, and says so
            if not self._file.is_in_place():
                return self._folder.segment(self._active.base)
            if not self._marks.is_in_place():
                return self._folder.file(MARKS)
            if self._held is not None and not self._held.is_in_place():
                return self._held.path  # another process can lock the file that is there now
        return ""

    def _take_back(self, error: OSError) -> NoReturn:
        """Cut off a part of a batch that was written, so that the next one can follow."""
        with self._at_stake():
            self._file.truncate(self._index.size)
        self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        """Tell that nothing was appended; the next time it may be."""
        why = error.strerror or error
        what = f"nothing was appended to {self._folder.path}: {why}; make room and try again"
        raise LogFailed(what) from error

    @contextmanager
    def _at_stake(self) -> Iterator[None]:
        """End the use of this writer if the disk refuses: what it holds is no longer known."""
        try:
            yield
        except OSError as error:
            self._trouble = error
            why = error.strerror or error
            what = f"the disk of {self._folder.path} failed: {why}; open the log again"
            raise LogFailed(what) from error


class Background(ABC):
    """Works for a log after each `wake`, on a thread of its own; sleeps in between."""

    def __init__(self, name: str, pause: float = 0.0) -> None:
        """Start the thread; wakes that come within `pause` seconds share a turn."""
        self._pause = pause
        self._is_due = False
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def work(self) -> bool:
        """Do what there is to do; returns False if that cannot go on."""

    @property
    def is_ended(self) -> bool:
        """Whether the thread was told to end."""
        return self._ended.is_set()

    def wake(self) -> None:
        """Tell that there is something to do."""
        if not self._is_due:
            self._is_due = True
            self._wanted.set()

    def end(self) -> None:
        """End the thread, behind the work that it is at."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        """Work after each pause in which there was a wake, until the end."""
        while True:
            self._wanted.wait()
            self._ended.wait(self._pause)
            self._wanted.clear()
            if self._ended.is_set():  # after the clear, which may undo the wake of an end
                return
            self._is_due = False  # before the work: what comes during it is for the next turn
            if not self.work():
                return


_log = logging.getLogger("callboard.commitlog")


class Grouping(Background):
    """Syncs all that was appended in an interval at once; sleeps while nothing is."""

    def __init__(self, writer: Writer, interval: float) -> None:
        """Start the thread; `interval` is in seconds."""
        self._writer = writer
        super().__init__("callboard-log-sync", interval)

    def work(self) -> bool:
        """Sync; after a failure, appends and flushes of this log raise."""
        try:
            self._writer.sync(-1)
        except LogError as error:
            _log.error("%s", error)
            return False
        return True
