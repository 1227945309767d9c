"""The log that programs append to."""

import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, get_args
from weakref import WeakSet

from callboard import locks
from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.batch import MAX_BATCH_RECORDS, MAX_RECORD, Compression
from callboard.commitlog.columns import (
    Columns,
    Headers,
    Key,
    check_times,
    many_records,
    one_record,
    rows_of,
)
from callboard.commitlog.disk import Disk, MemoryDisk
from callboard.commitlog.errors import (
    InvalidOption,
    InvalidRecord,
    LogClosed,
    LogError,
    LogFailed,
    require_kind,
)
from callboard.commitlog.fields.declared import DeclaredField, merge_fields, write_fields
from callboard.commitlog.folder import FileLock, Folder, lock_writing
from callboard.commitlog.following.follower import Growth, growth_of
from callboard.commitlog.objects.archive import Archive, Archiving
from callboard.commitlog.objects.store import FileSystemObjects
from callboard.commitlog.producing.producer import Producer
from callboard.commitlog.producing.restore import runs_before
from callboard.commitlog.producing.table import Claim, ProducerEntry, ProducerOpening, find_run
from callboard.commitlog.reader import LogReader, open_folder
from callboard.commitlog.reading import RunReader
from callboard.commitlog.recovery import LogRecovery
from callboard.commitlog.retention import Retention, SegmentLimits
from callboard.commitlog.sealed import Sealing
from callboard.commitlog.writer import Claimed, Grouping, Writer
from callboard.support import after_fork
from callboard.support.inspection_tables import PROCESS_TABLES, Row
from callboard.support.private_file import check_mode
from callboard.support.seconds import checked_seconds
from callboard.support.text import safe_repr

Sync = Literal["none", "group", "each"]


#: The logs that this process writes, for those who look at its nodes.
_WRITTEN: "Final[WeakSet[CommitLog]]" = WeakSet()
#: What has a length, and is no list of payloads.
_NO_LISTS: Final = (str, bytes, bytearray, Mapping, AbstractSet)

_LOCK: Final = locks.lock("written logs", 601)


def _wall_ns() -> int:
    """Return the date in nanoseconds; a simulation replaces what is asked each time."""
    return clocks.time_ns()


