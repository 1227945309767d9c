"""Writers of a log are killed at full rate: nothing acknowledged is lost, nothing torn seen."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.verify import verify
from tests.faults import KILLS

ROOT = Path(__file__).parents[2]
RESTART_LIMIT = 2.0
"""Seconds from the start of opening until a killed log takes records again."""

# Each payload tells its offset and proves itself; what was acknowledged goes out on a pipe.
WRITER = """
import hashlib, sys
from callboard.commitlog import CommitLog

def payload(offset):
    return b"%d " % offset + hashlib.blake2b(b"%d" % offset, digest_size=32).digest() * 3

log = CommitLog(sys.argv[1], sync=sys.argv[2], segment_bytes=4 << 20)
out = open(1, "wb", 0)
while True:
    first = log.end
    log.append_batch([payload(n) for n in range(first, first + 100)], topic="/t")
    out.write(b"%d\\n" % log.end)
"""

READER = """
import hashlib, json, sys
from callboard.commitlog import LogReader

seen = wrong = 0
follower = LogReader(sys.argv[1]).follow(0)
while True:
    for record in follower.read(10_000, timeout=0.2):
        number, _, proof = record.payload.partition(b" ")
        good = hashlib.blake2b(number, digest_size=32).digest() * 3 == proof
        wrong += not (good and int(number) == record.offset == seen)
        seen += 1
    print(json.dumps([seen, wrong, follower.lost]), flush=True)
"""


def start(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize("sync", ["none", "group"])
def test_killed_writers_lose_nothing_they_acknowledged(tmp_path, figure, sync):
    rng, acknowledged, slowest = random.Random(1), 0, 0.0
    CommitLog(tmp_path).close()
    reader = start(READER, tmp_path)
    try:
        for _ in range(KILLS):
            acknowledged = max(
                acknowledged, killed_writer(tmp_path, sync, rng.uniform(0.1, 0.6))
            )
            began = time.monotonic()
            with CommitLog(tmp_path) as log:
                slowest = max(slowest, time.monotonic() - began)
                assert log.end >= acknowledged
                assert not log.recovery.damaged
        report = verify(tmp_path)
        seen = wait_for(reader, report.end)
    finally:
        reader.kill()
        reader.communicate()

    assert (report.start, report.damage, report.torn_bytes) == (0, [], 0)
    assert report.records == report.end >= acknowledged > 0
    assert seen == [report.end, 0, 0]
    assert slowest < RESTART_LIMIT
    figure(
        f"log, {sync}: {KILLS} kills, {acknowledged:,} acknowledged, 0 lost, 0 torn seen; "
        f"opened again in {slowest * 1000:.0f} ms"
    )


def killed_writer(folder, sync, seconds):
    """Let a writer run for a while and kill it; return what it acknowledged."""
    before = LogReader(folder).end
    writer = start(WRITER, folder, sync)
    try:
        assert int(writer.stdout.readline()) > before
        time.sleep(seconds)
    finally:
        writer.kill()
    lines = writer.communicate()[0].split(b"\n")
    return int(lines[-2]) if len(lines) > 1 else before


def wait_for(reader, end):
    """Return what the reader tells when it has seen all."""
    deadline = time.monotonic() + 30
    for line in reader.stdout:
        told = json.loads(line)
        if told[0] >= end or time.monotonic() > deadline:
            return told
    return None
