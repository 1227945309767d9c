"""Copying of files with checksums, and the unfinished folders that become a backup."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from callboard.backup.errors import BackupDamaged, BackupError, BackupRefused
from callboard.backup.manifest import CopiedFile
from callboard.commitlog.disk import open_plain, sync_path
from callboard.support.files.private_file import make_folder, open_private

#: End of the name of a folder whose backup or restore has not finished.
PARTIAL: Final = ".partial"
_PIECE: Final = 1 << 20


def copy_file(source: Path, target: Path, name: str, size: int | None = None) -> CopiedFile:
    """Copy a file, or its first bytes, durably; return its checksum.

    Raises:
        BackupDamaged: the file is shorter than `size`.
        OSError: a file cannot be read or written.
    """
    digest, count = hashlib.sha256(), 0
    with (
        open(source, "rb", opener=open_plain) as reader,
        open(target, "wb", opener=open_private) as writer,
    ):
        while piece := reader.read(_PIECE if size is None else min(_PIECE, size - count)):
            digest.update(piece)
            writer.write(piece)
            count += len(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if size is not None and count != size:
        message = f"{source} has {count:,} B of {size:,}; it is damaged"
        raise BackupDamaged(message)
    return CopiedFile(name, count, digest.hexdigest())


def sum_file(path: Path, name: str) -> CopiedFile:
    """Make a file durable; return its checksum.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb", opener=open_plain) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    sync_path(path)
    return CopiedFile(name, size, digest)


def sync_tree(folder: Path) -> None:
    """Make the names of all files below a folder durable, and the name of the folder."""
    for place, _, _ in os.walk(folder):
        sync_path(place, os.O_DIRECTORY)
    sync_path(folder.parent, os.O_DIRECTORY)


def partial_of(target: Path) -> Path:
    """Return the name that a folder has until it is complete."""
    return target.with_name(target.name + PARTIAL)


def check_target(target: Path) -> None:
    """Check that a folder can be created, or is empty.

    Raises:
        BackupRefused: it has contents, or an unfinished one is beside it.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        message = f"{target} is not a folder; name a new one"
        raise BackupRefused(message)
    if target.is_dir() and any(target.iterdir()):
        message = f"{target} is not empty; name a new folder"
        raise BackupRefused(message)
    if os.path.ismount(target):
        message = f"{target} is a mount point, which cannot be replaced; name a folder in it"
        raise BackupRefused(message)
    if partial_of(target).exists():
        message = (
            f"{partial_of(target)} was left by a backup or restore that did not finish, or one"
            " is running; remove it, or name another folder"
        )
        raise BackupRefused(message)


@contextmanager
def completing(target: Path) -> Iterator[Path]:
    """Yield a new folder that gets the name `target` when the block ends without an error.

    After an error it is removed. If the process is killed, it keeps its other name, and is not
    taken for the whole.

    Raises:
        BackupRefused: the target has contents.
        BackupError: a file cannot be written.
    """
    check_target(target)
    partial = partial_of(target)
    try:
        make_folder(partial)
    except OSError as error:
        message = f"{partial} cannot be made: {error.strerror or error}; name another folder"
        raise BackupError(message) from error
    with finishing(partial, target):
        yield partial


@contextmanager
def finishing(partial: Path, target: Path) -> Iterator[None]:
    """Rename an unfinished folder when the block ends without an error, or remove it."""
    try:
        try:
            yield
            sync_tree(partial)
            with suppress(FileNotFoundError):
                target.rmdir()  # an empty one; `rename` would replace it on some systems only
            partial.rename(target)
            sync_path(target.parent, os.O_DIRECTORY)
        except OSError as error:
            if isinstance(error, BackupError):
                raise
            message = f"{target} was not completed: {error}; free space or name another folder"
            raise BackupError(message) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
