"""The files that identify a log: `identity` with its id, and `epochs`.

The writer makes both with the folder. Readers only read them; a log of callboard 0.1 gets them
from its next writer, and its readers see an unknown identity until then.

`identity` is the id and a newline, as the copiers of 0.1 wrote it. `epochs` is the id, a line
for each epoch with its number and its first offset, oldest first, and the CRC-32 of all that. A
damaged `identity` is restored from `epochs`. If `epochs` is damaged, a new list
starts, and stored positions are refused, as they cannot be checked.
"""

import logging
import os
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable
from zlib import crc32

from callboard.commitlog.folder import EPOCHS, IDENTITY, LAST_OFFSET, Folder
from callboard.commitlog.identity.position import (
    LAST_EPOCH,
    Epoch,
    LogIdentity,
    is_log_id,
)

#: Epochs that are kept; positions in older ones cannot be checked, and are refused.
EPOCH_LIMIT: Final = 4096
#: The largest step between the numbers of two epochs.
_STEP: Final = 1 << 28
_LINE: Final = re.compile(rb"(\d{16}) (\d{20})\n")
_SUM: Final = 9

_log = logging.getLogger("callboard.commitlog")


@runtime_checkable
class IdentifiedDisk(Protocol):
    """A disk that knows the identity of its only log, such as an archive."""

    def identity(self) -> LogIdentity:
        """Return the identity of the log; without an id if it is unknown."""


def read_identity(folder: Folder) -> LogIdentity:
    """Return the identity of a log; without an id if it is unknown.

    Raises:
        OSError: the disk or the server reports an error.
    """
    if isinstance(folder.disk, IdentifiedDisk):
        return folder.disk.identity()
    return identity_in(lambda name: folder.read(folder.file(name)))


def identity_in(read: Callable[[str], bytes]) -> LogIdentity:
    """Return the identity in two files; `read` returns a file, or nothing if it is missing."""
    for is_last in (False, True):
        log, data = _id_in(read(IDENTITY)), read(EPOCHS)
        decoded = decode_epochs(data)
        if decoded is None or log not in ("", decoded.log):
            # A writer replaces `identity` first, so read both again before judging.
            if is_last or not data:
                return LogIdentity(log)
            continue
        return decoded
    return LogIdentity()


def _id_in(data: bytes) -> str:
    """Return the id in a file; empty if the file is missing or damaged."""
    text = data.decode("ascii", errors="replace").strip()
    return text if is_log_id(text) else ""


def encode_epochs(identity: LogIdentity) -> bytes:
    """Return the contents of the file `epochs`."""
    lines = [f"{number:016} {first:020}\n" for number, first in identity.epochs]
    data = f"{identity.log}\n{''.join(lines)}".encode()
    return data + b"%08x\n" % crc32(data)


def decode_epochs(data: bytes) -> LogIdentity | None:
    """Return the identity in the file `epochs`; None if it is missing or damaged."""
    body, checksum = data[:-_SUM], data[-_SUM:]
    if checksum != b"%08x\n" % crc32(body):
        return None
    log, _, rest = body.partition(b"\n")
    epochs = checked_epochs([(int(line[1]), int(line[2])) for line in _LINE.finditer(rest)])
    return None if epochs is None or not _id_in(log) else LogIdentity(_id_in(log), epochs)


def checked_epochs(rows: Any) -> tuple[Epoch, ...] | None:
    """Return epochs from pairs of numbers; None if they are not the epochs of a log."""
    epochs: list[Epoch] = []
    previous = Epoch(0, -1)
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != 2:
            return None
        number, first = row
        if type(number) is not int or type(first) is not int:
            return None
        is_next = previous.number < number <= LAST_EPOCH
        if not is_next or not previous.first < first <= LAST_OFFSET:
            return None
        previous = Epoch(number, first)
        epochs.append(previous)
    return tuple(epochs)


def give_identity(folder: Folder) -> LogIdentity:
    """Return the identity of a log; draw one if it has none, durably.

    The caller writes the log or copies its segments.

    Raises:
        OSError: the disk reports an error.
    """
    identity = read_identity(folder)
    if identity.log and identity.epochs:
        return _restored(folder, identity)
    if not identity.log and not folder.bases():  # the log is new
        identity = LogIdentity(os.urandom(16).hex(), (Epoch(1, 0),))
        _write(folder, identity)
        return identity
    damaged = [
        path for name in (IDENTITY, EPOCHS) if _exists(folder, path := folder.file(name))
    ]
    first = Epoch(1, 0)
    if folder.file(EPOCHS) in damaged:
        text = "%s is damaged or of another log; stored positions will be refused"
        _log.error(text, folder.file(EPOCHS))
        first = Epoch(1 + _step(), 0)
    elif damaged and not identity.log:
        text = "%s is damaged; the log gets a new id, and refuses the positions of the old one"
        _log.error(text, folder.file(IDENTITY))
    identity = LogIdentity(identity.log or os.urandom(16).hex(), (first,))
    _write(folder, identity)
    return identity


def _restored(folder: Folder, identity: LogIdentity) -> LogIdentity:
    """Write the file with the id again if it is damaged or missing."""
    path = folder.file(IDENTITY)
    if not _id_in(folder.read(path)):
        _log.error("%s is damaged or missing; it is restored from %s", path, EPOCHS)
        folder.replace(path, f"{identity.log}\n".encode())
    return identity


def begin_epoch(folder: Folder, end: int) -> LogIdentity:
    """Start a new epoch of a log, durably, before its writer appends a record at `end`.

    Raises:
        OSError: the disk reports an error; no record may be appended.
    """
    identity = give_identity(folder)
    last = identity.epochs[-1].number
    earlier = [epoch for epoch in identity.epochs if epoch.first < end]
    epochs = [*earlier, Epoch(last + 1 + _step(), end)]
    identity = identity._replace(epochs=tuple(epochs[-EPOCH_LIMIT:]))
    folder.replace(folder.file(EPOCHS), encode_epochs(identity))
    return identity


def _step() -> int:
    """Return a random step between two epochs: two copies of a folder get different ones."""
    return int.from_bytes(os.urandom(4), "big") % _STEP


def _write(folder: Folder, identity: LogIdentity) -> None:
    """Write both files durably."""
    folder.replace(folder.file(IDENTITY), f"{identity.log}\n".encode())
    folder.replace(folder.file(EPOCHS), encode_epochs(identity))


def _exists(folder: Folder, path: str) -> bool:
    """Return whether a file exists."""
    try:
        folder.disk.size(path)
    except FileNotFoundError:
        return False
    return True
