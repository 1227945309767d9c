"""Flipped bits: detected, or harmless; never a wrong payload, never a silent loss.

The suite flips a sample; `CALLBOARD_FLIPS=0` flips every bit of every file (minutes).
"""

import asyncio
import os
import random
from functools import lru_cache

import pytest

from callboard.commitlog import CommitLog, LogCorrupt, LogReader
from callboard.simulation import SimulatedDisk

FLIPS = int(os.environ.get("CALLBOARD_FLIPS", "500"))


def written(disk, records=60, segment_bytes=1500):
    """A closed log of several segments, with runs, values, keys and headers."""
    rng = random.Random(1)
    with CommitLog("/a", disk=disk, sync="none", segment_bytes=segment_bytes) as log:
        for number in range(records):
            log.append("/t", {"number": number, "x": rng.random()}, key=f"k{number % 3}")
        log.append_batch(
            [rng.randbytes(20) for _ in range(20)], topic=["/a", "/b"] * 10, time=range(20)
        )
        return list(log)


def read_all(log):
    """All records that can be read, and the offsets that are reported as lost."""
    records, lost, offset = [], set(), log.start
    lost |= set(range(offset))
    while True:
        try:
            for record in log.read(offset):
                records.append(record)
                offset = record.offset + 1
            return records, lost
        except LogCorrupt as error:
            lost |= set(range(error.offset, error.next_offset))
            offset = error.next_offset


@lru_cache
def template():
    """The records of a log, and its files as bytes."""
    disk = SimulatedDisk()
    records = written(disk)
    paths = [f"/a/{name}" for name in disk.listdir("/a")]
    return records, {path: disk.open(path).pread(disk.size(path), 0) for path in paths}


def check(path, bit):
    before, files = template()
    disk = SimulatedDisk()
    disk.mkdir("/a")
    for each, content in files.items():
        disk.open(each, append=True).write(content)
    disk.flip_bit(path, bit)
    for open_log in (LogReader, lambda at, disk: CommitLog(at, disk=disk, sync="none")):
        log = open_log("/a", disk=disk)
        records, lost = read_all(log)
        assert records == [record for record in before if record.offset not in lost]
        assert len(lost) in (0, 1, 20)
        assert log.end == len(before)
    assert log.append("/t", b"goes on") == len(before)


def flips():
    """The bits to flip, as path and number."""
    _, files = template()
    bits = [(path, bit) for path in files for bit in range(len(files[path]) * 8)]
    return random.Random(7).sample(bits, min(FLIPS, len(bits))) if FLIPS else bits


@pytest.mark.timeout(60 if FLIPS else 3600)
def test_a_flipped_bit_is_detected_or_harmless():
    for path, bit in flips():
        try:
            check(path, bit)
        except BaseException as error:
            error.add_note(f"bit {bit} of {path}")
            raise


def test_a_damaged_record_is_named_and_reading_goes_on_behind_it():
    disk = SimulatedDisk()
    before = written(disk)
    disk.flip_bit("/a/00000000000000000000.log", 60 * 8)

    with pytest.raises(
        LogCorrupt, match=r"0000\.log is damaged at byte 0.*continue reading at 1"
    ) as caught:
        list(LogReader("/a", disk=disk).read(0))

    assert (caught.value.offset, caught.value.next_offset) == (0, 1)
    assert list(LogReader("/a", disk=disk).read(1)) == before[1:]


def test_a_bounded_read_returns_what_is_before_the_damage_first():
    disk = SimulatedDisk()
    before = written(disk, segment_bytes=1 << 20)
    disk.flip_bit("/a/00000000000000000000.log", 3000 * 8)
    log = LogReader("/a", disk=disk)

    run = log.readv(0, 1000)
    assert run.records == before[: len(run.records)] != []
    with pytest.raises(LogCorrupt) as caught:
        log.readv(run.cursor, 1000)
    assert caught.value.offset == len(run.records)
    after = log.readv(caught.value.next_offset, 1000)
    assert after.records == before[len(run.records) + 1 :]


def test_a_segment_that_is_gone_is_reported_by_its_offsets():
    disk = SimulatedDisk()
    before = written(disk)
    segments = LogReader("/a", disk=disk).segments
    disk.unlink(segments[1].path)

    records, lost = read_all(LogReader("/a", disk=disk))

    assert lost == set(range(segments[1].base, segments[1].end))
    assert records == [record for record in before if record.offset not in lost]


def test_a_consumer_passes_a_damaged_record_once_it_has_reported_it():
    disk = SimulatedDisk()
    before = written(disk, segment_bytes=1 << 20)
    disk.flip_bit("/a/00000000000000000000.log", 3000 * 8)
    errors = []

    follower = LogReader("/a", disk=disk).follow(0, timeout=0.0, on_damage=errors.append)
    records = list(follower)

    (error,) = errors
    assert error.next_offset == error.offset + 1
    assert records == [record for record in before if record.offset != error.offset]


def test_a_named_reader_commits_its_place_after_a_damaged_record(tmp_path):
    with CommitLog(tmp_path / "log", sync="each") as log:
        for number in range(3):
            log.append("t", number)
    path = tmp_path / "log" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reader = LogReader(tmp_path / "log")

    with reader.reader("a", timeout=0.0) as consumer, pytest.raises(LogCorrupt):
        list(consumer)
    errors = []
    with reader.reader("b", timeout=0.0, on_damage=errors.append) as consumer:
        assert [record.payload for record in consumer] == [0, 2]
        assert consumer.commit() == 3
    assert len(errors) == 1


def test_damage_at_the_end_is_reported_once_and_later_records_follow(tmp_path):
    with CommitLog(tmp_path / "log", sync="each") as log:
        for number in range(3):
            log.append("t", number)
    path = tmp_path / "log" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    reader, errors = LogReader(tmp_path / "log"), []
    follower = reader.follow(0, timeout=0.0, on_damage=errors.append)

    payloads = [record.payload for _ in range(3) for record in follower]

    assert payloads == [0, 1]
    assert len(errors) == 1


async def _payloads(follower):
    return [record.payload async for record in follower]


def test_an_awaiting_consumer_passes_a_damaged_record(tmp_path):
    with CommitLog(tmp_path / "log", sync="each") as log:
        for number in range(3):
            log.append("t", number)
    path = tmp_path / "log" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-len(data) // 2] ^= 1
    path.write_bytes(data)
    errors = []
    follower = LogReader(tmp_path / "log").follow(0, timeout=0.0, on_damage=errors.append)

    assert asyncio.run(_payloads(follower)) == [0, 2]
    assert len(errors) == 1
