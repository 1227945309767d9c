"""One random life of a cluster, by seed.

Three to eight nodes in some topology, each with its own clock; messages, asks and monitors
between actors on all of them; links that break, hang in one direction, get slow, narrow or
lossy; nodes that freeze, are killed, fall silent and start again; dials from both sides at
once; actors that stop, are killed or fail. Then the faults end and the cluster comes to rest.
The rules are in `rules`.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from callboard import Node
from callboard.actors.events import ActorStopped, DeadLetter
from callboard.proxies.events import LinkDown, LinkUp, NodeDown
from callboard.simulation import (
    Cluster,
    Fault,
    clock_rate,
    clock_step,
    cluster_test,
    crash,
    cut,
    delay,
    doubling,
    isolate,
    kill,
    loss,
    narrow,
    one_way,
    partition,
    pause,
    sometimes,
    swarm,
)
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
from tests.simulation.logged import logged_errors

SPAN = 24.0
"""Virtual seconds in which nodes talk and faults begin."""

FAULTS = swarm(
    *(kind.lasting(0.5, 12.0) for kind in (partition, one_way, isolate, pause, kill, crash)),
    *(cut, doubling, clock_step, clock_rate.between(0.95, 1.05).lasting(5.0, 24.0)),
    *(
        kind.lasting(4.0, 24.0)
        for kind in (
            delay.between(0.0001, 0.4),
            narrow.between(2_000, 500_000),
            loss.between(0.02, 0.5),
        )
    ),
    span=SPAN,
    most=20,
)

REST = 40.0
"""Virtual seconds after the last fault within which everything has to be at rest."""

STEP = 0.5
"""Virtual seconds between two looks whether it is."""

AFTERMATH = 4.0
"""Virtual seconds in which nothing more may happen: reports, downs told again."""

ASK_TIMEOUT = 10.0


class Life:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    #: The number of messages that are told at once.
    runs: tuple[int, ...] = (1, 3, 50)

    def __init__(self, cluster: Cluster) -> None:
        self.random = cluster.random
        self.cluster = cluster
        self.book = Book()
        self.is_busy = True
        self._watching = ExitStack()
        self._actions: dict[Callable[[random.Random], None], int] = {
            self._tell: 8,
            self._ask: 6,
            self._watch: 4,
            self._watch_node: 1,
            self._end_actor: 2,
            self._dial_twice: 2,
        }

    def run(self) -> None:
        """Live the life of this seed."""
        with logged_errors(self.book.errors, PlannedError), self._watching:
            self._begin()
            for _, chance in self.cluster.steps(self.random.randint(8, 24), SPAN):
                for _ in range(chance.choice((1, 1, 2, 3))):
                    self._act(chance)
                    rules.check_always(self.book, self.cluster.now)
                    self.cluster.advance(chance.choice((0.0, 0.0, 0.001, 0.01, 0.3)))
            self._rest()
            rules.check_at_the_end(self.book, self.cluster.now)

    def note(self, *what: object) -> None:
        """Record a step of the life in the trace."""
        self.cluster.trace.note(self.cluster.now, "life", *what)

    # --- begin ---

    def _begin(self) -> None:
        count = self.random.randint(3, 8)
        topology = self.random.choice(("line", "ring", "star", "mesh", "tree"))
        self.note(count, "nodes,", topology)
        links = self._links(count, topology)
        for index, node in enumerate(self.cluster(count, links)):
            self.add(node, index)
        self.book.kept.update(links)
        self.cluster.on_fault, self.cluster.restarted = self._disturbed, self._started
        for number in range(self.random.randint(0, 3)):
            self._stream(random.Random(f"stream {self.cluster.seed} {number}"))

    def _links(self, count: int, topology: str) -> list[tuple[int, int]]:
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
        self._spawn(member, random.Random(f"probe {self.cluster.seed} {member.index}"))
        return member

    def _spawn(self, member: Member, _: random.Random) -> None:
        self.take(member, member.node.spawn(Probe))

    def take(self, member: Member, ref: Any) -> None:
        """Take a probe into the book."""
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

    # --- faults ---

    def _disturbed(self, fault: Fault, nodes: list[Node], begins: bool) -> None:
        """Record a fault, and the nodes that are frozen or dead from now on."""
        del nodes
        now = self.cluster.now
        self.book.disturbed.append(now)
        for member in self.book.alive():
            member.is_alive = self.cluster.is_running(member.node)
            is_paused = self.cluster.is_paused(member.node)
            if is_paused and not member.is_paused:
                member.paused_since = now
            elif member.is_paused and not is_paused:
                member.paused = member.paused_until(now)
            member.is_paused = is_paused
        sometimes(begins and fault.kind in (kill, crash), "a node dies")
        sometimes(begins and fault.kind == pause, "a node is frozen")

    def _started(self, node: Node) -> None:
        """Take a node into the book that was started again; it dials what it dialed before."""
        slot = self.cluster.machines().index(node)
        self.book.disturbed.append(self.cluster.now)
        member = self.add(node, slot)
        for dialer, listener in sorted(self.book.kept):
            if self.book.members[dialer].slot == slot:
                self._dial(member, listener)

    # --- what happens ---

    def _act(self, chance: random.Random) -> None:
        if self.book.active():
            chance.choices(list(self._actions), list(self._actions.values()))[0](chance)

    def pick(self, chance: random.Random) -> tuple[Member, Target]:
        """Return a node that can do something and a probe, mostly one that lives."""
        source = chance.choice(self.book.active())
        living = [target for target in self.book.targets if target.ended is None]
        is_any = chance.random() < 0.1 or not living
        return source, chance.choice(self.book.targets if is_any else living)

    def _stream(self, chance: random.Random) -> None:
        """Send tells from a node at intervals, also during faults, with pauses."""
        source, target = self.pick(chance)
        interval = chance.choice((0.003, 0.02, 0.1))
        self.note("stream", source.index, target.number, interval)
        self._flow(chance, source, target, interval, chance.randint(5, 60))

    def _flow(
        self, chance: random.Random, source: Member, target: Target, interval: float, left: int
    ) -> None:
        if not self.is_busy or not source.is_alive:
            return
        wait = interval
        if not left:
            wait, left = chance.choice((0.1, 1.0, 3.0)), chance.randint(5, 60) + 1
        elif not source.is_paused:
            with self.telling():
                self.tell(source, target)
        self.cluster.clock.plan(wait, self._flow, chance, source, target, interval, left - 1)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Wrap tells from outside of actors."""
        yield

    def tell(self, source: Member, target: Target) -> None:
        """Tell a probe the next number of its pair."""
        number = self.book.next_number(source, target)
        source.node.ref(target.text).tell(Numbered(source.index, number))

    def _tell(self, chance: random.Random) -> None:
        source, target = self.pick(chance)
        count = chance.choice(self.runs)
        self.note("tell", source.index, target.number, count)
        with self.telling():
            for _ in range(count):
                self.tell(source, target)

    def _ask(self, chance: random.Random) -> None:
        source, target = self.pick(chance)
        count = chance.choice((1, 5))
        self.note("ask", source.index, target.number, count)
        for _ in range(count):
            self.ask(source, target)

    def ask(self, source: Member, target: Target) -> Ask:
        """Ask a probe, and note when the ask ends."""
        number = self.book.next_number(source, target)
        with self.telling():
            ref = source.node.ref(target.text)
            future = ref.ask(Numbered(source.index, number), ASK_TIMEOUT)
        now = self.cluster.now
        ask = Ask(source, target, number, ASK_TIMEOUT, now, source.paused_until(now), future)
        future.add_done_callback(lambda _: ask.ends.append(self.cluster.now))
        self.book.asks.append(ask)
        return ask

    def _watch(self, chance: random.Random) -> None:
        source, target = self.pick(chance)
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

    def _watch_node(self, chance: random.Random) -> None:
        source, target = self.pick(chance)
        if source is not target.host:
            self.note("monitor of node", source.index, target.host.index)
            future = source.node.monitor_node(target.host.node.node_id)
            self.book.node_watches.append(
                NodeWatch(source, target.host, self.cluster.now, future)
            )

    def _end_actor(self, chance: random.Random) -> None:
        """End a probe, from its own node or from elsewhere, and put another one beside it."""
        source, target = self.pick(chance)
        if chance.random() < 0.5 and target.host in self.book.active():
            source = target.host
        reason = chance.choice(("normal", "killed", "error"))
        self.note("end", target.number, "from", source.index, reason)
        target.told.add(reason)
        ref = source.node.ref(target.text)
        with self.telling():
            if reason == "normal":
                ref.stop()
            elif reason == "killed":
                ref.kill()
            else:
                ref.tell(Fail())
        if target.host.is_alive:
            self._spawn(target.host, chance)

    def _dial_twice(self, chance: random.Random) -> None:
        """Make two nodes dial each other at the same moment."""
        active = self.book.active()
        if len(active) > 1:
            one, other = chance.sample(active, 2)
            self.book.disturbed.append(self.cluster.now)
            self.note("dial", one.index, other.index)
            self._dial(one, other.slot)
            self._dial(other, one.slot)

    def _dial(self, dialer: Member, slot: int) -> None:
        """Make a node dial the node of a slot, and keep the link."""
        self.cluster.link(dialer.node, self.cluster.nodes[slot])
        self.book.kept.add((dialer.index, slot))

    # --- the end ---

    def _rest(self) -> None:
        self.is_busy = False
        self.note("rest")
        self.cluster.calm()
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


@cluster_test(faults=FAULTS)
def live_nodes(cluster: Cluster) -> None:
    """Live a life of nodes."""
    Life(cluster).run()
