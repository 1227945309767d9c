"""Copying sealed segments to an object store, each once, while the log is written.

A copier needs nothing but the log's folder and the store, so it may die at any moment and
begin anew: what the newest manifest lists is copied, what follows is not. The folder's file
`identity` says which log it is; the manifest names it as well, so a copier of another log is
refused. `archive.json` tells how far the copies are, for people.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple
from weakref import WeakSet
from zlib import crc32

from callboard import locks
from callboard.commitlog.disk import DiskFile, RealDisk
from callboard.commitlog.errors import InvalidOption, LogError, LogFailed, LogLocked
from callboard.commitlog.folder import FileLock, Folder
from callboard.commitlog.integrity import Scan
from callboard.commitlog.objects.manifest import ORPHANED, ListedSegment, Manifest, Manifests
from callboard.commitlog.objects.store import FileSystemObjects, Objects, object_address
from callboard.commitlog.retention import Retention
from callboard.commitlog.segment import STEP, LogSegmentTable
from callboard.commitlog.writer import Background
from callboard.figures import PROCESS_SOURCES, Figure, Metric, figures_of, metrics_of
from callboard.support.dataclass import dataclass
from callboard.support.redaction import redacted

IDENTITY: Final = "identity"
STATE: Final = "archive.json"
_LOCK_FILE: Final = "archive.lock"
_PIECE: Final = 8 << 20
#: Seconds between two sweeps, and between tries after trouble: the first, and the longest.
_SWEEP: Final = 3600.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
#: Seconds that the end of a log waits for a copy that is being made.
_PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the sealed segments of a log are copied to; an address alone serves as well.

    Attributes:
        url: What fsspec opens, such as `s3://bucket/cpu`; a log has it for itself.
        retain: How long copies are kept, by the latest time of a segment; for ever by default.
        storage_options: What fsspec needs to get there, where the environment does not say.
        holds: Whether retention of the log itself waits for what is not copied yet.
    """

    url: str
    retain: Retention | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    holds: bool = True

    def objects(self) -> FileSystemObjects:
        """Return the place.

        Raises:
            ExtraMissing: a package is not installed.
            InvalidOption: the address means nothing.
        """
        if "://" not in self.url:
            what = f"archive={redacted(self.url)!r}: give an address, such as s3://bucket/cpu"
            raise InvalidOption(what)
        return FileSystemObjects(object_address(self.url, self.storage_options))


class ArchivePlace(NamedTuple):
    """How far the copies of a log are at one place.

    Attributes:
        place: The address.
        end: The offset behind the last record that is copied.
        time: When that was copied, nanoseconds since 1970; 0 if nothing is.
        trouble: Why nothing more is copied; empty if all is well.
    """

    place: str
    end: int
    time: int
    trouble: str = ""


