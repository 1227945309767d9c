"""Thousands of asks and tells to a mailbox of four, on a worker and two hops away.

Threads and coroutines are slowed down, handlers wait or are told; nothing is refused or lost,
memory stays bounded, and the other actors of these nodes go on meanwhile.
"""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import psutil
import pytest

from callboard import Actor, ActorRef, Node, errors, handler
from tests.faults import ROUNDS
from tests.faults.cast import Echo
from tests.proxies import small
from tests.proxies.small import LIMIT

MESSAGES = 4_000 if ROUNDS == 1 else 10_000
RSS_LIMIT = 64 * 1024 * 1024
SLOWEST = 2.0
"""Seconds that another actor of the node may take to answer, on a machine with other work."""


class Small(small.Small):
    """Counts what came."""

    @handler
    def report(self, _: str) -> tuple[int, int, int, int]:
        rss = psutil.Process(os.getpid()).memory_info().rss
        return len(self.seen), len(set(self.seen)), self.deepest, rss


class Teller(Actor):
    """Tells from a handler: with and without waiting."""

    @handler
    async def wait(self, work: tuple[ActorRef, int, int]) -> int:
        ref, first, count = work
        for number in range(first, first + count):
            await ref.atell(number)
        return count

    @handler
    def hurry(self, work: list) -> tuple[int, int]:
        ref, first, count = work
        refused = 0
        for number in range(first, first + count):
            try:
                ref.tell(number)
            except errors.MailboxFull:
                refused += 1
        return count - refused, refused


class Pulse:
    """Asks other actors all the time, on a thread, and notes the longest answer."""

    def __init__(self, *refs: ActorRef) -> None:
        self._refs, self._is_over, self.longest, self.count = refs, False, 0.0, 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            for ref in self._refs:
                began = time.monotonic()
                ref.ask("hi").result(30)
                self.longest = max(self.longest, time.monotonic() - began)
                self.count += 1


def from_threads(ref: ActorRef, first: int) -> None:
    """Ask and tell from ten threads."""

    def some(index: int) -> None:
        share = MESSAGES // 20
        begin = first + 2 * share * index
        for number in range(begin, begin + share):
            ref.tell(number)
        for number in range(begin + share, begin + 2 * share):
            assert ref.ask(number).result(60) == number

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(some, range(10)))


def from_coroutines(ref: ActorRef, first: int) -> None:
    """Tell from as many coroutines as there are messages, and ask from a hundred."""
    half = MESSAGES // 2

    async def asks(begin: int) -> None:
        for number in range(begin, begin + half // 100):
            assert await ref.ask(number) == number

    async def main() -> None:
        tells = (ref.atell(number) for number in range(first, first + half))
        begins = range(first + half, first + MESSAGES, half // 100)
        await asyncio.gather(*tells, *map(asks, begins))

    asyncio.run(main())


def from_handlers(node: Node, ref: ActorRef, first: int) -> int:
    """Tell from handlers that wait, and from one that does not; return what was refused."""
    share = MESSAGES // 10
    asked = [
        node.spawn(Teller).ask((ref, first + share * index, share), timeout=120)
        for index in range(9)
    ]
    sent, refused = node.spawn(Teller).ask([ref, first + 9 * share, share]).result(60)
    assert sum(answer.result(120) for answer in asked) == 9 * share
    assert sent + refused == share
    return refused


@pytest.fixture(params=["worker", "two hops away"])
def small(request, processes):
    """A node, an actor with little room elsewhere, and other actors there and here."""
    with Node() as node:
        if request.param == "worker":
            pool = node.workers(1)
            yield node, pool.spawn(Small), pool.spawn(Echo)
        else:
            far, middle = processes(2, spawnable={"small": Small, "echo": Echo})
            middle.connect(far.address)
            node.connect(middle.address)
            yield (
                node,
                node.remote_spawn(far.address, "small"),
                node.remote_spawn(far.address, "echo"),
            )


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_all_that_is_sent_to_a_small_mailbox_comes(small, figure, eventually):
    node, ref, neighbor = small
    here = psutil.Process().memory_info
    *_, there = ref.ask("").result(20)
    before, refused, took = here().rss, 0, {}
    with Pulse(neighbor, node.spawn(Echo)) as pulse:
        for turn, send in enumerate((from_threads, from_coroutines)):
            began = time.monotonic()
            send(ref, turn * MESSAGES)
            took[send.__name__] = time.monotonic() - began
        refused = from_handlers(node, ref, 2 * MESSAGES)
    eventually(lambda: ref.ask("").result(20)[0] == 3 * MESSAGES - refused, 20)
    count, different, deepest, rss = ref.ask("").result(20)

    figure(
        f"{count:,} came, {refused:,} were refused to a handler that did not wait; "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        + f"; at most {deepest} waited; memory grew {here().rss - before >> 20} and "
        f"{rss - there >> 20} MiB; other actors answered {pulse.count:,} times, the slowest "
        f"after {pulse.longest * 1000:.0f} ms"
    )
    assert count == different
    assert deepest <= LIMIT
    assert here().rss - before < RSS_LIMIT
    assert rss - there < RSS_LIMIT
    assert pulse.longest < SLOWEST
    accounts = node.accounts()[ref.node_id]
    assert accounts.lost == accounts.dead_letters == 0
