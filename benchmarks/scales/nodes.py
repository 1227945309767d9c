"""Nodes of one simulated star: what it takes until all know each other, and for an ask across.

Simulated nodes run the code of real ones on virtual time, in one process and one thread.
"""

import gc
import time

from benchmarks.processes import RunFailedError
from benchmarks.scale import Scale, resident
from callboard import Actor, handler
from callboard.simulation import Cluster

ASKS = 50
LIMIT = 300.0


class Echo(Actor):
    """Answers."""

    @handler
    def on_number(self, number: int) -> int:
        """Answer with the number."""
        return number


def measure(size: int) -> dict[str, float]:
    """Make a star of so many nodes."""
    gc.collect()
    before = resident()
    cluster = Cluster(0)
    try:
        started = time.perf_counter()
        nodes = cluster(size, topology="star", names="n")
        seconds = time.perf_counter() - started
        gc.collect()
        occupied = resident() - before
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
    return {
        "seconds until all know each other": seconds,
        "KiB a node": occupied / size / 1024,
        "ms of an ask over two hops": asked / ASKS * 1e3,
    }


SCALE = Scale(
    title="nodes of one simulated star",
    size="nodes",
    sizes=(2, 10, 30, 100, 300, 1_000),
    run=measure,
    limit="The interpreter, by the square of the nodes: all greet all others.",
)