class CommitLog(LogReader):
    """An append-only log: a directory, or in memory if no folder is given.

    What is durable when (`sync`): with "each", a record when its append returns; with "group"
    (the default) at most `sync_interval` and one sync of the disk later; with "none" when
    `flush` or `close` returns, or a segment is full. In every mode, what was appended outlives
    this process at once, and what was flushed outlives the machine.

    One `CommitLog` at a time writes a folder; any number of `LogReader` read it. Its methods
    may be called from any thread.
    """

    is_written_here = True

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        sync: Sync = "group",
        sync_interval: float = 0.01,
        retain: Retention | None = None,
        segment_bytes: int | None = None,
        segment_seconds: float | None = None,
        columns: bool = False,
        compression: Compression | None = None,
        archive: str | Archive | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = _wall_ns,
        mode: int | None = None,
    ) -> None:
        """Open a log to write, or make it.

        Args:
            folder: Its directory, made if needed; None is in memory.
            sync: What is durable when, see above.
            sync_interval: Seconds between syncs with "group".
            retain: How long records are kept; for ever by default.
            segment_bytes: Size at which a new file begins: 64 MiB, or a tenth of `retain`.
            segment_seconds: Age of its first record at which the next append begins a new
                file, for logs that are archived and slow; no limit by default.
            columns: Whether segments that get no more records are kept as Parquet as well;
                see `sealed_segments`. A thread of its own does that.
            compression: How batches are compressed: "zstd" (an extra before Python 3.14),
                "zlib", or not at all. Any reader reads all; a batch is what was appended at
                once, so single records gain little.
            archive: Where sealed segments are copied to, such as `s3://bucket/cpu`, or an
                `Archive` that says more. A thread of its own does that, and tries again for
                ever; retention waits for it. The copies outlive this machine.
            disk: The file system it is on, for tests; the machine's own by default. A log on
                such a disk takes no lock.
            clock: Nanoseconds since 1970, for the times of records.
            mode: Of folders that are made, such as 0o750 for readers of a group; by default
                0o700, for the user alone. Files are as open as their folder. A folder that is
                there keeps its mode.

        Raises:
            LogLocked: another writer has this log open.
            LogFailed: the disk refuses.
            ExtraMissing: `columns` without pyarrow, or "zstd" without Zstandard.
            ValueError: an option makes no sense.
        """
        _check_options(sync, sync_interval, segment_bytes, segment_seconds)
        mode = check_mode(mode)
        given: object = retain
        if not isinstance(given, Retention | None):
            what = f"retain={safe_repr(given):.80}: give Retention(seconds=…), for instance"
            raise TypeError(what)
        if columns and folder is None:
            what = "columns=True needs a folder: a log in memory has no files"
            raise InvalidOption(what)
        if columns:
            load_pyarrow()
        archive, objects = _archive_of(archive, folder)
        retain = retain or Retention()
        is_shared = folder is not None and disk is None
        self._sync: Sync = "none" if folder is None else sync
        self._lock: FileLock | None = None
        self._archiving: Archiving | None = None
        place = (
            Folder(MemoryDisk(), "") if folder is None else open_folder(folder, disk, mode=mode)
        )
        try:
            place.make()
            if is_shared:
                self._lock = lock_writing(place.path)
            limits = SegmentLimits.fitting(retain, segment_bytes, segment_seconds)
            copied = self._end_of_copies if archive is not None and archive.holds else None
            self._writer = Writer(place, limits, retain, clock, compression, copied, self._lock)
        except BaseException as error:
            self._release()
            if isinstance(error, LogError) or not isinstance(error, OSError):
                raise
            why = error.strerror or error
            what = f"the log {place.path} cannot be opened: {why}; see its folder"
            raise LogFailed(what) from error
        self._table = self._writer.table
        self.growth = growth_of(place.path) if is_shared else Growth()
        self._runs = RunReader(self._table)
        self._sealing = Sealing(place) if columns else None
        if self._sealing is not None:
            self._writer.on_sealed.append(self._sealing.wake)
        if archive is not None and objects is not None:
            self._archiving = Archiving(place, objects, archive.retain, self._on_copied)
            self._writer.on_sealed.append(self._archiving.wake)
        self._grouping = (
            Grouping(self._writer, sync_interval) if self._sync == "group" else None
        )
        if disk is None:  # one of tests is not this process's, and ends with its machine
            self._keep()

    # --- appending ---

    def append(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
    ) -> int:
        """Append one record; returns its offset.

        Args:
            topic: What it is about.
            payload: Bytes, or what CBOR can hold: None, bool, int, float, str, list, tuple
                (read as a list), dict, set, datetime with a time zone, Decimal, UUID and so on.
            key: Text or bytes.
            headers: Texts.
            sender: Who sent it.
            time: Nanoseconds since 1970; now by default.

        Raises:
            InvalidRecord: it cannot be stored.
            LogFailed: the disk refuses; nothing was appended, or with "each", not durably.
            LogInUse: called inside another call of this log, as finalizers and signal handlers
                may be; nothing was appended.
            LogClosed: the log was closed.
        """
        columns = one_record(topic, payload, key, headers, sender)
        if time is not None:
            columns = columns._replace(times=check_times([time], 1))
        _refuse_large(columns)
        return self._append([columns])

    def append_batch(
        self,
        payloads: Sequence[Any],
        *,
        topic: str | Sequence[str],
        key: Key | Sequence[Key] = None,
        headers: Headers | Sequence[Headers] = None,
        sender: str | Sequence[str] = "",
        time: Sequence[int] | None = None,
    ) -> range:
        """Append a run of records at once; returns their offsets.

        `topic`, `key`, `headers` and `sender` are one for all, or a list with one each. A run
        of up to 8,192 records and 16 MiB is one batch: after a crash, all of it is there or
        nothing.

        Raises:
            InvalidRecord: some record cannot be stored, or a list has another length; nothing
                was appended.
            LogFailed: as for `append`.
            LogClosed: the log was closed.
        """
        if isinstance(payloads, _NO_LISTS) or not hasattr(payloads, "__len__"):
            given = f"{safe_repr(payloads):.50}"
            what = f"append_batch takes a list of payloads, not {given}; one: append()"
            raise InvalidRecord(what)
        count = len(payloads)
        named = [rows_of(column, count) for column in (topic, key, headers, sender)]
        times = None if time is None else check_times(time, count)
        runs = [
            columns
            for start in range(0, count, MAX_BATCH_RECORDS)
            for columns in _runs(
                payloads, named, times, start, min(start + MAX_BATCH_RECORDS, count)
            )
        ]
        first = self._append(runs) if runs else self.end
        return range(first, first + count)

    def _append(self, runs: list[Columns]) -> int:
        """Append runs, wake followers, and sync as the log was told to."""
        if self._sync == "each":  # an append that cannot be synced must not be there
            self.refuse_inside("an append")
        first = self._writer.append(runs)
        if self.growth.is_awaited:
            self.growth.tell()
        if self._sync == "each":
            self._writer.sync()
        elif self._grouping is not None:
            self._grouping.wake()
        return first

    def producer(self, name: str, *, begin: int | None = None) -> Producer:
        """Open a producer: its records have numbers, and one that is tried again is no double.

        Args:
            name: 1 to 128 letters, digits and `. _ - : @ /`. Who opened it before may append
                no more.
            begin: The number of the first record of a producer that the log does not know.

        Raises:
            LogFailed: the disk has failed before.
            LogClosed: the log was closed.
            ValueError: the name or the number makes no sense.
        """
        return Producer(self, name, begin)

    def open_producer(self, name: str, epoch: int = 0) -> ProducerOpening:
        """Give a producer its next epoch, or let it keep one; programs call `producer`."""
        return self._writer.open_producer(name, epoch)

    def take(self, claim: Claim, columns: Columns) -> int:
        """Append what a producer claims; returns its offset, durable after the next `flush`.

        Raises:
            ProducerError: the claim is wrong; nothing was appended.
            LogFailed: the disk refuses; nothing was appended.
            LogClosed: the log was closed.
        """
        (told,) = self.take_all([(claim, columns)])
        if not isinstance(told, int):
            raise told
        return told

    def take_all(self, claimed: Sequence[Claimed]) -> list[int | LogError]:
        """Append what producers claim, in this order and at once; returns offsets.

        Instead of an offset, why one was not appended: what `take` raises.
        """
        end = self._writer.end
        told = self._writer.take(claimed)
        for at, each in enumerate(told):
            if each == -1:
                claim = claimed[at][0]
                try:
                    told[at] = find_run(claim, self.runs_of(claim.name))
                except LogError as error:
                    told[at] = error
        if self.growth.is_awaited and self._writer.end > end:
            self.growth.tell()
        return told

    def runs_of(self, name: str) -> Iterator[ProducerEntry]:
        """Iterate over the runs of records of a producer, the latest first."""
        return runs_before(self._table, self._writer.producers.entries.get(name))

    def declare(
        self, fields: Mapping[str, str] | Iterable[DeclaredField]
    ) -> list[DeclaredField]:
        """Declare fields of payloads, so that they are columns for SQL, Arrow and Spark.

        They are added to those that were declared before, durably; returns all.

        Args:
            fields: Names of keys in payloads and their types: bool, int, uint, float, text,
                time, or lists of these, `text[]`.

        Raises:
            FieldConflict: one was declared with another type.
            LogFailed: the disk refuses.
            ValueError: a type is none.
        """
        if isinstance(fields, Mapping):
            fields = [DeclaredField(name, kind) for name, kind in fields.items()]
        known = self.fields
        merged = merge_fields(known, fields)
        if merged != known:
            try:
                write_fields(self.place, merged)
            except OSError as error:
                why = error.strerror or error
                what = f"the fields of {self.folder} were not declared: {why}; make room"
                raise LogFailed(what) from error
        return merged

    def flush(self) -> None:
        """Make durable all that was appended before; returns when it is.

        Raises:
            LogFailed: the disk refuses; what is durable is unknown until a new opening.
            LogClosed: the log was closed.
        """
        self._writer.sync()

    async def aflush(self) -> None:
        """Make durable all that was appended before, without blocking the loop."""
        import asyncio  # here: programs that only read start twice as fast without

        await asyncio.to_thread(self.flush)

    # --- what there is ---

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._writer.end

    @property
    def durable(self) -> int:
        """The offset behind all that outlives the machine."""
        return self._writer.durable

    @property
    def recovery(self) -> LogRecovery:
        """The state in which the log was found when it was opened."""
        return self._writer.recovery

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed so that nothing is taken before the log is opened again."""
        return self._writer.has_failed

    @property
    def may_reopen(self) -> bool:
        """Whether the disk failed, and the log goes on when a program opens it again.

        False for one whose folder or files were removed or replaced: what it acknowledged may
        be missing in the log that is there now.
        """
        return self._writer.has_failed and not self._writer.is_replaced

    def trim(self, before: int | None = None) -> int:
        """Remove segments that retention ends, or whose records all are before an offset.

        Appending does the first by itself, with each new segment. Returns the new `start`.

        Raises:
            LogFailed: the disk refuses.
        """
        return self._writer.trim(before)

    def _end_of_copies(self) -> int:
        """Return the offset behind what is surely copied."""
        return 0 if self._archiving is None else self._archiving.end_of_copies

    def _on_copied(self) -> None:
        """Remove what waited for its copy."""
        with suppress(LogError):
            self._writer.trim(None)

    def refuse_inside(self, call: str) -> None:
        """Raise if this thread is in another call of the log, as a finalizer may be.

        Raises:
            LogInUse: it is; nothing was done.
        """
        self._writer.refuse_inside(call)

    @property
    def holds_lock(self) -> bool:
        """Whether this object holds the writer's lock, so that no other writes its folder."""
        return self._lock is not None

    def writes(self, place: Path) -> bool:
        """Return whether this holds the writer's lock of a folder."""
        return self._lock is not None and Path(self.folder).resolve() == place

    # --- the end ---

    def close(self) -> None:
        """Make all durable, and let others write; a second call does nothing.

        Raises:
            LogFailed: the disk refuses; what is durable is unknown.
            LogInUse: called in a finalizer or signal handler inside another call of the log.
        """
        if after_fork.is_copy(self):
            return
        self.refuse_inside("close()")  # the thread that syncs may wait for this one
        if self._grouping is not None:
            self._grouping.end()
        if self._sealing is not None:
            self._sealing.end()
        if self._archiving is not None:
            self._archiving.end()
        try:
            self._writer.close()
        finally:
            self._release()

    def _keep(self) -> None:
        """Remember a log that this process writes."""
        with _LOCK:
            _WRITTEN.add(self)
        if self.folder:  # one in memory is of use in a forked process as well
            after_fork.register(self, CommitLog._leave)

    def _leave(self) -> None:
        """Refuse each use of this copy: in a forked process it would overwrite records."""
        _WRITTEN.discard(self)
        self._lock = None  # the copy of the lock drops its own descriptor
        gone: Any = after_fork.Refusing(
            LogClosed,
            f"the log {self.folder}",
            "read it here with LogReader, let one process write it",
        )
        self._writer = self._table = self._runs = gone

    def _release(self) -> None:
        """Release the writer's lock."""
        with _LOCK:
            _WRITTEN.discard(self)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def _archive_of(
    given: str | Archive | None, folder: object
) -> tuple[Archive | None, FileSystemObjects | None]:
    """Return where a log is copied to, and the store there.

    Raises:
        ExtraMissing: a package is not installed.
        InvalidOption: the address means nothing, or the log has no folder.
    """
    if given is None:
        return None, None
    require_kind(isinstance(given, str | Archive), "archive is an address or Archive", given)
    if folder is None:
        what = "archive=… needs a folder: a log in memory has no segments to copy"
        raise InvalidOption(what)
    archive = Archive(given) if isinstance(given, str) else given
    return archive, archive.objects()


