"""`CommitLog`: an append-only log, opened for writing."""

import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, get_args

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
from callboard.commitlog.identity.position import LogIdentity
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
from callboard.support.files.open_objects import OpenObjects
from callboard.support.files.private_file import check_mode
from callboard.support.inspection_tables import PROCESS_TABLES, Row
from callboard.support.seconds import checked_seconds
from callboard.support.text import safe_repr

Sync = Literal["none", "group", "each"]


#: The logs that this process writes, for the inspection tables of its nodes, and for backups.
WRITTEN: "Final[OpenObjects[CommitLog]]" = OpenObjects(locks.lock("written logs", 601))
#: Types with a length that are a single payload, not a list of payloads.
_SINGLE_PAYLOADS: Final = (str, bytes, bytearray, Mapping, AbstractSet)


def _wall_ns() -> int:
    """Return the Unix time in nanoseconds, from a module that simulations replace."""
    return clocks.time_ns()


class CommitLog(LogReader):
    """An append-only log, in a folder, or in memory if no folder is given.

    `sync` decides when a record is durable. With "each", it is durable when its append returns;
    with "group" (the default), at most `sync_interval` and one sync of the disk later; with
    "none", when `flush` or `close` returns, or a segment is full. In every mode, an appended
    record outlives this process at once, and a flushed record outlives the machine.

    One `CommitLog` at a time writes a folder; any number of `LogReader` read it. Methods may be
    called from any thread.
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
        """Open a log for writing; create it if it does not exist.

        Args:
            folder: Folder of the log; None for a log in memory.
            sync: When records become durable, see above.
            sync_interval: Seconds between syncs with "group".
            retain: How long records are kept; without limit by default.
            segment_bytes: Size at which a new file starts: 64 MiB, or a tenth of `retain`.
            segment_seconds: Age of a file's first record at which the next append starts a new
                file, for slow logs that are archived; no limit by default.
            columns: Whether sealed segments are also stored as Parquet, by a thread of its own;
                see `sealed_segments`.
            compression: Compression of batches: "zstd" (an extra before Python 3.14), "zlib",
                or None. Any reader reads all of them. A batch contains the records of one
                append, so single records gain little.
            archive: Address to which sealed segments are copied, such as `s3://bucket/cpu`, or
                an `Archive` with options. A thread copies them, and repeats failed attempts
                without limit; retention waits for it. The copies outlive this machine.
            disk: File system of the log, for tests; by default the machine's. A log on another
                disk is not locked.
            clock: Returns nanoseconds since 1970, for the times of records.
            mode: Mode of new folders, such as 0o750 for readers of a group; by default 0o700,
                for the user alone. Files are as open as their folder. An existing folder keeps
                its mode.

        Raises:
            LogLocked: another writer has this log open.
            LogFailed: the disk reports an error.
            ExtraMissing: `columns` without pyarrow, or "zstd" without Zstandard.
            ValueError: an option is invalid.
        """
        _check_options(sync, sync_interval, segment_bytes, segment_seconds)
        mode = check_mode(mode)
        value: object = retain
        if not isinstance(value, Retention | None):
            message = f"retain={safe_repr(value):.80}: use, for example, Retention(seconds=…)"
            raise TypeError(message)
        if columns and folder is None:
            message = "columns=True needs a folder: a log in memory has no files"
            raise InvalidOption(message)
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
            reason = error.strerror or error
            message = f"the log {place.path} cannot be opened: {reason}; see its folder"
            raise LogFailed(message) from error
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
        if disk is None:  # a log on a disk of a test ends with its simulated machine
            self._register()

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
        """Append one record, and return its offset.

        Args:
            topic: Topic of the record.
            payload: Bytes, or a value that CBOR can encode: None, bool, int, float, str, list,
                tuple (read as a list), dict, set, datetime with a time zone, Decimal, UUID …
            key: Text or bytes.
            headers: Mapping of texts to texts.
            sender: Name of the sender.
            time: Nanoseconds since 1970; now by default.

        Raises:
            InvalidRecord: the record cannot be stored.
            LogFailed: the disk reports an error; nothing was appended, or with "each", the
                record is not durable.
            LogInUse: called inside another call of this log, for example by a finalizer or a
                signal handler; nothing was appended.
            LogClosed: the log is closed.
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
        """Append records, and return their offsets.

        `topic`, `key`, `headers` and `sender` are one value for all records, or a list with one
        for each. Up to 8,192 records and 16 MiB are one batch: after a crash, the log has all
        of it or nothing.

        Raises:
            InvalidRecord: a record cannot be stored, or a list has another length; nothing was
                appended.
            LogFailed: as for `append`.
            LogClosed: the log is closed.
        """
        if isinstance(payloads, _SINGLE_PAYLOADS) or not hasattr(payloads, "__len__"):
            value = f"{safe_repr(payloads):.50}"
            message = (
                f"append_batch takes a list of payloads, not {value}; use append() for one"
            )
            raise InvalidRecord(message)
        count = len(payloads)
        attributes = [rows_of(column, count) for column in (topic, key, headers, sender)]
        times = None if time is None else check_times(time, count)
        runs = [
            columns
            for start in range(0, count, MAX_BATCH_RECORDS)
            for columns in _runs(
                payloads, attributes, times, start, min(start + MAX_BATCH_RECORDS, count)
            )
        ]
        first = self._append(runs) if runs else self.end
        return range(first, first + count)

    def _append(self, runs: list[Columns]) -> int:
        """Append runs, wake followers, and sync as `sync` says."""
        if self._sync == "each":  # before the append: a record without a sync must not exist
            self.refuse_inside("an append")
        first = self._writer.append(runs)
        if self.growth.is_awaited:
            self.growth.notify()
        if self._sync == "each":
            self._writer.sync()
        elif self._grouping is not None:
            self._grouping.wake()
        return first

    def producer(self, name: str, *, begin: int | None = None) -> Producer:
        """Open a producer, whose numbered records are appended once, even if they are repeated.

        Args:
            name: 1 to 128 letters, digits and `. _ - : @ /`. An earlier producer of this name
                is fenced: its appends fail.
            begin: Number of the first record, for a producer that the log does not know.

        Raises:
            LogFailed: the disk has failed before.
            LogClosed: the log is closed.
            ValueError: the name or the number is invalid.
        """
        return Producer(self, name, begin)

    def open_producer(self, name: str, epoch: int = 0) -> ProducerOpening:
        """Open a producer with its next epoch, or resume an epoch; programs call `producer`."""
        return self._writer.open_producer(name, epoch)

    def take(self, claim: Claim, columns: Columns) -> int:
        """Append a producer's records; return their offset, durable after the next `flush`.

        Raises:
            ProducerError: the claim is wrong; nothing was appended.
            LogFailed: the disk reports an error; nothing was appended.
            LogClosed: the log is closed.
        """
        (result,) = self.take_all([(claim, columns)])
        if not isinstance(result, int):
            raise result
        return result

    def take_all(self, claimed: Sequence[Claimed]) -> list[int | LogError]:
        """Append records of producers, in this order and with one write; return their offsets.

        An error that `take` would raise is returned in place of the offset.
        """
        end = self._writer.end
        results = self._writer.take(claimed)
        for index, result in enumerate(results):
            if result == -1:
                claim = claimed[index][0]
                try:
                    results[index] = find_run(claim, self.runs_of(claim.name))
                except LogError as error:
                    results[index] = error
        if self.growth.is_awaited and self._writer.end > end:
            self.growth.notify()
        return results

    def runs_of(self, name: str) -> Iterator[ProducerEntry]:
        """Iterate over the runs of records of a producer, the latest first."""
        return runs_before(self._table, self._writer.producers.entries.get(name))

    def declare(
        self, fields: Mapping[str, str] | Iterable[DeclaredField]
    ) -> list[DeclaredField]:
        """Declare fields of payloads, so that they are columns for SQL, Arrow and Spark.

        They are durably added to the fields that are declared already; returns all of them.

        Args:
            fields: Names of keys in payloads and their types: bool, int, uint, float, text,
                time, or lists of these, `text[]`.

        Raises:
            FieldConflict: a field is already declared with another type.
            LogFailed: the disk reports an error.
            ValueError: a type is unknown.
        """
        if isinstance(fields, Mapping):
            fields = [DeclaredField(name, kind) for name, kind in fields.items()]
        declared = self.fields
        merged = merge_fields(declared, fields)
        if merged != declared:
            try:
                write_fields(self.place, merged)
            except OSError as error:
                reason = error.strerror or error
                step = "free space on its disk, or let this process write its folder"
                message = f"the fields of {self.folder} were not declared: {reason}; {step}"
                raise LogFailed(message) from error
        return merged

    def flush(self) -> None:
        """Make all appended records durable; return when they are.

        Raises:
            LogFailed: the disk reports an error; until the log is opened again, it is unknown
                which records are durable.
            LogClosed: the log is closed.
        """
        self._writer.sync()

    async def aflush(self) -> None:
        """Make all appended records durable; awaitable twin of `flush`."""
        import asyncio  # programs that only read start twice as fast without it

        await asyncio.to_thread(self.flush)

    # --- state ---

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._writer.end

    @property
    def durable(self) -> int:
        """The offset after the last durable record."""
        return self._writer.durable

    @property
    def identity(self) -> LogIdentity:
        """The id of the log and its epochs."""
        return self._writer.identity

    @property
    def identity_mark(self) -> object:
        """A value that changes with the identity."""
        return self._writer.identity

    def make_durable(self, offset: int) -> None:
        """Make the records before an offset durable."""
        if self._writer.durable < offset:
            self._writer.sync()

    @property
    def recovery(self) -> LogRecovery:
        """The state in which the log was found when it was opened."""
        return self._writer.recovery

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed, and appends fail until the log is opened again."""
        return self._writer.has_failed

    @property
    def may_reopen(self) -> bool:
        """Whether the disk has failed, and the program may open the log again and continue.

        False if the folder or a file was removed or replaced: the log at that path may lack
        records that were acknowledged.
        """
        return self._writer.has_failed and not self._writer.is_replaced

    def trim(self, before: int | None = None) -> int:
        """Remove expired segments, and segments whose records all precede an offset.

        Appends remove expired segments too, with each new segment. Returns the new `start`.

        Raises:
            LogFailed: the disk reports an error.
        """
        return self._writer.trim(before)

    def _end_of_copies(self) -> int:
        """Return the offset after the last record that is known to be archived."""
        return 0 if self._archiving is None else self._archiving.end_of_copies

    def _on_copied(self) -> None:
        """Remove expired segments that waited for their copies."""
        with suppress(LogError):
            self._writer.trim(None)

    def refuse_inside(self, call: str) -> None:
        """Raise if this thread is in another call of the log, for example in a finalizer.

        Raises:
            LogInUse: this thread is in another call; nothing was done.
        """
        self._writer.refuse_inside(call)

    @property
    def writer(self) -> Writer:
        """The writer of this log, for backups."""
        return self._writer

    @property
    def holds_lock(self) -> bool:
        """Whether this object holds the writer's lock of its folder."""
        return self._lock is not None

    def writes(self, place: Path) -> bool:
        """Return whether this holds the writer's lock of a folder."""
        return self._lock is not None and Path(self.folder).resolve() == place

    # --- closing ---

    def close(self) -> None:
        """Make all records durable, and release the writer's lock. Idempotent.

        Raises:
            LogFailed: the disk reports an error; it is unknown which records are durable.
            LogInUse: called in a finalizer or signal handler inside another call of the log.
        """
        if after_fork.is_copy(self):
            return
        self.refuse_inside("close()")  # it joins the syncing thread, which may wait for us
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

    def _register(self) -> None:
        """Register a log that this process writes."""
        WRITTEN.add(self)
        if self.folder:  # a log in memory can be used in a forked process too
            after_fork.register(self, CommitLog._drop_copy)

    def _drop_copy(self) -> None:
        """Refuse all calls in a forked process, which would overwrite records of its parent."""
        WRITTEN.leave(self)
        self._lock = None  # the copy of the lock drops its own descriptor
        refusing: Any = after_fork.Refusing(
            LogClosed,
            f"the log {self.folder}",
            "read it here with LogReader, let one process write it",
        )
        self._writer = self._table = self._runs = refusing

    def _release(self) -> None:
        """Release the writer's lock."""
        WRITTEN.discard(self)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def _archive_of(
    option: str | Archive | None, folder: object
) -> tuple[Archive | None, FileSystemObjects | None]:
    """Return the archive of a log, and its object store.

    Raises:
        ExtraMissing: a package is not installed.
        InvalidOption: the address is malformed, or the log has no folder.
    """
    if option is None:
        return None, None
    require_kind(isinstance(option, str | Archive), "archive is an address or Archive", option)
    if folder is None:
        message = "archive=… needs a folder: a log in memory has no segments to copy"
        raise InvalidOption(message)
    archive = Archive(option) if isinstance(option, str) else option
    return archive, archive.objects()


