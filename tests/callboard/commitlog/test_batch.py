"""The format on the disk: golden bytes, truncation, damage, and what other programs write."""

import struct
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog import LogCorrupt
from callboard.commitlog.batch import HEADER_SIZE, encode_batch, records_of
from callboard.commitlog.columns import many_records, one_record
from callboard.commitlog.disk import MemoryDisk
from callboard.commitlog.integrity import Scan
from callboard.commitlog.segment import SegmentIndex, decode_index


def batches_in(data):
    file = MemoryDisk().open("/x", append=True)
    file.write(data)
    scan, found = Scan(file), []
    while batch := scan.next():
        found.append(batch)
    return found


def test_the_bytes_of_a_batch_are_those_of_the_documentation():
    data, latest = encode_batch(7, 1000, one_record("/t", b"abc", None, None))
    names = bytes.fromhex("83 81 62 2f74 81 f6 81 a0")
    body = struct.pack("<I", len(names)) + names + struct.pack("<I", 3) + b"abc"
    checked = struct.pack("<IIQqqII", crc32(body), len(body), 7, 1000, 1000, 1, 1)

    assert data == b"CBL1" + struct.pack("<I", crc32(checked)) + checked + body
    assert HEADER_SIZE == 48
    assert latest == 1000


def test_columns_stand_in_the_order_of_the_documentation():
    headers = [{"h": "1"}, None]
    columns = many_records([b"a", "b"], ["/x", "/y"], ["k", None], headers, ["n", ""], [5, 4])
    data, latest = encode_batch(0, 9, columns)
    size = struct.unpack_from("<I", data, HEADER_SIZE)[0]
    columns_at = HEADER_SIZE + 4 + size

    assert data[columns_at:] == (
        struct.pack("<2q", 5, 4)
        + struct.pack("<2I", 0, 1) * 4  # topics, keys, headers, senders
        + b"\1\0"  # kinds
        + struct.pack("<2I", 1, 2)
        + b"a\x61b"
    )
    assert latest == 5


def test_names_without_senders_are_those_of_records_that_nobody_sent():
    data, _ = encode_batch(0, 1, one_record("/t", b"a", "k", None))
    (batch,) = batches_in(data)

    assert bytes.fromhex("83 81 62 2f74 81 61 6b 81 a0") in batch.body  # as they always were
    assert [record.sender for record in records_of(batch)] == [""]


def test_every_truncation_and_every_flipped_bit_is_noticed():
    first, _ = encode_batch(0, 1, one_record("/t", b"first", "key", {"a": "b"}))
    second, _ = encode_batch(1, 1, one_record("/t", b"second", None, None))
    whole = first + second

    for size in range(len(whole)):
        assert len(batches_in(whole[:size])) == (size >= len(first))
    for bit in range(len(second) * 8):
        damaged = bytearray(whole)
        damaged[len(first) + bit // 8] ^= 1 << bit % 8
        assert len(batches_in(damaged)) == 1


@given(st.binary(max_size=120), st.integers(1, 5), st.integers(0, 140))
def test_a_batch_of_another_program_is_corrupt_or_read(body, count, flags):
    checked = struct.pack("<IIQqqII", crc32(body), len(body), 0, 0, 0, count, flags)
    (batch,) = batches_in(b"CBL1" + struct.pack("<I", crc32(checked)) + checked + body)

    with suppress(LogCorrupt):  # and nothing else
        records = list(records_of(batch))
        assert len(records) == count
        for record in records:
            record.payload  # noqa: B018


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 90_000), st.integers(-9, 9))))
def test_an_index_comes_back_as_it_was(batches):
    index = SegmentIndex(5)
    for records, size, latest in batches:
        index.cover(index.end, index.end + records, size, latest)
    data = index.encode()
    again = decode_index(data, 5, index.size)

    assert again is not None
    assert vars(again) == vars(index)
    assert decode_index(data, 5, index.size + 1) is None
    assert decode_index(data[:-1], 5, index.size) is None
    assert all(index.find(offset)[1] <= offset for offset in range(5, index.end))


@pytest.mark.parametrize("position", range(0, 40, 3))
def test_a_damaged_index_is_none(position):
    index = SegmentIndex(0)
    index.cover(0, 1, 50, 7)
    data = bytearray(index.encode())
    data[position] ^= 4

    assert decode_index(bytes(data), 0, 50) is None
