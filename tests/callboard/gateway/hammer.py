"""Threads that add, remove, link, unlink and publish at random."""

import random
import threading
import time
from dataclasses import dataclass, field

from callboard import Node
from callboard.actors.mailbox import Mailbox
from callboard.gateway.broker import ModuleBroker
from callboard.gateway.errors import DuplicateModule, UnknownModule
from callboard.gateway.handle import ModuleHandle, ModuleOptions
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Recorder
from tests.polling import eventually


class Tally(Recorder):
    """Counts the messages of each sender, and checks their order."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {}
        self.disorder = 0
        self.count = 0

    def receive(self, message: Message) -> None:
        self._inside += 1
        self.overlaps += self._inside > 1
        source, number = message.properties["from"], int(message.content)
        self.disorder += number != self.last.get(source, -1) + 1
        self.last[source] = number
        self.count += 1
        self._inside -= 1


class Brief(Recorder):
    """Comes and goes, and sometimes publishes what it receives."""

    def handle(self, message: Message) -> None:
        if len(self.got) % 7 == 0:
            self.publish(b"0", {"from": "brief"})
        self.got.clear()


@dataclass
class Report:
    """The outcome of a run.

    Attributes:
        published: messages on links that were never touched.
        lost: the messages that did not arrive once and in order.
        overlaps: calls of one module at the same time.
        stuck: threads that did not come back.
        acts: how many changes were made.
    """

    published: int = 0
    lost: int = 0
    overlaps: int = 0
    stuck: list[str] = field(default_factory=list)
    acts: int = 0


class Hammer:
    """Threads on one broker; all of them also publish on links that do not change."""

    def __init__(self, broker: ModuleBroker, seconds: float, seed: int) -> None:
        self.broker = broker
        self.report = Report()
        self.over = time.monotonic() + seconds
        self.seed = seed
        self.stable = [Tally() for _ in range(3)]
        self.sinks = [broker.add(each) for each in self.stable]
        self.briefs: list[Brief] = []
        self.lock = threading.Lock()

    def work(self, number: int) -> None:
        rng = random.Random(self.seed * 1000 + number)
        name = f"source {number}"
        source = self.broker.add(Brief(), name=name)
        for sink in self.sinks:
            self.broker.link(source, sink)
        mine: list[ModuleHandle] = []
        published = acts = 0
        while time.monotonic() < self.over:
            for _ in range(20):
                self.broker.publish(source, Message(b"%d" % published, {"from": name}))
                published += 1
            acts += self.act(rng, mine)
        with self.lock:
            self.report.published += published * len(self.sinks)
            self.report.acts += acts

    def act(self, rng: random.Random, mine: list[ModuleHandle]) -> int:
        choice = rng.randrange(8)
        try:
            if choice < 2 and len(mine) < 5:
                mine.append(self.add(rng))
            elif choice == 2 and mine:
                self.broker.remove(mine.pop(rng.randrange(len(mine))))
            elif choice == 3 and mine:
                self.broker.start(rng.choice(mine))
            elif mine:
                self.change_links(rng, rng.choice(mine))
        except (UnknownModule, DuplicateModule):
            return 0  # another thread was faster
        return 1

    def add(self, rng: random.Random) -> ModuleHandle:
        brief = Brief()
        with self.lock:
            self.briefs.append(brief)
        queue = Mailbox(limit=rng.choice((1, 10, 1000)))
        return self.broker.add(brief, options=ModuleOptions(queue=queue))

    def change_links(self, rng: random.Random, sink: ModuleHandle) -> None:
        others = [handle for handle in self.broker.modules() if handle not in self.sinks]
        source = "*" if rng.random() < 0.2 else rng.choice(others)
        change = self.broker.link if rng.random() < 0.5 else self.broker.unlink
        change(source, sink)

    def settle(self) -> Report:
        report = self.report
        if not report.stuck:
            eventually(lambda: sum(s.count for s in self.stable) >= report.published)
        report.lost = report.published - sum(each.count for each in self.stable)
        report.lost += sum(each.disorder for each in self.stable)
        report.overlaps = sum(each.overlaps for each in [*self.stable, *self.briefs])
        return report


def hammer(node: Node, *, seconds: float, threads: int, seed: int) -> Report:
    """Run threads with random operations for a while."""
    with ModuleBroker(node) as broker:
        work = Hammer(broker, seconds, seed)
        workers = [
            threading.Thread(target=work.work, args=(number,), daemon=True)
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(seconds + LIMIT)
        work.report.stuck = [worker.name for worker in workers if worker.is_alive()]
        return work.settle()
