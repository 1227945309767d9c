"""Idle actors on one node: what they occupy, how fast they are made, how fast all are told."""

import gc
import time

from benchmarks.scale import Scale, resident
from callboard import Actor, ActorRef, Node, handler

SIZES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
TELLS = 200_000
LIMIT = 120.0


class Counter(Actor):
    """Has two attributes."""

    def __init__(self) -> None:
        self.name = "counter"
        self.seen = 0

    @handler
    def on_number(self, number: int) -> None:
        """Count."""
        self.seen += 1

    @handler
    def on_question(self, question: str) -> int:
        """Answer with the count; whoever was told before this one has counted, too."""
        return self.seen


class Maker(Actor):
    """Makes the actors, from inside, as programs do."""

    def __init__(self) -> None:
        self.made: list[ActorRef[Counter]] = []

    @handler
    def on_size(self, size: int) -> float:
        """Spawn so many; answer with the seconds that it took."""
        spawn = self.spawn
        started = time.perf_counter()
        self.made = [spawn(Counter) for _ in range(size)]
        return time.perf_counter() - started

    @handler
    async def on_order(self, order: str) -> float:
        """Tell all in turn; answer with the messages for each second."""
        made, send = self.made, self.send
        started = time.perf_counter()
        told = 0
        while told < TELLS:
            for ref in made:
                send(ref, 1)
            told += len(made)
            await made[-1].ask("seen")
        return told / (time.perf_counter() - started)


def measure(size: int) -> dict[str, float]:
    """Make so many actors."""
    with Node() as node:
        maker = node.spawn(Maker)
        maker.ask(1).result(LIMIT)
        gc.collect()
        before = resident()
        seconds = float(maker.ask(size).result(LIMIT))
        gc.collect()
        occupied = resident() - before
        rate = float(maker.ask("go").result(LIMIT))
    return {"bytes an actor": occupied / size, "spawned/s": size / seconds, "told/s": rate}


SCALE = Scale(
    title="actors on one node",
    size="actors",
    sizes=SIZES,
    run=measure,
    limit="The interpreter: one thread makes and runs all of them.",
)
