"""The log on a simulated disk that loses unsynced bytes, tears writes and fails syncs.

What was acknowledged as durable is there afterwards; what is there is a prefix of what was
appended; no payload is ever wrong. `CALLBOARD_SEEDS=20000` lives more lives than the suite.
"""

import os
import random
from contextlib import suppress

import pytest

from callboard.commitlog import CommitLog, LogFailed
from callboard.simulation import SimulatedDisk

SEEDS = int(os.environ.get("CALLBOARD_SEEDS", "150"))


class Life:
    """One log on one disk, and what it was told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.payloads: list[bytes] = []  # by offset, as far as a writer was told
        self.durable = 0
        self.sync = self.random.choice(["none", "none", "each"])
        self.segment_bytes = self.random.choice([200, 1000, 1 << 20])

    def run(self, crashes: int) -> None:
        for _ in range(crashes):
            self.write_some()
            if self.random.random() < 0.8:
                self.disk.crash()
        self.calm()
        log = self.open()
        self.check(log)
        log.append("/t", b"last")
        log.close()

    def open(self) -> CommitLog:
        return CommitLog(
            "/logs/a",
            disk=self.disk,
            sync=self.sync,
            segment_bytes=self.segment_bytes,
            clock=lambda: 0,
        )

    def calm(self) -> None:
        faults = self.disk.faults
        faults.short_writes = faults.fsync_errors = 0.0
        faults.capacity = None

    def write_some(self) -> None:
        """Open the log, check it, append and flush until it is left, perhaps with an error."""
        rng, faults = self.random, self.disk.faults
        self.calm()
        faults.short_writes = rng.choice([0.0, 0.5])
        faults.fsync_errors = rng.choice([0.0, 0.0, 0.1])
        with suppress(LogFailed):
            log = self.open()
            self.check(log)
            for _ in range(rng.randint(0, 40)):
                self.step(log)
            if rng.random() < 0.2:
                log.close()
                self.durable = len(self.payloads)

    def step(self, log: CommitLog) -> None:
        rng = self.random
        room = rng.choice([None, None, None, rng.randint(0, 300)])
        if room is not None:
            self.disk.faults.capacity = None
            size = sum(each.bytes for each in log.segments)
            self.disk.faults.capacity = size + room
        if rng.random() < 0.15:
            log.flush()
            self.durable = len(self.payloads)
            return
        run = [rng.randbytes(rng.randint(0, 60)) for _ in range(rng.choice([1, 1, 5]))]
        # Told before: an append that fails may have written all of it, only not durably.
        before = len(self.payloads)
        self.payloads += run
        try:
            log.append_batch(run, topic="/t")
        except LogFailed:
            if log.end == before:
                del self.payloads[before:]
            raise
        assert log.end == len(self.payloads)
        self.durable = max(self.durable, log.durable)

    def check(self, log: CommitLog) -> None:
        found = [record.payload for record in log.read()]
        assert found == self.payloads[: len(found)]
        assert len(found) >= self.durable
        assert log.end == len(found)
        assert not log.recovery.damaged
        self.payloads = found
        self.durable = len(found)  # opening made all that is left durable


@pytest.mark.timeout(60 + SEEDS // 50)
@pytest.mark.parametrize("seeds", range(3))
def test_what_was_acknowledged_survives_every_crash(seeds):
    for seed in range(seeds, SEEDS, 3):
        try:
            Life(seed).run(crashes=5)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_torn_tail_is_cut_and_nothing_else():
    disk = SimulatedDisk()
    with CommitLog("/a", disk=disk, sync="none") as log:
        log.append("/t", b"kept")
        log.flush()
        whole = disk.size("/a/00000000000000000000.log")
        log.append("/t", b"torn")
        size = disk.size("/a/00000000000000000000.log")
    for cut in range(whole, size):
        copy = SimulatedDisk()
        copy.mkdir("/a")
        source, target = (
            each.open("/a/00000000000000000000.log", append=True) for each in (disk, copy)
        )
        target.write(source.pread(cut, 0))
        target.close()
        with CommitLog("/a", disk=copy, sync="none") as log:
            assert [record.payload for record in log] == [b"kept"]
            assert log.recovery.cut_bytes == cut - whole
            assert log.append("/t", b"next") == 1
            assert [record.payload for record in log] == [b"kept", b"next"]


def test_whole_batches_behind_a_torn_one_are_kept_aside():
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none")
    for number in range(3):
        log.append("/t", bytes([number]) * 50)
    path = "/a/00000000000000000000.log"
    disk.flip_bit(path, disk.size(path) * 8 // 2)  # in the second of three, none was synced

    again = CommitLog("/a", disk=disk, sync="none")

    assert [record.offset for record in again] == [0]
    assert disk.size(again.recovery.kept_in) == again.recovery.cut_bytes


def test_a_full_disk_refuses_the_record_and_takes_the_next_when_there_is_room():
    disk = SimulatedDisk()
    with CommitLog("/a", disk=disk, sync="none") as log:
        log.append("/t", b"first")
        disk.faults.capacity = sum(each.bytes for each in log.segments) + 60
        with pytest.raises(LogFailed, match="No space left"):
            log.append("/t", b"x" * 100)
        assert log.end == 1
        disk.faults.capacity = None
        log.append("/t", b"second")

    with CommitLog("/a", disk=disk, sync="none") as log:
        assert [record.payload for record in log] == [b"first", b"second"]


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_log_is_opened_again():
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none")
    log.append("/t", b"first")
    disk.faults.fsync_errors = 1.0
    with pytest.raises(LogFailed, match="open the log again"):
        log.flush()
    disk.faults.fsync_errors = 0.0
    with pytest.raises(LogFailed, match="has failed"):
        log.append("/t", b"second")

    again = CommitLog("/a", disk=disk, sync="none")
    disk.crash()

    assert again.durable == 1
    assert [each.payload for each in CommitLog("/a", disk=disk, sync="none")] == [b"first"]


def test_names_that_a_failed_writer_left_unsynced_are_synced_by_the_next():
    for seed in range(20):
        disk = SimulatedDisk(seed)
        disk.faults.fsync_errors = 1.0
        with pytest.raises(LogFailed):
            CommitLog("/logs/a", disk=disk, sync="each")
        disk.faults.fsync_errors = 0.0
        CommitLog("/logs/a", disk=disk, sync="each").append("/t", b"kept")
        disk.crash()

        assert [each.payload for each in CommitLog("/logs/a", disk=disk)] == [b"kept"]