def archives_of(folder: Folder) -> list[ArchivePlace]:
    """Return how far the copies of a log are, by place; also what is left of a dead copier."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError, OSError):
        told = json.loads(folder.read(folder.file(STATE)))
        return [ArchivePlace(str(place), *row) for place, row in sorted(told.items())]
    return []


class Copier:
    """Copies the sealed segments of one log to one place.

    Attributes:
        end: The offset behind the last record that is there, as far as this knows.
    """

    def __init__(
        self, folder: Folder, objects: Objects, retain: Retention | None = None
    ) -> None:
        """Name a folder and a place; nothing is read yet.

        Args:
            folder: Where the log is written.
            objects: Where it is copied to.
            retain: How long copies are kept, by the latest time of a segment.
        """
        self._folder = folder
        self._manifests = Manifests(objects)
        self._url = objects.url
        self._retain = retain or Retention()
        self._swept = -_SWEEP
        self._identity = ""
        self._is_compared = False
        self.end = 0

    def copy(self) -> Iterator[ListedSegment]:
        """Copy what is sealed and not there yet; yields each segment when it is published.

        Raises:
            LogFailed: the store or the disk refuses; go on later.
            LogLocked: the place has another log.
        """
        with self._folder.reading():
            self._identity = self._identity or _identity(self._folder)
            manifest = self._manifests.newest(surely=True)
            if manifest is not None:
                self._check(manifest)
                self.end = manifest.end
            table = LogSegmentTable(self._folder)
            self._compare(table, manifest)
            if table.segments[0].base > self.end:
                what = "records %d to %d of %s were removed before they were copied"
                _log.error(what, self.end, table.segments[0].base - 1, self._folder.path)
            for base, behind in pairwise(each.base for each in table.segments):
                if behind > self.end and (made := self._copy(table, base, behind)) is not None:
                    yield made
        self._tell()
        self._sweep()

    def _copy(self, table: LogSegmentTable, base: int, behind: int) -> ListedSegment | None:
        """Copy one segment, from where the copies end; None if it was published meanwhile."""
        began = time.time_ns()
        made = self._upload(table, base, behind)

        def change(newest: Manifest | None) -> Manifest | None:
            if newest is None:
                newest = Manifest(0, self._identity, _origin(self._folder))
            self._check(newest)
            if newest.end >= behind:  # another copier was quicker, or this one unheard
                self.end = newest.end
                return None
            if newest.end > made.base or abs(time.time_ns() - began) > ORPHANED * 5e8:
                what = (
                    f"{redacted(self._url)}"
                    f" went on while records from {base} were copied; begin anew"
                )
                raise LogFailed(what)
            grown = newest._replace(segments=(*newest.segments, made))
            return grown.kept(self._retain, time.time_ns())

        published = self._manifests.change(change)
        self.end = max(self.end, behind)
        self._tell()
        return made if published is not None else None

    def _upload(self, table: LogSegmentTable, base: int, behind: int) -> ListedSegment:
        """Write the objects of a segment, which nobody sees before they are listed."""
        start, index = max(base, self.end), table.cover(table.holding(base))
        name = f"{start:020}-{os.urandom(16).hex()}"
        with closing(self._folder.disk.open(self._folder.segment(base))) as file:
            position, size, checksum = 0, file.size(), 0
            if start > base:  # it was put together with what was copied before
                scan = Scan(file, *index.find(start))
                while (scan.offset or 0) < start and scan.next() is not None:
                    pass
                position = scan.position

            def pieces() -> Iterator[bytes]:
                nonlocal checksum
                for data in _pieces(file, position, size):
                    checksum = crc32(data, checksum)
                    yield data

            made = ListedSegment(start, behind, size - position, index.latest, 0, name)
            self._manifests.objects.write(made.object, pieces())
        if start == base and size > STEP:
            encoded = index.encode()
            self._manifests.objects.write(made.index_object, [encoded])
            made = made._replace(index_bytes=len(encoded))
        return made._replace(crc=checksum)

    def _check(self, manifest: Manifest) -> None:
        """Refuse a place that has another log.

        Raises:
            LogLocked: so it is.
        """
        if manifest.log != self._identity:
            what = (
                f"{redacted(self._url)} has the log of {manifest.origin}, not that of"
                f" {_origin(self._folder)}; give each log a place of its own"
            )
            raise LogLocked(what)

    def _compare(self, table: LogSegmentTable, manifest: Manifest | None) -> None:
        """Refuse a place that has other records than the folder, once for each copier.

        Raises:
            LogLocked: the folder is a copy of one that went on elsewhere, or was set back.
        """
        if self._is_compared or manifest is None or not manifest.segments:
            self._is_compared = True
            return
        last = manifest.segments[-1]
        is_same = table.cover(table.segments[-1]).end >= last.end
        if (last.base, last.end) in pairwise(each.base for each in table.segments):
            with closing(self._folder.disk.open(self._folder.segment(last.base))) as file:
                checksum = 0
                for data in _pieces(file, 0, file.size()):
                    checksum = crc32(data, checksum)
            is_same = checksum == last.crc
        if not is_same:
            what = (
                f"{redacted(self._url)}"
                f" has other records up to {last.end} than {self._folder.path},"
                " which was copied or set back; give another place"
            )
            raise LogLocked(what)
        self._is_compared = True

    def _tell(self, trouble: str = "") -> None:
        """Write down how far the copies are; for people, so not durable."""
        told = {each.place: each[1:] for each in archives_of(self._folder)}
        before = told.get(self._url)
        when = before[1] if before and (before[0] == self.end or trouble) else time.time_ns()
        end = self.end or (before[0] if before else 0)
        told[self._url] = (end, when if end else 0, trouble)
        if told[self._url] != before:
            data = json.dumps(told).encode()
            with suppress(OSError):
                self._folder.replace(
                    self._folder.file(STATE), data, unique=os.urandom(16).hex()
                )

    def tell_trouble(self, error: LogError) -> None:
        """Write down why nothing more is copied."""
        self._tell(str(error))

    def _sweep(self) -> None:
        """Remove what copiers left that died, now and then."""
        if time.monotonic() - self._swept < _SWEEP:
            return
        self._swept = time.monotonic()
        try:
            self._manifests.sweep()
        except LogError as error:
            _log.warning("%s is not swept: %s", self._url, error)


def _pieces(file: DiskFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file between two places."""
    for at in range(start, end, _PIECE):
        yield file.pread(min(_PIECE, end - at), at)


