"""The measured actors of callboard, and the node process that they communicate with.

    python -m benchmarks.ours [--join ADDRESS] [--offer] [--largest BYTES] [--log FOLDER]

runs a node until stdin is closed, and prints its address. `--join` links it to another node
first, `--offer` registers an echo and a sink there, `--log` serves a log.
"""

import argparse
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import Popen

from benchmarks.processes import RunFailedError, serving
from callboard import (
    Actor,
    ActorRef,
    CallboardError,
    Limits,
    Node,
    Query,
    StreamQuery,
    handler,
    message,
)

LIMIT = 50.0
"""Seconds for one measure."""

LARGEST = Limits().payload
"""Default limit of the bytes of a message."""

Clock = Callable[[], float]

WINDOW = 100
"""Asks outstanding at once in the pipelined measure."""


class Taken:
    """Counts events, and the time from the first to the last."""

    def __init__(self, events: int, clock: Clock) -> None:
        self.left = self.events = events
        self.began = self.ended = 0.0
        self.done = threading.Event()
        self._clock = clock

    def take(self) -> None:
        """Count a message."""
        if self.left == self.events:
            self.began = self._clock()
        self.left -= 1
        if not self.left:
            self.ended = self._clock()
            self.done.set()

    def rate(self) -> float:
        """Wait for the last event; returns events for each second."""
        if not self.done.wait(LIMIT):
            message = f"{self.left} of {self.events} events did not come"
            raise RunFailedError(message)
        return (self.events - 1) / (self.ended - self.began)


class Echo(Actor):
    """Answers with the number that it was asked."""

    @handler
    def on_number(self, number: int) -> int:
        """Answer."""
        return number


class Sink(Actor):
    """Counts numbers and bytes; tells (and forgets) how many when asked in words."""

    def __init__(self) -> None:
        self.seen = 0

    @handler
    def on_number(self, number: int) -> None:
        """Count one message."""
        self.seen += 1

    @handler
    def on_content(self, content: bytes) -> None:
        """Count one message."""
        self.seen += 1

    @handler
    def on_question(self, question: str) -> int:
        """Answer with the count."""
        seen, self.seen = self.seen, 0
        return seen


class Asker(Actor):
    """Asks `count` times, one ask after the other, in one coroutine handler."""

    def __init__(self, partner: ActorRef) -> None:
        self.partner = partner

    @handler
    async def on_count(self, count: int) -> float:
        """Ask; answer with the seconds that it took."""
        partner = self.partner
        started = time.perf_counter()
        for number in range(count):
            await partner.ask(number)
        return time.perf_counter() - started


class PipelinedAsker(Asker):
    """Keeps a window of asks outstanding."""

    @handler
    async def on_count(self, count: int) -> float:
        """Ask; answer with the seconds that it took."""
        partner = self.partner
        started = time.perf_counter()
        window = deque(partner.ask(number) for number in range(min(WINDOW, count)))
        for number in range(len(window), count):
            await window.popleft()
            window.append(partner.ask(number))
        for answer in window:
            await answer
        return time.perf_counter() - started


class Flooder(Actor):
    """Fires all messages inside one handler, then asks the sink for its count."""

    def __init__(self, partner: ActorRef) -> None:
        self.partner = partner

    @handler
    async def on_count(self, count: int) -> float:
        """Send; answer with the seconds until the sink had all."""
        partner, send = self.partner, self.send
        started = time.perf_counter()
        for number in range(count):
            send(partner, number)
        seen = await partner.ask("count")
        took = time.perf_counter() - started
        if seen != count:
            message = f"the sink saw {seen} of {count}"
            raise RunFailedError(message)
        return took


@message("benchmarks.Items")
@dataclass(frozen=True)
class Items(StreamQuery[bytes]):
    """Read items of 100 B as a stream."""

    count: int


@message("benchmarks.ItemBatch")
@dataclass(frozen=True)
class ItemBatch(Query[list[bytes]]):
    """Ask for a list of items of 100 B."""

    count: int


class Source(Actor):
    """Makes items."""

    @handler
    async def on_items(self, query: Items) -> AsyncIterator[bytes]:
        """Yield items."""
        item = b"x" * 100
        for _ in range(query.count):
            yield item

    @handler
    def on_batch(self, query: ItemBatch) -> list[bytes]:
        """Answer with a list of items."""
        item = b"x" * 100
        return [item for _ in range(query.count)]


class StreamReader(Asker):
    """Reads a stream of `count` items in one coroutine handler."""

    @handler
    async def on_count(self, count: int) -> float:
        """Read; answer with the seconds that it took."""
        seen = 0
        started = time.perf_counter()
        async for _ in self.partner.stream(Items(count)):
            seen += 1
        took = time.perf_counter() - started
        if seen != count:
            message = f"the reader got {seen} of {count}"
            raise RunFailedError(message)
        return took


