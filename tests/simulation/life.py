"""One random life of a cluster, by seed.

Three to eight nodes in some topology, each with a clock of its own; messages, asks and monitors
between actors on all of them; links that break, hang in one direction, get slow, narrow or
lossy; nodes that freeze, are killed, fall silent and start again; dials from both sides at
once; actors that stop, are killed or fail. Then the faults end and the cluster comes to rest.
What must hold is in `rules`.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from callboard import Node
from callboard.actors.events import ActorStopped, DeadLetter
from callboard.proxies.events import LinkDown, LinkUp, NodeDown
from callboard.simulation import Cluster
from tests.simulation import rules
from tests.simulation.book import (
    Ask,
    Book,
    Fail,
    Member,
    NodeWatch,
    Numbered,
    PlannedError,
    Probe,
    Target,
    Watch,
)
from tests.simulation.faults import Faults
from tests.simulation.logged import logged_errors

REST = 40.0
"""Virtual seconds after the last fault within which everything has to be at rest."""

STEP = 0.5
"""Virtual seconds between two looks whether it is."""

AFTERMATH = 4.0
"""Virtual seconds in which nothing more may happen: reports, downs told again."""

ASK_TIMEOUT = 10.0


class Life:
    """Lives one seed; `run` raises `Violation` for what must not be."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.book = Book()
        self.is_busy = True
        self._watching = ExitStack()
        self.faults = Faults(self)
        self._actions: dict[Callable[[], None], int] = {
            self._tell: 8,
            self._ask: 6,
            self._watch: 4,
            self._watch_node: 1,
            self._end_actor: 2,
            **self.faults.actions,
        }

    def run(self) -> "Life":
        """Live the life of this seed."""
        with logged_errors(self.book.errors, PlannedError), closing(self):
            self._begin()
            for _ in range(self.random.randint(10, 30)):
                self._act()
                rules.check_always(self.book, self.cluster.now)
                self.cluster.advance(self.random.choice((0.0, 0.0, 0.001, 0.01, 0.3, 2.0, 5.0)))
            self._rest()
            rules.check_at_the_end(self.book, self.cluster.now)
        return self

    def close(self) -> None:
        """End the watching and the cluster."""
        self._watching.close()
        self.cluster.close()

    def note(self, *what: object) -> None:
        """Note in the trace what the life does."""
        self.cluster.trace.note(self.cluster.now, "life", *what)

    # --- begin ---

    def _begin(self) -> None:
        count = self.random.randint(3, 8)
        topology = self.random.choice(("line", "ring", "star", "mesh", "tree"))
        self.note(count, "nodes,", topology)
        for index, node in enumerate(self.cluster(count, topology="none")):
            self.add(node, index)
        if self.random.random() < 0.5:
            for member in self.book.members:
                member.rate = self.random.uniform(0.95, 1.05)
                self.cluster.clock_rate(member.node, member.rate)
        for dialer, listener in self._edges(count, topology):
            self.book.kept.add((dialer, listener))
            self.book.members[dialer].node.connect(self.book.members[listener].node.address)
        for _ in range(self.random.randint(0, 3)):
            self._stream()

    def _edges(self, count: int, topology: str) -> list[tuple[int, int]]:
        if topology == "tree":  # any tree, with some links more
            edges = {(index, self.random.randrange(index)) for index in range(1, count)}
            for _ in range(self.random.randint(0, 2)):
                one, other = self.random.sample(range(count), 2)
                if (other, one) not in edges:
                    edges.add((one, other))
            return sorted(edges)
        if topology == "line":
            return [(index + 1, index) for index in range(count - 1)]
        if topology == "ring":
            return [((index + 1) % count, index) for index in range(count)]
        if topology == "star":
            return [(index, 0) for index in range(1, count)]
        return [(other, one) for one in range(count) for other in range(one + 1, count)]

    def add(self, node: Node, slot: int) -> Member:
        """Take a node into the book and spawn a probe on it."""
        member = Member(len(self.book.members), slot, node)
        self.book.members.append(member)
        self._watching.enter_context(node.subscribed(partial(self._happened, member)))
        self._spawn(member)
        return member

    def _spawn(self, member: Member) -> None:
        ref = member.node.spawn(Probe)
        actor: Any = ref.target.actor
        self.book.targets.append(Target(len(self.book.targets), member, ref, actor, str(ref)))

    def _happened(self, member: Member, event: object) -> None:
        if isinstance(event, ActorStopped):
            for target in self.book.targets:
                if target.ref == event.ref:
                    target.ended = (self.cluster.now, str(event.reason))
        elif isinstance(event, LinkUp | LinkDown):
            self.book.last_change = self.cluster.now
        elif isinstance(event, NodeDown):
            member.lost.append((self.cluster.now, event.node_id))
        elif isinstance(event, DeadLetter) and isinstance(event.message, Numbered):
            said = event.message
            for target in self.book.targets:
                if target.ref == event.ref:
                    member.dead_letters.append((said.source, target.number, said.number))

    # --- what happens ---

    def _act(self) -> None:
        actions = list(self._actions)
        weights = list(self._actions.values())
        if self.book.active():
            self.random.choices(actions, weights)[0]()

    def pick(self) -> tuple[Member, Target]:
        """Return a node that can do something and a probe, mostly one that lives."""
        source = self.random.choice(self.book.active())
        living = [target for target in self.book.targets if target.ended is None]
        is_any = self.random.random() < 0.1 or not living
        return source, self.random.choice(self.book.targets if is_any else living)

    def _stream(self) -> None:
        """Let a node tell at intervals, also while faults happen, with pauses."""
        source, target = self.pick()
        interval = self.random.choice((0.003, 0.02, 0.1))
        self.note("stream", source.index, target.number, interval)
        self._flow(source, target, interval, self.random.randint(5, 60))

    def _flow(self, source: Member, target: Target, interval: float, left: int) -> None:
        if not self.is_busy or not source.is_alive:
            return
        if not left:
            pause = self.random.choice((0.1, 1.0, 3.0))
            left = self.random.randint(5, 60)
            self.cluster.clock.plan(pause, self._flow, source, target, interval, left)
            return
        if not source.is_paused:
            number = self.book.next_number(source, target)
            source.node.ref(target.text).tell(Numbered(source.index, number))
        self.cluster.clock.plan(interval, self._flow, source, target, interval, left - 1)

    def _tell(self) -> None:
        source, target = self.pick()
        ref = source.node.ref(target.text)
        count = self.random.choice((1, 3, 50))
        self.note("tell", source.index, target.number, count)
        for _ in range(count):
            ref.tell(Numbered(source.index, self.book.next_number(source, target)))

    def _ask(self) -> None:
        source, target = self.pick()
        count = self.random.choice((1, 5))
        self.note("ask", source.index, target.number, count)
        for _ in range(count):
            self.ask(source, target)

    def ask(self, source: Member, target: Target) -> Ask:
        """Ask a probe, and note when the ask ends."""
        number = self.book.next_number(source, target)
        future = source.node.ref(target.text).ask(Numbered(source.index, number), ASK_TIMEOUT)
        now = self.cluster.now
        ask = Ask(source, target, number, ASK_TIMEOUT, now, source.paused_until(now), future)
        future.add_done_callback(lambda _: ask.ends.append(self.cluster.now))
        self.book.asks.append(ask)
        return ask

    def _watch(self) -> None:
        source, target = self.pick()
        self.note("monitor", source.index, target.number)
        node, host = source.node, target.host.node
        had_no_path = source is not target.host and (
            host.node_id not in node._broker.routes.router.next_hops
        )
        watch = Watch(source, target, self.cluster.now, had_no_path)
        self.book.watches.append(watch)
        node.ref(target.text).target.monitor(
            object(), lambda down: watch.downs.append((self.cluster.now, down))
        )

    def _watch_node(self) -> None:
        source, target = self.pick()
        if source is not target.host:
            self.note("monitor of node", source.index, target.host.index)
            future = source.node.monitor_node(target.host.node.node_id)
            self.book.node_watches.append(
                NodeWatch(source, target.host, self.cluster.now, future)
            )

    def _end_actor(self) -> None:
        """End a probe, from its own node or from elsewhere, and put another one beside it."""
        source, target = self.pick()
        if self.random.random() < 0.5 and target.host in self.book.active():
            source = target.host
        reason = self.random.choice(("normal", "killed", "error"))
        self.note("end", target.number, "from", source.index, reason)
        target.told.add(reason)
        ref = source.node.ref(target.text)
        if reason == "normal":
            ref.stop()
        elif reason == "killed":
            ref.kill()
        else:
            ref.tell(Fail())
        if target.host.is_alive:
            self._spawn(target.host)

    # --- the end ---

    def _rest(self) -> None:
        self.is_busy = False
        self.note("rest")
        self.faults.end()
        end = self.cluster.now + REST
        while not rules.is_at_rest(self.book, self.cluster.now):
            if self.cluster.now >= end:
                rules.fail_unrest(self.book, self.cluster.now, REST)
            self.cluster.advance(STEP)
        self.note("last asks")
        last = [
            self.ask(source, target)
            for target in self.book.targets
            if target.host.is_alive and target.ended is None and not target.told
            for source in self.book.alive()
        ]
        self.cluster.advance(AFTERMATH)
        rules.check_answered(last)