def _runs(
    payloads: Sequence[Any],
    named: Sequence[Sequence[Any]],
    times: Sequence[int] | None,
    start: int,
    stop: int,
) -> Iterator[Columns]:
    """Iterate over a part of a run as columns, halved until each half fits into a batch."""
    part = slice(start, stop)
    topics, keys, headers, senders = (
        column if len(column) == 1 else column[part] for column in named
    )
    columns = many_records(
        payloads[part], topics, keys, headers, senders, times and times[part]
    )
    if sum(map(len, columns.payloads)) <= MAX_RECORD:
        yield columns
    elif stop - start == 1:
        _refuse_large(columns)
    else:
        middle = (start + stop) // 2
        yield from _runs(payloads, named, times, start, middle)
        yield from _runs(payloads, named, times, middle, stop)


def _refuse_large(columns: Columns) -> None:
    """Raise `InvalidRecord` if a single payload exceeds the limit."""
    size = len(columns.payloads[0])
    if size > MAX_RECORD:
        what = f"a payload of {size:,} bytes exceeds the limit of {MAX_RECORD:,}; split it"
        raise InvalidRecord(what)


def written_here(folder: str | Path) -> CommitLog | None:
    """Return the log in a folder if this process has it open to write."""
    place = Path(folder).resolve()
    with _LOCK:
        return next((each for each in _WRITTEN if each.writes(place)), None)