def lock_copying(folder: Folder) -> FileLock | None:
    """Take the lock of who copies a log; None for a log on a disk of a test.

    Raises:
        LogLocked: somebody else copies it.
    """
    if not isinstance(folder.disk, RealDisk):
        return None
    what = f"the log {folder.path} is archived"
    return FileLock(folder.path, _LOCK_FILE, what, "end one of the two")


def _identity(folder: Folder) -> str:
    """Return what tells a log from all others, made when it is first asked for."""
    path = folder.file(IDENTITY)
    found = folder.read(path).decode(errors="replace").strip()
    if not found:
        found = os.urandom(16).hex()
        folder.replace(path, f"{found}\n".encode())
    return found


def _origin(folder: Folder) -> str:
    """Return where a log is written, for people."""
    return f"{socket.gethostname()}:{folder.path}"


_log = logging.getLogger("callboard.commitlog")


class Archiving(Background):
    """Copies what is sealed when it begins and after each `wake`, and tries again for ever.

    Attributes:
        place: Where the copies are.
        failures: Tries that have failed since it began.
    """

    def __init__(
        self,
        folder: Folder,
        objects: Objects,
        retain: Retention | None,
        on_copied: Callable[[], object],
    ) -> None:
        """Start the thread; it calls `on_copied` when more is copied."""
        self._folder = folder
        self._copier = Copier(folder, objects, retain)
        self._lock: FileLock | None = None
        self.place = objects.url
        self.failures = 0
        self._on_copied = on_copied
        with _LOCK:
            if _metrics not in PROCESS_SOURCES:
                PROCESS_SOURCES.append(_metrics)
            _OPEN.add(self)
        super().__init__("callboard-log-archive")
        self.wake()

    @property
    def log(self) -> str:
        """The path of the log."""
        return self._folder.path

    @property
    def end_of_copies(self) -> int:
        """The offset behind the last record that is surely copied."""
        return self._copier.end

    @property
    def lag(self) -> int:
        """Records of sealed segments that are not copied."""
        with suppress(OSError):
            return max(0, self._folder.bases()[-1] - self.end_of_copies)
        return 0

    def work(self) -> bool:
        """Copy what is missing, with longer and longer pauses while that fails."""
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                self._lock = self._lock or lock_copying(self._folder)
                for _ in self._copier.copy():
                    pause = _FIRST_PAUSE
                    self._on_copied()
                    if self._ended.is_set():
                        break
            except (LogError, OSError) as error:
                self.failures += 1
                _log.warning("the log is not archived, and tried again: %s", error)
                if self._lock is not None:
                    self._copier.tell_trouble(LogError(str(error)))
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return True
        return True

    def end(self) -> None:
        """End the thread; a request that hangs is left alone, and does no harm."""
        self._ended.set()
        self._wanted.set()
        self._thread.join(_PATIENCE)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        with _LOCK:
            _OPEN.discard(self)


_OPEN: Final[WeakSet[Archiving]] = WeakSet()
_LOCK: Final = locks.lock("open archives", 600)

_FIGURES: Final[tuple[Figure[Archiving], ...]] = figures_of(
    "callboard_log_archive_",
    (
        ("end", "The offset behind the last record that is copied.", "end_of_copies"),
        ("lag", "Records of sealed segments that are not copied yet.", "lag"),
        ("failures_total", "Tries to copy that have failed.", "failures"),
    ),
)


def _metrics() -> list[Metric]:
    """Return the figures of the logs that this process archives."""
    with _LOCK:
        open_ones = sorted(_OPEN, key=lambda each: (each.log, each.place))
    told = [
        metrics_of(_FIGURES, each, (("log", each.log), ("place", each.place)))
        for each in open_ones
    ]
    return [
        replace(same[0], samples=[sample for each in same for sample in each.samples])
        for same in zip(*told, strict=True)
    ]
