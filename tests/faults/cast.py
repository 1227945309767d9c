"""The actors that the faults happen to; children load them from this file."""

import asyncio
import resource
import threading
import time
from pathlib import Path

import psutil

from callboard import Actor, ActorRef, errors, handler


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg


class Sink(Actor):
    """Checks that numbers rise and nothing comes twice."""

    def __init__(self) -> None:
        self.received = 0
        self.last = -1
        self.wrong = 0

    @handler
    def number(self, msg: int) -> None:
        self.wrong += msg <= self.last
        self.last = msg
        self.received += 1

    def seen(self) -> tuple[int, int]:
        return self.received, self.wrong


class Worker(Actor):
    """Carries out the test's orders inside a node process."""

    def __init__(self) -> None:
        self.flooding = threading.Event()

    async def load(self, sink: ActorRef, count: int, each: int) -> int:
        """Tell numbers, `each` of them at once."""
        for number in range(count):
            sink.tell(number)
            if number % each == 0:
                await asyncio.sleep(0.001)
        return count

    async def rate(self, echo: ActorRef, seconds: float) -> float:
        """Return the asks in a second that are answered, 32 of them under way."""
        began, answered = time.monotonic(), 0
        while (now := time.monotonic()) - began < seconds:
            await asyncio.gather(*(echo.ask("hi") for _ in range(32)))
            answered += 32
        return answered / (now - began)

    def flood(self, ref: ActorRef, size: int) -> None:
        """Tell as much as the link takes, on a thread of its own."""

        def run() -> None:
            content = bytes(size)
            try:
                while not self.flooding.is_set():
                    ref.tell(content)
            except errors.CallboardError:
                pass

        threading.Thread(target=run, daemon=True).start()

    def rest(self) -> None:
        self.flooding.set()

    def waiting(self) -> int:
        return max(link.bytes_waiting for link in self.node.links())

    def rss(self) -> int:
        return psutil.Process().memory_info().rss

    def accounts(self) -> dict[bytes, tuple[int, int, int, int]]:
        """Return sent, confirmed, lost and in flight by node."""
        self.node.report_now()
        return {
            node: (one.sent, one.confirmed, one.lost, one.in_flight)
            for node, one in self.node.accounts().items()
        }

    def leave_descriptors(self, count: int) -> None:
        """Limit the number of further files that the process can open."""
        used = 1 + max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + count, hard))
