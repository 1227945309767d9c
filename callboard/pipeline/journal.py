"""Publishing the results of a micro-batch in a log: all at once, and once.

Tasks write record batches into staged files of their own. To publish, one of these files gets
the others appended and its batches the offsets that come next, and is renamed to be the next
segment of the log. That one rename is the moment at which all of it is there.

What was published is told by a small file beside the newest segment, written before it:

    {"header": its first 48 bytes, "bytes": its size, "end": the offset behind it,
     "published": {query: last batch, …}}

It counts only together with a segment that begins with that header, so it may be left over
from an attempt that failed. Each tells of all queries, so the newest one is enough. A program
that appends to the log itself makes another size; then the end is looked up.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog import LogLocked, LogReader
from callboard.commitlog.batch import HEADER_SIZE, decode_header, encode_header
from callboard.commitlog.folder import SEGMENT, TEMPORARY
from callboard.commitlog.lock import WriterLock
from callboard.pipeline.errors import PublishFailed
from callboard.pipeline.merging import MANY, merge_small

STAGED: Final = "staged"
PUBLISHED: Final = ".published"
_DIGITS: Final = 20
_COPY: Final = 1 << 20
_PATIENCE: Final = 60.0
"""Seconds to wait for another query that publishes in the same log."""

_PAUSE: Final = 0.01
_ORPHANED: Final = 24 * 3600.0
"""Seconds after which a staged file is of no task any more."""

_QUERIES: Final = 1000
"""Queries that are told of; the ones that published last."""


class Staged(NamedTuple):
    """What one task has written, not yet to be seen."""

    name: str
    records: int


class _Note(NamedTuple):
    """What stands beside a segment that was published."""

    header: str
    bytes: int
    end: int
    published: dict[str, int]


class Journal:
    """A log into which queries publish, each batch once."""

    def __init__(self, path: str, *, is_durable: bool = True) -> None:
        """Name the directory of the log, which need not exist.

        Args:
            path: The directory.
            is_durable: Whether what was published outlives a crash of the machine.
        """
        self._path = Path(path)
        self._is_durable = is_durable

    def stage(self, batches: Iterable[tuple[bytes, int]]) -> Staged:
        """Write encoded batches, each with how many records it has, where nobody reads them."""
        folder = self._path / STAGED
        folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        records = 0
        with (folder / name).open("wb") as file:
            for data, count in batches:
                file.write(data)
                records += count
            self._sync(file.fileno(), file.flush)
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
        self._path.mkdir(parents=True, exist_ok=True)
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
        for base in reversed(self._bases()):
            note = self._note(base)
            if note is not None:
                return note.published
        return {}

    def _publish(self, published: dict[str, int], query: str, staged: list[Staged]) -> None:
        bases, end = self._bases(), self._end()
        first = self._path / STAGED / staged[0].name
        self._join(first, [self._path / STAGED / each.name for each in staged[1:]])
        published[query] = published.pop(query)  # the newest stands last
        note = self._move(first, end, dict(list(published.items())[-_QUERIES:]))
        self._write(self._file(end, PUBLISHED), json.dumps(note._asdict()).encode())
        first.rename(self._file(end, SEGMENT))
        self._sync_folder()
        if not bases and self._is_durable:
            for parent in self._path.absolute().parents:
                with suppress(PermissionError):  # then it was not made for this log
                    sync_folder(parent)
        for base in bases:  # only the newest one is asked
            if base != end:
                self._file(base, PUBLISHED).unlink(missing_ok=True)
        if len(bases) > MANY:
            merge_small(
                self._path, self._path / STAGED / uuid.uuid4().hex, is_durable=self._is_durable
            )

    def _join(self, first: Path, others: list[Path]) -> None:
        """Append staged files to the first of them."""
        with first.open("ab") as target:
            for other in others:
                with other.open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY)

    def _move(self, path: Path, base: int, published: dict[str, int]) -> _Note:
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
            self._sync(target.fileno(), target.flush)
        return _Note(first, size, base, published)

    def _end(self) -> int:
        """Return the offset that comes next."""
        bases = self._bases()
        if not bases:
            return 0
        note = self._note(bases[-1])
        if note is not None and note.bytes == self._file(bases[-1], SEGMENT).stat().st_size:
            return note.end
        return LogReader(self._path).end

    def _note(self, base: int) -> _Note | None:
        """Return what stands beside a segment, if it was written for that segment."""
        try:
            note = _Note(**json.loads(self._file(base, PUBLISHED).read_bytes()))
            with self._file(base, SEGMENT).open("rb") as segment:
                return note if note.header == segment.read(HEADER_SIZE).hex() else None
        except (FileNotFoundError, TypeError, ValueError):
            return None

    def _bases(self) -> list[int]:
        try:
            names = [path.name for path in self._path.iterdir() if path.suffix == SEGMENT]
        except FileNotFoundError:
            return []
        return sorted(int(name.removesuffix(SEGMENT)) for name in names)

    def _file(self, base: int, kind: str) -> Path:
        return self._path / f"{base:0{_DIGITS}}{kind}"

    def _locked(self) -> WriterLock:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return WriterLock(str(self._path))
            except LogLocked as error:
                if time.monotonic() > deadline:
                    what = f"{error}; waited for {_PATIENCE:g} s"
                    raise PublishFailed(what) from None
                time.sleep(_PAUSE)

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY)
        with temporary.open("wb") as file:
            file.write(data)
            self._sync(file.fileno(), file.flush)
        temporary.rename(path)
        self._sync_folder()

    def _sync(self, descriptor: int, flush: Callable[[], object]) -> None:
        flush()
        if self._is_durable:
            os.fsync(descriptor)

    def _sync_folder(self) -> None:
        if self._is_durable:
            sync_folder(self._path)

    def _sweep(self) -> None:
        """Remove what tasks left that died before they could tell of it."""
        oldest = time.time_ns() - int(_ORPHANED * 1e9)
        for path in (self._path / STAGED).iterdir():
            try:
                if path.stat().st_mtime_ns < oldest:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
