"""One reader for several threads: what one finds out is not counted twice by another."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.disk import MemoryDisk


class MeetingFile:
    """Lets two threads that read it at once begin at the same moment, if they can."""

    def __init__(self, file, meeting):
        self._file, self._meeting = file, meeting

    def __getattr__(self, name):
        return getattr(self._file, name)

    def pread(self, size, offset):
        with suppress(threading.BrokenBarrierError):
            self._meeting.wait(0.3)
        return self._file.pread(size, offset)


class MeetingDisk(MemoryDisk):
    """Has such files while there is a meeting."""

    meeting = None

    def open(self, path, *, append=False):
        file = super().open(path, append=append)
        return file if self.meeting is None else MeetingFile(file, self.meeting)


def test_two_threads_that_look_at_the_end_at_once_count_each_batch_once():
    disk = MeetingDisk()
    with CommitLog("/a", disk=disk, sync="none") as log:
        for number in range(50):
            log.append("/n", number)
        reader = LogReader("/a", disk=disk)
        disk.meeting = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda _: reader.segments, range(2)))

        assert found[0] == found[1] == log.segments
        disk.meeting = None
        log.append("/n", 50)
        assert reader.end == 51
        assert reader.segments == log.segments


def test_a_reader_is_sent_to_another_process_with_what_it_knows(tmp_path):
    with CommitLog(tmp_path / "a", sync="none", segment_bytes=4_096) as log:
        for number in range(500):
            log.append("/n", number)
        reader = LogReader(tmp_path / "a")
        assert reader.end == 500

        there = copy.deepcopy(reader)

        assert there.segments == reader.segments == log.segments
        assert [each.payload for each in there] == list(range(500))
