"""The network below the links of a node: TCP, and Unix sockets of this machine.

A Unix socket is a port in the file system, for the nodes of one user. Only the owner can access
its file (mode 0600), so a connected peer is trusted as this user. The file is removed when its
port is closed; the file of a dead process is replaced.
"""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final, Protocol

from callboard.proxies.address import is_path
from callboard.support.after_fork import own_listener, own_socket

BACKLOG: Final = 512


class Network(Protocol):
    """Creates sockets, or objects with the same methods in a simulation."""

    def bind(self, host: str, port: int) -> Any:
        """Return a socket bound to an address; port 0 picks one."""

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the addresses of a host; None if that needs a look-up."""

    def connect(self, address_info: Any) -> tuple[Any, int]:
        """Start connecting to one address; return the socket and an error number, or 0."""


class MachineNetwork:
    """TCP and Unix sockets of this machine. For a Unix socket, the host is its path."""

    def bind(self, host: str, port: int) -> socket.socket:
        """Return a socket bound to an address; port 0 picks one."""
        if is_path(host):
            return listen_at(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return own_listener(socket.create_server((host, port), family=family))

    def resolve(self, host: str, port: int, *, numeric: bool) -> list[Any] | None:
        """Return the addresses of a host; None if that needs a look-up.

        A look-up may block for seconds. With `numeric`, no look-up is made.
        """
        if is_path(host):
            return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", host)]
        flags = socket.AI_NUMERICHOST if numeric else 0
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            if numeric:
                return None
            raise

    def connect(self, address_info: Any) -> tuple[socket.socket, int]:
        """Start connecting; return the socket and an error number, 0 while in progress."""
        family, kind, protocol, _, address = address_info
        sock = own_socket(socket.socket(family, kind, protocol))
        sock.setblocking(False)  # noqa: FBT003  # its signature
        code = sock.connect_ex(address)
        return sock, 0 if code == errno.EINPROGRESS else code


class UnixListener(socket.socket):
    """A listening Unix socket that removes its file when it is closed."""

    _inode: tuple[int, int] | None = None

    def open(self, path: str) -> None:
        """Bind and listen.

        Raises:
            OSError: the file cannot be made, or another socket listens there.
        """
        # Linux gives this mode to the file from its first moment.
        os.fchmod(self.fileno(), 0o600)
        self.bind(path)
        Path(path).chmod(0o600)
        self._inode = _inode(path)
        # Listen immediately: another process removes a socket file without a listener.
        self.listen(BACKLOG)

    def close(self) -> None:
        """Close the socket and remove its file, unless another process has replaced it."""
        if self._inode is not None:
            inode, self._inode = self._inode, None
            # In a forked process the descriptor may be closed.
            with contextlib.suppress(OSError):
                path = self.getsockname()
                if _inode(path) == inode:
                    Path(path).unlink()
        super().close()


def listen_at(path: str) -> UnixListener:
    """Return a socket that listens at a path.

    Raises:
        OSError: another socket listens there, the file is not a socket, or it cannot be made.
    """
    listener = own_listener(UnixListener(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        try:
            listener.open(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_socket_file(path)
            listener.open(path)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_socket_file(path: str) -> None:
    """Remove the socket file of a dead process.

    The file is renamed before the check whether a process listens at it, because another
    process may replace the file at any moment.
    """
    if not stat.S_ISSOCK(Path(path).lstat().st_mode):
        raise OSError(errno.EADDRINUSE, f"{path} exists and is not a socket")
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
    """Return whether a process listens at a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)  # noqa: FBT003  # its signature
        return trial.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def _inode(path: str) -> tuple[int, int]:
    """Return the identity of a file."""
    status = Path(path).lstat()
    return status.st_dev, status.st_ino
