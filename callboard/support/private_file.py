"""Files and folders that their user alone can use.

New folders of logs, journals, states and spools have the mode 0700, and files in them 0600. A
file is as open as its folder: what an operator has made with another mode keeps it, and gets
new files that fit. Files of SQLite stand in folders of the operator's, so they have 0600
themselves; SQLite gives its `-wal` and `-shm` the mode of the database.

Every part of the package that keeps data makes its files here.
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
    """Return the mode of a folder as a user gave it; None for the default.

    Raises:
        ValueError: it is not a mode by which the user can use the folder.
    """
    if mode is None:
        return None
    if not isinstance(mode, int) or mode & 0o700 != 0o700 or mode & ~0o777:
        what = f"{mode:#o}" if isinstance(mode, int) else repr(mode)
        text = f"mode={what} is not a mode of a folder of its user; give one such as 0o750"
        raise ValueError(text)
    return mode


def check_file_mode(mode: object) -> int | None:
    """Return the mode of a file as a user gave it; None for the default.

    Raises:
        ValueError: it is not a mode by which the user can use the file.
    """
    if mode is None:
        return None
    if type(mode) is not int or mode & 0o600 != 0o600 or mode & ~_FILE_BITS:
        what = f"{mode:#o}" if type(mode) is int else repr(mode)
        text = f"mode={what:.60} is not a mode of a file of its user; give one such as 0o640"
        raise ValueError(text)
    return mode


def folder_mode(file_mode: int | None) -> int | None:
    """Return the mode of a folder in which files have a mode: who reads them can search it."""
    return None if file_mode is None else file_mode | (file_mode & 0o444) >> 2


def make_folder(path: str | Path, mode: int | None = None) -> None:
    """Make a folder and those above it that are missing; those that exist keep their mode.

    Raises:
        OSError: one cannot be made.
    """
    place = Path(path)
    missing = [place, *place.parents]
    while missing and missing[-1].exists():
        missing.pop()
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process made it meanwhile
            make_one_folder(folder, mode)
    if not place.is_dir():
        place.mkdir(exist_ok=True)  # a file has its place: the system says so


def make_one_folder(path: str | Path, mode: int | None = None) -> None:
    """Make a folder; a mode that was given holds whatever the umask is.

    Raises:
        OSError: it cannot be made, or is there.
    """
    os.mkdir(path, FOLDER_MODE if mode is None else mode)  # noqa: PTH102  (of any folder)
    if mode is not None:
        os.chmod(path, mode)  # noqa: PTH101  (as above)


def mode_in(path: str | Path) -> int:
    """Return the mode of a new file at a path: its folder's, without search."""
    try:
        return os.stat(os.path.dirname(path) or ".").st_mode & _FILE_BITS  # noqa: PTH116, PTH120
    except OSError:
        return FILE_MODE


def lock_mode_in(path: str | Path) -> int:
    """Return the mode of a new lock file at a path.

    Whoever can read a file can lock it, and so keep its user out: those alone can who may also
    write in its folder.
    """
    try:
        is_shared = os.stat(os.path.dirname(path) or ".").st_mode & 0o020  # noqa: PTH116, PTH120
    except OSError:
        return FILE_MODE
    return FILE_MODE | 0o060 if is_shared else FILE_MODE


def make_private_file(path: str | Path, mode: int | None = None) -> None:
    """Make an empty file that its user alone can use, unless something is there.

    A mode that is given holds instead, whatever the umask is. What the system refuses is left
    to the one that opens the file.
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
    """Open a file; one that is made is as open as its folder. An `opener` of `open`.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, mode_in(path) if flags & os.O_CREAT else 0)
