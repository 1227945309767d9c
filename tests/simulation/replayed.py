"""Repeats seeds in another process, and with another Python; reports differences.

    python -m tests.simulation.replayed           # prints what happened, as JSON
    python -m tests.simulation.replayed FILE      # compares with what another process printed

Twenty lives that fail: five programs that a user may write, of actors, timers, disks, stores
and topics under a swarm of faults, each with four seeds; and a seed of each life of our own.
Compared are all events (bytes on the network with their checksums, deliveries, faults) and all
answers with their times.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callboard import Actor, Endpoint, handler
from callboard.broker import Backend
from callboard.simulation import Cluster, History, swarm
from callboard.simulation.cluster_test import ClusterTest
from callboard.simulation.trace import first_difference
from tests.simulation.batch import LIVES, live_one

SEEDS = (3, 7, 11, 2026)

UNLIKE = {"doors", "credit"}
"""Lives that differ: masks of WebSocket come from the system, as RFC 6455 wants it; and asks on
a loop of asyncio let go of their refs a moment earlier on Python 3.12."""


class Ledger(Actor):
    """Writes down texts on a disk, and says how many it has."""

    def __init__(self, file: Any = None) -> None:
        self.file = file
        self.known: set[str] = set()
        self.ticks = 0

    @handler(concurrent=True)
    async def on_text(self, text: str) -> list[str]:
        """Write one down, after a while; it tells all that it has, in the order of a set."""
        await self.sleep(0.001 * len(text))
        self.known.add(text)
        if self.file is not None:
            self.file.write(text.encode())
            self.file.fsync()
        return sorted(self.known)

    @handler
    async def on_number(self, number: int) -> int:
        """Count with a timer."""
        for _ in range(number):
            await self.sleep(0.3)
            self.ticks += 1
        return self.ticks


def actors(cluster: Cluster, history: History) -> None:
    """Ask from two nodes, monitor, and stop."""
    a, b, c = cluster(3, topology="ring")
    ledger = a.spawn(Ledger)
    downs = [node.monitor(node.ref(str(ledger))) for node in (b, c)]
    for number in range(12):
        node = (b, c)[number % 2]
        history.ask(node.ref(str(ledger)), "x" * number, operation="write", timeout=4.0)
        cluster.advance(0.4)
    cluster.advance(30.0)
    for down in downs:
        history.follow(history.begin("down"), down)


def timers(cluster: Cluster, history: History) -> None:
    """Run timers on clocks of other rates, frozen at times."""
    nodes = cluster(3, topology="line")
    for number, node in enumerate(nodes):
        history.ask(node.spawn(Ledger), 30 + number, operation="tick", timeout=60.0)
        history.ask(nodes[0].ref(str(node.spawn(Ledger))), 5, operation="tick", timeout=9.0)
    cluster.advance(40.0)


def disks(cluster: Cluster, history: History) -> None:
    """Write to disks that fill up, fail, and lose unsynced data."""
    a, b = cluster(2)

    def opened(node: Any) -> None:
        disk = cluster.disk(node)
        file = disk.open("log", append=True)
        cluster.trace.note(cluster.now, node.name, "has", disk.open("log").size())
        disk.sync_folder("/")
        node.register("ledger", node.spawn(Ledger, file))

    cluster.restarted = opened
    opened(b)
    there = a.remote_actor(f"{b.address}/ledger")
    for number in range(20):
        history.ask(there, f"line {number}\n", operation="append", timeout=3.0)
        cluster.advance(0.8)
    cluster.advance(10.0)


def stores(cluster: Cluster, history: History) -> None:
    """Write and read by clones of one master."""
    nodes = cluster(3, topology="mesh")
    endpoints = [Endpoint(node=node) for node in nodes]
    master = history.store(endpoints[0].attach_master("shop", Backend.Memory), "master")
    clones = [
        history.store(each.attach_clone("shop"), f"clone {i}")
        for i, each in enumerate(endpoints[1:])
    ]
    for number in range(16):
        clones[number % 2].put(f"key {number % 3}", number)
        clones[number % 2].ask_unique(f"one {number % 5}", number)
        master.increment("sum", number)
        cluster.advance(0.9)
        master.get("sum")
        clones[0].get("sum")
    cluster.advance(20.0)


def topics(cluster: Cluster, history: History) -> None:
    """Publish and subscribe on nodes in a line."""
    nodes = cluster(3, topology="line")
    endpoints = [Endpoint(node=node) for node in nodes]
    subscribers = [
        each.make_subscriber([f"/t/{i}", "/all"]) for i, each in enumerate(endpoints)
    ]
    for number in range(20):
        for i, endpoint in enumerate(endpoints):
            history.publish(endpoint, f"/t/{(i + number) % 3}", number, client=i)
            history.publish(endpoint, "/all", -number, client=i)
        cluster.advance(0.7)
        for i, subscriber in enumerate(subscribers):
            history.take(subscriber, client=i)
    cluster.advance(20.0)


PROGRAMS: tuple[Callable[[Cluster, History], None], ...] = (
    actors,
    timers,
    disks,
    stores,
    topics,
)


def lived(program: Callable[[Cluster, History], None], seed: int) -> list[str]:
    """Return all events and answers of a program whose seed fails at its end."""
    told: list[str] = []

    def scenario(cluster: Cluster) -> None:
        history = cluster.history()
        try:
            program(cluster, history)
        finally:
            told.extend(
                f"{each} by {each.client} on {each.key} {each.begin!r} to {each.end!r}"
                for each in history.operations
            )
        assert not history.operations, "each of these seeds fails"

    run = ClusterTest(scenario, [seed], swarm(), twice=False).live(seed, swarm().draw(seed), {})
    assert run.cluster is not None
    return [*run.cluster.trace.lines(), *told, f"{type(run.error).__name__}: {run.error}"]


def happened() -> dict[str, list[str]]:
    """Return what happens in each program with each seed, and in a seed of each life."""
    logging.getLogger("callboard").propagate = False
    found = programs()
    for kind in LIVES.keys() - UNLIKE:
        found[f"life of {kind}"] = live_one(kind, SEEDS[0]).dump.events
    return found


def programs() -> dict[str, list[str]]:
    """Return what happens in each program with each seed."""
    return {
        f"{program.__name__} {seed}": lived(program, seed)
        for program in PROGRAMS
        for seed in SEEDS
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Report the first different event of each seed."""
    told = []
    for name, events in after.items():
        found = first_difference(before[name], events)
        if found is not None:
            number, was, now = found
            told.append(f"{name}: event {number + 1:,} was: {was}; it is: {now}")
    return told


def main(*files: str) -> int:
    """Print what happens, or compare it with a file; returns the exit code."""
    found = happened()
    if not files:
        print(json.dumps(found))
        return 0
    told = differences(json.loads(Path(files[0]).read_text(encoding="utf-8")), found)
    count = sum(map(len, found.values()))
    print("\n".join(told) or f"{len(found)} seeds, {count:,} events and answers: the same")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
