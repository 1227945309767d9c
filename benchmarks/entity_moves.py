"""The time that messages of a slot wait while it moves to another node; none may be lost.

Two processes host 16 entities in separate slots, with their state in a SQLite file; a
third sends each a message every 10 ms, told and asked in turn, with numbers that rise. All 16
slots move to the other host and back again and again, or a host is drained and another one has
taken its place meanwhile. The pause of a move is the longest that an ask of the slot took from
the order to move until a tenth of a second after it was there; at rest, the longest in as long
a time. In one case 50,000 other entities are awake before, in all slots; those of slots that
have moved are not any more.

Each entity persists the numbers and says which one came where another one was due: a run fails
if there is one, if one is missing, or if any ask fails.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from subprocess import Popen
from typing import Any

from benchmarks.entity_hosts import LIMIT
from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from benchmarks.processes import serving
from callboard import ActorRef, Entity, Future, Node, Query, event, handler, message
from callboard.basp.header import ENTITIES
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots

KEYS = 16
INTERVAL = 0.01
ROUNDS = 40
AWAKE = 50_000
AT_ONCE = 500
SETTLED = 0.1
"""Seconds behind a move that count as its."""

PROGRAM = "from benchmarks.entity_moves import main; main()"


@message("bench.Step")
@dataclass(frozen=True)
class Step:
    """A message: each entity has one with each number, in their order."""

    number: int


@message("bench.WrongSteps")
@dataclass(frozen=True)
class WrongSteps(Query[list[int]]):
    """The numbers that arrived out of order, and the last one."""


class Ordered(Entity):
    """Looks after the order of numbers."""

    name = "bench.Ordered"
    idle = 3600.0

    def __init__(self) -> None:
        self.last = 0
        self.wrong: list[int] = []

    @handler
    def on_step(self, step: Step) -> int:
        """Persist a number."""
        self.persist(step)
        return step.number

    @event
    def on_stepped(self, step: Step) -> None:
        """Record an answer that was not expected."""
        if step.number != self.last + 1:
            self.wrong.append(step.number)
        self.last = step.number

    @handler(read_only=True)
    def on_wrong(self, question: WrongSteps) -> list[int]:
        """Return these numbers, and the last one."""
        return [*self.wrong, self.last]


class Load:
    """Sends numbers, and keeps how long asks took."""

    def __init__(self, node: Node, keys: Sequence[str]) -> None:
        self.refs: list[Any] = [node.entity(Ordered, key) for key in keys]
        self.sent = 0
        #: For each key, when asks were sent, and how long those took that are answered.
        self.began: list[list[float]] = [[] for _ in keys]
        self.taken: list[list[float]] = [[] for _ in keys]
        self.failed: list[BaseException] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        """Send a number to each at once, each interval."""
        due = time.perf_counter()
        while not self._ends.wait(max(0.0, due - time.perf_counter())):
            due = max(due + INTERVAL, time.perf_counter())
            self.sent += 1
            for place, ref in enumerate(self.refs):
                if self.sent % 2:
                    ref.tell(Step(self.sent))
                else:
                    self.began[place].append(time.perf_counter())
                    answer = ref.ask(Step(self.sent), timeout=LIMIT)
                    answer.on_done(partial(self._answered, place))

    def _answered(self, place: int, answer: Future[int]) -> None:
        """Record an answer: the answers of a key arrive in the order of its asks."""
        began, taken = self.began[place], self.taken[place]
        taken.append(time.perf_counter() - began[len(taken)])
        error = answer.exception()
        if error is not None:
            self.failed.append(error)

    def longest(self, since: float) -> list[float]:
        """Return the longest of each key's asks that were sent since a time."""
        found = []
        for began, taken in zip(self.began, self.taken, strict=True):
            first, last = bisect_left(began, since), len(began)
            wait_until(lambda taken=taken, last=last: len(taken) >= last)
            found.append(max(taken[first:last]))
        return found

    def end(self) -> None:
        """Stop sending; fail unless all answers arrived in order."""
        self._ends.set()
        self._thread.join()
        for ref in self.refs:
            *wrong, last = ref.ask(WrongSteps(), timeout=LIMIT).result(LIMIT)
            if wrong:
                message = f"{ref}: {wrong[:10]} came where another number was due"
                raise AssertionError(message)
            check(last, self.sent)
        if self.failed:
            message = f"{len(self.failed)} asks failed, for instance: {self.failed[0]!r}"
            raise AssertionError(message)


