"""One owner of files for many handlers.

Handlers run beside each other; the service's mailbox puts their writes in order, so records are
whole and those of one handler stay in its order. It has a thread of its own, on which it may
block for the disk.
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

#: Files that are kept open; beyond that the one used longest ago is closed.
OPEN_LIMIT: Final = 64

#: The formats of files.
RecordFormat = RecordFile | Hdf5File

#: Records of one answer at most.
BATCH: Final = 64


@frozen_message("callboard.flow.Append")
class Append:
    """To a file service: append encoded messages; answered by how many the file has."""

    name: str
    messages: tuple[bytes, ...]


@frozen_message("callboard.flow.Fetch")
class FetchRecords:
    """To a file service: read from an offset on, 0 at first; answered by `Fetched`."""

    name: str
    offset: int = 0


@frozen_message("callboard.flow.Fetched")
class Fetched:
    """Encoded messages, none at the end, and the offset behind them."""

    messages: tuple[bytes, ...]
    offset: int


def open_format(name: str) -> type[RecordFormat]:
    """Return the class of a file format: `records` or `hdf5`.

    Raises:
        RecordError: it is not known, or h5py is not installed.
    """
    if name == "records":
        return RecordFile
    if name == "hdf5":
        if find_spec("h5py") is None:
            msg = "the format hdf5 needs h5py; pip install 'callboard[hdf5]'"
            raise RecordError(msg)
        return Hdf5File
    msg = f"format {name!r} is not known; choose records or hdf5"
    raise RecordError(msg)


class FileService(Actor):
    """Owns the files of one folder: no other writer may use them."""

    detached = True
    remote_methods = frozenset()

    def __init__(self, root: str, file_format: str = "records") -> None:
        """Own a folder.

        Args:
            root: the folder; names in messages are relative to it and stay inside.
            file_format: `records`, or `hdf5` (extra `hdf5`).
        """
        self._root = Path(root)
        self._format = open_format(file_format)
        self._files: OrderedDict[Path, RecordFormat] = OrderedDict()

    @handler
    def append(self, order: Append) -> int | None:
        """Append to a file, which is made if it is not there."""
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
        return Fetched(tuple(each.encode() for each in messages), offset)

    def _file(self, name: str, *, is_new_allowed: bool) -> RecordFormat:
        """Return an open file by its name; the one used longest ago is closed."""
        path = path_inside(name, self._root)
        if (file := self._files.get(path)) is None:
            if not is_new_allowed and not path.is_file():
                msg = f"there is no file {name!r}"
                raise RecordError(msg)
            file = self._files[path] = self._format(path)
            if len(self._files) > OPEN_LIMIT:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return file

    def _refuse(self, name: str, error: Exception) -> None:
        """Let the ask fail; the service and everybody's files live on."""
        text = getattr(error, "strerror", None) or str(error)
        self.promise().set_exception(RecordError(f"file {name[:100]!r}: {text}"))
