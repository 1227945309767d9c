"""Lives of producers and a log in virtual time: links are cut, disks lose what was not synced.

Each record that was acknowledged is in the log once, at its offset; each that was tried again
is there once; the records of a producer are in their order. `CALLBOARD_SEEDS=2000` lives more.
"""

import os
from contextlib import suppress

import pytest

from callboard.actors.errors import CallboardError
from callboard.commitlog import CommitLog, LogError, LogFailed, ProducerFenced, ReceiptUnknown
from callboard.commitlog.producing.table import ProducerTable
from callboard.log_service.log_writer import LogWriter
from callboard.simulation import SimulatedDisk
from callboard.simulation.cluster import Cluster

SEEDS = int(os.environ.get("CALLBOARD_SEEDS", "6"))
PRODUCERS = ("a", "b", "c")


class ReceiptLife:
    """Three producers of one log."""

    def __init__(self, seed):
        self.cluster = Cluster(seed)
        self.random = self.cluster.random
        self.logs = {}
        self.host = None
        self.writers = {}
        self.under_way = []  # producer, payload, future
        self.told = {}  # offsets of payloads
        self.doubtful = []  # producer, payload, number
        self.made = 0

    def run(self, steps=60):
        try:
            self.open()
            self.host = self.cluster.node("log", serve_logs=self.logs)
            self.nodes = [self.cluster.node(f"w{n}") for n in range(2)]
            for _ in range(steps):
                self.step()
                self.collect()
            self.calm()
            self.check()
        finally:
            self.cluster.close()

    def open(self):
        if self.host is None:
            self.disk = SimulatedDisk(self.cluster.seed)
        self.disk.faults.fsync_errors = 0.0
        self.logs["cpu"] = CommitLog(
            "/cpu",
            disk=self.disk,
            sync="none",
            segment_bytes=2000,
            clock=lambda: 10**18 + int(self.cluster.now * 1e9),
        )

    def restart(self):
        """Crash the host of the log: what was not synced is lost in part."""
        self.cluster.kill(self.host)
        self.disk.crash()
        self.open()
        self.host = self.cluster.restart(self.host)

    def writer(self, name):
        if name not in self.writers:
            node = self.random.choice(self.nodes)
            address = self.host.address + "/cpu"
            with suppress(LogError, CallboardError):
                self.writers[name] = LogWriter(address, name, node=node, timeout=20.0)
        return self.writers.get(name)

    def step(self):
        rng = self.random
        name = rng.choice(PRODUCERS)
        if rng.random() < 0.65:
            self.append(name, rng.choice((1, 1, 5)))
        else:
            rng.choice((self.cut, self.partition, self.lose, self.cluster.heal, self.fail))()
            if rng.random() < 0.1:
                self.restart()
            if rng.random() < 0.1:  # another process takes the name over
                self.writers.pop(name, None)
        self.cluster.advance(rng.choice((0.0, 0.001, 0.1, 2.0, 8.0)))

    def append(self, name, count):
        if (writer := self.writer(name)) is not None:
            for _ in range(count):
                self.made += 1
                payload = f"{name} {self.made}"
                with suppress(LogError):
                    future = writer.append_soon(name, payload)
                    self.under_way.append((name, payload, future))

    def cut(self):
        self.cluster.cut(self.host, self.random.choice(self.nodes))

    def partition(self):
        node, both = self.random.choice(self.nodes), self.random.random() < 0.5
        self.cluster.partition(self.host, node, both=both)

    def lose(self):
        part = self.random.choice((0.0, 0.2))
        self.cluster.loss(self.host, self.random.choice(self.nodes), part)

    def fail(self):
        self.disk.faults.fsync_errors = self.random.choice((0.0, 0.5))

    def collect(self):
        """Note what was told."""
        still = []
        for name, payload, future in self.under_way:
            if not future.is_done:
                still.append((name, payload, future))
                continue
            error = future.exception()
            if error is None:
                self.told[payload] = future.result()
            elif isinstance(error, ReceiptUnknown):
                self.doubtful.append((name, payload, error.number))
            else:
                assert isinstance(error, LogFailed | ProducerFenced), error
        self.under_way = still

    def calm(self):
        """Mend all, and try again what is in doubt."""
        self.cluster.heal()
        for node in self.nodes:
            self.cluster.loss(self.host, node, 0.0)
        self.restart()
        self.cluster.advance(60.0)
        self.collect()
        assert not self.under_way
        for name in PRODUCERS:
            self.writers.pop(name, None)
            writer = LogWriter(
                self.host.address + "/cpu", name, node=self.nodes[0], timeout=20.0
            )
            for who, payload, number in self.doubtful:
                if who == name and number <= (writer.last or 0) + 1:
                    with suppress(LogError):  # another record has the number
                        self.told[payload] = writer.append(name, payload, number=number)
            self.told[f"{name} last"] = writer.append(name, f"{name} last")

    def check(self):
        found = list(self.logs["cpu"].read())
        at = {each.payload: each.offset for each in found}
        assert len(at) == len(found), "a record is there twice"
        for payload, offset in self.told.items():
            assert at.get(payload) == offset, f"{payload} was told at {offset}"
        for name in PRODUCERS:
            mine = [each.payload for each in found if each.topic == name]
            tried = {payload for who, payload, _ in self.doubtful if who == name}
            numbers = [int(p.split()[1]) for p in mine[:-1] if p not in tried]
            assert numbers == sorted(numbers), f"{name} is out of order"
            assert mine[-1] == f"{name} last"


@pytest.mark.timeout(60 + SEEDS)
def test_what_was_acknowledged_is_there_once():
    told = doubtful = 0
    for seed in range(SEEDS):
        life = ReceiptLife(seed)
        try:
            life.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        told, doubtful = told + len(life.told), doubtful + len(life.doubtful)
    assert told > 20 * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["forgets numbers", "answers before the sync"])
def test_a_planted_bug_is_found(bug, monkeypatch):
    if bug == "forgets numbers":
        monkeypatch.setattr(ProducerTable, "replay", lambda *_: None)
    else:
        monkeypatch.setattr(CommitLog, "flush", lambda _: None)
    with pytest.raises(AssertionError, match="twice|was told|out of order"):
        live_all(range(40))


def live_all(seeds):
    for seed in seeds:
        ReceiptLife(seed).run()
