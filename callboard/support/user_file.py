"""Files that a user has named: configurations, secrets, certificates, rules.

As low in the house as `text`: every room may import it.
"""

import errno
import os
import stat
from typing import Final

#: Bytes of a file that is read whole; parsers need several times that in memory.
NAMED_LIMIT: Final = 16 * 1024 * 1024


def read_user_file(path: str | os.PathLike[str], limit: int = NAMED_LIMIT) -> bytes:
    """Return what a file holds; the links that lead there are its owner's, and followed.

    Raises:
        OSError: it cannot be read, is larger, or is a pipe, a device or a folder: those may
            keep us waiting, or never end.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                what = "it is not a file"
                raise OSError(errno.EINVAL, what, str(path))
            data = file.read(limit + 1)
    except ValueError:  # a NUL in its name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} B", str(path))
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
