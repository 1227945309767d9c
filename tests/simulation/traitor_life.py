"""A life with one traitor, by seed: a full member that forges frames in the names of others.

In some topology a pair of nodes, `first` and `last`, talk both ways, ask, and watch each
other's probes. The traitor is off all their shortest paths, or on one. Its actions are in Off
the path the pair never notices. On the path nothing ends or grows, what is missing is told, and
five seconds after the traitor is gone all is well again.
"""

import random
from typing import Any

from callboard import Node
from callboard.simulation import Cluster, cluster_test
from tests.simulation.book import Numbered, Probe
from tests.simulation.forger import WAYS, Forger
from tests.simulation.logged import logged_errors
from tests.simulation.rules import Violation

#: Links of the nodes 0 and 1, the pair, 2, the traitor, and others: off and on their path.
OFF: dict[str, list[tuple[int, int]]] = {
    "mesh": [(1, 0), (2, 0), (2, 1)],
    "beside": [(1, 0), (2, 1)],
    "at the middle": [(3, 0), (1, 3), (2, 3)],
    "at both ends": [(1, 0), (3, 0), (1, 3), (2, 0), (2, 1), (2, 3)],
    "longer way": [(3, 0), (1, 3), (2, 0), (4, 2), (1, 4)],
}
ON: dict[str, list[tuple[int, int]]] = {
    "line": [(2, 0), (1, 2)],
    "long line": [(3, 0), (2, 3), (4, 2), (1, 4)],
    "one of two ways": [(2, 0), (1, 2), (3, 0), (1, 3)],
}
HEALED = 5.0
"""Virtual seconds after which nothing of a traitor that is gone is left."""

FRESH = 1 << 20
"""What is told after a traitor that alters messages has left has greater numbers."""

FORGOTTEN = 40.0
"""Virtual seconds after which nobody waits for anything of it."""


class TraitorLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster) -> None:
        self.random = cluster.random
        self.cluster = cluster
        self.is_off = self.random.random() < 0.5
        #: Whether the traitor says nothing that is not true: it only loses and doubles.
        self.is_mute = not self.is_off and self.random.random() < 0.3
        self.nodes: list[Node] = []
        self.told = [0, 0]
        self.asks: list[tuple[int, Any]] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Live the life of this seed."""
        with logged_errors(self.errors):
            self._begin()
            for _, chance in self.cluster.steps(self.random.randint(5, 40), within=0.0):
                self._betray(chance)
                self._talk(chance)
                self.cluster.advance(chance.choice((0.0, 0.001, 0.1, 0.6, 2.5)))
            self._leave()
            self._check()

    def _begin(self) -> None:
        way, links = self.random.choice(sorted((OFF if self.is_off else ON).items()))
        self._note(way)
        self.nodes = self.cluster(1 + max(map(max, links)), links)
        self.cluster.advance(8.0)  # no path is as new as that another one may be in use
        self.pair, self.traitor = self.nodes[:2], self.nodes[2]
        self.honest = self.nodes[:2] + self.nodes[3:]
        self.probes = [node.spawn(Probe) for node in self.pair]
        self.refs: list[Any] = [
            node.ref(str(ref)) for node, ref in zip(self.pair, self.probes[::-1], strict=True)
        ]
        self.downs = [node.monitor(ref) for node, ref in zip(self.pair, self.refs, strict=True)]
        self._talk(self.random)
        self.cluster.advance(1.0)
        self.forger = Forger(self.cluster, self.random, self.traitor, self.nodes)
        self.forger.known = {
            node: probe.actor_id for node, probe in zip(self.pair, self.probes, strict=True)
        }

    def _note(self, *what: object) -> None:
        self.cluster.trace.note(self.cluster.now, "life", *what)

    def _talk(self, chance: random.Random) -> None:
        for index, ref in enumerate(self.refs):
            for _ in range(chance.choice((0, 1, 5))):
                self.told[index] += 1
                ref.tell(Numbered(index, self.told[index]))
            if chance.random() < 0.2:
                self.told[index] += 1
                number = self.told[index]
                self.asks.append((number, ref.ask(Numbered(index, number), timeout=30.0)))

    def _betray(self, chance: random.Random) -> None:
        """Make the traitor alter passing frames, or send its own."""
        self.forger.chance = chance
        self.forger.latest = chance.choice(self.told)
        if not self.is_off and (self.is_mute or chance.random() < 0.2):
            self._note(
                self.forger.take_way(tuple(set(WAYS) - {"alter"}) if self.is_mute else WAYS)
            )
        if not self.is_mute:
            self._note(self.forger.act(is_off=self.is_off))

    # --- what must be ---

    def _leave(self) -> None:
        """End the traitor; its neighbors link with each other. After a while everything works
        again."""
        self._note("leaves")
        self.forger.chance = self.random
        if not (self.is_off or self.is_mute):  # it may have written any smaller number
            self.told = [number + FRESH for number in self.told]
        self.before = list(self.told)
        self.cluster.kill(self.traitor)
        if not self.is_off:
            self.nodes[1].connect(self.nodes[0].address)
        is_quiet = self.random.random() < 0.3
        for _ in range(10):
            self.cluster.advance(HEALED / 10)
            if not is_quiet:
                self._talk(self.random)

    def _check(self) -> None:
        last = [ref.ask(Numbered(index, 1 << 30)) for index, ref in enumerate(self.refs)]
        self.cluster.advance(1.0)
        for ask in last:
            if not ask.done() or ask.exception() is not None:
                raise Violation(f"{HEALED} s after the traitor left an ask ends with {ask}")
        self.cluster.advance(3.0)
        for _ in range(2):  # an ask whose time was over a moment ago is given up by a message
            if any(one.in_flight for node in self.honest for one in node.accounts().values()):
                self.cluster.advance(1.0)
        for index, probe in enumerate(self.probes[::-1]):
            self._check_messages(index, probe)
        if self.is_off:
            self._check_unnoticed()
        self.cluster.advance(FORGOTTEN)
        for node in self.honest:
            self._check_node(node)
        if self.errors:
            raise Violation(f"an error was logged: {self.errors[0]}")
        self._check_ends()

    def _check_messages(self, index: int, probe: Any) -> None:
        arrived = [number for _, number in probe.target.actor.arrived if number < 1 << 30]
        account = self.pair[index].accounts()[self.pair[1 - index].node_id]
        missing = self.told[index] - len(set(arrived))
        if not (self.is_off or self.is_mute):  # the traitor may have altered what it passed on
            arrived = [number for number in arrived if number > self.before[index]]
        if arrived != sorted(set(arrived)):
            raise Violation(f"messages of node {index} came twice or out of order: {arrived}")
        if self.is_off and (missing or account.lost):
            raise Violation(
                f"node {index}: {missing} are missing, {account.lost} reported lost"
            )
        if self.is_mute and missing > account.lost:
            raise Violation(f"node {index}: {missing} are missing, told {account.lost}")
        if account.in_flight:
            raise Violation(f"messages of node {index} are in flight: {account}")

    def _check_unnoticed(self) -> None:
        if any(down.done() for down in self.downs):
            raise Violation("a monitor fired of an actor that lives")
        for number, ask in self.asks:
            if not ask.done() or ask.exception() is not None or ask.result(0) != number:
                raise Violation(f"ask {number} ended with {ask}")

    def _check_node(self, node: Node) -> None:
        broker = node._broker
        incoming, routes, router = broker.incoming, broker.routes, broker.routes.router
        orders = incoming._orders.items()
        waiting = {
            "held": sum(
                len(order._held) + len(order._ends)
                for source, order in orders
                if source != self.traitor.node_id
            ),
            "doubted": len(incoming._unverified._held) + len(incoming._unverified._sizes),
            "asks": broker.outgoing.asks.count,
            "searches": len(broker.paths.sought) + len(router.active),
        }
        near = {other.name for other in self.honest if other is not node}
        known = {about.name for about in node.nodes()} - {node.name}
        if any(waiting.values()) or known != near:
            raise Violation(f"{node} waits for {waiting} and knows {known} of {near}")
        if len(routes.accounts.arrivals) > len(self.nodes):
            raise Violation(f"{node} counts what came from {len(routes.accounts.arrivals)}")

    def _check_ends(self) -> None:
        """End a probe and a node: who watches them hears of it, once."""
        watched = (
            self.pair[0].monitor(self.refs[0]),
            self.pair[0].monitor_node(self.pair[1].node_id),
        )
        self.probes[1].kill()
        self.cluster.advance(1.0)
        downs = [watched[0], *(self.downs[:1] if self.is_off else [])]
        if any(not down.done() or down.result(0).reason != "killed" for down in downs):
            raise Violation(f"a probe was killed, its monitors say {downs}")
        self.cluster.kill(self.pair[1])
        self.cluster.advance(HEALED + 1.0)
        if not watched[1].done():
            raise Violation("a killed node is not found dead")


@cluster_test
def live_with_a_traitor(cluster: Cluster) -> None:
    """Live a life of nodes among which a traitor is."""
    TraitorLife(cluster).run()
