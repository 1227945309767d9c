"""What a log asks of a file system; `callboard.simulation` has one that fails when told to."""

from typing import Protocol


class DiskFile(Protocol):
    """An open file. Errors are those of the system: `OSError` with its number."""

    def write(self, data: bytes) -> int:
        """Write at the end; returns how many bytes were taken, which may be fewer."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Set the size; zeros fill what is added."""

    def size(self) -> int:
        """Return the size in bytes."""

    def fsync(self) -> None:
        """Make the contents durable, but not the name. After an error nothing is known."""

    def close(self) -> None:
        """Close the file; this makes nothing durable."""


class Disk(Protocol):
    """A file system. Paths have `/` between names. Errors are those of the system."""

    def open(self, path: str, *, append: bool = False) -> DiskFile:
        """Open a file to read it, or with `append` to write as well, made if needed."""

    def mkdir(self, path: str) -> None:
        """Make a folder."""

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder; what has the new name is replaced, all in one step."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open can go on."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


def check_rename(old: str, new: str) -> None:
    """Raise `ValueError` when the folders of two paths differ."""
    if old.rpartition("/")[0] != new.rpartition("/")[0]:
        msg = f"{old!r} and {new!r} are in different folders; rename within one"
        raise ValueError(msg)
