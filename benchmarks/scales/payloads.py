"""The size of a message: one-way messages of a size to an actor in another process."""

import time

import psutil

from benchmarks.ours import LIMIT, remote_partner
from benchmarks.processes import RunFailedError
from benchmarks.scale import Processor, Scale, resident_at_most
from callboard import Actor, ActorRef, handler

SIZES = (8, 64, 512, 4_096, 32_768, 262_144, 2_097_152, 16_777_216)
BYTES = 1 << 30
MOST = 100_000
LARGEST = SIZES[-1] + 1024


class Sender(Actor):
    """Sends the same bytes again and again, and waits whenever the link is full."""

    def __init__(self, partner: ActorRef) -> None:
        self.partner = partner

    @handler
    async def on_plan(self, plan: tuple[int, int]) -> float:
        """Send `count` messages of `size` bytes; return the seconds until all have arrived."""
        size, count = plan
        partner, send, content = self.partner, self.send, bytes(size)
        window = max(1, min(1_000, (8 << 20) // size))
        started = time.perf_counter()
        seen = 0
        for number in range(count):
            send(partner, content)
            if number % window == window - 1:
                seen += await partner.ask("count")
        seen += await partner.ask("count")
        took = time.perf_counter() - started
        if seen != count:
            message = f"the sink saw {seen} of {count}"
            raise RunFailedError(message)
        return took


def measure(size: int) -> dict[str, float]:
    """Send messages of this size."""
    count = max(20, min(MOST, BYTES // 4 // size))
    with remote_partner("sink", LARGEST) as (node, partner):
        sender = node.spawn(Sender, partner)
        sender.ask((size, max(1, count // 10))).result(LIMIT)
        both = (psutil.Process(), *psutil.Process().children())
        processor = Processor(*both)
        took = float(sender.ask((size, count)).result(LIMIT))
        used = processor.figures()
        most = list(map(resident_at_most, both))
    return {
        "messages/s": count / took,
        "bytes sent/s": count * size / took,
        "bytes copied within a process/s": copied(size),
        "bytes of the sender, at most": most[0],
        "bytes of the receiver, at most": most[1],
        **used,
    }


def copied(size: int) -> float:
    """Return how many bytes a second this machine copies into fresh memory, in such pieces."""
    content, count = bytearray(size), max(5, min(MOST, BYTES // 4 // size))
    started = time.perf_counter()
    for _ in range(count):
        bytes(content)
    return count * size / (time.perf_counter() - started)


SCALE = Scale(
    title="Size of a message to another process",
    size="bytes",
    sizes=SIZES,
    run=measure,
    is_binary=True,
)