class BatchReader(Asker):
    """Reads `count` items in lists of 100, one ask after the other."""

    @handler
    async def on_count(self, count: int) -> float:
        """Read; answer with the seconds that it took."""
        started = time.perf_counter()
        for _ in range(0, count, 100):
            for _item in await self.partner.ask(ItemBatch(100)):
                pass
        return time.perf_counter() - started


def rate_of(node: Node, worker: type[Actor], partner: ActorRef, count: int) -> float:
    """Return the rate of a worker after a tenth of the work as warm-up."""
    ref = node.spawn(worker, partner)
    ref.ask(max(1, count // 10)).result(LIMIT)
    return count / float(ref.ask(count).result(LIMIT))


def local(worker: type[Actor], partner: type[Actor], count: int) -> float:
    """Measure a worker with a partner on the same node."""
    with Node() as node:
        return rate_of(node, worker, node.spawn(partner), count)


def remote(worker: type[Actor], name: str, count: int) -> float:
    """Measure a worker with the partner of that name in another process."""
    with remote_partner(name) as (node, partner):
        return rate_of(node, worker, partner, count)


def forwarded(worker: type[Actor], name: str, count: int) -> float:
    """Measure a worker with the partner of that name two hops away."""
    with (
        serving(node_program("--offer")) as (_, far),
        serving(node_program("--join", far)) as (_, near),
        Node() as node,
    ):
        node.connect(near)
        return rate_of(node, worker, find_in_reach(node, name), count)


def remote_from_thread(count: int) -> float:
    """Ask from this plain thread, one after the other; return the rate."""
    with remote_partner("echo") as (_, partner):
        ask_in_sequence(partner.ask, max(1, count // 10))
        started = time.perf_counter()
        ask_in_sequence(partner.ask, count)
        return count / (time.perf_counter() - started)


def ask_in_sequence(ask: Callable, count: int) -> None:
    """Ask and wait, `count` times."""
    for number in range(count):
        ask(number).result(LIMIT)


@contextmanager
def remote_partner(name: str, largest: int = LARGEST) -> Iterator[tuple[Node, ActorRef]]:
    """Start another process with a node and give ours and the actor of that name there."""
    program = node_program("--offer", "--largest", str(largest))
    with serving(program) as (_, address), Node(limits=Limits(payload=largest)) as node:
        yield node, node.remote_actor(f"{address}/{name}")


def milliseconds_to_down(hops: int) -> float:
    """Kill the last node of a line with SIGKILL; return when a monitor on the first one knew.

    One hop is a direct link; with more, other processes forward between this node and the
    victim.
    """
    with serving(node_program("--offer")) as (victim, address):
        return time_to_down(victim, address, hops - 1)


def time_to_down(victim: Popen[str], address: str, between: int) -> float:
    """Start forwarding nodes before `address`, monitor an actor there, and kill it."""
    if between:
        with serving(node_program("--join", address)) as (_, nearer):
            return time_to_down(victim, nearer, between - 1)
    with Node() as node:
        node.connect(address)
        watched = find_in_reach(node, "echo")
        down = node.monitor(watched)
        watched.ask(1).result(LIMIT)  # answered after the monitor, on the same path
        killed_at = time.perf_counter()
        victim.kill()
        down.result(LIMIT)
        return (time.perf_counter() - killed_at) * 1e3


def find_in_reach(node: Node, name: str) -> ActorRef:
    """Find an actor, retrying until the routes to nodes beyond the first hop have arrived."""
    give_up_at = time.monotonic() + LIMIT
    while True:
        try:
            return node.find(name).result(LIMIT)
        except CallboardError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)


def node_program(*arguments: str) -> list[str]:
    """Build the command line of this file's `main`."""
    return [sys.executable, "-m", "benchmarks.ours", *arguments]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one node until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--join")
    parser.add_argument("--offer", action="store_true")
    parser.add_argument("--largest", type=int, default=LARGEST)
    parser.add_argument("--log", help="folder of a log that is served as cpu")
    options = parser.parse_args(arguments)
    logs = {"cpu": options.log} if options.log else None
    with Node(limits=Limits(payload=options.largest), serve_logs=logs) as node:
        node.listen("127.0.0.1", 0)
        if options.offer:
            node.register("echo", node.spawn(Echo))
            node.register("sink", node.spawn(Sink))
            node.register("source", node.spawn(Source))
        if options.join:
            node.connect(options.join)
        print(node.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
