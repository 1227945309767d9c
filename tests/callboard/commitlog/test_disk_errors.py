"""Each call of the disk fails, one after the other: errors are typed, what was said stays."""

import errno
import os
from contextlib import closing, suppress

import pytest

from callboard.commitlog import (
    CommitLog,
    LogError,
    LogFailed,
    LogReader,
    Retention,
    sealed_segments,
)
from callboard.commitlog.disk import MemoryDisk
from callboard.commitlog.verify import verify
from callboard.simulation import SimulatedDisk

CALLS = 400


class FailingDisk(MemoryDisk):
    """A disk that fails at one call, or from it on."""

    def __init__(self, code):
        super().__init__()
        self.code, self.left, self.lasts, self.only = code, None, False, None

    def fail(self, calls, *, lasts=False):
        self.left, self.lasts = calls, lasts

    def call(self):
        if self.left is None:
            return
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.lasts):
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path, *, append=False):
        self.call()
        return FailingFile(self, super().open(path, append=append))

    def rename(self, old, new):
        self.call()
        super().rename(old, new)

    def unlink(self, path):
        self.call()
        super().unlink(path)

    def listdir(self, path):
        self.call()
        return super().listdir(path)

    def size(self, path):
        self.call()
        return super().size(path)

    def sync_folder(self, path):
        self.call()


class FailingFile:
    """A file of it; a write that fails has written half."""

    def __init__(self, disk, file):
        self.disk, self.file = disk, file

    def write(self, data):
        try:
            self.disk.call()
        except OSError:
            self.file.write(data[: len(data) // 2])
            raise
        return self.file.write(data)

    def __getattr__(self, name):
        method = getattr(self.file, name)
        if name == "close":
            return method

        def called(*arguments):
            self.disk.call()
            return method(*arguments)

        return called


CODES = [errno.EIO, errno.ENOSPC, errno.EROFS]


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_a_writer_whose_disk_fails_anywhere_loses_nothing_and_goes_on(code, lasts):
    at = 0
    while True:
        at += 1
        disk, confirmed, log = FailingDisk(code), [], None
        disk.fail(at, lasts=lasts)
        for number in range(12):
            try:
                log = log or CommitLog("/a", disk=disk, sync="each", segment_bytes=300)
                log.append("/t", [number, "x" * 40])
                confirmed.append(number)
            except LogFailed:
                if log is not None and number % 2:
                    with suppress(LogFailed):
                        log.close()
                    log = None
        if log is not None:
            with suppress(LogFailed):
                log.close()
        is_reached, disk.left = disk.left <= 0, None

        with closing(CommitLog("/a", disk=disk, sync="each")) as log:
            log.append("/t", [99])
        found = [record.payload[0] for record in LogReader("/a", disk=disk)]
        assert [number for number in found if number in confirmed] == confirmed, at
        assert found[-1] == 99
        assert found == sorted({*found}), at
        if not is_reached:
            return
        assert at < CALLS


def steps(disk):
    """What readers do."""
    log = LogReader("/a", disk=disk)
    yield [record.offset for record in log.read(0, on_damage=print)]
    yield log.start, log.end, [each.bytes for each in log.segments]
    yield log.readv(3, 5).records
    yield log.offset_at(1)
    yield log.follow(0).poll(5)
    yield next(LogReader("/a", disk=disk).read(17)).offset
    yield LogReader("/a", disk=disk).segments
    yield verify("/a", disk=disk).records
    yield sealed_segments("/a", disk=disk)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_a_reader_whose_disk_fails_anywhere_tells_it_by_a_typed_error(code):
    disk = FailingDisk(code)
    with CommitLog("/a", disk=disk, sync="none", segment_bytes=300) as log:
        for number in range(20):
            log.append("/t", number, time=number)
    for at in range(1, CALLS):
        disk.fail(at)
        with suppress(LogError):
            for _ in steps(disk):
                pass
        if disk.left > 0:
            return
    pytest.fail("more calls than that")


@pytest.mark.parametrize("code", CODES)
def test_what_cannot_be_removed_keeps_nobody_from_appending(code, caplog):
    disk = FailingDisk(code)
    retain = Retention(records=100)
    with CommitLog("/a", disk=disk, sync="none", retain=retain) as log:
        for number in range(95):
            log.append("/t", number)
        disk.unlink = lambda path: disk.fail(1) or disk.call()
        with pytest.raises(LogFailed, match="could not be removed"):
            log.trim(before=90)
        assert log.start == 0
        for number in range(95, 300):
            log.append("/t", number)
        assert log.start == 0
        assert "could not be removed" in caplog.text
        del disk.unlink
        assert log.trim() >= 190
        assert [record.payload for record in log] == [*range(log.start, 300)]


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes", [300, 5000])
def test_a_full_disk_takes_the_next_record_when_there_is_room(segment_bytes):
    for room in range(150, 1500, 7):
        disk, confirmed = SimulatedDisk(), []
        with CommitLog("/a", disk=disk, sync="each", segment_bytes=segment_bytes) as log:
            disk.faults.capacity = room
            for number in range(60):
                try:
                    log.append("/t", [number, "x" * 20])
                    confirmed.append(number)
                except LogFailed:
                    assert not log.has_failed
            assert len(confirmed) < 60
            disk.faults.capacity = None
            for number in range(60, 65):
                log.append("/t", [number, ""])
                confirmed.append(number)
            assert [record.payload[0] for record in log] == confirmed
        assert [each.payload[0] for each in LogReader("/a", disk=disk)] == confirmed


def test_a_log_that_could_not_be_opened_is_not_locked(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        patched.setattr(os, "write", full)
        patched.setattr(os, "fsync", full)
        with pytest.raises(LogFailed):
            CommitLog(tmp_path / "log").append("/t", 1)

    with CommitLog(tmp_path / "log") as log:
        log.append("/t", 1)
