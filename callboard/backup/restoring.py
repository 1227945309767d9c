"""Restoring a backup into a new folder, so that it is recognized as a restored one."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from callboard.backup.copying import completing, copy_file
from callboard.backup.errors import BackupDamaged, BackupError
from callboard.backup.manifest import (
    DATA,
    ENTITIES,
    LOG,
    STORE,
    CopiedFile,
    Manifest,
    Part,
    read_manifest,
)
from callboard.commitlog.disk import RealDisk
from callboard.commitlog.folder import Folder
from callboard.commitlog.identity.identity import begin_epoch
from callboard.entity.state import copies
from callboard.store.backend import sqlite as store_sqlite
from callboard.support.database.sqlite_file import open_file
from callboard.support.files.private_file import make_folder


def restore(backup: str | Path, folder: str | Path) -> Manifest:
    """Make a new folder with the logs and databases of a backup; return its manifest.

    Each file is checked while it is copied. The states of entities get a new identity and
    higher fences, stores a new id, and logs a new epoch, so that they are not mistaken for the
    former ones.

    Args:
        backup: the folder of the backup.
        folder: the new folder, which must not exist or be empty.

    Raises:
        BackupRefused: the folder has contents, or the backup is not whole, or of a newer
            release.
        BackupDamaged: a file of the backup is missing or damaged; the text names it.
        BackupError: a file cannot be written; nothing is left at the folder.
    """
    source = Path(backup).absolute()
    manifest = read_manifest(source)
    with completing(Path(folder).absolute()) as partial:
        for part in manifest.parts:
            if part.kind not in _RENEWERS:
                message = f"{part.name} is of an unknown kind ({part.kind}); upgrade callboard"
                raise BackupError(message)
            _copy(source / DATA / part.name, partial / part.name, part)
            _RENEWERS[part.kind](partial / part.name, part)
    return manifest


def _copy(source: Path, target: Path, part: Part) -> None:
    """Copy the files of a part, and compare them with the manifest."""
    for file in part.files:
        place = target / file.name
        make_folder(place.parent)
        path = source / file.name
        try:
            copy: CopiedFile = copy_file(path, place, file.name)
        except FileNotFoundError:
            message = f"{path} is missing; use another backup"
            raise BackupDamaged(message) from None
        if copy != file:
            message = f"{path} is damaged: its checksum differs; use another backup"
            raise BackupDamaged(message)


def _renew_log(folder: Path, part: Part) -> None:
    """Start a new epoch of a log, so that it refuses positions after the end of the backup."""
    begin_epoch(Folder(RealDisk("/"), str(folder)), int(part.facts["end"]))


def _renew_state(path: Path, _: Part) -> None:
    """Mark a state as restored."""
    _change(path, copies.mark_restored)


def _renew_store(path: Path, _: Part) -> None:
    """Mark a store as restored."""
    _change(path, store_sqlite.rename_file)


def _change(path: Path, work: Any) -> None:
    """Change a database in one transaction, durably."""
    try:
        with closing(open_file(path, 1.0)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            work(connection)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        message = f"{path} cannot be restored: {error}; check the backup with verify"
        raise BackupError(message) from error


_RENEWERS: Final = {LOG: _renew_log, ENTITIES: _renew_state, STORE: _renew_store}
