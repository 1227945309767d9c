"""Files and folders that only their user can use.

New folders of logs, journals, states and spools have the mode 0700, and files in them 0600. The
mode of a file follows that of its folder: if an operator created the folder with another mode,
new files in it are as accessible as the folder. Files of SQLite are in folders of the operator,
so they have the mode 0600; SQLite gives its `-wal` and `-shm` files the mode of the database.

All packages that store data create their files here.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

#: Bits of a folder's mode that the mode of its files may have.
_FILE_BITS: Final = 0o666


def check_mode(mode: object) -> int | None:
    """Return the mode of a folder from a user; None for the default.

    Raises:
        ValueError: the user could not use the folder with this mode.
    """
    if mode is None:
        return None
    if not isinstance(mode, int) or mode & 0o700 != 0o700 or mode & ~0o777:
        number = f"{mode:#o}" if isinstance(mode, int) else repr(mode)
        text = f"mode={number} does not let its user use the folder; give one such as 0o750"
        raise ValueError(text)
    return mode


def check_file_mode(mode: object) -> int | None:
    """Return the mode of a file from a user; None for the default.

    Raises:
        ValueError: the user could not use the file with this mode.
    """
    if mode is None:
        return None
    if type(mode) is not int or mode & 0o600 != 0o600 or mode & ~_FILE_BITS:
        number = f"{mode:#o}" if type(mode) is int else repr(mode)
        text = f"mode={number:.60} does not let its user use the file; give one such as 0o640"
        raise ValueError(text)
    return mode


def folder_mode(file_mode: int | None) -> int | None:
    """Return the mode of a folder for files of a mode: readers of the files can search it."""
    return None if file_mode is None else file_mode | (file_mode & 0o444) >> 2


def make_folder(path: str | Path, mode: int | None = None) -> None:
    """Create a folder and its missing parents; existing folders keep their mode.

    Raises:
        OSError: a folder cannot be created.
    """
    target = Path(path)
    missing = [target, *target.parents]
    while missing and missing[-1].exists():
        missing.pop()
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            make_one_folder(folder, mode)
    if not target.is_dir():
        target.mkdir(exist_ok=True)  # raises the system's error: there is a file of this name


def make_one_folder(path: str | Path, mode: int | None = None) -> None:
    """Create a folder; a given mode is set regardless of the umask.

    Raises:
        OSError: the folder cannot be created, or exists.
    """
    os.mkdir(path, FOLDER_MODE if mode is None else mode)  # noqa: PTH102  (of any folder)
    if mode is not None:
        os.chmod(path, mode)  # noqa: PTH101  (as above)


def mode_in(path: str | Path) -> int:
    """Return the mode of a new file at a path: that of its folder without the search bits."""
    try:
        return os.stat(os.path.dirname(path) or ".").st_mode & _FILE_BITS  # noqa: PTH116, PTH120
    except OSError:
        return FILE_MODE


def lock_mode_in(path: str | Path) -> int:
    """Return the mode of a new lock file at a path.

    A user who can read a file can lock it, and so block its owner. Therefore only users who can
    write in the folder can read the lock file.
    """
    try:
        is_shared = os.stat(os.path.dirname(path) or ".").st_mode & 0o020  # noqa: PTH116, PTH120
    except OSError:
        return FILE_MODE
    return FILE_MODE | 0o060 if is_shared else FILE_MODE


def make_private_file(path: str | Path, mode: int | None = None) -> None:
    """Create an empty file that only its user can use, unless the path exists.

    A given mode is set instead, regardless of the umask. Errors of the system are ignored: the
    caller opens the file next and gets them then.
    """
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file; the mode of a new one follows its folder. An `opener` for `open`.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, mode_in(path) if flags & os.O_CREAT else 0)
