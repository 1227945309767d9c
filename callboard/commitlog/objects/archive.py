"""Archives: sealed segments are copied to an object store, each once, while the log is written.

A copier stores its state only in the log's folder and the store, so it may be killed at any
time and start again: the segments of the newest manifest are copied, later ones are not. The
file `identity` in the folder identifies the log. The manifest contains the same identity, so
that a copier of another log is refused. `archive.json` reports the progress, for people.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import field
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

from callboard.backoff import Backoff, retrying
from callboard.commitlog.disk import DiskFile, RealDisk
from callboard.commitlog.errors import InvalidOption, LogError, LogFailed, LogLocked
from callboard.commitlog.folder import FileLock, Folder
from callboard.commitlog.identity.identity import give_identity
from callboard.commitlog.identity.position import LogIdentity
from callboard.commitlog.integrity import Scan
from callboard.commitlog.objects.manifest import (
    ORPHAN_SECONDS,
    ListedSegment,
    Manifest,
    Manifests,
)
from callboard.commitlog.objects.store import FileSystemObjects, Objects, object_address
from callboard.commitlog.retention import Retention
from callboard.commitlog.segment import STEP, LogSegmentTable
from callboard.commitlog.writer import Background
from callboard.figures import Figure, ProcessFigures, figures_of
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted

STATE: Final = "archive.json"
_LOCK_FILE: Final = "archive.lock"
_PIECE: Final = 8 << 20
#: Seconds between two sweeps.
_SWEEP_SECONDS: Final = 3600.0
#: Seconds between attempts after a failure: the first pause, and the longest.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
#: Seconds that `close` of a log waits for a copy in progress.
_END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a log: the address of its copies, and options.

    Attributes:
        url: Address for fsspec, such as `s3://bucket/cpu`; each log needs its own.
        retain: How long copies are kept, by the latest time of a segment; without limit by
            default.
        storage_options: Options of fsspec that are not in the environment.
        holds: Whether retention of the log waits until segments are copied.
    """

    url: str
    retain: Retention | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    holds: bool = True

    def objects(self) -> FileSystemObjects:
        """Return the object store.

        Raises:
            ExtraMissing: a package is not installed.
            InvalidOption: the address is malformed.
        """
        if "://" not in self.url:
            message = f"archive={redacted(self.url)!r} is not an address; use s3://bucket/cpu"
            raise InvalidOption(message)
        return FileSystemObjects(object_address(self.url, self.storage_options))


class ArchivePlace(NamedTuple):
    """The progress of the copies of a log at one address.

    Attributes:
        place: The address.
        end: The offset after the last copied record.
        time: Time of the last copy, in nanoseconds since 1970; 0 without a copy.
        trouble: The reason of a failure; empty without one.
    """

    place: str
    end: int
    time: int
    trouble: str = ""


