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

    with pytest.raises(RecordError, match="byte 8: its checksum is wrong"):
        list(read_records(path))
    with pytest.raises(RecordError):
        RecordFile(path)


def test_another_kind_of_file_is_left_alone(path):
    path.parent.mkdir()
    path.write_bytes(b"precious data")

    with pytest.raises(RecordError, match="not a record file"):
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


def test_a_damaged_length_cuts_off_nothing_that_stands_behind_it(path):
    file = RecordFile(path)
    file.append(made(*range(1, 10)))
    file.close()
    whole = path.read_bytes()

    for bit in range(32):
        data = bytearray(whole)
        data[8 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(RecordError, match="damaged at byte 8"):
            RecordFile(path)
        assert path.read_bytes() == data
        told = []
        assert list(read_records(path, on_damage=told.append)) == made(*range(2, 10))
        assert len(told) == 1


@settings(max_examples=60)
@given(st.data())
def test_all_whole_records_are_read_past_damage(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "file"
    messages = made(*range(1, 8))
    file = RecordFile(path)
    ends = [file.append([message]) and path.stat().st_size for message in messages]
    file.close()
    raw = bytearray(path.read_bytes())
    first = data.draw(st.integers(8, len(raw) - 1))
    behind = data.draw(st.integers(first + 1, len(raw)))
    raw[first:behind] = (
        bytes(behind - first) if data.draw(st.booleans()) else b"\xa5" * (behind - first)
    )
    path.write_bytes(raw)

    told = []
    found = list(read_records(path, on_damage=told.append))

    starts = [8, *ends]
    hurt = {n for n in range(7) if starts[n] < behind and first < ends[n]}
    assert [message for n, message in enumerate(messages) if n not in hurt] == [
        message
        for message in found
        if message in messages and messages.index(message) not in hurt
    ]
    assert told or 6 in hurt or len(found) == 7


def test_a_tail_of_zeros_is_torn(path):
    file = RecordFile(path)
    file.append(made(1, 2))
    file.close()
    path.write_bytes(path.read_bytes() + bytes(4096))

    assert list(read_records(path)) == made(1, 2)
    assert RecordFile(path).append(made(3)) == 3
