"""Servers of logs are killed and frozen: readers go on, and each record comes once.

`CALLBOARD_KILLS` says how often.
"""

import random
import signal
import time

import pytest

pytest.importorskip("pyarrow.flight")

from callboard.commitlog import CommitLog, LogFailed, LogReader
from callboard.commitlog.remote import disk
from tests.faults import KILLS
from tests.faults.log_server import ServedLog

RECORDS = 40_000


@pytest.fixture
def log(tmp_path):
    chance = random.Random(1)
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=8 << 20) as log:
        for first in range(0, RECORDS, 100):
            numbers = range(first, first + 100)
            log.append_batch([b"%d " % n + chance.randbytes(1000) for n in numbers], topic="/n")
        yield log


@pytest.mark.timeout(60 + 20 * KILLS)
def test_a_reader_goes_on_behind_servers_that_are_killed(log, figure):
    moments = sorted(random.Random(2).sample(range(1, RECORDS), KILLS))
    with ServedLog(log.folder) as server:
        seen = 0
        for record in LogReader(server.address).read():
            assert record.offset == seen == int(record.payload.partition(b" ")[0])
            seen += 1
            if moments and seen >= moments[0]:
                moments.pop(0)
                server.kill()
                server.start()
    assert seen == RECORDS
    figure(f"served log: {KILLS} kills, {seen:,} records once each")


@pytest.mark.timeout(120)
def test_a_follower_sees_what_is_appended_while_its_server_is_away(log, figure):
    with ServedLog(log.folder) as server:
        follower = LogReader(server.address).follow(RECORDS - 5)
        assert len(follower.read(timeout=20)) == 5
        for number in range(KILLS):
            server.kill()
            log.append("/late", number)
            server.start()
            assert [each.payload for each in follower.read(timeout=20)] == [number]
        assert follower.poll() == []
    figure(f"served log, followed: {KILLS} kills, nothing lost, nothing twice")


@pytest.mark.timeout(120)
def test_a_frozen_server_is_told_and_read_on_when_it_thaws(log, monkeypatch, figure):
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 2.0)
    with ServedLog(log.folder) as server:
        follower = LogReader(server.address).follow(0)
        seen = [each.offset for each in follower.read(1000)]
        server.send(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(LogFailed, match="no answer"):
            seen.extend(each.offset for each in iter(follower))  # first what was read ahead
        told = time.monotonic() - began
        server.send(signal.SIGCONT)
        while len(seen) < RECORDS:
            seen += [each.offset for each in follower.read(1000, timeout=20)]
    assert seen == list(range(RECORDS))
    assert told < 30
    figure(f"served log: a frozen server was told in {told:.1f} s, and read on later")
