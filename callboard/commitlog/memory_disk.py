"""A disk in memory, for logs that need not outlive their process."""

import errno
import os


class MemoryDisk:
    """Files in memory below any folder; nothing is ever durable, so syncing costs nothing."""

    def __init__(self) -> None:
        """Make an empty disk."""
        self._files: dict[str, bytearray] = {}

    def open(self, path: str, *, append: bool = False) -> "MemoryFile":
        """Open a file to read it, or with `append` to write as well, made if needed."""
        if append:
            return MemoryFile(self._files.setdefault(path, bytearray()))
        return MemoryFile(self._find(path))

    def mkdir(self, path: str) -> None:
        """Do nothing: every folder is there."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._files[new] = self._find(old)
        del self._files[old]

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._find(path)
        del self._files[path]

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        start = f"{path}/"
        return sorted(
            name.removeprefix(start) for name in list(self._files) if name.startswith(start)
        )

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._find(path))

    def sync_folder(self, path: str) -> None:
        """Do nothing."""

    def _find(self, path: str) -> bytearray:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class MemoryFile:
    """An open file in memory."""

    def __init__(self, content: bytearray) -> None:
        """Open it."""
        self._content = content

    def write(self, data: bytes) -> int:
        """Write at the end."""
        self._content += data
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset."""
        return bytes(self._content[offset : offset + size])

    def truncate(self, size: int) -> None:
        """Set the size."""
        del self._content[size:]
        self._content += bytes(size - len(self._content))

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._content)

    def fsync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
