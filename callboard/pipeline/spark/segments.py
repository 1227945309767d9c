"""Segments of a log of results, and the merging of small ones.

A fast query publishes several segments per second, so small segments are merged. The merged
file is renamed to the first of them, and then the others are removed. A reader that was about
to open one of these looks again, and continues in the merged file. After a crash in between,
some segments are left whose records are also in the merged file. Readers skip them, because
they continue after the last record that they have read, and the next merge removes them.
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
from callboard.support.files.private_file import open_private


def segment_file(folder: Folder, base: int, kind: str = SEGMENT) -> Path:
    """Return the path of a segment, or of another file with its name."""
    return Path(folder.segment(base, kind))


def end_of(path: Path) -> int:
    """Return the offset after the last record of a segment, from its headers."""
    end = int(path.stem)
    with open(path, "rb", opener=open_plain) as file:
        while header := decode_header(file.read(HEADER_SIZE)):
            end = header.base + header.records
            file.seek(header.length, os.SEEK_CUR)
    return end


def describe_segment(folder: Folder, base: int, end: int) -> SegmentInfo:
    """Describe a segment; its latest time is its publication time."""
    path = segment_file(folder, base)
    status = path.stat()
    return SegmentInfo(base, end, status.st_size, status.st_mtime_ns, str(path))


def forget_copies(folder: Folder, base: int) -> None:
    """Remove files derived from a segment that has changed."""
    segment = segment_file(folder, base)
    for path in segment.parent.glob(f"{segment.stem}.*"):
        if path != segment:
            path.unlink(missing_ok=True)


#: Size in bytes below which a segment is merged.
SMALL: Final = 1 << 20

#: Consecutive small segments that trigger a merge.
MANY: Final = 64

_NO_LIMIT: Final = 1 << 62


def merge_small(
    folder: Folder, staged: Path, limits: SegmentLimits, *, is_durable: bool
) -> int:
    """Merge the small segments before the newest one, if there are many.

    Args:
        folder: Folder of the log; the caller holds its lock.
        staged: A file that does not exist, on the same disk.
        limits: Limits of a merged segment, so that retention removes small parts.
        is_durable: Whether the merged file must be synced before the others are removed.

    Returns:
        The number of removed segments.
    """
    bases = folder.bases()[:-1]
    small = list(takewhile(lambda base: _is_small(folder, base), reversed(bases)))[::-1]
    if len(small) < MANY:
        return 0
    earlier = bases[: len(bases) - len(small)]
    end = end_of(segment_file(folder, earlier[-1])) if earlier else 0
    parts: list[SegmentInfo] = []
    removed: list[int] = []
    for base in small:
        if base < end:  # its records are also in the previous segment
            removed.append(base)
            continue
        end = end_of(segment_file(folder, base))
        parts.append(describe_segment(folder, base, end))
    for run in _runs(parts, limits):
        if len(run) > 1:
            _merge(folder, staged, run, is_durable=is_durable)
            removed += [segment.base for segment in run[1:]]
    for base in removed:
        forget_copies(folder, base)
        segment_file(folder, base).unlink()
    return len(removed)


def _is_small(folder: Folder, base: int) -> bool:
    """Return whether a segment is small enough to be merged."""
    return segment_file(folder, base).stat().st_size < SMALL


def _runs(parts: list[SegmentInfo], limits: SegmentLimits) -> Iterator[list[SegmentInfo]]:
    """Divide segments into runs that can be merged."""
    records, seconds = limits.records or _NO_LIMIT, limits.seconds or _NO_LIMIT
    run: list[SegmentInfo] = []
    for part in parts:
        fits = run and (
            sum(segment.bytes for segment in run) + part.bytes <= limits.bytes
            and part.end - run[0].base <= records
            and part.latest_time - run[0].latest_time <= seconds * 1e9
        )
        if not fits and run:
            yield run
            run = []
        run.append(part)
    yield run


def _merge(folder: Folder, staged: Path, run: list[SegmentInfo], *, is_durable: bool) -> None:
    """Merge segments into one file that replaces the first."""
    with open(staged, "wb", opener=open_private) as target:
        for part in run:
            with open(part.path, "rb", opener=open_plain) as source:
                shutil.copyfileobj(source, target)
        target.flush()
        newest = run[-1].latest_time
        os.utime(target.fileno(), ns=(newest, newest))  # retention goes by this time
        if is_durable:
            os.fsync(target.fileno())
    forget_copies(folder, run[0].base)
    staged.rename(run[0].path)
    if is_durable:
        folder.sync()