class Hosts:
    """Processes that host the type, and the node that asks them."""

    def __init__(self, stack: ExitStack, state: str, node: Node) -> None:
        self.node, self._state, self._stack = node, state, stack
        #: By the node's id in hex, in the order in which they were started.
        self.started: dict[str, tuple[str, Popen[str]]] = {}

    def start(self) -> str:
        """Start a process; returns the id of its node once that is a member."""
        joins = [part for address, _ in self.started.values() for part in ("--join", address)]
        command = [sys.executable, "-c", PROGRAM, self._state, *joins]
        process, told = self._stack.enter_context(serving(command))
        address, node_id = told.split()
        self.started[node_id] = address, process
        self.node.connect(address)
        return node_id

    def drain(self, node_id: str) -> None:
        """Drain a host: it gives its slots away, then ends."""
        _, process = self.started.pop(node_id)
        assert process.stdin is not None
        process.stdin.write("drain\n")
        process.stdin.flush()

    def move(self, refs: Sequence[ActorRef[Any]], node_id: str) -> None:
        """Move the slots of entities to a host, and wait until they are there."""
        slots = sorted({slot_of(ref.key) for ref in refs})
        told = self.node.runtime.ref_of(bytes.fromhex(node_id), ENTITIES)
        told.ask(MoveSlots(Ordered.name, slots, node_id), timeout=LIMIT).result(LIMIT)
        wait_until(lambda: all(ref.node_id.hex() == node_id for ref in refs))
        time.sleep(SETTLED)

    def settle(self, refs: Sequence[ActorRef[Any]]) -> None:
        """Wait until no slot has moved for a while."""
        before: list[bytes] = []
        while before != (before := [ref.node_id for ref in refs]):
            time.sleep(5 * SETTLED)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something."""
    end = time.perf_counter() + LIMIT
    while not is_so():
        if time.perf_counter() > end:
            raise TimeoutError
        time.sleep(0.002)


def at_rest(hosts: Hosts, load: Load, rounds: int) -> Iterator[float]:
    """Yield the longest that asks took while nothing moved."""
    for _ in range(rounds):
        since = time.perf_counter()
        time.sleep(2 * SETTLED)
        yield from load.longest(since)


def by_hand(hosts: Hosts, load: Load, rounds: int) -> Iterator[float]:
    """Move all slots to the other host, again and again; yield the pauses."""
    one, other = hosts.started
    hosts.move(load.refs, other)
    for number in range(rounds):
        since = time.perf_counter()
        hosts.move(load.refs, other if number % 2 else one)
        yield from load.longest(since)


def by_drain(hosts: Hosts, load: Load, rounds: int) -> Iterator[float]:
    """Start another host and drain the oldest one, again and again; yield the pauses."""
    for _ in range(max(1, rounds // 5)):
        hosts.start()
        hosts.settle(load.refs)
        oldest = next(iter(hosts.started))
        moving = [ref.node_id.hex() == oldest for ref in load.refs]
        since = time.perf_counter()
        hosts.drain(oldest)
        wait_until(lambda oldest=oldest: all(r.node_id.hex() != oldest for r in load.refs))
        time.sleep(SETTLED)
        yield from itertools.compress(load.longest(since), moving)


Way = Callable[[Hosts, Load, int], Iterator[float]]


def pause(share: float = 1.0, *, way: Way, quantile: float, awake: int = 0) -> float:
    """Return a quantile of the pauses in milliseconds; print the others.

    Other entities are active in all slots.
    """
    keys: dict[int, str] = {}
    for number in itertools.count():
        if len(keys) == KEYS:
            break
        keys.setdefault(slot_of(f"k-{number}"), f"k-{number}")
    with tempfile.TemporaryDirectory() as folder, Node() as node, ExitStack() as stack:
        hosts = Hosts(stack, f"sqlite:{folder}/state.db", node)
        hosts.start()
        hosts.start()
        wake(node, int(awake * share))
        load = Load(node, list(keys.values()))
        try:
            wait_until(lambda: all(load.taken))
            hosts.settle(load.refs)
            pauses = sorted(way(hosts, load, max(5, int(ROUNDS * share))))
        finally:
            load.end()
    found = {each: 1e3 * at(pauses, each) for each in (0.5, 0.99, 1.0)}
    told = ", ".join(f"{each:.0%} {taken:.1f} ms" for each, taken in found.items())
    print(f"{len(pauses)} pauses: {told}; {load.sent * KEYS:,} messages, all in order")
    return found[quantile]


def wake(node: Node, count: int) -> None:
    """Activate entities that then receive no messages."""
    for start in range(0, count, AT_ONCE):
        refs: list[Any] = [
            node.entity(Ordered, f"idle-{n}") for n in range(start, start + AT_ONCE)
        ]
        for answer in [ref.ask(WrongSteps(), timeout=LIMIT) for ref in refs]:
            check(answer.result(LIMIT), [0])


def at(ordered: Sequence[float], quantile: float) -> float:
    """Return a quantile of figures in their order."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Host until stdin closes, or says to drain."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state", help="its URL")
    parser.add_argument("--join", action="append", default=[])
    options = parser.parse_args(arguments)
    with Node() as node:
        node.listen("127.0.0.1", 0)
        for address in options.join:
            node.connect(address)
        node.host(Ordered, state=options.state)
        print(node.address, node.node_id.hex(), flush=True)
        if sys.stdin.readline():
            node.drain()


MEASURE = Measure(
    title="the longest ask of a slot that moves, with an ask each 20 ms",
    unit="ms",
    subjects=(
        Subject("at rest, p99", partial(pause, way=at_rest, quantile=0.99)),
        Subject("moved by hand, p50", partial(pause, way=by_hand, quantile=0.5)),
        Subject("moved by hand, p99", partial(pause, way=by_hand, quantile=0.99)),
        Subject("moved by hand, longest", partial(pause, way=by_hand, quantile=1.0)),
        Subject(
            "moved by hand, 50,000 awake, p99",
            partial(pause, way=by_hand, quantile=0.99, awake=AWAKE),
        ),
        Subject("drained, p99", partial(pause, way=by_drain, quantile=0.99)),
        Subject("drained, longest", partial(pause, way=by_drain, quantile=1.0)),
    ),
    more_is_better=False,
    limit=180.0,
)
