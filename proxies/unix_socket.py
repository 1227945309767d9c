"""Unix sockets: ports in the file system, for the nodes of one user on one machine.

The file is its owner's alone (mode 0600), so that whoever gets through may be trusted as far
as that user. It goes when its port is closed; one that a dead process left behind is replaced.
"""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

BACKLOG: Final = 512

MOST_PATH: Final = 96
"""Bytes of a path: systems take 103 or 107, and a moment's name for the file is longer."""


def is_path(host: str) -> bool:
    """Tell the path of a Unix socket from the name of a host."""
    return host.startswith("/")


class UnixListener(socket.socket):
    """A listening Unix socket that removes its file when it is closed."""

    _inode: tuple[int, int] | None = None

    def open(self, path: str) -> None:
        """Bind and listen.

        Raises:
            OSError: the file cannot be made, or somebody listens there.
        """
        # Linux gives this mode to the file from its first moment.
        os.fchmod(self.fileno(), 0o600)
        self.bind(path)
        Path(path).chmod(0o600)
        self._inode = _inode(path)
        self.listen(BACKLOG)  # at once: a file that nobody listens at counts as left behind

    def close(self) -> None:
        """Close the socket and remove its file, unless that is another's meanwhile."""
        if self._inode is not None:
            path, inode, self._inode = self.getsockname(), self._inode, None
            with contextlib.suppress(OSError):
                if _inode(path) == inode:
                    Path(path).unlink()
        super().close()


def listen_at(path: str) -> UnixListener:
    """Return a socket that listens at a path.

    Raises:
        OSError: somebody listens there, the file is no socket, or it cannot be made.
    """
    listener = UnixListener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.open(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _take_away(path)
            listener.open(path)
    except BaseException:
        listener.close()
        raise
    return listener


def resolve(path: str) -> list[Any]:
    """Return where to connect to, in the form of `socket.getaddrinfo`."""
    return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", path)]


def _take_away(path: str) -> None:
    """Remove a socket that nobody listens at.

    It is moved aside first and tried there: another process may have replaced it just now.
    """
    if not stat.S_ISSOCK(Path(path).lstat().st_mode):
        raise OSError(errno.EADDRINUSE, f"{path} is there and is no socket")
    if not _answers(path):
        aside = f"{path}.{os.getpid()}"
        Path(path).rename(aside)
        try:
            if not _answers(aside):
                return
            Path(path).hardlink_to(aside)
        finally:
            Path(aside).unlink()
    raise OSError(errno.EADDRINUSE, f"another process listens at {path}")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)  # noqa: FBT003  # its signature
        return trial.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def _inode(path: str) -> tuple[int, int]:
    found = Path(path).lstat()
    return found.st_dev, found.st_ino