def archives_of(folder: Folder) -> list[ArchivePlace]:
    """Return the progress of the copies of a log, as last reported, by address."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
        state = json.loads(folder.read(folder.file(STATE)))
        return [ArchivePlace(str(place), *row) for place, row in sorted(state.items())]
    return []


class Copier:
    """Copies the sealed segments of one log to one object store.

    Attributes:
        end: The offset after the last record that is known to be copied.
    """

    def __init__(
        self, folder: Folder, objects: Objects, retain: Retention | None = None
    ) -> None:
        """Make a copier; nothing is read yet.

        Args:
            folder: Folder of the log.
            objects: Store of the copies.
            retain: How long copies are kept, by the latest time of a segment.
        """
        self._folder = folder
        self._manifests = Manifests(objects)
        self._url = objects.url
        self._retain = retain or Retention()
        self._swept = -_SWEEP_SECONDS
        self._identity = LogIdentity()
        self._is_compared = False
        self.end = 0

    def copy(self) -> Iterator[ListedSegment]:
        """Copy the sealed segments that the store does not have; yield each after publication.

        Raises:
            LogFailed: the store or the disk reports an error; try again later.
            LogLocked: the address has another log.
        """
        with self._folder.reading():
            self._identity = give_identity(self._folder)
            manifest = self._manifests.newest(surely=True)
            if manifest is not None:
                self._check(manifest)
                self.end = manifest.end
            table = LogSegmentTable(self._folder)
            self._compare(table, manifest)
            if table.segments[0].base > self.end:
                text = "records %d to %d of %s were removed before they were copied"
                _log.error(text, self.end, table.segments[0].base - 1, self._folder.path)
            for base, end in pairwise(segment.base for segment in table.segments):
                if end > self.end and (row := self._copy(table, base, end)) is not None:
                    yield row
        self._report()
        self._sweep()

    def _copy(self, table: LogSegmentTable, base: int, end: int) -> ListedSegment | None:
        """Copy one segment, from the end of the copies on; None if it was already published."""
        started = time.time_ns()
        row = self._upload(table, base, end)

        def change(newest: Manifest | None) -> Manifest | None:
            if newest is None:
                newest = Manifest(0, self._identity.log, _origin(self._folder))
            self._check(newest)
            if newest.end >= end:  # published by another copier, or by a request that failed
                self.end = newest.end
                return None
            if newest.end > row.base or abs(time.time_ns() - started) > ORPHAN_SECONDS * 5e8:
                message = (
                    f"{redacted(self._url)} changed while records from {base} on were copied;"
                    " they are copied again"
                )
                raise LogFailed(message)
            segments, epochs = (*newest.segments, row), give_identity(self._folder).epochs
            grown = newest._replace(segments=segments, epochs=epochs)
            return grown.kept(self._retain, time.time_ns())

        published = self._manifests.change(change)
        self.end = max(self.end, end)
        self._report()
        return row if published is not None else None

    def _upload(self, table: LogSegmentTable, base: int, end: int) -> ListedSegment:
        """Write the objects of a segment; readers see them when a manifest lists them."""
        start, index = max(base, self.end), table.cover(table.holding(base))
        name = f"{start:020}-{os.urandom(16).hex()}"
        with closing(self._folder.disk.open(self._folder.segment(base))) as file:
            position, size, checksum = 0, file.size(), 0
            if start > base:  # a part of it was copied before segments were merged
                scan = Scan(file, *index.find(start))
                while (scan.offset or 0) < start and scan.next() is not None:
                    pass
                position = scan.position

            def pieces() -> Iterator[bytes]:
                nonlocal checksum
                for data in _pieces(file, position, size):
                    checksum = crc32(data, checksum)
                    yield data

            row = ListedSegment(start, end, size - position, index.latest, 0, name)
            self._manifests.objects.write(row.object, pieces())
        if start == base and size > STEP:
            encoded = index.encode()
            self._manifests.objects.write(row.index_object, [encoded])
            row = row._replace(index_bytes=len(encoded))
        return row._replace(crc=checksum)

    def _check(self, manifest: Manifest) -> None:
        """Check that the store has this log.

        Raises:
            LogLocked: the store has another log.
        """
        if manifest.log != self._identity.log:
            message = (
                f"{redacted(self._url)} has the log of {manifest.origin}, not that of"
                f" {_origin(self._folder)}; give each log its own address"
            )
            raise LogLocked(message)

    def _compare(self, table: LogSegmentTable, manifest: Manifest | None) -> None:
        """Check, once, that the store and the folder have the same records.

        Raises:
            LogLocked: the records differ: the folder is a copy of another log's, or an older
                state.
        """
        if self._is_compared or manifest is None or not manifest.segments:
            self._is_compared = True
            return
        last, epoch = manifest.segments[-1], manifest.identity.epoch_of(manifest.end - 1)
        is_same = epoch in (0, self._identity.epoch_of(last.end - 1))
        is_same &= table.cover(table.segments[-1]).end >= last.end
        if (last.base, last.end) in pairwise(segment.base for segment in table.segments):
            with closing(self._folder.disk.open(self._folder.segment(last.base))) as file:
                checksum = 0
                for data in _pieces(file, 0, file.size()):
                    checksum = crc32(data, checksum)
            is_same &= checksum == last.crc
        if not is_same:
            message = (
                f"{redacted(self._url)}"
                f" has other records up to {last.end} than {self._folder.path},"
                " which was copied or set back; use another address"
            )
            raise LogLocked(message)
        self._is_compared = True

    def _report(self, trouble: str = "") -> None:
        """Write the progress of the copies to `archive.json`; for people, so not durable."""
        state = {archive.place: archive[1:] for archive in archives_of(self._folder)}
        old = state.get(self._url)
        copied_at = old[1] if old and (old[0] == self.end or trouble) else time.time_ns()
        end = self.end or (old[0] if old else 0)
        state[self._url] = (end, copied_at if end else 0, trouble)
        if state[self._url] != old:
            data = json.dumps(state).encode()
            with suppress(OSError):
                self._folder.replace(
                    self._folder.file(STATE), data, unique=os.urandom(16).hex()
                )

    def report_failure(self, error: LogError) -> None:
        """Write the reason of a failed copy to `archive.json`."""
        self._report(str(error))

    def _sweep(self) -> None:
        """Remove the objects of copiers that have failed, at most once an hour."""
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept = time.monotonic()
        try:
            self._manifests.sweep()
        except LogError as error:
            _log.warning("orphaned objects of %s were not removed: %s", self._url, error)


def _pieces(file: DiskFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file between two positions."""
    for position in range(start, end, _PIECE):
        yield file.pread(min(_PIECE, end - position), position)


