"""Nodes of one simulated star: the time until all know each other, and of an ask across.

Simulated nodes run the code of real ones on virtual time, in one process and one thread. Each
node finds a path to every other one: one path for each pair and direction.
"""

import gc
import time

from benchmarks.processes import RunFailedError
from benchmarks.scale import Processor, Scale, each, resident
from callboard import Actor, handler
from callboard.simulation import Cluster

ASKS = 500
LIMIT = 300.0


class Echo(Actor):
    """Answers."""

    @handler
    def on_number(self, number: int) -> int:
        """Answer with the number."""
        return number


def measure(size: int) -> dict[str, float]:
    """Create a star of nodes."""
    gc.collect()
    before = resident()
    cluster = Cluster(0)
    try:
        processor, started = Processor(), time.perf_counter()
        nodes = cluster(size, topology="star", names="n")
        seconds = time.perf_counter() - started
        used = processor.figures()
        gc.collect()
        whole = resident()
        across = nodes[-1].ref(str(nodes[size // 2 - (size == 2)].spawn(Echo)))
        if across.ask(-1).result(LIMIT) != -1:
            message = "wrong answer"
            raise RunFailedError(message)
        started = time.perf_counter()
        for number in range(ASKS):
            across.ask(number).result(LIMIT)
        asked = time.perf_counter() - started
    finally:
        cluster.close()
    paths = size * (size - 1)
    return {
        "paths found/s": paths / seconds,
        "asks over the hub/s": ASKS / asked,
        "bytes of the process": whole,
        **each("bytes of a node", whole - before, size),
        **each("bytes of a path", whole - before, paths),
        "seconds until all know all": seconds,
        **used,
    }


SCALE = Scale(
    title="Nodes of a star in one simulator",
    size="nodes",
    sizes=(2, 10, 30, 100, 300, 1_000),
    run=measure,
)