def _check_options(
    sync: str, sync_interval: float, segment_bytes: int | None, segment_seconds: float | None
) -> None:
    """Raise `ValueError` for options that make no sense."""
    if sync not in get_args(Sync):
        what = f"sync={safe_repr(sync):.80}; give one of {', '.join(get_args(Sync))}"
        raise InvalidOption(what)
    checked_seconds(sync_interval, "sync_interval")
    if segment_seconds is not None and checked_seconds(segment_seconds, "segment_seconds") <= 0:
        what = f"segment_seconds={segment_seconds}: give more than 0, or None for no limit"
        raise InvalidOption(what)
    if sync_interval <= 0 or (segment_bytes is not None and segment_bytes <= 0):
        what = f"sync_interval={sync_interval}, segment_bytes={segment_bytes}: give more than 0"
        raise InvalidOption(what)


def _log_rows(_which: str, permits: Any) -> Iterator[Row]:
    """Tell of the logs that this process writes, and how far their named readers are."""
    with _LOCK:
        logs = sorted(_WRITTEN, key=lambda each: each.folder)
    for log in logs:
        name = Path(log.folder).name
        if permits is not None and not permits.permit("logs", name):
            continue
        with suppress(LogError, OSError):  # it is being closed, or its folder is gone
            readers = {each.name: log.end - each.offset for each in log.readers}
            yield {
                "log": name,
                "folder": log.folder,
                "start": log.start,
                "end": log.end,
                "durable": log.durable,
                "bytes": sum(map(log.size_of, log.segments)),
                "segments": len(log.segments),
                "readers": len(readers),
                "behind": max(readers.values(), default=0),
                "furthest": max(readers, key=lambda each: readers[each], default=""),
                "failed": log.has_failed,
            }


PROCESS_TABLES.setdefault("logs", []).append(_log_rows)
