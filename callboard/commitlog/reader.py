"""Reads and follows a log from any process, even while another process writes it.

The writer and the readers of a folder in one process share a `Growth`, which wakes followers
immediately. A reader of another process's log polls it: first every millisecond, then less and
less often.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from callboard.commitlog.batch import times_of
from callboard.commitlog.disk import Disk, RealDisk
from callboard.commitlog.errors import InvalidOption, LogFailed, require_kind
from callboard.commitlog.fields.declared import DeclaredField, arrow_fields, read_fields
from callboard.commitlog.folder import EPOCHS, Folder, read_mark
from callboard.commitlog.following.follower import Follower, Growth, growth_of
from callboard.commitlog.following.named import NamedReader, ReaderPlace, places_of
from callboard.commitlog.identity.identity import read_identity
from callboard.commitlog.identity.position import (
    LogIdentity,
    Position,
    PositionOwner,
    parse_position,
    resume,
)
from callboard.commitlog.objects.archive import ArchivePlace, archives_of
from callboard.commitlog.objects.disk import ObjectDisk
from callboard.commitlog.objects.manifest import Manifests, find_logs
from callboard.commitlog.objects.store import FileSystemObjects, object_address
from callboard.commitlog.producing.restore import restored
from callboard.commitlog.producing.table import ProducerEntry
from callboard.commitlog.reading import LogReading, OnDamage, RunReader
from callboard.commitlog.record import Cursor, Record, Run
from callboard.commitlog.remote.disk import SCHEMES, RemoteDisk, names_at, parse_address
from callboard.commitlog.segment import LogSegmentTable, SegmentInfo
from callboard.support.redaction import redacted
from callboard.support.slots import LOG_OPENERS

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

#: Schemes of servers, and of sites that cannot list objects; any other is an object store.
_SERVED: Final = frozenset({*SCHEMES, "basp", "http", "https"})


#: Prefixes of the address of a log that a node serves.
BASP: Final = ("basp://", "basp+unix:")


class LogReader:
    """Reads the log in a folder. There may be any number of readers and one `CommitLog`.

    A reader need not be closed. Methods may be called from any thread, but a `Follower` or an
    iterator must be used by one thread at a time.

    Attributes:
        growth: Notifies of records that are appended in this process.
        is_written_here: Whether `growth` notifies of all appends, so that polling is needless.
        is_elsewhere: Whether the log is read from a server or a node.
    """

    is_written_here = False
    is_elsewhere = False

    def __init__(
        self,
        folder: str | Path,
        *,
        token: str | None = None,
        tail: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        tls: str | Path | None = None,
        node: Any = None,
        disk: Disk | None = None,
    ) -> None:
        """Open a log in a folder, on a server, or in an archive.

        Args:
            folder: A directory; `grpc://HOST:PORT/NAME` (with TLS `grpc+tls://`) of a server
                started by `callboard log serve`; `basp://HOST:PORT/NAME` of a node with
                `serve_logs`; or `s3://bucket/cpu` or another address that fsspec opens, of
                sealed segments that `CommitLog(archive=…)` copied.
            token: Token for a server, or the secret of a node; by default the environment's
                CALLBOARD_SECRET. A server's certificate is verified with the authority in the
                file that CALLBOARD_LOG_AUTHORITY names, or with the authorities of the system.
            tls: Folder with `authority.pem`, and for a node that demands them `certificate.pem`
                and `key.pem`; by default, for a node, CALLBOARD_TLS.
            tail: With an archive, the place where the same log is written: a directory,
                `grpc://…` or `basp://…`. Records not archived yet are read from there.
            storage_options: With an archive, options for fsspec that the environment does not
                provide.
            node: The `Node` of this program that reads `basp://…`, with its secret and TLS; by
                default one in the background.
            disk: File system of the folder, for tests; by default the machine's own.

        Raises:
            LogFailed: the log does not exist, or the server does not answer.
            ExtraMissing: `folder` is an address that needs pyarrow or fsspec.
            InvalidOption: the address is malformed, or would send the token unencrypted.
        """
        place = open_folder(
            folder,
            disk,
            token,
            tail=tail,
            storage_options=storage_options,
            tls=tls,
            node=node,
        )
        with place.reading():
            self._table = LogSegmentTable(place)
        self.growth = growth_of(place.path) if isinstance(place.disk, RealDisk) else Growth()
        self.is_elsewhere = disk is None and not isinstance(place.disk, RealDisk)
        if isinstance(growth := getattr(place.disk, "growth", None), Growth):
            self.growth, self.is_written_here = growth, True
        self._runs = RunReader(self._table)

    @property
    def place(self) -> Folder:
        """The folder of the log, with its disk."""
        return self._table.folder

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""
        return self._table.folder.path

    @property
    def identity(self) -> LogIdentity:
        """The id of the log and its epochs; the id is empty if it is unknown.

        Raises:
            LogFailed: the disk or the server reports an error.
        """
        with self.place.reading():
            return read_identity(self.place)

    @property
    def identity_mark(self) -> object:
        """A value that changes with the identity, and is read faster: a file's status.

        Without such a file, it changes each second.
        """
        if isinstance(self.place.disk, RealDisk):
            with suppress(OSError):
                status = os.stat(self.place.file(EPOCHS))  # noqa: PTH116  (called for each run)
                return status.st_ino, status.st_mtime_ns, status.st_size
            return None
        return int(time.monotonic())

    def position(self, offset: int | None = None) -> Position:
        """Return the position at an offset, to be stored; by default at the end.

        `resume` compares it with the log later, so that it is not used with another one.
        """
        if offset is None:
            offset = self.end
        return self.identity.position(self.cursor(offset).offset)

    def resume(
        self,
        position: Position | str,
        *,
        accept: str = "",
        name: str = "the position",
        way: str = "resume(position, accept={!r})",
    ) -> Position:
        """Check a stored position, and return it with the id and the epoch of this log.

        Args:
            position: The position, or its text. One without a log, as 0.1 stored it, adopts
                this log; a line is logged, and `callboard_log_positions_adopted_total` counts.
            accept: A state of this log, `str(log.identity)`, with which to continue although
                the position does not belong to it.
            name: Owner of the position, for errors.
            way: How the owner accepts a state, for errors; `{}` stands for the state.

        Raises:
            OtherLog: the position belongs to another log.
            OtherEpoch: the records before the position were lost and replaced.
            PositionAhead: the log ends before the position.
            InvalidOption: the text is not a position.
        """
        if isinstance(position, str):
            position = parse_position(position)
        owner = PositionOwner(name, self.folder or "the log in memory", way)
        return resume(position, self.identity, self.end, owner, accept)

    def make_durable(self, offset: int) -> None:
        """Make the records before an offset durable, though another process writes the log.

        Raises:
            LogFailed: the disk reports an error.
        """
        folder = self.place
        with folder.reading():
            if read_mark(folder).end < offset:
                self._table.refresh()
                path = folder.segment(self._table.holding(max(0, offset - 1)).base)
                with closing(folder.disk.open(path)) as file:
                    file.fsync()

    @property
    def start(self) -> int:
        """Offset of the oldest record."""
        self._table.refresh()
        return self._table.segments[0].base

    @property
    def end(self) -> int:
        """First offset after the newest record."""
        self._table.refresh()
        last, folder = self._table.segments[-1], self._table.folder
        with folder.reading():
            index = self._table.cover(last)
            end = max(index.end, self._table.marked)
            if folder.disk.size(folder.segment(last.base)) == index.size:
                return end
            return max(
                end, read_mark(folder, last.base).end
            )  # it may be damaged after the index

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments of the log, oldest first."""
        self._table.refresh()
        with self._table.folder.reading():
            return self._table.infos()

    def size_of(self, segment: SegmentInfo) -> int:
        """Return the size of a segment's file, including an incomplete batch at its end."""
        with self._table.folder.reading():
            return self._table.folder.disk.size(segment.path)

    def read(
        self, offset: int | Cursor | Position = 0, *, on_damage: OnDamage | None = None
    ) -> LogReading:
        """Iterate over the records from an offset up to the newest one.

        If retention has removed the first of them, the iteration starts with the oldest record
        left, and `lost` of the returned iterator counts the removed ones.

        Args:
            offset: Offset or position of the first record; a position is checked as by
                `resume`.
            on_damage: Called with each `LogCorrupt` instead of raising it; all readable records
                are returned.

        Raises:
            LogCorrupt: durable bytes are damaged; reading can resume at its `next_offset`.
            ValueError: the offset is negative.
        """
        return LogReading(self._table, self.cursor(offset), on_damage)

    def readv(
        self,
        cursor: int | Cursor | Position,
        max_records: int = 100,
        max_bytes: int | None = None,
    ) -> Run:
        """Return records from a cursor on, across segment boundaries.

        Args:
            cursor: A cursor, or the offset of the first record.
            max_records: Maximum number of records.
            max_bytes: Maximum total size of the payloads; one record is always returned.

        Raises:
            LogCorrupt: the next record is damaged; the records before it were returned.
            ValueError: the offset is negative, or a limit is below 1.
        """
        limits = max_records, 1 if max_bytes is None else max_bytes
        are_integers = all(isinstance(limit, int) for limit in limits)
        require_kind(are_integers, "limits must be whole numbers", limits)
        if max_records < 1 or (max_bytes is not None and max_bytes < 1):
            msg = f"max_records={max_records}, max_bytes={max_bytes}: give at least 1"
            raise InvalidOption(msg)
        return self._runs.read(self.cursor(cursor), max_records, max_bytes)

    def cursor(self, offset: int | Cursor | Position = 0) -> Cursor:
        """Return the cursor of a record, which need not exist yet.

        Raises:
            PositionRefused: a position does not belong to this log; see `resume`.
            ValueError: the offset is negative.
        """
        if isinstance(offset, Position):
            return Cursor(self.resume(offset).offset)
        place = offset if isinstance(offset, Cursor) else Cursor(offset)
        require_kind(
            isinstance(place.offset, int), "an offset must be a whole number", place.offset
        )
        if place.offset < 0:
            msg = f"offset {place.offset} is negative; the first record of a log is 0"
            raise InvalidOption(msg)
        return place

    def offset_at(self, time: int) -> int:
        """Return the offset of the first record not older than `time`; `end` if all are older.

        Args:
            time: Nanoseconds since 1970.
        """
        self._table.refresh()
        folder = self._table.folder
        for segment in self._table.segments:
            with folder.reading():
                index = self._table.cover(segment)
                offset = index.find_time(time)
                if offset is None:
                    if folder.disk.size(folder.segment(segment.base)) == index.size:
                        continue
                    offset = index.end  # newer records may follow after damage
            reading = LogReading(self._table, Cursor(offset), lambda _: None)
            for batch in reading.batches():
                if batch.header.latest_time >= time:
                    times = enumerate(times_of(batch), batch.base)
                    return next(offset for offset, written in times if written >= time)
        return self.end

    def follow(
        self,
        offset: int | Cursor | Position | None = None,
        *,
        timeout: float | None = None,
        on_damage: OnDamage | None = None,
    ) -> Follower:
        """Iterate over records as they arrive; works with `for` and `async for`.

        Args:
            offset: Offset or position of the first record; None starts at the current end. A
                position is checked as by `resume`.
            timeout: Seconds without a record after which the iteration ends; None is never.
            on_damage: As for `read`; called on the reading thread.
        """
        cursor = self.cursor(self.end if offset is None else offset)
        return Follower(self, cursor, timeout, on_damage)

    def reader(
        self,
        name: str,
        begin: int | None = None,
        *,
        accept: str = "",
        timeout: float | None = None,
        on_damage: OnDamage | None = None,
    ) -> NamedReader:
        """Open a named reader, which resumes at its committed place.

        A name can be opened in any process, but only once at a time.

        Args:
            name: 1 to 64 letters, digits, dots, hyphens and underscores.
            begin: First offset of a name that has not committed yet; by default the oldest
                record.
            accept: State of the log, `str(log.identity)`, with which the name continues even
                if its place belongs to another log or to other records; see `resume`.
            timeout: Seconds without a record after which an iteration ends; None is never.
            on_damage: As for `read`; called on the reading thread. Without it, a damaged record
                raises at each attempt, until a `commit` of an offset after it.

        Raises:
            LogLocked: the name is open already.
            LogCorrupt: the stored place is damaged.
            PositionRefused: the stored place does not belong to this log.
            LogFailed: the disk failed, or the log is in memory, without named readers.
            ValueError: the name or the offset is invalid.
        """
        first = self.start if begin is None else self.cursor(begin).offset
        return NamedReader(self, self._table.folder, name, first, timeout, on_damage, accept)

    @property
    def readers(self) -> list[ReaderPlace]:
        """The committed places of all named readers, by name.

        Raises:
            LogCorrupt: a stored place is damaged.
        """
        return places_of(self._table.folder)

    @property
    def producers(self) -> list[ProducerEntry]:
        """The state of all producers, from the least to the most recently active.

        Raises:
            LogCorrupt: the note of a batch is malformed.
        """
        self._table.refresh()
        with self._table.folder.reading():
            return list(restored(self._table).entries.values())

    @property
    def archives(self) -> list[ArchivePlace]:
        """The progress of all archives of the log, by place."""
        return archives_of(self._table.folder)

    @property
    def fields(self) -> list[DeclaredField]:
        """The fields of payloads that the log declares, as columns for SQL, Arrow and Spark.

        Raises:
            LogFailed: the file of declarations is damaged.
        """
        return read_fields(self._table.folder)

    def to_arrow(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        topic: str = "",
        fields: bool = False,
        nan: Literal["null", "keep"] = "null",
        on_damage: OnDamage | None = None,
    ) -> "pa.Table":
        """Return records up to, not including, `end` as a pyarrow table.

        Args:
            start: Offset of the first record; records that retention removed are left out.
            end: First offset after the records; None is the current end.
            topic: Return only records whose topic has this prefix.
            fields: Whether to add the declared fields of payloads as columns. A field is null
                in records that lack it, or whose value does not fit.
            nan: Whether a field that is NaN, as pandas records a missing value, is null or
                stays.
            on_damage: As for `read`.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged.
        """
        from callboard.commitlog.arrow import arrow_schema, load_numpy, load_pyarrow

        pa, schema = load_pyarrow(), arrow_schema()
        if not fields:
            pieces = self.arrow_batches(start, end, topic=topic, on_damage=on_damage)
            return pa.Table.from_batches(pieces, schema)
        load_numpy()
        return self._table_with_fields(start, end, topic, nan, on_damage)

    def _table_with_fields(
        self, start: int, end: int | None, topic: str, nan: str, on_damage: OnDamage | None
    ) -> "pa.Table":
        """Return records with the declared fields of their payloads."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from callboard.commitlog.arrow import arrow_schema
        from callboard.commitlog.fields.decoding import decode_arrays, rules_for
        from callboard.commitlog.fields.sealed_fields import SealedFields

        rules, fields = rules_for(nan), arrow_fields(self.fields)
        schema = pa.schema([*arrow_schema(), *fields])
        start, end = max(start, self.start), self.end if end is None else min(end, self.end)
        sealed = SealedFields(self.place, arrow_schema().names, fields, rules)
        rows: list[pa.RecordBatch] = []
        while start < end:
            file = sealed.next_file(start, end)
            border = end if file is None else max(start, min(end, file.segment.base))
            for piece in self.arrow_batches(start, border, topic=topic, on_damage=on_damage):
                decoded = decode_arrays(piece["payload"], piece["is_bytes"], fields, rules)
                columns = [*piece.columns, *decoded.columns]
                rows.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            start = border
            if file is not None:
                stop = min(end, file.segment.end)
                for part in sealed.batches(file, start, stop):
                    columns = [*part.records.columns, *part.decoded.columns]
                    piece = pa.RecordBatch.from_arrays(columns, schema=schema)
                    if topic:
                        piece = piece.filter(pc.starts_with(piece["topic"], topic))
                    rows.append(piece)
                start = stop
        return pa.Table.from_batches(rows, schema)

    def arrow_batches(
        self,
        start: int | Cursor = 0,
        end: int | None = None,
        *,
        topic: str = "",
        rows: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> "Iterator[pa.RecordBatch]":
        """Iterate over records as Arrow record batches of at least `rows`, except the last.

        The schema is `arrow_schema()`. This reads several million records a second,
        because it concatenates batches of the log without decoding records.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged; the records before the damage come first.
        """
        from callboard.commitlog.arrow import ROWS, record_batches

        reading = self.read(start, on_damage=on_damage)
        return record_batches(reading, end, topic, rows or ROWS)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records."""
        return iter(self.read(self.start))

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a reader need not be closed."""


def open_folder(
    folder: str | Path,
    disk: Disk | None = None,
    token: str | None = None,
    *,
    tail: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    tls: str | Path | None = None,
    node: Any = None,
    mode: int | None = None,
) -> Folder:
    """Return the folder of a log on the machine, a disk, a server, a node or a store.

    Raises:
        ValueError: the address is malformed.
        ExtraMissing: the package for the object store is not installed.
    """
    require_kind(isinstance(folder, str | Path), "a log's folder must be a str or Path", folder)
    if disk is None and is_archive(folder):
        address = object_address(str(folder), storage_options)
        manifests = Manifests(FileSystemObjects(address))
        rest = None if tail is None else open_folder(tail, token=token, tls=tls, node=node)
        return Folder(ObjectDisk(manifests, rest), str(address))
    if tail is not None or storage_options is not None:
        kind = "an archive such as s3://…"
        msg = f"tail and storage_options need {kind}, not {redacted(folder)}"
        raise InvalidOption(msg)
    if disk is not None:
        return Folder(disk, "/" + str(folder).strip("/"))
    if isinstance(folder, str) and folder.startswith(BASP):
        # By a slot: programs that only read folders need not load nodes.
        return Folder(LOG_OPENERS.load("basp")(folder, token, tls, node), folder)
    if isinstance(folder, str) and "://" in folder:
        served = parse_address(folder, token).with_tls(tls)
        return Folder(RemoteDisk(served), str(served))
    return Folder(RealDisk("/", mode), str(Path(folder).absolute()))


def list_logs(
    place: str | Path,
    *,
    token: str | None = None,
    tls: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the addresses of all logs at a place, each of which `LogReader` can open.

    Args:
        place: A directory, which is searched recursively; `grpc://HOST:PORT` of a server
            started by `callboard log serve`, or `basp://HOST:PORT` of a node with `serve_logs`,
            for the logs that this token may read; `s3://bucket` or another address that fsspec
            opens.
        token: As for `LogReader`.
        tls: As for `LogReader`.
        storage_options: As for `LogReader`.

    Raises:
        LogFailed: the directory does not exist, or the server does not answer or refuses.
        ExtraMissing: `place` is an address that needs pyarrow or fsspec.
        InvalidOption: the address is malformed.
    """
    text = str(place).rstrip("/")
    if is_archive(place):
        objects = FileSystemObjects(object_address(str(place), storage_options))
        return [f"{objects.url}/{name}".rstrip("/") for name in find_logs(objects)]
    if text.startswith(BASP):
        names = LOG_OPENERS.load("basp names")(text, token, tls)
        return [f"{text}/{name}" for name in names]
    if "://" in text:
        return [f"{text}/{name}" for name in names_at(text, token, tls)]
    folder = Path(place)
    if not folder.is_dir():
        msg = f"{place} is not a directory; pass one that holds logs"
        raise LogFailed(msg)
    folders = {file.parent for file in folder.rglob("*.log") if file.stem.isdecimal()}
    return [str(log) for log in sorted(folders)]


def is_archive(folder: str | Path) -> bool:
    """Return whether a log is in an object store, rather than on a server or a disk."""
    scheme, mark, _ = str(folder).partition("://")
    return isinstance(folder, str) and bool(mark) and scheme.lower() not in _SERVED
