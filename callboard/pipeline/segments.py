"""The files of a log of results as who publishes in it sees them."""

import os
from pathlib import Path
from typing import Final

from callboard.commitlog.batch import HEADER_SIZE, decode_header
from callboard.commitlog.folder import SEGMENT

_DIGITS: Final = 20


def segment_file(folder: Path, base: int, kind: str = SEGMENT) -> Path:
    """Return the path of a segment, or of a file of another kind beside it."""
    return folder / f"{base:0{_DIGITS}}{kind}"


def bases_of(folder: Path, *kinds: str) -> list[int]:
    """Return the first offsets of all segments, or of what stands beside them, in order."""
    ends = kinds or (SEGMENT,)
    try:
        names = os.listdir(folder)  # noqa: PTH208  # each batch asks some times
    except FileNotFoundError:
        return []
    found = [name.partition(".")[0] for name in names if name.endswith(ends)]
    return sorted(int(stem) for stem in found if stem.isdecimal())


def end_of(path: Path) -> int:
    """Return the offset behind the last record of a segment, by its headers."""
    end = int(path.stem)
    with path.open("rb") as file:
        while header := decode_header(file.read(HEADER_SIZE)):
            end = header.base + header.records
            file.seek(header.length, os.SEEK_CUR)
    return end


def forget_copies(folder: Path, base: int) -> None:
    """Remove what was made of a segment, which is no longer what it was."""
    for path in folder.glob(f"{base:0{_DIGITS}}.*"):
        if path.suffix != SEGMENT:
            path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
