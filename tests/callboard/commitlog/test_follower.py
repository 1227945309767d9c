"""Readers follow a live writer, in the same process and from another one."""

import asyncio
import subprocess
import sys
import threading

import pytest

from callboard.commitlog import CommitLog, LogReader, Retention

WRITER = """
import sys
from callboard.commitlog import CommitLog
with CommitLog(sys.argv[1], segment_bytes=20_000) as log:
    print(flush=True)
    sys.stdin.readline()
    for run in range(300):
        log.append_batch([b"%d" % (run * 10 + each) for each in range(10)], topic="/t")
"""


@pytest.fixture
def writer(tmp_path):
    """A process that appends 3,000 records when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def go(writer):
    writer.stdin.write(b"\n")
    writer.stdin.flush()


def test_another_process_sees_all_records_in_order(writer, tmp_path):
    follower = LogReader(tmp_path).follow(0)
    go(writer)
    seen = []
    while len(seen) < 3000:
        seen += follower.read(timeout=20)

    assert [int(record.payload) for record in seen] == list(range(3000))
    assert [record.offset for record in seen] == list(range(3000))
    assert follower.cursor.offset == LogReader(tmp_path).end == 3000


def test_followers_can_be_awaited(writer, tmp_path):
    async def program():
        go(writer)
        seen = []
        async for record in LogReader(tmp_path).follow(0, timeout=20):
            seen.append(int(record.payload))
            if len(seen) == 3000:
                break
        return seen

    assert asyncio.run(program()) == list(range(3000))


def test_it_ends_when_nothing_came_for_the_timeout():
    log = CommitLog()
    log.append("/t", 1)

    assert [record.payload for record in log.follow(0, timeout=0.01)] == [1]
    assert list(log.follow(timeout=0.01)) == []
    assert asyncio.run(log.follow(1).aread(timeout=0.01)) == []


def test_it_wakes_for_an_append_of_another_thread():
    log = CommitLog()
    follower = log.follow()
    thread = threading.Timer(0.02, lambda: log.append("/t", "come"))
    thread.start()

    assert [record.payload for record in follower.read(timeout=20)] == ["come"]
    thread.join()


def test_it_counts_what_retention_took(tmp_path):
    with CommitLog(tmp_path, retain=Retention(records=50)) as log:
        follower = LogReader(tmp_path).follow(0)
        for number in range(500):
            log.append("/t", number)
        seen = [record.payload for record in follower.read()]

        assert follower.lost == log.start
        assert seen == list(range(log.start, 500))


def test_a_half_written_batch_is_not_there_yet(tmp_path):
    with CommitLog(tmp_path / "whole", sync="none") as log:
        log.append("/t", b"first")
        begun = log.segments[0].bytes
        log.append("/t", b"second")
        data = (tmp_path / "whole" / "00000000000000000000.log").read_bytes()
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data[:begun])
    follower = LogReader(tmp_path).follow(0)

    assert [record.payload for record in follower.poll()] == [b"first"]
    for size in range(begun, len(data)):
        path.write_bytes(data[:size])
        assert follower.poll() == []
    path.write_bytes(data)
    assert [record.payload for record in follower.poll()] == [b"second"]
