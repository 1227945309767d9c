"""Workers: two actors that compute, in two worker processes, against both in one process.

The work is the same in both: each actor counts in plain Python, asked once. The figure is how
many times as fast two workers are as one node; two cores allow 2.0. Both are timed in turns in
one run, so that other load on the machine affects both.
"""

import time
from statistics import median

from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError
from callboard import Actor, ActorRef, Node, handler

STEPS = 4_000_000
TURNS = 3
LIMIT = 60.0


class Computer(Actor):
    """Keeps its core busy."""

    @handler
    def on_steps(self, steps: int) -> int:
        """Add up numbers."""
        total = 0
        for number in range(steps):
            total += number & 7
        return total


def ours(share: float = 1.0) -> float:
    """Return how many times as fast two workers are."""
    steps = max(100_000, int(STEPS * share))
    with Node() as node:
        pool = node.workers(2)
        here = [node.spawn(Computer) for _ in range(2)]
        there = pool.spawn_each(Computer)
        seconds_of(here, steps // 10)
        seconds_of(there, steps // 10)
        ratios = [seconds_of(here, steps) / seconds_of(there, steps) for _ in range(TURNS)]
    return median(ratios)


def seconds_of(computers: list[ActorRef[Computer]], steps: int) -> float:
    """Start all computations at once; return the seconds until the last answer."""
    started = time.perf_counter()
    answers = [computer.ask(steps) for computer in computers]
    if len({answer.result(LIMIT) for answer in answers}) != 1:
        message = "equal work gave different answers"
        raise RunFailedError(message)
    return time.perf_counter() - started


MEASURE = Measure(
    title="two workers against one node, computing",
    unit="times as fast",
    subjects=(Subject("callboard", ours),),
)
