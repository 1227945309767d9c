"""A reader of a log that a node serves, with partitions, cuts and restarts in virtual time."""

import random

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader
from callboard.simulation.cluster import Cluster

FOLDER = "/cpu"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_reader_sees_each_record_once_whatever_the_network_does(seed):
    cluster, chance = Cluster(seed), random.Random(seed)
    try:
        disk = cluster.disk(cluster.node("first"))
        log = CommitLog(FOLDER, disk=disk, segment_bytes=3_000, sync="none", clock=lambda: 7)
        shop = cluster.node("shop", serve_logs={"cpu": log})
        probe = cluster.node("probe")
        log.append("/n", 0)
        follower = LogReader(shop.address + "/cpu", node=probe).follow(0)
        seen, count = [], 1
        for _ in range(40):
            what = chance.choice(
                ["append"] * 5 + ["partition", "cut", "heal", "restart", "wait"]
            )
            if what == "append":
                run = chance.randrange(1, 60)
                log.append_batch([bytes(chance.randrange(90))] * run, topic="/n")
                count += run
            elif what == "partition":
                cluster.partition(shop, probe, both=chance.random() < 0.5)
            elif what == "cut":
                cluster.cut(shop, probe)
            elif what == "heal":
                cluster.heal()
            elif what == "restart":
                cluster.kill(shop)
                cluster.advance(chance.random())
                shop = cluster.restart(shop)
            cluster.advance(chance.random() * 3)
            try:
                seen += follower.poll(chance.randrange(1, 100))
            except LogFailed:
                cluster.heal()  # it was away for longer than a reader waits
        cluster.heal()
        while len(seen) < count:
            seen += follower.poll()
        assert [each.offset for each in seen] == list(range(count))
        assert follower.lost == 0
    finally:
        cluster.close()


def test_growth_is_told_without_a_look(cluster):
    with CommitLog() as log:
        shop, probe = cluster.node("shop", serve_logs={"cpu": log}), cluster.node("probe")
        log.append("/n", 0)
        reader, told = LogReader(shop.address + "/cpu", node=probe), []
        assert reader.end == 1
        for number in range(3):
            cluster.advance(1.0)
            reader.growth.add(lambda: told.append(cluster.now))
            if not number:  # where it ends is not known yet, so that is told at once
                assert cluster.run_until(lambda: told, 1.0)
                continue
            assert not cluster.run_until(lambda: len(told) > number, 5.0)  # noqa: B023
            log.append("/n", number)
            assert cluster.run_until(lambda: len(told) > number, 0.5)  # noqa: B023


def test_a_wait_for_growth_ends_in_any_case(cluster):
    with CommitLog() as log:
        shop, probe = cluster.node("shop", serve_logs={"cpu": log}), cluster.node("probe")
        log.append("/n", 0)
        reader, told = LogReader(shop.address + "/cpu", node=probe), []
        for _ in range(2):
            reader.growth.add(lambda: told.append(cluster.now))
            cluster.run_until(lambda: told, 1.0)
        assert cluster.run_until(lambda: len(told) > 1, 60.0)
        assert told[1] - told[0] > 19
