"""Files of messages in HDF5."""

import pytest

from callboard.flow.errors import RecordError
from callboard.flow.file_service import open_format
from callboard.flow.protocol.message import Message

pytest.importorskip("h5py", reason="h5py is not installed (extra hdf5)")
Hdf5File = open_format("hdf5")


def made(*numbers):
    return [
        Message(label='{"n":"ä"}', payload=(bytes([n]) * n, b""), origin=2**64 - 1, seqno=n)
        for n in numbers
    ]


def test_what_is_appended_is_read_also_after_it_was_opened_again(tmp_path):
    path = tmp_path / "some" / "file.h5"
    file = Hdf5File(path)
    assert file.append(made(1, 2)) == 2
    assert file.append(made(3)) == 3
    file.close()
    again = Hdf5File(path)

    first, offset = again.read(0, 2)
    assert first == made(1, 2)
    assert again.read(offset, 9) == (made(3), 3)
    assert again.read(3, 9) == ([], 3)


def test_another_kind_of_file_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"precious data")

    with pytest.raises(RecordError, match="not an HDF5"):
        Hdf5File(path)
    assert path.read_bytes() == b"precious data"
