"""Actors on one node: their memory, and the rates of creation and of messages to all.

The first message to an actor creates its mailbox and context, so it is counted apart.
"""

import gc
import time
from dataclasses import dataclass

from benchmarks.scale import Processor, Scale, each, resident
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
        """Return the count, which includes all earlier messages."""
        return self.seen


@dataclass(frozen=True)
class Size:
    """Requests the creation of actors."""

    actors: int


class Maker(Actor):
    """Makes the actors, from inside, as programs do."""

    def __init__(self) -> None:
        self.made: list[ActorRef[Counter]] = []

    @handler
    def on_size(self, size: Size) -> float:
        """Spawn actors; return the seconds that it took."""
        spawn = self.spawn
        started = time.perf_counter()
        self.made = [spawn(Counter) for _ in range(size.actors)]
        return time.perf_counter() - started

    @handler
    async def on_order(self, least: int) -> float:
        """Send messages to all actors in turn; answer with the messages per second."""
        made, send = self.made, self.send
        started = time.perf_counter()
        told = 0
        while told < least:
            for ref in made:
                send(ref, 1)
            told += len(made)
            await made[-1].ask("seen")
        return told / (time.perf_counter() - started)


def measure(size: int) -> dict[str, float]:
    """Create actors."""
    with Node() as node:
        maker = node.spawn(Maker)
        maker.ask(Size(1)).result(LIMIT)
        gc.collect()
        before = resident()
        seconds = float(maker.ask(Size(size)).result(LIMIT))
        gc.collect()
        idle = resident() - before
        first = float(maker.ask(1).result(LIMIT))
        gc.collect()
        met = resident() - before
        processor = Processor()
        rate = float(maker.ask(TELLS).result(LIMIT))
        used = processor.figures()
        whole = resident()
    return {
        "messages told and handled/s": rate,
        "first messages told and handled/s": first,
        "spawned/s": size / seconds,
        "bytes of the process": whole,
        **each("bytes of an actor that had a message", met, size),
        **each("bytes of an idle actor", idle, size),
        **used,
    }


SCALE = Scale(title="Actors on one node", size="actors", sizes=SIZES, run=measure)
