"""Publishing micro-batches in the log of a folder, atomically and once.

Tasks write record batches into their own staged files. To publish, the others are appended to
one of these files, its batches get the next offsets, and it is renamed to be the next segment
of the log. This one rename makes the batch visible. Afterwards small segments are merged, and
old ones are removed; see `segments`.

Notes beside the segments record which batches of which queries are published. A note is written
before its segment, and is valid only together with it:

    {"header": its first 48 bytes, "bytes": its size, "end": the offset after it,
     "published": {query: last batch, …}}

So a note may be left over from a failed attempt. Once the segment exists, its note is renamed,
and is then valid without it: another writer of the log may remove old segments, and a batch
that Spark repeats would otherwise be published twice. Each note covers all queries, so the
newest one is sufficient.
"""

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from callboard.backoff import Backoff, retried
from callboard.commitlog import LogLocked, LogReader, Retention
from callboard.commitlog.batch import HEADER_SIZE, decode_header, encode_header
from callboard.commitlog.disk import open_plain
from callboard.commitlog.folder import PUBLISHED, FileLock, Folder, lock_writing
from callboard.commitlog.identity.identity import begin_epoch, give_identity, read_identity
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
from callboard.support.files.private_file import make_folder, open_private

PUBLISHING: Final = ".publishing"


class CommitRecord(NamedTuple):
    """The note of a segment.

    Attributes:
        header: First bytes of the segment, as hexadecimal digits.
        bytes: Its size.
        end: The offset after its last record.
        published: The last batch of each query, up to and including this segment.
    """

    header: str
    bytes: int
    end: int
    published: dict[str, int]


class CommitRecords(NamedTuple):
    """The notes of a log."""

    folder: Folder
    is_durable: bool

    def newest(self) -> CommitRecord | None:
        """Return the newest valid note."""
        for base in sorted(self.bases(), reverse=True):
            note = self.of(base)
            if note is not None:
                return note
        return None

    def of(self, base: int) -> CommitRecord | None:
        """Return the note of a segment, if it is valid."""
        for kind in (PUBLISHED, PUBLISHING):
            try:
                fields = json.loads(self.folder.read(self.folder.segment(base, kind)))
                note = CommitRecord(**fields)
            except (TypeError, ValueError):  # it is missing or truncated
                continue
            header = self._header(base)
            if header == note.header or (header is None and kind == PUBLISHED):
                return note
        return None

    def write(self, base: int, note: CommitRecord) -> None:
        """Write the note of a segment that will be published."""
        data, path = json.dumps(note._asdict()).encode(), self.folder.segment(base, PUBLISHING)
        self.folder.write(path, data, durably=self.is_durable)
        if self.is_durable:
            self.folder.sync()

    def confirm(self, base: int) -> None:
        """Rename the note of a segment that was published."""
        segment_file(self.folder, base, PUBLISHING).rename(
            segment_file(self.folder, base, PUBLISHED)
        )

    def forget(self, bases: Iterable[int]) -> None:
        """Remove old notes, which the newest one covers."""
        for base in bases:
            for kind in (PUBLISHED, PUBLISHING):
                self.folder.remove(self.folder.segment(base, kind))

    def bases(self) -> set[int]:
        """Return the segments with a note, valid or not."""
        try:
            return {*self.folder.bases(PUBLISHED), *self.folder.bases(PUBLISHING)}
        except FileNotFoundError:  # nothing is published yet
            return set()

    def _header(self, base: int) -> str | None:
        """Return the first bytes of a segment; None if it is missing."""
        try:
            with open(segment_file(self.folder, base), "rb", opener=open_plain) as segment:
                return segment.read(HEADER_SIZE).hex()
        except FileNotFoundError:
            return None


_log = logging.getLogger("callboard.pipeline")

STAGED: Final = "staged"
#: File with the last run of each query, so that a new run gets a new epoch.
RUNS: Final = "runs"
_COPY: Final = 1 << 20
#: Seconds to wait for another query that publishes in this log.
_PATIENCE: Final = 60.0

_PAUSE: Final = 0.01
#: Age in seconds after which the task of a staged file counts as dead.
_ORPHANED: Final = 24 * 3600.0

#: Queries in a note: the last ones that published.
QUERIES: Final = 1000


class StagedSegment(NamedTuple):
    """Rows of a task, staged but not published."""

    name: str
    records: int


