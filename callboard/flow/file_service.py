"""The single owner of record files that many handlers use.

Handlers run concurrently. The mailbox of the service serializes their writes, so that records
are complete and those of one handler keep their order. The service has its own thread, which
may block on the disk.
"""

from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from callboard.flow.errors import InvalidRule, MalformedMessage, RecordError
from callboard.flow.protocol.message import Message
from callboard.flow.protocol.rules import path_inside
from callboard.flow.record_file import Hdf5File, RecordFile
from callboard.kernel.actors import Actor, frozen_message, handler
from callboard.support.files.private_file import check_mode

#: Limit of open files; beyond it the least recently used file is closed.
OPEN_LIMIT: Final = 64

#: File formats.
RecordFormat = RecordFile | Hdf5File

#: Maximum number of records in one reply.
BATCH: Final = 64


@frozen_message("callboard.flow.Append")
class Append:
    """Asks a file service to append encoded messages; the reply is the file's record count."""

    name: str
    messages: tuple[bytes, ...]


@frozen_message("callboard.flow.Fetch")
class FetchRecords:
    """Asks a file service for records from an offset on (first 0); the reply is `Fetched`."""

    name: str
    offset: int = 0


@frozen_message("callboard.flow.Fetched")
class Fetched:
    """Encoded messages, none at the end of the file, and the offset after them."""

    messages: tuple[bytes, ...]
    offset: int


def open_format(name: str) -> type[RecordFormat]:
    """Return the class of a file format: `records` or `hdf5`.

    Raises:
        RecordError: the name is unknown, or h5py is not installed.
    """
    if name == "records":
        return RecordFile
    if name == "hdf5":
        if find_spec("h5py") is None:
            msg = "the format hdf5 needs h5py; pip install 'callboard[hdf5]'"
            raise RecordError(msg)
        return Hdf5File
    msg = f"unknown format {name!r}; choose records or hdf5"
    raise RecordError(msg)


class FileService(Actor):
    """Owns the files of a folder; they must not have other writers."""

    detached = True
    remote_methods = frozenset()

    def __init__(
        self, root: str, file_format: str = "records", mode: int | None = None
    ) -> None:
        """Use a folder.

        Args:
            root: the folder; names in messages are relative to it and must stay inside.
            file_format: `records`, or `hdf5` (extra `hdf5`).
            mode: mode of new folders, such as 0o750, whatever the umask is; 0o700 by default.
                New files are as open as their folder.

        Raises:
            ValueError: `mode` is not a mode with which this user can use a folder.
        """
        self._root = Path(root)
        self._mode = check_mode(mode)
        self._format = open_format(file_format)
        self._files: OrderedDict[Path, RecordFormat] = OrderedDict()

    @handler
    def append(self, order: Append) -> int | None:
        """Append to a file; create it if it does not exist."""
        try:
            messages = [Message.decode(data) for data in order.messages]
            return self._file(order.name, is_new_allowed=True).append(messages)
        except (OSError, InvalidRule, MalformedMessage) as error:
            self._refuse(order.name, error)
            return None

    @handler
    def fetch(self, order: FetchRecords) -> Fetched | None:
        """Read from a file."""
        try:
            file = self._file(order.name, is_new_allowed=False)
            messages, offset = file.read(order.offset, BATCH)
        except (OSError, InvalidRule) as error:
            self._refuse(order.name, error)
            return None
        return Fetched(tuple(message.encode() for message in messages), offset)

    def _file(self, name: str, *, is_new_allowed: bool) -> RecordFormat:
        """Open a file by its name; close the least recently used one if there are too many."""
        path = path_inside(name, self._root)
        if (file := self._files.get(path)) is None:
            if not is_new_allowed and not path.is_file():
                msg = f"there is no file {name!r}"
                raise RecordError(msg)
            file = self._files[path] = self._format(path, self._mode)
            if len(self._files) > OPEN_LIMIT:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return file

    def _refuse(self, name: str, error: Exception) -> None:
        """Fail the ask without ending the service, which all handlers share."""
        text = getattr(error, "strerror", None) or str(error)
        self.promise().set_exception(RecordError(f"file {name[:100]!r}: {text}"))