def _runs(
    payloads: Sequence[Any],
    attributes: Sequence[Sequence[Any]],
    times: Sequence[int] | None,
    start: int,
    stop: int,
) -> Iterator[Columns]:
    """Iterate over records as columns, split in halves until each part fits a batch."""
    part = slice(start, stop)
    topics, keys, headers, senders = (
        column if len(column) == 1 else column[part] for column in attributes
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
        yield from _runs(payloads, attributes, times, start, middle)
        yield from _runs(payloads, attributes, times, middle, stop)


def _refuse_large(columns: Columns) -> None:
    """Raise `InvalidRecord` if the first payload exceeds the limit."""
    size = len(columns.payloads[0])
    if size > MAX_RECORD:
        message = f"a payload of {size:,} bytes exceeds the limit of {MAX_RECORD:,}; split it"
        raise InvalidRecord(message)


def written_here(folder: str | Path) -> CommitLog | None:
    """Return the log in a folder if this process has it open for writing."""
    place = Path(folder).resolve()
    logs = WRITTEN.sorted(attrgetter("folder"))
    return next((log for log in logs if log.writes(place)), None)


def _check_options(
    sync: str, sync_interval: float, segment_bytes: int | None, segment_seconds: float | None
) -> None:
    """Raise `ValueError` for invalid options."""
    if sync not in get_args(Sync):
        message = f"sync={safe_repr(sync):.80}; give one of {', '.join(get_args(Sync))}"
        raise InvalidOption(message)
    checked_seconds(sync_interval, "sync_interval")
    if segment_seconds is not None and checked_seconds(segment_seconds, "segment_seconds") <= 0:
        message = f"segment_seconds={segment_seconds}: give more than 0, or None for no limit"
        raise InvalidOption(message)
    if sync_interval <= 0 or (segment_bytes is not None and segment_bytes <= 0):
        message = (
            f"sync_interval={sync_interval}, segment_bytes={segment_bytes}: give more than 0"
        )
        raise InvalidOption(message)


def _log_rows(_which: str, permits: Any) -> Iterator[Row]:
    """Yield a row for each log that this process writes, with the lag of its named readers."""
    for log in WRITTEN.sorted(attrgetter("folder")):
        name = Path(log.folder).name
        if permits is not None and not permits.permit("logs", name):
            continue
        with suppress(LogError, OSError):  # it is being closed, or its folder was removed
            readers = {reader.name: log.end - reader.offset for reader in log.readers}
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
                "furthest": max(readers, key=lambda name: readers[name], default=""),
                "failed": log.has_failed,
            }


PROCESS_TABLES.setdefault("logs", []).append(_log_rows)
