"""A log's node is killed under 16 publishers: receipts hold, and no record is there twice."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from callboard.commitlog import LogReader, ReceiptUnknown
from callboard.commitlog.verify import verify
from callboard.log_service.log_writer import LogWriter
from tests.faults import KILLS

ROOT = Path(__file__).parents[2]
PUBLISHERS = 16

NODE = """
import sys, time
from callboard import Node

node = Node("log", serve_logs={"cpu": sys.argv[1]})
print(node.listen("127.0.0.1", int(sys.argv[2])), flush=True)
time.sleep(3600)
"""


def start(folder, port):
    command = [sys.executable, "-c", NODE, str(folder), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    node = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    return node, int(node.stdout.readline())


class Publisher(threading.Thread):
    """Appends numbers, each until it has a receipt."""

    def __init__(self, address, name, ended):
        super().__init__(daemon=True)
        self.name, self.ended, self.offsets = name, ended, []
        self._writer = LogWriter(address, name, timeout=20.0)

    def run(self):
        with self._writer as writer:
            while not self.ended.is_set():
                number = len(self.offsets) + 1
                try:
                    self.offsets.append(writer.append(self.name, number, number=number))
                except ReceiptUnknown:
                    continue


@pytest.mark.timeout(120 + 20 * KILLS)
def test_receipts_hold_when_the_node_of_the_log_is_killed(tmp_path, figure):
    rng, ended = random.Random(1), threading.Event()
    node, port = start(tmp_path / "cpu", 0)
    address = f"basp://127.0.0.1:{port}/cpu"
    publishers = [Publisher(address, f"meter-{n}", ended) for n in range(PUBLISHERS)]
    for each in publishers:
        each.start()
    try:
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 1.0))
            node.kill()
            node.communicate()
            node, _ = start(tmp_path / "cpu", port)
        ended.wait(1.0)
        ended.set()
        for each in publishers:
            each.join(60.0)
            assert not each.is_alive()
    finally:
        ended.set()
        node.kill()
        node.communicate()

    assert verify(tmp_path / "cpu").damage == []
    found = {each.name: {} for each in publishers}
    last = dict.fromkeys(found, 0)
    for record in LogReader(tmp_path / "cpu"):
        assert record.payload == last[record.topic] + 1, "doubled, lost or out of order"
        last[record.topic] = record.payload
        found[record.topic][record.payload] = record.offset
    total = 0
    for each in publishers:
        assert [found[each.name][n + 1] for n in range(len(each.offsets))] == each.offsets
        total += len(each.offsets)
    assert total > PUBLISHERS * KILLS
    figure(
        f"receipts: {KILLS} kills of the log's node under {PUBLISHERS} publishers, {total:,} "
        "acknowledged, 0 lost, 0 doubled, 0 out of order"
    )
