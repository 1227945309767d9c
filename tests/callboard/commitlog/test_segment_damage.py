"""Single flipped bits of a segment of 64 KiB: detected, or harmless.

The suite flips a sample of the 524,288; `CALLBOARD_SEGMENT_FLIPS=0` flips each (a quarter of
an hour), `CALLBOARD_SEGMENT_FLIPS=100000:200000` those of a range.
"""

import os
import random
from functools import lru_cache

import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.disk import MemoryDisk
from tests.callboard.commitlog.test_damage import read_all

FLIPS = os.environ.get("CALLBOARD_SEGMENT_FLIPS", "1000")
SIZE = 64 << 10
SEGMENT = "/a/00000000000000000000.log"
RUN = 8
RECOVERIES = 64
"""One of so many damaged logs is also opened to write."""


@lru_cache
def template():
    """A closed log with one segment of 64 KiB: its records, and its files."""
    rng, disk = random.Random(3), MemoryDisk()
    with CommitLog("/a", disk=disk, sync="none") as log:
        while (room := SIZE - log.segments[0].bytes) > 4000:
            log.append_batch(
                [rng.randbytes(rng.randint(0, 600)) for _ in range(RUN)],
                topic=[f"/t/{rng.randint(0, 3)}" for _ in range(RUN)],
                sender="s",
                time=range(RUN),
            )
        empty = log.segments[0].bytes
        log.append("/t", b"")
        head = log.segments[0].bytes - empty
        log.append("/t", bytes(room - 2 * head))
        records = list(log)
    files = {f"/a/{name}": bytes(disk._files[f"/a/{name}"]) for name in disk.listdir("/a")}
    assert len(files[SEGMENT]) == SIZE
    return records, files


def check(bit):
    before, files = template()
    disk = MemoryDisk()
    disk._files = {path: bytearray(content) for path, content in files.items()}
    disk._files[SEGMENT][bit // 8] ^= 1 << bit % 8

    records, lost = read_all(LogReader("/a", disk=disk))

    assert len(lost) in (0, 1, RUN)
    assert records == [record for record in before if record.offset not in lost]
    if bit % RECOVERIES == 0:
        log = CommitLog("/a", disk=disk, sync="none")
        assert log.append("/t", b"goes on") == len(before)
        again, still_lost = read_all(log)
        assert (again[:-1], still_lost) == (records, lost)


def bits():
    """The bits to flip."""
    if ":" in FLIPS:
        return range(*map(int, FLIPS.split(":")))
    if FLIPS == "0":
        return range(SIZE * 8)
    return random.Random(11).sample(range(SIZE * 8), int(FLIPS))


@pytest.mark.slow
@pytest.mark.timeout(60 if FLIPS.isdecimal() and FLIPS != "0" else 7200)
def test_a_flipped_bit_of_a_segment_is_detected_or_harmless():
    for bit in bits():
        try:
            check(bit)
        except BaseException as error:
            error.add_note(f"bit {bit}")
            raise
