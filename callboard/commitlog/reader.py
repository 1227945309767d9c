"""Reading a log and following it, from any process, also while another one writes it.

A writer and the readers of one folder in one process share a `Growth`, which wakes followers at
once. A reader of another process's log looks at it: each millisecond at first, then ever less
often.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from callboard.commitlog.batch import times_of
from callboard.commitlog.disk import Disk, RealDisk
from callboard.commitlog.errors import InvalidOption, LogFailed, require_kind
from callboard.commitlog.fields.declared import DeclaredField, arrow_fields, read_fields
from callboard.commitlog.folder import Folder, read_mark
from callboard.commitlog.following.follower import Follower, Growth, growth_of
from callboard.commitlog.following.named import NamedReader, ReaderPlace, places_of
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

#: Addresses of servers, and of what lists no objects; all others are of object stores.
_SERVED: Final = frozenset({*SCHEMES, "basp", "http", "https"})


#: What the address of a log begins with that a node serves.
BASP: Final = ("basp://", "basp+unix:")


class LogReader:
    """Reads the log in a folder; any number of them may, beside one `CommitLog` that writes.

    It needs no closing. Methods may be called from any thread; a `Follower` or an iterator
    belongs to one at a time.

    Attributes:
        growth: Tells of records that were appended in this process.
        is_written_here: Whether nobody but this object appends, or growth tells of all.
        is_elsewhere: Whether it is read from a server or a node.
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
        """Look at the log in a folder, at one that is served elsewhere, or at its archive.

        Args:
            folder: Where it is: a directory, `grpc://HOST:PORT/NAME` (`grpc+tls://` with
                TLS) of what `callboard log serve` serves, `basp://HOST:PORT/NAME` of a node
                with `serve_logs`, or `s3://bucket/cpu` and whatever else fsspec opens, of what
                `CommitLog(archive=…)` copied: sealed segments.
            token: What proves to a server who reads, or a node's secret; the environment's
                CALLBOARD_SECRET by default. The authority of a server's certificate is the file
                CALLBOARD_LOG_AUTHORITY names, or one of the system's.
            tls: Folder with `authority.pem`, and for a node that demands them `certificate.pem`
                and `key.pem`; for a node CALLBOARD_TLS by default.
            tail: With an archive, where the same log is written: a directory or `grpc://…` or
                `basp://…`. What is not copied yet is read from there.
            storage_options: With an archive, what fsspec needs to get there, where the
                environment does not say.
            node: The `Node` of this program that reads `basp://…`, with its secret and TLS; one
                in the background by default.
            disk: The file system it is on, for tests; the machine's own by default.

        Raises:
            LogFailed: there is no log, or no server answers.
            ExtraMissing: an address, and no pyarrow or no fsspec.
            InvalidOption: an address has another form, or would carry the token plainly.
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
        if isinstance(told := getattr(place.disk, "growth", None), Growth):
            self.growth, self.is_written_here = told, True
        self._runs = RunReader(self._table)

    @property
    def place(self) -> Folder:
        """The log's files, and the disk that they are on."""
        return self._table.folder

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""
        return self._table.folder.path

    @property
    def start(self) -> int:
        """The offset of the oldest record that is kept."""
        self._table.refresh()
        return self._table.segments[0].base

    @property
    def end(self) -> int:
        """The offset behind the newest record."""
        self._table.refresh()
        last, folder = self._table.segments[-1], self._table.folder
        with folder.reading():
            index = self._table.cover(last)
            end = max(index.end, self._table.marked)
            if folder.disk.size(folder.segment(last.base)) == index.size:
                return end
            return max(end, read_mark(folder, last.base).end)  # it may be damaged further on

    @property
    def segments(self) -> list[SegmentInfo]:
        """The files of the log, oldest first."""
        self._table.refresh()
        with self._table.folder.reading():
            return self._table.infos()

    def size_of(self, segment: SegmentInfo) -> int:
        """Return the size of a file, with what may follow the last whole batch in it."""
        with self._table.folder.reading():
            return self._table.folder.disk.size(segment.path)

    def read(
        self, offset: int | Cursor = 0, *, on_damage: OnDamage | None = None
    ) -> LogReading:
        """Iterate over the records from an offset on, up to the newest there is.

        If retention has removed the first of them, it begins with the oldest one that is kept;
        `lost` of what is returned tells how many there were.

        Args:
            offset: Where to begin.
            on_damage: Called with each `LogCorrupt` in place of raising it: all records that
                are readable are read.

        Raises:
            LogCorrupt: durable bytes are damaged; its `next_offset` says where to go on.
            ValueError: the offset is negative.
        """
        return LogReading(self._table, self.cursor(offset), on_damage)

    def readv(
        self, cursor: int | Cursor, max_records: int = 100, max_bytes: int | None = None
    ) -> Run:
        """Return up to so many records from a cursor on, over the borders of segments.

        Args:
            cursor: Where to begin; an offset serves as well.
            max_records: How many at most.
            max_bytes: Payloads have so many bytes together at most, but one record is
                always returned.

        Raises:
            LogCorrupt: the next record is damaged; those before it were returned first.
            ValueError: the offset is negative, or a limit is below 1.
        """
        limits = max_records, 1 if max_bytes is None else max_bytes
        are_so = all(isinstance(each, int) for each in limits)
        require_kind(are_so, "limits are whole numbers", limits)
        if max_records < 1 or (max_bytes is not None and max_bytes < 1):
            what = f"max_records={max_records}, max_bytes={max_bytes}: give at least 1"
            raise InvalidOption(what)
        return self._runs.read(self.cursor(cursor), max_records, max_bytes)

    def cursor(self, offset: int | Cursor = 0) -> Cursor:
        """Return the place of a record; one that is not there yet is fine.

        Raises:
            ValueError: the offset is negative.
        """
        place = offset if isinstance(offset, Cursor) else Cursor(offset)
        require_kind(isinstance(place.offset, int), "an offset is a whole number", place.offset)
        if place.offset < 0:
            what = f"offset {place.offset} is negative; the first record of a log is 0"
            raise InvalidOption(what)
        return place

    def offset_at(self, time: int) -> int:
        """Return the offset of the first record that is not older; `end` if all are.

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
                    offset = index.end  # newer ones may stand behind damage
            reading = LogReading(self._table, Cursor(offset), lambda _: None)
            for batch in reading.batches():
                if batch.header.latest_time >= time:
                    times = enumerate(times_of(batch), batch.base)
                    return next(found for found, each in times if each >= time)
        return self.end

    def follow(
        self, offset: int | Cursor | None = None, *, timeout: float | None = None
    ) -> Follower:
        """Iterate over records as they come, also from another process; `for` and `async for`.

        Args:
            offset: Where to begin; None is the end there is.
            timeout: Seconds without a record after which the iteration ends; None is never.
        """
        return Follower(self, self.cursor(self.end if offset is None else offset), timeout)

    def reader(
        self, name: str, begin: int | None = None, *, timeout: float | None = None
    ) -> NamedReader:
        """Go on where a named reader has committed its place, from any process, one at a time.

        Args:
            name: 1 to 64 letters, digits, dots, hyphens and underlines.
            begin: Where a name begins that has committed nothing yet; the oldest record that
                is kept by default.
            timeout: Seconds without a record after which an iteration ends; None is never.

        Raises:
            LogLocked: another reader has this name open.
            LogCorrupt: its place is damaged.
            LogFailed: the disk refuses; a log in memory has no named readers.
            ValueError: the name or the offset makes no sense.
        """
        first = self.start if begin is None else self.cursor(begin).offset
        return NamedReader(self, self._table.folder, name, first, timeout)

    @property
    def readers(self) -> list[ReaderPlace]:
        """How far each named reader has committed, by name.

        Raises:
            LogCorrupt: the place of one is damaged.
        """
        return places_of(self._table.folder)

    @property
    def producers(self) -> list[ProducerEntry]:
        """How far each producer has come, those that were silent longest first.

        Raises:
            LogCorrupt: what a batch says of its producer is malformed.
        """
        self._table.refresh()
        with self._table.folder.reading():
            return list(restored(self._table).entries.values())

    @property
    def archives(self) -> list[ArchivePlace]:
        """How far the sealed segments are copied to object stores, by place."""
        return archives_of(self._table.folder)

    @property
    def fields(self) -> list[DeclaredField]:
        """The fields of payloads that the log declares, as columns for SQL, Arrow and Spark.

        Raises:
            LogFailed: the file that tells them is damaged.
        """
        return read_fields(self._table.folder)

    def to_arrow(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        topic: str = "",
        fields: bool = False,
        on_damage: OnDamage | None = None,
    ) -> "pa.Table":
        """Return records up to, not with, `end` as a table of pyarrow.

        Args:
            start: The first offset; older ones than are kept are left out.
            end: The offset behind the last one; None is the end there is.
            topic: Only records whose topic begins so.
            fields: Whether the declared fields of payloads follow as columns; they are null
                in a record whose payload does not fit.
            on_damage: As for `read`.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged.
        """
        from callboard.commitlog.arrow import arrow_schema, load_pyarrow

        pieces = self.arrow_batches(start, end, topic=topic, on_damage=on_damage)
        pa, schema = load_pyarrow(), arrow_schema()
        if not fields:
            return pa.Table.from_batches(pieces, schema)
        from callboard.commitlog.fields.decoding import decode_fields

        declared = self.fields
        whole = pa.schema([*schema, *arrow_fields(declared)])
        rows = []
        for piece in pieces:
            found = decode_fields(piece["payload"], piece["is_bytes"], declared)
            rows.append(
                pa.RecordBatch.from_arrays([*piece.columns, *found.columns], schema=whole)
            )
        return pa.Table.from_batches(rows, whole)

    def arrow_batches(
        self,
        start: int | Cursor = 0,
        end: int | None = None,
        *,
        topic: str = "",
        rows: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> "Iterator[pa.RecordBatch]":
        """Iterate over records as Arrow's record batches, of at least `rows` but the last.

        The columns are those of `arrow_schema`. Several million records a second: batches
        of the log are put together, and no record is looked at.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged; what stands before comes first.
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
        """Do nothing: a reader holds nothing."""


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
    """Return a folder of the machine, of a disk that was given, of a server, node or store.

    Raises:
        ValueError: an address has another form.
        ExtraMissing: a store, and no package for it.
    """
    require_kind(isinstance(folder, str | Path), "a log is in a folder, a text or Path", folder)
    if disk is None and is_archive(folder):
        address = object_address(str(folder), storage_options)
        manifests = Manifests(FileSystemObjects(address))
        rest = None if tail is None else open_folder(tail, token=token, tls=tls, node=node)
        return Folder(ObjectDisk(manifests, rest), str(address))
    if tail is not None or storage_options is not None:
        kind = "an archive such as s3://…"
        what = f"tail and storage_options go with {kind}, not with {redacted(folder)}"
        raise InvalidOption(what)
    if disk is not None:
        return Folder(disk, "/" + str(folder).strip("/"))
    if isinstance(folder, str) and folder.startswith(BASP):
        # By a slot: nodes build on logs, and programs without actors read folders.
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
    """Return where the logs are at a place: each can be given to `LogReader`.

    Args:
        place: A directory, whose logs are those in it and below; `grpc://HOST:PORT` of what
            `callboard log serve` serves, or `basp://HOST:PORT` of a node with `serve_logs`,
            whose logs are those that may be read with this token; `s3://bucket` and whatever
            else fsspec opens.
        token: As for `LogReader`, and the others as well.
        tls: Folder with `authority.pem`.
        storage_options: Of an object store.

    Raises:
        LogFailed: there is no such directory, or nobody answers, or the answer is no.
        ExtraMissing: an address, and no pyarrow or no fsspec.
        InvalidOption: an address has another form.
    """
    text = str(place).rstrip("/")
    if is_archive(place):
        objects = FileSystemObjects(object_address(str(place), storage_options))
        return [f"{objects.url}/{each}".rstrip("/") for each in find_logs(objects)]
    if text.startswith(BASP):
        names = LOG_OPENERS.load("basp names")(text, token, tls)
        return [f"{text}/{each}" for each in names]
    if "://" in text:
        return [f"{text}/{each}" for each in names_at(text, token, tls)]
    folder = Path(place)
    if not folder.is_dir():
        what = f"{place} is no directory; give one that holds logs"
        raise LogFailed(what)
    found = {each.parent for each in folder.rglob("*.log") if each.stem.isdecimal()}
    return [str(each) for each in sorted(found)]


def is_archive(folder: str | Path) -> bool:
    """Return whether an address is that of an object store, and not of a server."""
    scheme, mark, _ = str(folder).partition("://")
    return isinstance(folder, str) and bool(mark) and scheme.lower() not in _SERVED