class FolderJournal:
    """A log in a folder in which queries publish each batch once."""

    def __init__(
        self, path: str, *, is_durable: bool = True, retain: Retention | None = None
    ) -> None:
        """Open the directory of a log, which need not exist.

        Args:
            path: The directory.
            is_durable: Whether published rows survive a crash of the machine.
            retain: How long results are kept, by their publication time; the newest batch is
                always kept.
        """
        self._path = Path(path)
        self._folder = open_folder(path, None)
        self._is_durable = is_durable
        self._retain = retain or Retention()
        self._notes = CommitRecords(self._folder, is_durable=is_durable)

    def stage(self, batches: Iterable[tuple[bytes, int]]) -> StagedSegment:
        """Write encoded batches, with their numbers of records, invisibly for readers.

        `publish` makes them durable.

        Raises:
            PublishFailed: the disk fails; nothing remains of them.
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
            msg = f"results cannot be staged in {folder}: {error}; free space and start again"
            raise PublishFailed(msg) from error
        return StagedSegment(name, records)

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged files; published rows stay."""
        for staged_rows in staged:
            (self._path / STAGED / staged_rows.name).unlink(missing_ok=True)

    def publish(
        self, query: str, batch: int, staged: Sequence[StagedSegment], run: str = ""
    ) -> bool:
        """Publish staged rows; return False if the batch is published already.

        Args:
            query: Id of the query, which stays the same after a restart.
            batch: Number of its batch, greater than all earlier ones.
            staged: Rows of its tasks, in the order in which to publish them.
            run: Id of the run of the query, which differs after a restart: the log gets a new
                epoch with the first batch of each run.

        Raises:
            PublishFailed: the disk fails, or other queries hold the log; nothing is visible.
        """
        nonempty = [staged_rows for staged_rows in staged if staged_rows.records]
        make_folder(self._path)
        lock = self._locked()
        try:
            published = self.published()
            is_fresh = published.get(query, -1) < batch
            if is_fresh and nonempty:
                self._begin_epoch(query, run)
                self._publish({**published, query: batch}, query, nonempty)
        except OSError as error:
            if isinstance(error, PublishFailed):
                raise
            msg = f"batch {batch} of query {query} cannot be published in {self._path}: {error}"
            raise PublishFailed(msg) from error
        finally:
            lock.release()
        self.discard(staged)
        self._sweep()
        return is_fresh

    def published(self) -> dict[str, int]:
        """Return the last published batch of each query."""
        note = self._notes.newest()
        return {} if note is None else note.published

    def _publish(
        self, published: dict[str, int], query: str, staged: list[StagedSegment]
    ) -> None:
        """Join staged files, assign offsets, and rename the file to the next segment."""
        bases, end = self._folder.bases(), self._end()
        first = self._path / STAGED / staged[0].name
        self._join(
            first, [self._path / STAGED / staged_rows.name for staged_rows in staged[1:]]
        )
        published[query] = published.pop(query)  # the newest is last
        note = self._move(first, end, dict(list(published.items())[-QUERIES:]))
        self._notes.write(end, note)
        first.rename(segment_file(self._folder, end))
        if self._is_durable:
            self._folder.sync()
            if not bases:
                self._folder.sync_above()
        self._notes.confirm(end)
        self._notes.forget(self._notes.bases() - {end})  # only the newest one is needed
        self._clear_up(note.end, len(bases))

    def _begin_epoch(self, query: str, run: str) -> None:
        """Start a new epoch of the log with the first batch of a run."""
        path = self._folder.file(RUNS)
        try:
            runs = dict(json.loads(self._folder.read(path)))
        except (ValueError, TypeError, RecursionError):  # there are none yet
            runs = {}
        is_new = not read_identity(self._folder).log and not self._folder.bases()
        give_identity(self._folder)
        if runs.get(query) == run:
            return
        if not is_new:
            begin_epoch(self._folder, self._end())
        runs.pop(query, None)
        newest = dict([*runs.items(), (query, run)][-QUERIES:])
        self._folder.replace(path, json.dumps(newest).encode())

    def _clear_up(self, end: int, segments: int) -> None:
        """Remove old segments and merge small ones; errors are logged only."""
        try:
            if not self._retain.is_unlimited:
                self._trim(end)
            if segments > MANY:
                limits = SegmentLimits.fitting(self._retain, None)
                merged = self._path / STAGED / uuid.uuid4().hex
                merge_small(self._folder, merged, limits, is_durable=self._is_durable)
        except OSError as error:
            _log.warning("cannot remove or merge segments of %s: %s", self._path, error)

    def _trim(self, end: int) -> None:
        """Remove expired segments."""
        bases = self._folder.bases()
        borders = pairwise([*bases, end])
        segments = [describe_segment(self._folder, base, stop) for base, stop in borders]
        for base in bases[: self._retain.count_expired(segments, time.time_ns())]:
            forget_copies(self._folder, base)
            segment_file(self._folder, base).unlink()

    def _join(self, first: Path, segments: list[Path]) -> None:
        """Append staged files to the first of them."""
        with open(first, "ab", opener=open_private) as target:
            for other in segments:
                with other.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY)

    def _move(self, path: Path, base: int, published: dict[str, int]) -> CommitRecord:
        """Assign the offsets from `base` on to the batches of a file."""
        first = ""
        with path.open("r+b") as target:
            while head := target.read(HEADER_SIZE):
                header = decode_header(head)
                if header is None:
                    msg = f"{path} is damaged at byte {target.tell() - len(head)}"
                    raise PublishFailed(msg)
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
        return CommitRecord(first, size, base, published)

    def _end(self) -> int:
        """Return the next offset."""
        bases = self._folder.bases()
        if not bases:
            return 0
        note, path = self._notes.of(bases[-1]), segment_file(self._folder, bases[-1])
        if note is not None and note.bytes == path.stat().st_size:
            return note.end
        return LogReader(self._path).end

    def _locked(self) -> FileLock:
        """Take the writer's lock; wait while other queries publish."""
        lock = partial(lock_writing, str(self._path))
        try:
            return retried(lock, LogLocked, Backoff.fixed(_PAUSE), _PATIENCE)
        except LogLocked as error:
            msg = f"{error}; waited for {_PATIENCE:g} s"
            raise PublishFailed(msg) from None

    def _sweep(self) -> None:
        """Remove staged files of dead tasks."""
        oldest = time.time_ns() - int(_ORPHANED * 1e9)
        for path in (self._path / STAGED).glob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns < oldest:
                    path.unlink()
