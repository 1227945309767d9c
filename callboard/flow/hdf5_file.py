"""Files of messages in HDF5 (extra `hdf5`), for programs that read that.

Group `records` has a group for each message, `00000000` and on, with the attributes form,
label, origin, granule, seqno and level, and for each payload frame a dataset of bytes, `00`
and on.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import h5py

from callboard.flow.errors import RecordError
from callboard.flow.message import Message

__all__ = ["Hdf5File"]

_NUMBERS: Final = ("origin", "granule", "seqno", "level")


class Hdf5File:
    """A file that one owner appends to and reads."""

    def __init__(self, path: Path) -> None:
        """Open or make it.

        Raises:
            RecordError: it is no HDF5 file.
            OSError: it cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not h5py.is_hdf5(path):
            msg = f"{path} is no HDF5 file"
            raise RecordError(msg)
        self._file: Any = h5py.File(path, "a")
        self._records: Any = self._file.require_group("records")
        self.count: int = len(self._records)

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages; returns how many the file has.

        Raises:
            OSError: the disk is full, for instance.
        """
        for message in messages:
            group = self._records.create_group(f"{self.count:08d}")
            group.attrs["form"], group.attrs["label"] = message.form, message.label
            for name in _NUMBERS:
                group.attrs.create(name, getattr(message, name), dtype="uint64")
            for number, frame in enumerate(message.payload):
                group.create_dataset(f"{number:02d}", data=memoryview(frame), dtype="uint8")
            self.count += 1
        self._file.flush()
        return self.count

    def read(self, offset: int, most: int) -> tuple[list[Message], int]:
        """Return messages from a number on, and the number behind them."""
        end = min(max(offset, 0) + most, self.count)
        found = [_message(self._records[f"{number:08d}"]) for number in range(offset, end)]
        return found, end

    def close(self) -> None:
        """Close it."""
        self._file.close()


def _message(group: Any) -> Message:
    frames = tuple(bytes(group[name][()]) for name in sorted(group, key=int))
    numbers = {name: int(group.attrs[name]) for name in _NUMBERS}
    return Message(group.attrs["form"], group.attrs["label"], frames, **numbers)
