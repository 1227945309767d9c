"""Bounded reads of files that a user names: configurations, secrets, certificates, rules.

Every package may import this module.
"""

import errno
import os
import stat
from typing import Final

#: Bytes of a file that is read as a whole; parsers need several times its size in memory.
NAMED_LIMIT: Final = 16 * 1024 * 1024


def read_user_file(path: str | os.PathLike[str], limit: int = NAMED_LIMIT) -> bytes:
    """Return the content of a file; symbolic links are followed.

    Raises:
        OSError: the file cannot be read, is larger than `limit`, or is a pipe, a device or a
            folder: a read of these may block, or never end.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                message = "not a regular file"
                raise OSError(errno.EINVAL, message, str(path))
            data = file.read(limit + 1)
    except ValueError:  # the path contains a NUL
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"the file is larger than {limit:,} B", str(path))
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; if it is a pipe, do not wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
