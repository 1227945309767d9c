"""A life with one traitor, by seed: a full member that forges frames in the names of others.

In some topology a pair of nodes, `first` and `last`, talk both ways, watch each other's probes
and ask. The traitor is off all their shortest paths, or on one. It writes dispatches, ends of
paths, downs, announces, releases, reports, statements and cuts in all names, and on the path it
swallows and alters what it passes on too. Off the path the pair never notices. On the path
nothing ends or grows, what is missing is told, and five seconds after the traitor is gone all
is well again.
"""

import random
from typing import Any

from callboard import Node
from callboard.basp.cbor.plain import write_plain
from callboard.basp.control import pack_announce, pack_down, pack_release
from callboard.basp.frame import pack_frame
from callboard.basp.header import POSITION_SHIFT, SEQUENCE_BITS, Operation
from callboard.basp.routing.path_order import pack_path_end
from callboard.basp.routing.update import Cut, Statement, join_update, write_rest
from callboard.simulation import Cluster
from tests.simulation.book import Numbered, Probe
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


class TraitorLife:
    """Lives one seed; `run` raises `Violation` for what must not be."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.is_off = self.random.random() < 0.5
        self.nodes: list[Node] = []
        self.told = [0, 0]

    def run(self) -> "TraitorLife":
        """Live the life of this seed."""
        try:
            self._begin()
            for _ in range(self.random.randint(5, 40)):
                self._forge()
                self._talk()
                self.cluster.advance(self.random.choice((0.0, 0.001, 0.1, 0.6, 2.5)))
            self._leave()
            self._check()
        finally:
            self.cluster.close()
        return self

    def _begin(self) -> None:
        way, links = self.random.choice(sorted((OFF if self.is_off else ON).items()))
        self._note(way)
        count = 1 + max(max(link) for link in links)
        self.nodes = list(self.cluster(count, topology="none"))
        for dialer, listener in links:
            self.nodes[dialer].connect(self.nodes[listener].address)
        self.cluster.advance(8.0)  # no path is as new as that another one may be in use
        self.pair, self.traitor = self.nodes[:2], self.nodes[2]
        self.probes = [node.spawn(Probe) for node in self.pair]
        here = [
            node.ref(str(ref)) for node, ref in zip(self.pair, self.probes[::-1], strict=True)
        ]
        self.refs: list[Any] = here
        self.downs = [node.monitor(ref) for node, ref in zip(self.pair, self.refs, strict=True)]
        self._talk()
        self.cluster.advance(1.0)

    def _note(self, *what: object) -> None:
        self.cluster.trace.note(self.cluster.now, "life", *what)

    def _talk(self) -> None:
        for index, ref in enumerate(self.refs):
            for _ in range(self.random.choice((0, 1, 5))):
                self.told[index] += 1
                ref.tell(Numbered(index, self.told[index]))

    # --- what the traitor does ---

    def _forge(self) -> None:
        """Send one forged frame over one link; on the path maybe swallow what passes."""
        if not self.is_off and self.random.random() < 0.2:
            forwarding: Any = self.traitor._broker.forwarding
            is_blind = self.random.random() < 0.5
            self._note("swallows" if is_blind else "passes on")
            if is_blind:
                forwarding.forward = lambda frames: None
            else:
                vars(forwarding).pop("forward", None)
        wires = sorted(self.traitor._broker.routes.wires.items())
        neighbor, wire = self.random.choice(wires)
        frame = self._frame(neighbor)
        self._note("forges", Operation(frame[3]).name, "to", neighbor.hex()[-4:])
        wire.write(frame)

    def _frame(self, neighbor: bytes) -> bytes:
        chance = self.random
        source, index = chance.choice([(self.nodes[0], 1), (self.nodes[1], 0)])
        me, there = source.node_id, self.pair[index].node_id
        actor, own = self.probes[index].actor_id, self.probes[1 - index].actor_id
        epoch, sequence = (
            chance.choice((0, 0, 1, 5, 20, 40, 63)),
            chance.choice((0, 3, 40, 9000)),
        )
        forged = [
            self._dispatch(me, there, actor, epoch << SEQUENCE_BITS | sequence),
            self._dispatch(me, there, actor, self.told[1 - index] + chance.randint(0, 9)),
            pack_path_end(me, there, epoch, sequence, is_open=chance.random() < 0.5),
            pack_announce(me, there, chance.choice((actor, 77)), 1 << 40),
            pack_release(me, there, chance.choice((actor, 0)), 1 << 40),
            self._report(me, there, [epoch, sequence, 0, chance.choice((0, 5, 1 << 40))]),
            self._update(neighbor),
        ]
        if self.is_off:  # nobody on the path can be told from the host of an actor
            forged.append(pack_down(me, own, there, 0, "forged"))
        return chance.choice(forged)

    def _dispatch(self, source: bytes, there: bytes, actor: int, position: int) -> bytes:
        data = position << POSITION_SHIFT
        return pack_frame(
            Operation.DISPATCH_MESSAGE, data, source, there, 0, actor, b"\x81\x63abc"
        )

    def _report(self, source: bytes, there: bytes, line: list[int]) -> bytes:
        operation = Operation.DELIVERY_REPORT
        return pack_frame(operation, 0, source, there, 0, 0, write_plain([line]))

    def _update(self, neighbor: bytes) -> bytes:
        """Return a routing update with a statement and a cut in the name of others."""
        named, other = self.random.sample([node.node_id for node in self.nodes], 2)
        stamp = self.random.choice((1, 40, 1 << 31, 1 << 32, 1 << 63))
        said = [Statement(named, stamp, frozenset({other}), frozenset({other}))]
        rest = write_rest([], [Cut(named, other, stamp)], said)
        operation, me = Operation.ROUTING_UPDATE, self.traitor.node_id
        return pack_frame(operation, 0, me, neighbor, 0, 0, join_update([], rest, []))

    # --- what must be ---

    def _leave(self) -> None:
        """End the traitor; those that it joined join each other. A while later all is well."""
        self._note("leaves")
        self.before = list(self.told)
        self.cluster.kill(self.traitor)
        if not self.is_off:
            self.nodes[1].connect(self.nodes[0].address)
        for _ in range(10):
            self.cluster.advance(HEALED / 10)
            self._talk()

    def _check(self) -> None:
        last = [ref.ask(Numbered(index, 1 << 30)) for index, ref in enumerate(self.refs)]
        self.cluster.advance(1.0)
        for ask in last:
            if not ask.done() or ask.exception() is not None:
                raise Violation(f"{HEALED} s after the traitor left an ask ends with {ask}")
        self.cluster.advance(3.0)
        for index, probe in enumerate(self.probes[::-1]):
            self._check_messages(index, probe)
        for node in self.nodes[:2] + self.nodes[3:]:
            self._check_node(node)
        if self.is_off and any(down.done() for down in self.downs):
            raise Violation("a monitor fired of an actor that lives")
        dead = self.pair[1]
        watched = self.pair[0].monitor_node(dead.node_id)
        self.cluster.kill(dead)
        self.cluster.advance(HEALED + 1.0)
        if not watched.done():
            raise Violation("a killed node is not found dead")

    def _check_messages(self, index: int, probe: Any) -> None:
        arrived = [number for _, number in probe.target.actor.arrived[:-1]]
        account = self.pair[index].accounts()[self.pair[1 - index].node_id]
        missing = self.told[index] - len(arrived)
        if not self.is_off:  # the traitor may have altered what it passed on
            arrived = [number for number in arrived if number > self.before[index]]
        if arrived != sorted(set(arrived)):
            raise Violation(f"messages of node {index} came twice or out of order: {arrived}")
        if self.is_off and (missing or account.lost):
            raise Violation(
                f"node {index}: {missing} are missing, {account.lost} reported lost"
            )
        if account.in_flight:
            raise Violation(f"messages of node {index} are in flight: {account}")

    def _check_node(self, node: Node) -> None:
        broker = node._broker
        held = sum(
            len(order._held) + len(order._ends) for order in broker.incoming._orders.values()
        )
        if held > 100 or len(broker.routes.accounts.arrivals) > len(self.nodes):
            raise Violation(f"{node} keeps {held} things of the traitor")
