"""What this process has open. A number tells nothing: other threads open and close as well."""

import contextlib
import os
from pathlib import Path


def open_files() -> list[tuple[int, int]]:
    """Return device and inode of the file, folder or socket behind each open descriptor."""
    found = []
    for each in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the folder itself
            about = os.fstat(int(each.name))
            found.append((about.st_dev, about.st_ino))
    return found
