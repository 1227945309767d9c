"""The writer of a log: its active segment, and how much of it is durable.

There are two locks. `_sync_lock` is held during a sync and while a segment ends; it is always
acquired before `_lock`, which guards the active segment. Appends continue during a sync.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, NoReturn

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
from callboard.commitlog.identity.identity import begin_epoch, give_identity, read_identity
from callboard.commitlog.identity.position import LogIdentity
from callboard.commitlog.producing.restore import restored
from callboard.commitlog.producing.table import Claim, ProducerEntry, ProducerOpening
from callboard.commitlog.recovery import LogRecovery, recover
from callboard.commitlog.retention import Retention, SegmentLimits
from callboard.commitlog.segment import LogSegment, LogSegmentTable
from callboard.support import reentry
from callboard.support.files.file_place import CHECK_SECONDS, replaced

_NO_LIMIT: Final = 1 << 62
_CHECK_NS: Final = round(CHECK_SECONDS * 1e9)
#: A run of records, and the claim of its producer.
Claimed = tuple[Claim, Columns]


class LogExtent(NamedTuple):
    """The segments of a log, the bytes of the last one, and the offset after its records."""

    bases: list[int]
    size: int
    end: int


class Writer:
    """The writer of a log: appends batches, starts segments, syncs, and removes old segments.

    Attributes:
        table: The segments; the last one is active.
        durable: The offset after the last durable record.
        identity: The id and the epochs of the log.
        recovery: The state in which the log was found.
        producers: The progress of each producer.
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
        """Open the log in a folder; create it if it does not exist.

        Args:
            folder: Folder of the log.
            limits: Limits of a segment.
            retention: How long records are kept.
            clock: Returns nanoseconds since 1970.
            compression: Compression of batches.
            copied: Returns the offset after the last archived record; records from it on may
                not be removed.
            lock: The writer's lock; the writer fails when its file is removed.

        Raises:
            OSError: the disk reports an error.
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
        self._file_lock = lock
        #: When an append last checked the places of the files, by the clock.
        self._checked_at = _NO_LIMIT  # so that the first append checks them
        #: Number of backups that copy segments, which stay until the last one has ended.
        self._pins = 0
        #: Called after a segment was sealed, on the thread that appended.
        self.on_sealed: list[Callable[[], object]] = []
        bases = folder.bases()
        self.identity, self._has_epoch = _identity_of(folder)
        marked = read_mark(folder).end
        self.recovery = LogRecovery(damaged=marked > 0, end=marked)
        segments = [LogSegment(base) for base in bases]
        if bases:
            segments[-1].index, self.recovery = recover(folder, bases[-1])
        if self.recovery.damaged:
            text = "the last segment of %s is damaged or missing: continuing at %d; verify it"
            _log.error(text, folder.path, self.recovery.end)
        self._marks = Marks(folder)
        if not segments or self.recovery.damaged:
            segments.append(LogSegment(self.recovery.end))
        self._active = segments[-1]
        self._file = folder.disk.open(folder.segment(self._active.base), append=True)
        # A writer that failed before its sync may have left names that are not durable.
        folder.sync()
        if not folder.read(folder.file(MARKS)):
            folder.sync_above()
        self._active.is_covered = True
        self.table = LogSegmentTable(folder, segments)
        self.producers = restored(self.table)
        self._index = self._active.index
        self.durable = self._index.end
        # A time in the future would keep the segment from ending by its age.
        self._first_time = min(self._index.latest, self._clock()) if self._index.size else 0
        self._marks.add(Mark(self._active.base, self._index.size, self.durable))
        if text := self._trimmed():
            _log.warning("%s", text)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._index.end

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed, and appends fail until the log is opened again."""
        return self._trouble is not None

    @property
    def is_replaced(self) -> bool:
        """Whether a file of the log was removed or replaced."""
        return isinstance(self._trouble, LogReplaced)

    def append(self, runs: Sequence[Columns]) -> int:
        """Write runs of records, each as a batch; return the offset of the first record.

        When it returns, the system has the bytes: they outlive this process.

        Raises:
            LogFailed: the disk reports an error; nothing was appended.
            LogInUse: this thread is in another call of this writer; nothing was appended.
            LogClosed: the log is closed.
        """
        now = self._clock()
        if self._is_full(now):
            self._begin_segment(now)
        # The two calls into C suffice nearly always; `enter` alone would do the same.
        if self._is_inside() or not self._lock.acquire(False):  # noqa: FBT003
            reentry.enter(self._lock, "an append", LogInUse)
        try:
            self._check()
            if not 0 <= now - self._checked_at < _CHECK_NS:
                self._prepare(now)
            first, note = self._index.end, b""
            if not self._index.size:
                note = self.producers.note(None, now, is_head=True)
                # Without the table, which may alone exceed the limit of a small segment.
                self._full_size = self._limits.bytes + len(note)
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
        """Write records of producers, each run as a batch; return their offsets.

        -1 is returned for records that the log has already, and an error for records that were
        not written: a `ProducerError`, or a `LogFailed` of the disk.
        """
        results: list[int | LogError] = []
        while len(results) < len(claimed):
            now = self._clock()
            try:
                if self._is_full(now):
                    self._begin_segment(now)
                reentry.enter(self._lock, "an append", LogInUse)
                try:
                    self._check()
                    if not 0 <= now - self._checked_at < _CHECK_NS:
                        self._prepare(now)
                    results += self._take(claimed[len(results) :], now)
                finally:
                    self._lock.release()
            except LogError as error:
                results += [error] * (len(claimed) - len(results))
        return results

    def _take(self, claimed: Sequence[Claimed], now: int) -> list[int | LogError]:
        """Write records of producers until the segment is full; the caller holds the lock."""
        end, size, compress = self._index.end, self._index.size, self._compress
        results: list[int | LogError] = []
        parts: list[bytes] = []
        covers: list[tuple[int, int, int, int]] = []
        entries: dict[str, ProducerEntry] = {}
        for claim, columns in claimed:
            if parts and self._is_filled(size, end):
                break
            try:
                entry = self.producers.admit(claim, end, now, entries.get(claim.name))
            except ProducerError as error:
                results.append(error)
                continue
            if entry is None:
                results.append(-1)
                continue
            note = self.producers.note(entry, now, is_head=not size)
            if not size:
                self._full_size = self._limits.bytes + len(note)
            data, latest = encode_batch(end, now, columns, compress, note)
            results.append(end)
            base, end, size = end, end + claim.records, size + len(data)
            parts.append(data)
            covers.append((base, end, len(data), latest))
            entries.pop(claim.name, None)  # so that the latest entry is the last one
            entries[claim.name] = entry
        try:
            if parts:
                self._write(parts, covers, now)
        except LogFailed as error:
            return [
                error if type(result) is int and result >= 0 else result for result in results
            ]
        for entry in entries.values():
            self.producers.put(entry)
        return results

    def _write(
        self, parts: list[bytes], covers: list[tuple[int, int, int, int]], now: int
    ) -> None:
        """Write batches, and add them to the index; the caller holds the lock."""
        index = self._index
        try:
            write_all(self._file, parts[0] if len(parts) == 1 else b"".join(parts))
        except OSError as error:
            self._cut_back(error)
        if not index.size:
            self._first_time = now
        for cover in covers:
            index.cover(*cover)

    def open_producer(self, name: str, epoch: int = 0) -> ProducerOpening:
        """Open a producer with its next epoch, or resume an epoch.

        Raises:
            LogFailed: the disk has failed before.
            LogClosed: the log is closed.
            ProducerFenced: the epoch is not the latest.
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
        """Raise if this thread is in another call of this writer.

        Raises:
            LogInUse: this thread is in another call, for example in a finalizer; the call would
                wait for itself.
        """
        if locks.is_owned(self._lock) or locks.is_owned(self._sync_lock):
            reentry.refuse_inside(call, LogInUse)

    @contextmanager
    def _syncing(self, call: str, longest: float = reentry.LONGEST) -> Iterator[None]:
        """Hold the lock of syncing, which is acquired before that of writing.

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
        """Make all appended records durable; concurrent callers share a sync.

        Args:
            longest: seconds to wait for the sync of another thread; -1 for no limit.

        Raises:
            LogFailed: the disk reports an error; until the log is opened again, it is unknown
                which records are durable.
            LogReplaced: a file of the log was removed or replaced.
            LogInUse: this thread is in another call of this writer.
            LogClosed: the log is closed.
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
        """Sync the file, and record the mark; the caller holds the sync lock."""
        with self._at_stake():
            self._file.fsync()
        self.durable = mark.end
        self._marks.add(mark)

    def hold(self, seconds: float) -> bool:
        """Stop all writes until `resume`; return False if a writer does not stop in time."""
        if not self._sync_lock.acquire(timeout=seconds):
            return False
        if not self._lock.acquire(timeout=seconds):
            self._sync_lock.release()
            return False
        return True

    def resume(self) -> None:
        """End a `hold`; on the same thread."""
        self._lock.release()
        self._sync_lock.release()

    def pin(self) -> LogExtent:
        """Keep all segments until `unpin`, and return their extent; during a `hold`.

        Raises:
            LogFailed: the disk has failed before.
            LogClosed: the log is closed.
        """
        self._check()
        self._pins += 1
        bases = [segment.base for segment in self.table.segments]
        return LogExtent(bases, self._index.size, self._index.end)

    def unpin(self) -> None:
        """End a `pin`: its segments may expire again."""
        with self._lock:
            self._pins -= 1

    def trim(self, before: int | None) -> int:
        """Remove expired segments, and those before an offset; return the new start."""
        with self._syncing("trim()"):
            return self._trim(before)

    def _trim(self, before: int | None) -> int:
        """Remove segments; the caller holds the sync lock, so that none is added in between."""
        segments = self.table.segments
        count = 0
        if self._pins:
            return segments[0].base
        if not self._retention.is_unlimited:
            count = self._retention.count_expired(self.table.infos(), self._clock())
        if before is not None:
            count = max(count, sum(segment.base <= before for segment in segments[1:]))
        if count and self._copied is not None:
            copied = self._copied()
            count = min(count, sum(segment.base <= copied for segment in segments[1:]))
        for index, segment in enumerate(segments[:count]):
            self.table.segments = segments[index + 1 :]
            try:
                for kind in (INDEX, COLUMNS, SEGMENT):
                    self._folder.remove(self._folder.segment(segment.base, kind))
            except OSError as error:  # it is kept, and removed with the next segments
                self.table.segments = segments[index:]
                path, reason = self._folder.segment(segment.base), error.strerror or error
                message = f"the old segment {path} could not be removed: {reason}; see its disk"
                raise LogFailed(message) from error
        return self.table.segments[0].base

    def _trimmed(self) -> str:
        """Remove expired segments; return the error, which must not prevent appends."""
        try:
            self._trim(None)
        except LogFailed as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Make all records durable, and close the files. Idempotent.

        Raises:
            LogFailed: the disk reports an error.
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
        """Return whether a segment with this size and end is full."""
        records = self._limits.records or _NO_LIMIT
        return size >= self._full_size or end - self._active.base >= records

    def _begin_segment(self, now: int) -> None:
        """Seal the active segment, and start the next one."""
        untrimmed = ""
        with self._syncing("an append"):
            with self._lock:
                self._check()
                if not self._is_full(now):
                    return  # another thread has started it
                self._prepare(now)
                index, active = self._index, self._active
                self._sync(Mark(active.base, index.size, index.end))
                path = self._folder.segment(active.base, INDEX)
                with suppress(OSError):  # a missing index is built again
                    self._folder.write(path, index.encode(), durably=False)
                file = self._make(index.end)
                self._file.close()
                self._file, self._active = file, LogSegment(index.end, is_covered=True)
                self._index = self._active.index
                self.table.segments = [*self.table.segments, self._active]
            untrimmed = self._trimmed()
        if untrimmed:  # after the locks: a logging handler may append to this log
            _log.warning("%s", untrimmed)
        for on_sealed in self.on_sealed:
            on_sealed()

    def _make(self, base: int) -> DiskFile:
        """Create the file of a segment, durably."""
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

    # --- failures ---

    def _check(self) -> None:
        """Raise unless the writer is open and its disk has not failed."""
        if self._is_closed:
            message = (
                f"the log {self._folder.path} is closed; open it again with CommitLog(folder)"
            )
            raise LogClosed(message)
        if self._trouble is not None and self.is_replaced:
            raise LogReplaced(*self._trouble.args)
        if self._trouble is not None:
            message = f"the log {self._folder.path} has failed ({self._trouble}); open it again"
            raise LogFailed(message) from self._trouble

    def _prepare(self, now: int) -> None:
        """Check the files of the log, and start its epoch before the first append.

        Appends call this a few times a second; the caller holds the lock.

        Raises:
            LogFailed: the disk reports an error; nothing may be appended.
            LogReplaced: a file was removed or replaced.
        """
        self._check_places(now)
        if not self._has_epoch:
            try:
                self.identity = begin_epoch(self._folder, self._index.end)
            except OSError as error:
                self._checked_at = _NO_LIMIT
                self._refuse(error)
            self._has_epoch = True

    def _check_places(self, now: int) -> None:
        """Fail this writer if a file of the log is no longer at its path.

        Appends check this a few times a second, and each sync does; the caller holds the lock.

        Raises:
            LogReplaced: a file was removed or replaced.
        """
        self._checked_at = now
        if path := self._misplaced():
            remedy = "put it back, close the log and open it again with CommitLog(folder)"
            self._trouble = LogReplaced(replaced(path, remedy))
            raise self._trouble

    def _misplaced(self) -> str:
        """Return the path of a file that is no longer in place; empty if all files are."""
        with suppress(OSError):  # the next write reports the error of such a disk
            if not self._file.is_in_place():
                return self._folder.segment(self._active.base)
            if not self._marks.is_in_place():
                return self._folder.file(MARKS)
            if self._file_lock is not None and not self._file_lock.is_in_place():
                return self._file_lock.path  # another process can lock the file at this path
        return ""

    def _cut_back(self, error: OSError) -> NoReturn:
        """Truncate a partly written batch, so that the next one follows complete batches."""
        with self._at_stake():
            self._file.truncate(self._index.size)
        self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        """Raise the error of a failed append, which may be repeated."""
        reason = error.strerror or error
        message = (
            f"nothing was appended to {self._folder.path}: {reason}; free space and try again"
        )
        raise LogFailed(message) from error

    @contextmanager
    def _at_stake(self) -> Iterator[None]:
        """Fail this writer if the disk reports an error: the file is then in unknown state."""
        try:
            yield
        except OSError as error:
            self._trouble = error
            reason = error.strerror or error
            message = f"the disk of {self._folder.path} failed: {reason}; open the log again"
            raise LogFailed(message) from error


def _identity_of(folder: Folder) -> tuple[LogIdentity, bool]:
    """Return the identity of a log, and whether the log is new and thus has a new epoch.

    If the disk cannot store the identity of a log without one, the first append tries again.
    """
    identity = read_identity(folder)
    is_new = not identity.log and not folder.bases()
    with suppress(OSError):
        return give_identity(folder), is_new
    return identity, False


class Background(ABC):
    """A thread that works for a log after each `wake`, and sleeps in between."""

    def __init__(self, name: str, pause: float = 0.0) -> None:
        """Start the thread; wakes within `pause` seconds share a turn."""
        self._pause = pause
        self._is_due = False
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def work(self) -> bool:
        """Do the work that is due; return False to end the thread."""

    @property
    def is_ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended.is_set()

    def wake(self) -> None:
        """Schedule a turn of work."""
        if not self._is_due:
            self._is_due = True
            self._wake.set()

    def end(self) -> None:
        """End the thread after its current turn."""
        self._ended.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        """Work after each pause with a wake, until the end."""
        while True:
            self._wake.wait()
            self._ended.wait(self._pause)
            self._wake.clear()
            if self._ended.is_set():  # after `clear`, which may erase the wake of `end`
                return
            self._is_due = False  # before the work: a wake during it schedules another turn
            if not self.work():
                return


_log = logging.getLogger("callboard.commitlog")


class Grouping(Background):
    """A thread that syncs the records of an interval together; sleeps without appends."""

    def __init__(self, writer: Writer, interval: float) -> None:
        """Start the thread; `interval` is in seconds."""
        self._writer = writer
        super().__init__("callboard-log-sync", interval)

    def work(self) -> bool:
        """Sync; after a failure, appends and flushes of this log raise its error."""
        try:
            self._writer.sync(-1)
        except LogError as error:
            _log.error("%s", error)
            return False
        return True
