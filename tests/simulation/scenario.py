"""One random life of a cluster, by seed, and what must hold in it.

Some nodes in some topology; messages, asks and monitors between actors on all of them; links
that break, hang in one direction or slow down; nodes that are killed or fall silent; dials from
both sides at once. Then the faults end, the cluster gets time to come to rest, and the books
are closed.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from callboard import Actor, CallboardError, Down, Future, Node, handler, message
from callboard.simulation import Cluster

REST = 30.0
"""Virtual seconds after the last fault in which everything has to come to rest."""


@message("simulation.Numbered")
@dataclass(frozen=True)
class Numbered:
    """A message with its place in the order of its pair."""

    source: int
    number: int


class Probe(Actor):
    """Notes what arrives, in order."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, int]] = []

    @handler
    def note(self, said: Numbered) -> int:
        """Note a message; as an ask it is answered by its number."""
        self.arrived.append((said.source, said.number))
        return said.number


class Violation(AssertionError):
    """Something that must hold did not."""


@dataclass
class Watch:
    """A monitor and what it told."""

    watcher: int
    watched: int
    downs: list[Down] = field(default_factory=list)


class Scenario:
    """Runs one seed; raises `Violation` for what must not be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.nodes: list[Node] = []
        self.probes: list[Any] = []
        self.actors: list[Probe] = []
        self.numbers: dict[tuple[int, int], int] = {}
        self.asks: list[tuple[int, int, int, Future[Any]]] = []
        self.watches: list[Watch] = []
        self.dead: set[int] = set()
        self.ended: dict[int, str] = {}
        self.log: list[str] = []

    def run(self) -> "Scenario":
        """Live the life of this seed."""
        try:
            self._begin()
            for _ in range(self.random.randint(10, 30)):
                self._act()
                self._check_always()
                self.cluster.advance(self.random.choice((0.0, 0.01, 0.3, 2.0, 5.0)))
            self._rest()
            self._check_at_the_end()
        finally:
            self.cluster.close()
        return self

    # --- what happens ---

    def _begin(self) -> None:
        count = self.random.randint(2, 5)
        topology = self.random.choice(("line", "ring", "star", "mesh"))
        self.nodes = self.cluster(count, topology=topology)
        self.log.append(f"{count} nodes, {topology}")
        for node in self.nodes:
            ref = node.spawn(Probe)
            self.probes.append(ref)
            self.actors.append(ref.target.actor)
        self.is_busy = True
        for _ in range(self.random.randint(0, 3)):
            source, target = self._pair()
            self.log.append(f"steady traffic {source}->{target}")
            self._steady(source, target, self.random.choice((0.003, 0.02, 0.1)))

    def _steady(self, source: int, target: int, interval: float) -> None:
        """Tell at intervals, also while faults happen."""
        if self.is_busy and source not in self.dead:
            self._ref(source, target).tell(Numbered(source, self._number(source, target)))
            self.cluster.clock.plan(interval, self._steady, source, target, interval)

    def _alive(self) -> list[int]:
        return [index for index in range(len(self.nodes)) if index not in self.dead]

    def _pair(self) -> tuple[int, int]:
        alive = self._alive()
        return self.random.choice(alive), self.random.choice(range(len(self.nodes)))

    def _neighbours(self) -> tuple[int, int]:
        one, other = self.random.sample(range(len(self.nodes)), 2)
        return one, other

    def _act(self) -> None:
        actions = [
            (self._tell, 8),
            (self._ask, 6),
            (self._watch, 3),
            (self._partition, 2),
            (self._one_way, 1),
            (self._cut, 2),
            (self._slow, 1),
            (self._heal, 2),
            (self._dial_twice, 1),
            (self._kill_actor, 1),
            (self._kill_node, 1),
        ]
        chosen = self.random.choices(
            [action for action, _ in actions], [weight for _, weight in actions]
        )[0]
        self.log.append(f"{self.cluster.now:9.4f} {chosen.__name__.strip('_')}")
        chosen()

    def _ref(self, source: int, target: int) -> Any:
        return self.nodes[source].ref(str(self.probes[target]))

    def _number(self, source: int, target: int) -> int:
        number = self.numbers[source, target] = self.numbers.get((source, target), 0) + 1
        return number

    def _tell(self) -> None:
        source, target = self._pair()
        ref = self._ref(source, target)
        for _ in range(self.random.choice((1, 3, 50))):
            ref.tell(Numbered(source, self._number(source, target)))
        self.log[-1] += f" {source}->{target} up to {self.numbers[source, target]}"

    def _ask(self) -> None:
        source, target = self._pair()
        ref = self._ref(source, target)
        for _ in range(self.random.choice((1, 5))):
            number = self._number(source, target)
            self.asks.append((source, target, number, ref.ask(Numbered(source, number), 10.0)))
        self.log[-1] += f" {source}->{target} up to {number}"

    def _watch(self) -> None:
        source, target = self._pair()
        watch = Watch(source, target)
        self._ref(source, target).target.monitor(watch_key(), watch.downs.append)
        self.watches.append(watch)
        self.log[-1] += f" {source}->{target}"

    def _partition(self) -> None:
        one, other = self._neighbours()
        self.cluster.partition(self.nodes[one], self.nodes[other])
        self.log[-1] += f" {one}|{other}"

    def _one_way(self) -> None:
        one, other = self._neighbours()
        self.cluster.partition(self.nodes[one], self.nodes[other], both=False)
        self.log[-1] += f" {one}x>{other}"

    def _cut(self) -> None:
        one, other = self._neighbours()
        self.cluster.cut(self.nodes[one], self.nodes[other])
        self.log[-1] += f" {one}/{other}"

    def _slow(self) -> None:
        one, other = self._neighbours()
        seconds = self.random.choice((0.0001, 0.05, 0.4))
        self.cluster.delay(self.nodes[one], self.nodes[other], seconds)
        self.log[-1] += f" {one}~{other} {seconds}"

    def _heal(self) -> None:
        self.cluster.heal()

    def _dial_twice(self) -> None:
        alive = self._alive()
        if len(alive) < 2:
            return
        one, other = self.random.sample(alive, 2)
        for dialer, listener in ((one, other), (other, one)):
            node = self.nodes[dialer]
            node._start(node.aconnect(self.nodes[listener].address, 10.0))
        self.log[-1] += f" {one}<>{other}"

    def _kill_actor(self) -> None:
        target = self.random.choice(self._alive())
        if target not in self.ended:
            self.ended[target] = "killed"
            self.probes[target].kill()
        self.log[-1] += f" {target}"

    def _kill_node(self) -> None:
        alive = self._alive()
        if len(alive) < 3 or self.random.random() < 0.5:
            return
        target = self.random.choice(alive)
        self.dead.add(target)
        if self.random.random() < 0.5:
            self.cluster.kill(self.nodes[target])
        else:
            self.cluster.crash(self.nodes[target])
        self.log[-1] += f" {target}"

    def _rest(self) -> None:
        self.log.append(f"{self.cluster.now:9.4f} rest")
        self.is_busy = False
        self.cluster.heal()
        self.cluster.advance(REST)

    # --- what must hold ---

    def _check_always(self) -> None:
        for index in self._alive():
            for node_id, account in self.nodes[index].accounts().items():
                if account.sent != account.confirmed + account.lost + account.in_flight:
                    raise Violation(f"accounts of {index} for {node_id.hex()}: {account}")
                self._check_confirmed(index, node_id, account.confirmed)
            peers = [link.peer for link in self.nodes[index].links()]
            if len(peers) != len(set(peers)):
                raise Violation(f"{index} has two links with one peer")
        for watch in self.watches:
            if len(watch.downs) > 1:
                raise Violation(f"monitor {watch} fired more than once")

    def _check_confirmed(self, source: int, node_id: bytes, confirmed: int) -> None:
        """Nothing may count as confirmed that its destination has not handled."""
        for node in self.nodes:
            if node.node_id == node_id:
                epochs = node._broker.accounts.arrivals.get(self.nodes[source].node_id, {})
                handled = sum(one.delivered + one.dead_letters for one in epochs.values())
                if confirmed > handled:
                    raise Violation(
                        f"{source} counts {confirmed} confirmed of {handled} handled"
                    )

    def _check_at_the_end(self) -> None:
        self._check_always()
        self._check_order()
        self._check_asks()
        self._check_monitors()
        self._check_accounts()

    def _check_order(self) -> None:
        for target, actor in enumerate(self.actors):
            last: dict[int, int] = {}
            for source, number in actor.arrived:
                if number <= last.get(source, 0):
                    raise Violation(
                        f"{source}->{target}: {number} arrived after {last[source]}"
                    )
                last[source] = number

    def _check_asks(self) -> None:
        for source, target, number, future in self.asks:
            if source in self.dead:
                continue
            if not future.done():
                raise Violation(f"ask {number} {source}->{target} hangs")
            error = future.exception()
            if error is None and future.result() != number:
                raise Violation(f"ask {number} {source}->{target} got {future.result()}")
            if error is not None and not isinstance(error, CallboardError):
                raise Violation(f"ask {number} {source}->{target} failed with {error!r}")

    def _check_monitors(self) -> None:
        for watch in self.watches:
            if watch.watcher in self.dead:
                continue
            reasons = [str(down.reason) for down in watch.downs]
            if watch.watched in self.dead and not reasons:
                raise Violation(f"{watch} never fired, its node is dead")
            if watch.watched in self.ended and not reasons:
                raise Violation(f"{watch} never fired, its actor ended")
            allowed = {"unreachable"}
            if watch.watched in self.ended:
                allowed |= {self.ended[watch.watched], "not_found"}
            if not set(reasons) <= allowed:
                raise Violation(f"{watch} fired with {reasons}, allowed are {allowed}")

    def _check_accounts(self) -> None:
        for index in self._alive():
            for node_id, account in self.nodes[index].accounts().items():
                if account.in_flight:
                    raise Violation(
                        f"{account.in_flight} messages of {index} to {node_id.hex()} are "
                        f"neither delivered nor lost: {account}"
                    )


def watch_key() -> object:
    """Return a key that no other monitor has."""
    return object()
