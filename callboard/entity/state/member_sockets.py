"""Unix sockets of the nodes that share a SQLite file on one machine, to find each other.

    shop.db-nodes/3f9c2a71d05b      the socket of one node; the name is a hash of its id

Each host listens at a socket of its own in a folder beside the file. The table of a type names
its members, and so their sockets. A socket has the same mode as the file, so exactly the
processes that can change the state can be members.

The address of a socket has at most 107 bytes. In a folder with a longer path, the socket is
reached through a descriptor of the folder, `/proc/self/fd/NUMBER/NAME`, on Linux. The socket
of a killed process remains and refuses connections; later hosts remove it.
"""

import os
import socket
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from callboard.support import after_fork
from callboard.support.files.private_file import folder_mode, make_folder
from callboard.support.platform.system import DESCRIPTORS, IS_LINUX

#: Bytes of a path that a node can listen at: a temporary name of the file is longer.
PATH_LIMIT: Final = 96

#: Seconds after which a socket that refuses connections is removed. Between its creation and
#: its first connection a socket refuses them, too.
STALE_SECONDS: Final = 60.0


class MemberSockets:
    """The sockets of the nodes that share one file. The constructor and `close` may block."""

    def __init__(self, folder: Path, mode: int | None = None) -> None:
        """Open the folder, and remove sockets that killed processes left there.

        Args:
            folder: the folder; a new one gets a mode that fits that of the file.
            mode: mode of the file; None for 0600.

        Raises:
            OSError: the folder cannot be made, or its path is too long for a socket.
        """
        make_folder(folder, folder_mode(mode))
        self._folder, self._mode = folder, mode
        self._own: Path | None = None
        #: Descriptor of the folder, if its path is too long; -1 otherwise.
        self._descriptor = -1
        size = len(os.fsencode(folder)) + 13
        is_plain = str(folder).isascii() and not set(" :") & set(str(folder))
        if size > PATH_LIMIT or not is_plain:
            if not IS_LINUX:
                msg = (
                    f"the path of a socket in {folder} has {size} bytes; the limit is "
                    f"{PATH_LIMIT}"
                )
                raise OSError(msg)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._descriptor = os.open(folder, flags)
        after_fork.register(self, after_fork.drop)
        self._remove_stale()

    def fileno(self) -> int:
        """Return the descriptor of the folder; -1 without one."""
        return self._descriptor

    def path(self, node: bytes) -> str:
        """Return the path of a node's socket, which may be valid in this process only."""
        name = blake2b(node, digest_size=6).hexdigest()
        is_plain = self._descriptor < 0
        folder = self._folder if is_plain else Path(DESCRIPTORS, f"{self._descriptor}")
        return str(folder / name)

    def opened(self, path: str) -> None:
        """Give the socket of this node the mode of the file."""
        self._own = Path(path)
        if self._mode is not None:
            self._own.chmod(self._mode)

    def _remove_stale(self) -> None:
        """Remove old sockets without a listener."""
        oldest = time.time_ns() / 1e9 - STALE_SECONDS
        with os.scandir(self._folder if self._descriptor < 0 else self._descriptor) as entries:
            names = [entry.name for entry in entries]
        folder = Path(self.path(b"")).parent
        for name in names:
            path = folder / name
            with suppress(OSError):
                if path.lstat().st_mtime < oldest and _is_refused(str(path)):
                    path.unlink()

    def close(self) -> None:
        """Remove the socket of this node, and close the folder."""
        if after_fork.is_copy(self):
            return
        if self._own is not None:
            with suppress(OSError):
                self._own.unlink()
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _is_refused(path: str) -> bool:
    """Return whether a socket refuses connections, because its process has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)  # noqa: FBT003  # its signature
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
