"""Putting small segments of results together: a query that is quick makes several a second.

The merged file takes the name of the first of them, by one rename; then the others go. Readers
that were about to open one of these look again, and find their place in the merged file. After
a death in between, segments are left over whose records the merged file has: readers pass them
over, since they go on behind what they have read, and the next merge removes them.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from callboard.commitlog.batch import HEADER_SIZE, decode_header
from callboard.commitlog.folder import SEGMENT

SMALL: Final = 1 << 20
"""Bytes of a segment below which it is put together with others."""

MANY: Final = 64
"""Small segments in a row that are put together."""

_DIGITS: Final = 20


def merge_small(folder: Path, staged: Path, *, is_durable: bool) -> int:
    """Put the small segments before the newest one together, if there are many.

    Args:
        folder: The directory of the log, whose lock is held.
        staged: A file that does not exist, on the same disk.
        is_durable: Whether the merged file has to be on the disk before others go.

    Returns:
        How many segments went.
    """
    bases = sorted(int(path.stem) for path in folder.glob(f"*{SEGMENT}"))[:-1]
    small: list[int] = []
    for base in reversed(bases):
        if _file(folder, base).stat().st_size >= SMALL:
            break
        small.insert(0, base)
    if len(small) < MANY:
        return 0
    before = bases[: len(bases) - len(small)]
    behind = _end_of(_file(folder, before[-1])) if before else 0
    whole = [base for base in small if base >= behind]
    merged: list[int] = []
    with staged.open("wb") as target:
        for base in whole:
            path = _file(folder, base)
            if base < behind:  # its records are in the one before
                continue
            behind = _end_of(path)
            merged.append(base)
            with path.open("rb") as source:
                shutil.copyfileobj(source, target)
        target.flush()
        if is_durable:
            os.fsync(target.fileno())
    gone = [base for base in small if not merged or base != merged[0]]
    if merged:
        _forget_copies(folder, merged[0])
        staged.rename(_file(folder, merged[0]))
        if is_durable:
            _sync(folder)
    else:
        staged.unlink()
    for base in gone:
        _forget_copies(folder, base)
        _file(folder, base).unlink()
    return len(gone)


def _end_of(path: Path) -> int:
    """Return the offset behind the last record of a segment, by its headers."""
    end = int(path.stem)
    with path.open("rb") as file:
        while header := decode_header(file.read(HEADER_SIZE)):
            end = header.base + header.records
            file.seek(header.length, os.SEEK_CUR)
    return end


def _file(folder: Path, base: int) -> Path:
    return folder / f"{base:0{_DIGITS}}{SEGMENT}"


def _forget_copies(folder: Path, base: int) -> None:
    """Remove what was made of a segment, which is no longer what it was."""
    for path in folder.glob(f"{base:0{_DIGITS}}.*"):
        if path.suffix != SEGMENT:
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
