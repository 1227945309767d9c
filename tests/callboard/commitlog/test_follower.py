"""Readers follow a live writer, in the same process and from another one."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from callboard.commitlog import CommitLog, LogReader, Retention
from tests.polling import eventually

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


@pytest.fixture
def without_looks(monkeypatch):
    """Followers that only see at once what wakes them."""
    for name in ("_SHORTEST", "_LONGEST", "_LONGEST_OWN"):
        monkeypatch.setattr(f"callboard.commitlog.following.follower.{name}", 50.0)
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 40.0


@pytest.mark.usefixtures("without_looks")
def test_a_writer_wakes_readers_of_the_same_folder_at_once(tmp_path):
    with CommitLog(tmp_path) as log:
        followers = [LogReader(tmp_path / ".").follow(), log.follow(0)]
        seen = []
        threads = [
            threading.Thread(target=lambda each=each: seen.append(each.read(timeout=50)))
            for each in followers
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(log.growth._waiters) == 2)
        log.append("/t", "come")
        for thread in threads:
            thread.join()

        assert [[record.payload for record in found] for found in seen] == [["come"]] * 2
        assert not log.growth.is_awaited


@pytest.mark.usefixtures("without_looks")
def test_a_writer_wakes_tasks_at_once():
    async def program():
        log, seen = CommitLog(), []

        async def follow(count):
            async for record in log.follow(0):
                seen.append(record.payload)
                if len(seen) == count:
                    return

        task = asyncio.create_task(follow(3))
        for number in range(3):
            while not log.growth.is_awaited:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await asyncio.to_thread(log.append, "/t", number)
        await task
        assert not log.growth.is_awaited
        return seen

    assert asyncio.run(program()) == [0, 1, 2]


def test_a_follower_that_was_cancelled_is_forgotten():
    async def program():
        log = CommitLog()
        task = asyncio.create_task(log.follow().aread())
        while not log.growth.is_awaited:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not log.growth.is_awaited

    asyncio.run(program())
