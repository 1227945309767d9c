"""Checks of backups: every byte, every record, every page."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from callboard.backup.copying import sum_file
from callboard.backup.errors import BackupDamaged
from callboard.backup.manifest import DATA, LOG, Manifest, Part, read_manifest
from callboard.commitlog import LogError
from callboard.commitlog.verify import verify as verify_log
from callboard.support.database.sqlite_file import open_read_only


def verify(backup: str | Path) -> Manifest:
    """Check a backup without changing it; return its manifest.

    Compares the size and the checksum of each file with the manifest, reads every record of
    the logs, and has SQLite check the databases.

    Raises:
        BackupRefused: the folder is not a whole backup, or a newer release made it.
        BackupDamaged: a file is missing or damaged; the text names it.
    """
    folder = Path(backup).absolute()
    manifest = read_manifest(folder)
    for part in manifest.parts:
        place = folder / DATA / part.name
        check_files(place, part)
        for problem in _problems_of(place, part):
            message = f"{place} is damaged: {problem}; use another backup"
            raise BackupDamaged(message)
    return manifest


def check_files(place: Path, part: Part) -> None:
    """Compare the files of a part with the manifest.

    Raises:
        BackupDamaged: a file is missing or differs.
    """
    for file in part.files:
        path = place / file.name
        try:
            copy = sum_file(path, file.name)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}; use another backup"
            raise BackupDamaged(message) from error
        if copy != file:
            difference = _difference(copy.size, file.size)
            message = f"{path} is damaged: {difference}; use another backup"
            raise BackupDamaged(message)


def _difference(actual: int, size: int) -> str:
    """Describe how a file differs from the manifest."""
    if actual != size:
        return f"it has {actual:,} B, and had {size:,} B"
    return "its checksum differs"


def _problems_of(place: Path, part: Part) -> Iterator[str]:
    """Yield a text for each problem in the contents of a part."""
    if part.kind == LOG:
        try:
            report = verify_log(place)
        except LogError as error:
            yield str(error)
            return
        yield from report.damage
        if report.end != part.facts.get("end"):
            yield f"it ends at {report.end}, not at {part.facts.get('end')}"
        return
    try:
        with closing(open_read_only(place, 1.0)) as connection:
            (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        result = str(error)
    if result != "ok":
        yield result
