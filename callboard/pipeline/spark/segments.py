"""The segments of a log of results, as its publishers see them, and merging small ones.

A query that is quick makes several segments a second, so small ones are put together. The
merged file takes the name of the first of them, by one rename; then the others go. Readers
that were about to open one of these look again, and find their place in the merged file. After
a death in between, segments are left over whose records the merged file has: readers pass them
over, since they go on behind what they have read, and the next merge removes them.
"""

import os
import shutil
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from callboard.commitlog.batch import HEADER_SIZE, decode_header
from callboard.commitlog.disk import open_plain
from callboard.commitlog.folder import SEGMENT, Folder
from callboard.commitlog.retention import SegmentLimits
from callboard.commitlog.segment import SegmentInfo
from callboard.support.private_file import open_private


def segment_file(folder: Folder, base: int, kind: str = SEGMENT) -> Path:
    """Return the path of a segment, or of a file of another kind beside it."""
    return Path(folder.segment(base, kind))


def end_of(path: Path) -> int:
    """Return the offset behind the last record of a segment, by its headers."""
    end = int(path.stem)
    with open(path, "rb", opener=open_plain) as file:
        while header := decode_header(file.read(HEADER_SIZE)):
            end = header.base + header.records
            file.seek(header.length, os.SEEK_CUR)
    return end


def describe_segment(folder: Folder, base: int, end: int) -> SegmentInfo:
    """Describe a segment; its latest time is that at which it was published."""
    path = segment_file(folder, base)
    found = path.stat()
    return SegmentInfo(base, end, found.st_size, found.st_mtime_ns, str(path))


def forget_copies(folder: Folder, base: int) -> None:
    """Remove what was made of a segment, which is no longer what it was."""
    segment = segment_file(folder, base)
    for path in segment.parent.glob(f"{segment.stem}.*"):
        if path != segment:
            path.unlink(missing_ok=True)


#: Bytes of a segment below which it is put together with others.
SMALL: Final = 1 << 20

#: Small segments in a row that are put together.
MANY: Final = 64

_NO_LIMIT: Final = 1 << 62


def merge_small(
    folder: Folder, staged: Path, limits: SegmentLimits, *, is_durable: bool
) -> int:
    """Put the small segments before the newest one together, if there are many.

    Args:
        folder: That of the log, whose lock is held.
        staged: A file that does not exist, on the same disk.
        limits: What a merged segment may have at most, so that retention takes small steps.
        is_durable: Whether the merged file has to be on the disk before others go.

    Returns:
        How many segments went.
    """
    bases = folder.bases()[:-1]
    small = list(takewhile(lambda base: _is_small(folder, base), reversed(bases)))[::-1]
    if len(small) < MANY:
        return 0
    before = bases[: len(bases) - len(small)]
    behind = end_of(segment_file(folder, before[-1])) if before else 0
    parts: list[SegmentInfo] = []
    gone: list[int] = []
    for base in small:
        if base < behind:  # its records are in the one before
            gone.append(base)
            continue
        behind = end_of(segment_file(folder, base))
        parts.append(describe_segment(folder, base, behind))
    for run in _runs(parts, limits):
        if len(run) > 1:
            _merge(folder, staged, run, is_durable=is_durable)
            gone += [each.base for each in run[1:]]
    for base in gone:
        forget_copies(folder, base)
        segment_file(folder, base).unlink()
    return len(gone)


def _is_small(folder: Folder, base: int) -> bool:
    """Return whether a segment is small enough to be merged."""
    return segment_file(folder, base).stat().st_size < SMALL


def _runs(parts: list[SegmentInfo], limits: SegmentLimits) -> Iterator[list[SegmentInfo]]:
    """Cut segments into runs that may become one each."""
    records, seconds = limits.records or _NO_LIMIT, limits.seconds or _NO_LIMIT
    run: list[SegmentInfo] = []
    for part in parts:
        fits = run and (
            sum(each.bytes for each in run) + part.bytes <= limits.bytes
            and part.end - run[0].base <= records
            and part.latest_time - run[0].latest_time <= seconds * 1e9
        )
        if not fits and run:
            yield run
            run = []
        run.append(part)
    yield run


def _merge(folder: Folder, staged: Path, run: list[SegmentInfo], *, is_durable: bool) -> None:
    """Put segments into one file that takes the place of the first."""
    with open(staged, "wb", opener=open_private) as target:
        for part in run:
            with open(part.path, "rb", opener=open_plain) as source:
                shutil.copyfileobj(source, target)
        target.flush()
        newest = run[-1].latest_time
        os.utime(target.fileno(), ns=(newest, newest))  # the age of what is in it
        if is_durable:
            os.fsync(target.fileno())
    forget_copies(folder, run[0].base)
    staged.rename(run[0].path)
    if is_durable:
        folder.sync()
