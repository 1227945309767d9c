"""Publishing the results of a micro-batch in a log: all at once, and once.

Tasks write record batches into staged files of their own. To publish, one of these files gets
the others appended and its batches the offsets that come next, and is renamed to be the next
segment of the log. That one rename is the moment at which all of it is there. Small segments
are put together, and old ones go, after that; see `segments`.

Notes beside the segments say which batches of which queries were published. A note is written
before the segment that it tells of, and counts only together with that:

    {"header": its first 48 bytes, "bytes": its size, "end": the offset behind it,
     "published": {query: last batch, …}}

So it may be left over from an attempt that failed. When the segment is there the note gets
another name, and then counts without it too: another writer of the log may remove old
segments, and a batch that came back would otherwise be published twice. Each note tells of all
queries, so the newest one is enough.
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog import LogLocked, LogReader, Retention
from callboard.commitlog.batch import HEADER_SIZE, decode_header, encode_header
from callboard.commitlog.disk import open_plain
from callboard.commitlog.folder import PUBLISHED, FileLock, Folder, lock_writing
from callboard.commitlog.reader import open_folder
from callboard.commitlog.retention import SegmentLimits
from callboard.pipeline.errors import PublishFailed
from callboard.pipeline.spark.segments import (
    MANY,
    describe_segment,
    forget_copies,
    merge_small,
    segment_file,
)
from callboard.support.private_file import make_folder, open_private

PUBLISHING: Final = ".publishing"


class Note(NamedTuple):
    """What is told of a segment.

    Attributes:
        header: Its first bytes, as hexadecimal digits.
        bytes: Its size.
        end: The offset behind its last record.
        published: The last batch of each query, up to and with this segment.
    """

    header: str
    bytes: int
    end: int
    published: dict[str, int]


class Notes(NamedTuple):
    """The notes of a log."""

    folder: Folder
    is_durable: bool

    def newest(self) -> Note | None:
        """Return the newest note that counts."""
        for base in sorted(self.bases(), reverse=True):
            note = self.of(base)
            if note is not None:
                return note
        return None

    def of(self, base: int) -> Note | None:
        """Return the note of a segment, if it counts."""
        for kind in (PUBLISHED, PUBLISHING):
            try:
                told = json.loads(self.folder.read(self.folder.segment(base, kind)))
                note = Note(**told)
            except (TypeError, ValueError):  # there is none, or half of one
                continue
            header = self._header(base)
            if header == note.header or (header is None and kind == PUBLISHED):
                return note
        return None

    def write(self, base: int, note: Note) -> None:
        """Write the note of a segment that is about to be published."""
        data, path = json.dumps(note._asdict()).encode(), self.folder.segment(base, PUBLISHING)
        self.folder.write(path, data, durably=self.is_durable)
        if self.is_durable:
            self.folder.sync()

    def confirm(self, base: int) -> None:
        """Say that the segment is there, as durably as was promised."""
        segment_file(self.folder, base, PUBLISHING).rename(
            segment_file(self.folder, base, PUBLISHED)
        )

    def forget(self, bases: Iterable[int]) -> None:
        """Remove notes; a newer one tells the same."""
        for base in bases:
            for kind in (PUBLISHED, PUBLISHING):
                self.folder.remove(self.folder.segment(base, kind))

    def bases(self) -> set[int]:
        """Return the segments that have a note, whether it counts or not."""
        try:
            return {*self.folder.bases(PUBLISHED), *self.folder.bases(PUBLISHING)}
        except FileNotFoundError:  # nothing was published so far
            return set()

    def _header(self, base: int) -> str | None:
        """Return the first bytes of a segment; None if it is not there."""
        try:
            with open(segment_file(self.folder, base), "rb", opener=open_plain) as segment:
                return segment.read(HEADER_SIZE).hex()
        except FileNotFoundError:
            return None


_log = logging.getLogger("callboard.pipeline")

STAGED: Final = "staged"
_COPY: Final = 1 << 20
#: Seconds to wait for another query that publishes in the same log.
_PATIENCE: Final = 60.0

_PAUSE: Final = 0.01
#: Seconds after which a staged file is of no task any more.
_ORPHANED: Final = 24 * 3600.0

#: Queries that are told of; the ones that published last.
QUERIES: Final = 1000


class Staged(NamedTuple):
    """What one task has written, not yet to be seen."""

    name: str
    records: int


class FolderJournal:
    """A log into which queries publish, each batch once."""

    def __init__(
        self, path: str, *, is_durable: bool = True, retain: Retention | None = None
    ) -> None:
        """Name the directory of the log, which need not exist.

        Args:
            path: The directory.
            is_durable: Whether what was published outlives a crash of the machine.
            retain: How long results are kept, by the time when they were published; the
                newest batch always is.
        """
        self._path = Path(path)
        self._folder = open_folder(path, None)
        self._is_durable = is_durable
        self._retain = retain or Retention()
        self._notes = Notes(self._folder, is_durable=is_durable)

    def stage(self, batches: Iterable[tuple[bytes, int]]) -> Staged:
        """Write encoded batches, each with how many records it has, where nobody reads them.

        They are made durable by who publishes them.

        Raises:
            PublishFailed: the disk refuses; nothing is left of them.
        """
        folder = self._path / STAGED
        name, records = uuid.uuid4().hex, 0
        try:
            make_folder(folder)
            with open(folder / name, "xb", opener=open_private) as file:
                for data, count in batches:
                    file.write(data)
                    records += count
        except OSError as error:
            (folder / name).unlink(missing_ok=True)
            what = f"results cannot be staged in {folder}: {error}; make room and start again"
            raise PublishFailed(what) from error
        return Staged(name, records)

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove what tasks have written; what was published stays."""
        for each in staged:
            (self._path / STAGED / each.name).unlink(missing_ok=True)

    def publish(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Publish what tasks have written; returns False if this batch was published before.

        Args:
            query: Which query it is, the same after a new start.
            batch: The number of its batch; each is greater than those before.
            staged: What its tasks have written, in the order in which it is to stand.

        Raises:
            PublishFailed: the disk refuses, or others hold the log; nothing is to be seen.
        """
        full = [each for each in staged if each.records]
        make_folder(self._path)
        lock = self._locked()
        try:
            published = self.published()
            is_fresh = published.get(query, -1) < batch
            if is_fresh and full:
                self._publish({**published, query: batch}, query, full)
        except OSError as error:
            if isinstance(error, PublishFailed):
                raise
            what = (
                f"batch {batch} of query {query} cannot be published in {self._path}: {error}"
            )
            raise PublishFailed(what) from error
        finally:
            lock.release()
        self.discard(staged)
        self._sweep()
        return is_fresh

    def published(self) -> dict[str, int]:
        """Return the last batch of each query that was published."""
        note = self._notes.newest()
        return {} if note is None else note.published

    def _publish(self, published: dict[str, int], query: str, staged: list[Staged]) -> None:
        """Join staged files, give them offsets, and rename them to be the next segment."""
        bases, end = self._folder.bases(), self._end()
        first = self._path / STAGED / staged[0].name
        self._join(first, [self._path / STAGED / each.name for each in staged[1:]])
        published[query] = published.pop(query)  # the newest stands last
        note = self._move(first, end, dict(list(published.items())[-QUERIES:]))
        self._notes.write(end, note)
        first.rename(segment_file(self._folder, end))
        if self._is_durable:
            self._folder.sync()
            if not bases:
                self._folder.sync_above()
        self._notes.confirm(end)
        self._notes.forget(self._notes.bases() - {end})  # only the newest one is asked
        self._clear_up(note.end, len(bases))

    def _clear_up(self, end: int, segments: int) -> None:
        """Remove what is too old, and put small segments together; can be done later."""
        try:
            if not self._retain.is_unlimited:
                self._trim(end)
            if segments > MANY:
                limits = SegmentLimits.fitting(self._retain, None)
                merged = self._path / STAGED / uuid.uuid4().hex
                merge_small(self._folder, merged, limits, is_durable=self._is_durable)
        except OSError as error:
            _log.warning("segments of %s are not put in order: %s", self._path, error)

    def _trim(self, end: int) -> None:
        """Remove the segments that retention ends."""
        bases = self._folder.bases()
        borders = pairwise([*bases, end])
        segments = [describe_segment(self._folder, base, behind) for base, behind in borders]
        for base in bases[: self._retain.count_expired(segments, time.time_ns())]:
            forget_copies(self._folder, base)
            segment_file(self._folder, base).unlink()

    def _join(self, first: Path, others: list[Path]) -> None:
        """Append staged files to the first of them."""
        with open(first, "ab", opener=open_private) as target:
            for other in others:
                with other.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY)

    def _move(self, path: Path, base: int, published: dict[str, int]) -> Note:
        """Give the batches of a file the offsets from `base` on."""
        first = ""
        with path.open("r+b") as target:
            while head := target.read(HEADER_SIZE):
                header = decode_header(head)
                if header is None:
                    what = f"{path} is damaged at byte {target.tell() - len(head)}"
                    raise PublishFailed(what)
                moved = encode_header(header._replace(base=base))
                first = first or moved.hex()
                target.seek(-HEADER_SIZE, os.SEEK_CUR)
                target.write(moved)
                target.seek(header.length, os.SEEK_CUR)
                base += header.records
            size = target.tell()
            target.flush()
            if self._is_durable:
                os.fsync(target.fileno())
        return Note(first, size, base, published)

    def _end(self) -> int:
        """Return the offset that comes next."""
        bases = self._folder.bases()
        if not bases:
            return 0
        note, path = self._notes.of(bases[-1]), segment_file(self._folder, bases[-1])
        if note is not None and note.bytes == path.stat().st_size:
            return note.end
        return LogReader(self._path).end

    def _locked(self) -> FileLock:
        """Take the writer's lock, waiting for other queries that publish."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return lock_writing(str(self._path))
            except LogLocked as error:
                if time.monotonic() > deadline:
                    what = f"{error}; waited for {_PATIENCE:g} s"
                    raise PublishFailed(what) from None
                time.sleep(_PAUSE)

    def _sweep(self) -> None:
        """Remove what tasks left that died before they could tell of it."""
        oldest = time.time_ns() - int(_ORPHANED * 1e9)
        for path in (self._path / STAGED).glob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns < oldest:
                    path.unlink()
