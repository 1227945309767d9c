"""Column files of the sealed segments of a log, by the address of its folder."""

from contextlib import suppress
from pathlib import Path

from callboard.commitlog.arrow import load_pyarrow
from callboard.commitlog.disk import Disk
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.reader import open_folder
from callboard.commitlog.sealed import SealedSegment, sealed_segments_in, write_segment


def sealed_segments(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Return all sealed segments of a log, oldest first; reads only file names.

    Records from the `end` of the last one on are in the segment that is being written.

    Raises:
        LogFailed: the folder does not hold a log.
    """
    return sealed_segments_in(open_folder(folder, disk))


def write_columns(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Write the missing column files of sealed segments; return these segments.

    Any process may call this, even while another one writes the log. Damaged segments are
    skipped.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogFailed: the folder does not hold a log, or the disk failed.
    """
    load_pyarrow()
    place = open_folder(folder, disk)
    segments: list[SealedSegment] = []
    for segment in sealed_segments_in(place):
        with suppress(LogCorrupt):
            if segment.columns is not None:
                continue
            if (written := write_segment(place, segment)) is not None:
                segments.append(written)
    return segments
