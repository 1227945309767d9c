"""Files of messages: append-only, and what damage does to them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.flow.errors import RecordError
from callboard.flow.protocol.message import Message
from callboard.flow.record_file import RecordFile, read_records


def made(*numbers):
    return [Message(label="{}", seqno=n, payload=(bytes([n]) * n, b"")) for n in numbers]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some" / "file.zio"


def test_what_is_appended_is_read_also_after_it_was_opened_again(path):
    file = RecordFile(path)
    assert file.append(made(1, 2)) == 2
    assert file.append(made(3)) == 3
    file.close()
    again = RecordFile(path)
    again.append(made(4))

    assert list(read_records(path)) == made(1, 2, 3, 4)
    first, offset = again.read(0, 3)
    assert first == made(1, 2, 3)
    assert again.read(offset, 3)[0] == made(4)


def test_a_torn_record_at_the_end_is_cut_off_wherever_it_was_torn(path):
    file = RecordFile(path)
    file.append(made(1))
    size = path.stat().st_size
    file.append(made(2))
    file.close()
    whole = path.read_bytes()

    for cut in range(size, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(read_records(path)) == made(1)
        again = RecordFile(path)
        assert again.count == 1
        assert again.append(made(3)) == 2
        again.close()
        assert list(read_records(path)) == made(1, 3)


def test_damage_before_the_end_is_an_error_that_says_where(path):
    file = RecordFile(path)
    file.append(made(5, 6))
    file.close()
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)

    with pytest.raises(RecordError, match="byte 8: another checksum"):
        list(read_records(path))
    with pytest.raises(RecordError):
        RecordFile(path)


def test_another_kind_of_file_is_left_alone(path):
    path.parent.mkdir()
    path.write_bytes(b"precious data")

    with pytest.raises(RecordError, match="no file of records"):
        RecordFile(path)
    assert path.read_bytes() == b"precious data"


@settings(max_examples=30)
@given(st.data())
def test_a_flipped_bit_never_gives_another_message(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bits") / "file"
    file = RecordFile(path)
    file.append(made(1, 2, 3))
    file.close()
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)

    found = []
    try:
        found.extend(read_records(path))
    except RecordError:
        pass
    assert found == made(1, 2, 3)[: len(found)]
