"""The node that records is killed while a reader follows over BASP: nothing lost or doubled."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from callboard.commitlog import LogReader

ROOT = Path(__file__).parents[2]
KILLS = 3

#: Serves its log on a port, and appends numbers from where the log ends.
RECORDER = """
import itertools, sys, time
from callboard import Node
from callboard.commitlog import CommitLog

folder, port = sys.argv[1:]
with CommitLog(folder, segment_bytes=200_000) as log:
    node = Node("recorder", serve_logs={"n": folder})
    print(node.listen("127.0.0.1", int(port)), flush=True)
    for first in itertools.count(log.end, 50):
        log.append_batch(list(range(first, first + 50)), topic="/n")
        time.sleep(0.002)
"""


def start(folder, port):
    command = [sys.executable, "-c", RECORDER, str(folder), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_reader_goes_on_behind_a_node_that_was_killed(tmp_path, figure, eventually):
    folder = tmp_path / "n"
    recorder, port = start(folder, 0)
    seen, ended = [], threading.Event()
    follower = LogReader(f"basp://127.0.0.1:{port}/n").follow(0, timeout=60)

    def follow():
        for record in follower:
            seen.append(record)
            if ended.is_set():
                return

    reading = threading.Thread(target=follow)
    reading.start()
    try:
        for _ in range(KILLS):
            before = len(seen)
            eventually(lambda before=before: len(seen) > before + 500, 30)
            recorder.kill()
            recorder.wait()
            recorder, _ = start(folder, port)
        before = len(seen)
        eventually(lambda before=before: len(seen) > before + 500, 30)
    finally:
        ended.set()
        reading.join(30)
        recorder.kill()
        recorder.wait()
    count = len(seen)
    assert [each.offset for each in seen] == list(range(count))
    assert [each.payload for each in seen] == list(range(count))
    assert follower.lost == 0
    figure(f"log over BASP: {KILLS} kills of the node, {count:,} records followed, each once")
