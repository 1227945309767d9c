"""A recording is killed while messages pour in: what it told as durable is in the log."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from callboard import Endpoint, Node
from callboard.commitlog import LogReader
from callboard.commitlog.verify import verify

ROOT = Path(__file__).parents[2]
KILLS = 3


class Flood:
    """Publishes numbers to whoever listens, until it ends."""

    def __init__(self, node):
        self._endpoint = Endpoint(node=node)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        number = 0
        while not self._ended.is_set():
            batch = [("/n", number + each) for each in range(100)]
            self._endpoint.publish_batch(*batch)
            number += 100

    def end(self):
        self._ended.set()
        self._thread.join()


def record(folder, address):
    command = [sys.executable, "-m", "callboard", "topic", "record", "/n", "--log", str(folder)]
    command += ["--peer", address, "--rate", "--json"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )


def test_a_killed_recording_goes_on_behind_what_was_durable(tmp_path, figure):
    told = 0
    with Node() as node:
        node.listen("127.0.0.1", 0)
        flood = Flood(node)
        try:
            for _ in range(KILLS):
                recorder = record(tmp_path, node.address)
                assert json.loads(recorder.stderr.readline())["start"] >= told
                while (durable := json.loads(recorder.stdout.readline())["durable"]) <= told:
                    pass
                told = durable
                recorder.kill()
                recorder.communicate()
        finally:
            flood.end()
    report = verify(tmp_path)
    numbers = [record.payload for record in LogReader(tmp_path)]

    assert report.damage == []
    assert report.end == len(numbers) >= told > 0
    assert all(first < second for first, second in zip(numbers, numbers[1:], strict=False))
    figure(f"recording: {KILLS} kills, {told:,} told as durable, {len(numbers):,} in the log")