def lock_copying(folder: Folder) -> FileLock | None:
    """Acquire the lock of a log's copier; None for a log on a disk of a test.

    Raises:
        LogLocked: another copier holds it.
    """
    if not isinstance(folder.disk, RealDisk):
        return None
    label = f"the log {folder.path} is archived"
    return FileLock(folder.path, _LOCK_FILE, label, "end one of the two")


def _origin(folder: Folder) -> str:
    """Return host and folder of a log, for people."""
    return f"{socket.gethostname()}:{folder.path}"


_log = logging.getLogger("callboard.commitlog")


class Archiving(Background):
    """A thread that copies sealed segments at its start and after each `wake`.

    It repeats failed attempts without limit.

    Attributes:
        place: Address of the copies.
        failures: Number of failed attempts since its start.
    """

    def __init__(
        self,
        folder: Folder,
        objects: Objects,
        retain: Retention | None,
        on_copied: Callable[[], object],
    ) -> None:
        """Start the thread; it calls `on_copied` after each copied segment."""
        self._folder = folder
        self._copier = Copier(folder, objects, retain)
        self._lock: FileLock | None = None
        self.place = objects.url
        self.failures = 0
        self._on_copied = on_copied
        _OPEN.add(self)
        super().__init__("callboard-log-archive")
        self.wake()

    @property
    def log(self) -> str:
        """The path of the log."""
        return self._folder.path

    @property
    def end_of_copies(self) -> int:
        """The offset after the last record that is known to be copied."""
        return self._copier.end

    @property
    def lag(self) -> int:
        """The number of records of sealed segments that are not copied."""
        with suppress(OSError):
            return max(0, self._folder.bases()[-1] - self.end_of_copies)
        return 0

    def work(self) -> bool:
        """Copy missing segments; after failures, try again after growing pauses."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        for _ in retrying(backoff, stop=self._ended):
            try:
                self._lock = self._lock or lock_copying(self._folder)
                for _ in self._copier.copy():
                    backoff.reset()
                    self._on_copied()
                    if self._ended.is_set():
                        break
            except (LogError, OSError) as error:
                self.failures += 1
                _log.warning("the log could not be archived; trying again: %s", error)
                if self._lock is not None:
                    self._copier.report_failure(LogError(str(error)))
            else:
                return True
        return True

    def end(self) -> None:
        """End the thread. A request that hangs is abandoned; an unlisted object is harmless."""
        self._ended.set()
        self._wake.set()
        self._thread.join(_END_SECONDS)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        _OPEN.discard(self)


_FIGURES: Final[tuple[Figure[Archiving], ...]] = figures_of(
    "callboard_log_archive_",
    (
        ("end", "The offset after the last copied record.", "end_of_copies"),
        ("lag", "Records of sealed segments that are not copied yet.", "lag"),
        ("failures_total", "Failed attempts to copy.", "failures"),
    ),
)

#: The logs that this process archives.
_OPEN: Final[ProcessFigures[Archiving]] = ProcessFigures(
    _FIGURES,
    lambda archiving: ((("log", archiving.log), ("place", archiving.place)), archiving),
)
