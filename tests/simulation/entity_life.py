"""One random life of entities, by seed: asks and tells while owners and databases fail.

Two to four hosts, and perhaps a node that only asks, over one model database. Rules:

- asks of each key are linearizable: operations that ended `EntityUnavailable` or with the error
of their handler had no effect, other failed ones may have one;
- acknowledged values are stored, nothing is stored twice, epochs of a key's events never fall;
- who follows the journal gets every event, once and in order; no node finds a state corrupt;
- only members vote whose leases were seen to rise;
- a message that a handler sent after `persist` leaves only if the event was stored;
- while no node is lost, what a node tells a key comes in order, or is reported as lost;
- both ends of a link count the same messages, whether they went together or alone;
- when all faults are over, and lost nodes have returned, each key answers each node within
"""

import math
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from callboard import CallboardError, Entity, Node, event, handler, message
from callboard.actors.events import DeadLetter
from callboard.actors.future import Future
from callboard.basp.header import ENTITIES
from callboard.entity.inspection.events import SlotsMoved
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import MoveSlots
from callboard.errors import EntityUnavailable, StateCorrupt
from callboard.proxies.route_table import OLD_PATH_LIMIT
from callboard.simulation import (
    Cluster,
    Fault,
    cluster_test,
    isolate,
    linearizable,
    reachable,
)
from callboard.simulation.models import NEVER
from callboard.simulation.network import FIRST_RETRANSMISSION
from tests.simulation.entity_faults import (
    CALM_FAULTS,
    FAULTS,
    LEASE_FAULTS,
    SPAN,
    island,
    overtaken,
    stalls,
    stranded,
)
from tests.simulation.entity_rules import Ballots, Follower, check_accounts, check_journal
from tests.simulation.rules import Violation

ALONE: Final = 0.1
"""Seconds between reads of a node that is cut off."""

SERVER: Final = "postgresql://life/shop"

PATIENCE: Final = 3.0
"""Virtual seconds in which each key answers when the last fault is over."""

REST: Final = 30.0
"""Virtual seconds in which all that is under way has ended: handlers wait for one another."""


@message("entity-life.Append")
@dataclass(frozen=True)
class Append:
    value: int
    #: Seconds that the handler waits after it.
    wait: float = 0.0
    #: Whether the handler raises after it.
    fails: bool = False
    #: The key that is notified of it; empty for none.
    relay: str = ""


@message("entity-life.Values")
@dataclass
class Values:
    values: list[int] = field(default_factory=list)


def passed(node: Node, seconds: float) -> Future[None]:
    """Return a future that is done after some virtual time on a node."""
    done: Future[None] = Future()
    node.runtime.call_later(seconds, done.set_result, None)
    return done


class Keeper(Entity):
    """Takes values; how it stores them is up to its kinds."""

    idle = 2.0
    snapshot_every = 7

    @handler
    async def on_append(self, msg: Append) -> list[int]:
        if msg.wait < 0.0:
            await passed(self.node, -msg.wait)
        answer = self.store_value(msg.value)
        reachable("a value is about to be committed")
        if msg.relay:
            self.node.entity(type(self), msg.relay).tell(Append(-msg.value))
        if msg.fails:
            raise ValueError(msg.value)
        if msg.wait > 0.0:
            await passed(self.node, msg.wait)
        return answer

    @handler(read_only=True)
    def on_read(self, msg: str) -> list[int]:
        return self.stored()

    def store_value(self, value: int) -> list[int]:
        """Store a value; returns all."""
        raise NotImplementedError

    def stored(self) -> list[int]:
        """Return all values."""
        raise NotImplementedError


class Journaled(Keeper):
    """Keeps events."""

    name = "life.Journaled"

    def __init__(self) -> None:
        self.values: list[int] = []

    def store_value(self, value: int) -> list[int]:
        """Store a value; returns all."""
        self.persist(Append(value))
        return self.stored()

    @event
    def on_appended(self, event: Append) -> None:
        self.values.append(event.value)

    def stored(self) -> list[int]:
        """Return all values."""
        return list(self.values)


class Saved(Keeper):
    """Keeps its state."""

    name = "life.Saved"

    def __init__(self) -> None:
        self.state = Values()

    def store_value(self, value: int) -> list[int]:
        """Store a value; returns all."""
        self.state.values.append(value)
        self.save()
        return self.stored()

    def stored(self) -> list[int]:
        """Return all values."""
        return list(self.state.values)


class Appended:
    """A list with a known final value, each item once: `append` and `read` answer it.

    All appends have the order of the final list, or no order explains it. So a state is the
    number of appends, and no other order is tried. The value of `read` is the key.
    """

    reads = frozenset({"read"})
    start = 0

    def __init__(self, ends: dict[str, list[int]]) -> None:
        self._ends = ends
        self._places = {
            value: (key, place) for key, end in ends.items() for place, value in enumerate(end)
        }

    def step(self, state: int, name: str, value: Any) -> tuple[int, Any]:
        """Return the result of an operation."""
        if name == "read":
            return state, self._ends[value][:state]
        key, place = self._places.get(value, ("", -1))
        return (state + 1, self._ends[key][: state + 1]) if place == state else (state, NEVER)


class EntityLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        is_calm: bool = False,
        takeover: Literal["fast", "lease"] = "fast",
    ) -> None:
        self.cluster, self.is_calm = cluster, is_calm
        chance = random.Random(f"entities {cluster.seed}")
        self.url = chance.choice(("sqlite:life.db", SERVER, SERVER))
        #: URL of the leases; None for the state's database.
        self.leases = None
        if takeover == "lease" and cluster.seed % 3 == 0:
            self.leases = "etcd://life"
        self.cls = chance.choice((Journaled, Journaled, Saved))
        self.keep = chance.choice(("all", "all", 3))
        self.kind = self.cls.with_options(keep=self.keep, takeover=takeover)
        self.hosts = chance.choice((2, 3, 3, 3, 4))
        self.others = chance.choice((0, 0, 1))
        self.keys = [f"k-{n}" for n in range(chance.choice((1, 1, 2, 3, 6)))]
        #: Rates of asks from all nodes for one key, and of moves. Indexes of nodes whose
        #: clients only read.
        self.readers = set(chance.choice(((), (), (0,), (0, 1), (1, 2))))
        self.crowds, self.moves = chance.choice((0, 3, 12)), chance.choice((0, 2, 8))
        self.steps = chance.randint(10, 60)
        #: Tells wait for an owner for ten seconds; most lives do not wait that long.
        self.aftermath = 11.0 if is_calm else chance.choice((0.5, 0.5, 0.5, 0.5, 11.0))
        self.history = cluster.history()
        self.values = 0
        #: Messages of each node to each key, in order; tells; nodes that closed.
        self.sent: dict[tuple[str, str], list[int]] = {}
        self.told: list[tuple[Node, str, int]] = []
        self.closed: list[Node] = []
        #: Tells that a node has reported as lost.
        self.dead: set[int] = set()
        self.watching = ExitStack()
        #: Nodes and keys that have not answered since all faults were over.
        self.pending: set[tuple[Node, str]] = set()
        self.ends: dict[str, list[int]] = {}
        #: Values persisted by failing handlers: none of them may be visible.
        self.failing: set[int] = set()
        self.follower = Follower(self.cls, self.url)
        self.ballots = Ballots(cluster)
        #: Values that no node may be told.
        self.corrupt: list[str] = []
        #: When the next takeover draws a crowd; never before the first step and after the last.
        self.next_crowd = math.inf
        cluster.restarted = self._started
        cluster.on_fault = self._disturbed
        self.seconds = 0.0

    def run(self) -> "EntityLife":
        """Live the life of this seed."""
        nodes = self.cluster(self.hosts + self.others, topology="mesh")
        with ExitStack() as self.watching, self.ballots.watched():
            for node in nodes:
                self.watching.enter_context(node.subscribed(self._happened))
            self._live(nodes)
        return self

    def _live(self, nodes: list[Node]) -> None:
        """Live it on these nodes."""
        for node in nodes[: self.hosts]:
            self._host(node)
        self.follower.begin(nodes[-1])
        self.next_crowd = self.cluster.now + 0.5
        for _, chance in self.cluster.steps(self.steps, SPAN):
            self._act(chance)
        self.next_crowd = math.inf
        self._rest()
        self._check()

    def _happened(self, event: object) -> None:
        """Record the messages that a node reports as lost."""
        if isinstance(event, DeadLetter):
            message = getattr(event.message, "message", event.message)
            if isinstance(message, Append):
                self.dead.add(message.value)
        elif isinstance(event, SlotsMoved) and event.gained:
            reachable("a node gains slots")
            self._taken_over()

    def _taken_over(self) -> None:
        """Ask all nodes for a key whose owner may not know that it was replaced."""
        if self.cluster.now < self.next_crowd:
            return
        self.next_crowd = self.cluster.now + 0.3
        chance = random.Random(f"crowd {self.cluster.seed} {self.values}")
        for key in self.keys[:2]:
            self._crowd(key, chance, chance.choice((0.1, 0.8)))

    def _disturbed(self, fault: Fault, nodes: list[Any], begins: bool) -> None:
        """Record a fault."""
        self.note("fault", str(fault), begins)
        if begins and fault.kind in (island, isolate, stranded) and self.next_crowd < math.inf:
            for node in nodes:
                self._watch_alone(node, fault.lasts)

    def _watch_alone(self, node: Node, seconds: float) -> None:
        """Read keys on a node that is cut off, while others write them."""
        places = [made.address for made in self.cluster.machines()]
        self.readers.add(places.index(node.address))
        own = [key for key in self.keys if self._ref(node, key).node_id == node.node_id]
        others = [each for each in self._running() if each is not node]
        chance = random.Random(f"alone {self.cluster.seed} {self.values}")
        for key in own[:2]:
            for number in range(int(seconds / ALONE)):
                self._soon(number * ALONE, node, key, self._read, chance)
                if others and number % 3 == 0:
                    other = chance.choice(others)
                    self._soon(number * ALONE, other, key, self._append_at_once, chance)

    def note(self, *what: object) -> None:
        """Record a step of the life in the trace."""
        self.cluster.trace.note(self.cluster.now, "life", *what)

    # --- nodes ---

    def _started(self, node: Node) -> None:
        """Link a node that was started again, and let it host as before."""
        self.watching.enter_context(node.subscribed(self._happened))
        link_again(self.cluster, node)
        places = [made.address for made in self.cluster.machines()]
        if places.index(node.address) < self.hosts:
            self._host(node)
        if places.index(node.address) == len(places) - 1:
            self.follower.begin(node)

    def _host(self, node: Node) -> None:
        """Make a node host, and retry while the database is unavailable."""

        async def host() -> None:
            while True:
                try:
                    await node.ahost(self.kind, state=self.url, leases=self.leases)
                except CallboardError as error:
                    self.note(node.name, "cannot host", error)
                    await passed(node, 0.05)
                else:
                    return

        node._start(host())

    def _running(self) -> list[Node]:
        """Return the nodes that run and are not frozen."""
        return [
            node
            for node in self.cluster.machines()
            if isinstance(node, Node)
            and self.cluster.is_running(node)
            and not self.cluster.is_paused(node)
        ]

    # --- what happens ---

    def _act(self, chance: random.Random) -> None:
        running = self._running()
        if not running:
            return
        node, key = chance.choice(running), chance.choice(self.keys)
        actions: dict[Callable[..., None], int] = {
            self._append: 10,
            self._read: 8,
            self._tell: 5,
            self._fail: 2,
            self._burst: 3,
            self._meet: self.crowds,
            self._move: self.moves,
            self._stop: 1,
            self._close: 1,
        }
        action = chance.choices(list(actions), list(actions.values()))[0]
        if self._only_reads(node) and action in (self._append, self._tell, self._burst):
            action = self._read
        action(node, key, chance)

    def _only_reads(self, node: Node) -> bool:
        """Return whether clients of a node only read: it does not hear when it is replaced."""
        places = [made.address for made in self.cluster.machines()]
        return places.index(node.address) in self.readers

    def _ref(self, node: Node, key: str) -> Any:
        return node.entity(self.cls, key)

    def _next(self, node: Node, key: str) -> int:
        """Return a value that is sent to a key."""
        self.values += 1
        sender = f"{node.name} {node.node_id.hex()}"
        self.sent.setdefault((sender, key), []).append(self.values)
        return self.values

    def _append(self, node: Node, key: str, chance: random.Random) -> None:
        # Asks that wait for a key wanted by all nodes would not end in time.
        longest = 0.3 if len(self.keys) > 2 and not self.crowds else 0.02
        choice = (0.0, 0.0, 0.0, 0.02, longest, -0.02, -longest)
        self._store(node, key, chance, chance.choice(choice))

    def _append_at_once(self, node: Node, key: str, chance: random.Random) -> None:
        self._store(node, key, chance, 0.0)

    def _store(self, node: Node, key: str, chance: random.Random, wait: float) -> None:
        value = self._next(node, key)
        relay = chance.choice((*self.keys, "", "", "")) if self.cls is Journaled else ""
        sent = Append(value, wait, relay=relay if relay != key else "")
        if sent.relay:
            self._unknown(sent.relay, -value)
        asked = self.history.ask(
            *(self._ref(node, key), sent),
            key=key,
            operation="append",
            value=value,
            timeout=chance.choice((0.5, 5.0, 20.0)),
            refused=EntityUnavailable,
        )
        asked.on_done(self._told)

    def _told(self, asked: Future[Any]) -> None:
        """Record an answer that is never correct."""
        if isinstance(asked.exception(), StateCorrupt):
            self.corrupt.append(str(asked.exception()))

    def _read(self, node: Node, key: str, chance: random.Random) -> None:
        asked = self.history.ask(
            *(self._ref(node, key), "read"),
            key=key,
            operation="read",
            value=key,
            timeout=chance.choice((0.5, 5.0, 20.0)),
            refused=EntityUnavailable,
        )
        asked.on_done(self._told)

    def _tell(self, node: Node, key: str, _: random.Random) -> None:
        value = self._next(node, key)
        self._unknown(key, value)
        self.told.append((node, key, value))
        self._ref(node, key).tell(Append(value))

    def _unknown(self, key: str, value: int) -> None:
        """Record that a value may be appended, from now on."""
        self.history.unknown(self.history.begin("append", value, key=key))

    def _fail(self, node: Node, key: str, chance: random.Random) -> None:
        value = self._next(node, key)
        self.failing.add(value)
        wait = chance.choice((0.0, -0.05))
        ask = self._ref(node, key).ask(Append(value, wait, fails=True), timeout=5.0)
        ask.on_done(lambda done: done.exception())

    def _burst(self, node: Node, key: str, chance: random.Random) -> None:
        """Do several things at once."""
        for _ in range(chance.randint(2, 6)):
            action = chance.choice((self._append, self._tell, self._tell, self._read))
            action(node, key, chance)

    def _meet(self, _: Node, key: str, chance: random.Random) -> None:
        """Ask every node for the same key."""
        self._crowd(key, chance, chance.choice((0.0, 0.05, 0.5)))

    def _crowd(self, key: str, chance: random.Random, seconds: float) -> None:
        """Ask every node for the same key, for a while."""
        for node in self._running():
            for _ in range(chance.randint(1, 4)):
                action = chance.choice((self._append_at_once, self._read, self._read))
                if self._only_reads(node):
                    action = self._read
                self._soon(chance.uniform(0.0, seconds), node, key, action, chance)

    def _soon(
        self, seconds: float, node: Node, key: str, action: Any, chance: random.Random
    ) -> None:
        """Schedule an action of a node, if it runs then."""
        seed = chance.random()

        def act() -> None:
            if self.cluster.is_running(node) and not self.cluster.is_paused(node):
                action(node, key, random.Random(seed))

        self.cluster.clock.plan(seconds, act)

    def _move(self, node: Node, key: str, chance: random.Random) -> None:
        """Move the slot of a key, while every node tells it a series."""
        hosts = self.cluster.machines()[: self.hosts]
        target = chance.choice([each for each in hosts if isinstance(each, Node)])
        order = MoveSlots(self.cls.name, [slot_of(key)], target.node_id.hex())
        for sender in self._running():
            count = 0 if self._only_reads(sender) else chance.randint(2, 8)
            for _ in range(count):
                self._soon(chance.uniform(0.0, 0.2), sender, key, self._tell, chance)

        def move(node: Node, *_: object) -> None:
            ref = node.runtime.ref_of(chance.choice(self._running()).node_id, ENTITIES)
            ref.ask(order, timeout=1.0).on_done(lambda done: done.exception())

        self._soon(chance.uniform(0.0, 0.1), node, key, move, chance)

    def _stop(self, node: Node, key: str, _: random.Random) -> None:
        self._ref(node, key).stop()

    def _close(self, node: Node, _: str, chance: random.Random) -> None:
        """Close a node and start it again, unless it is the last that hosts."""
        places = [made.address for made in self.cluster.machines()]
        hosting = [each for each in self._running() if places.index(each.address) < self.hosts]
        if len(hosting) < 2 or chance.random() < 0.5:
            return
        self.note(node.name, "closes")
        self.closed.append(node)
        with suppress(CallboardError):
            node.close()
        self.cluster.restart(node)

    # --- the end ---

    def _rest(self) -> None:
        """End all faults, and look how soon each key answers each node."""
        self.cluster.calm()
        self.note("calm")
        since = self.cluster.now
        self.pending = {(node, key) for node in self._running() for key in self.keys}
        for node, key in sorted(self.pending, key=lambda each: (each[0].name, each[1])):
            self._look(node, key)
        # Packets that were lost before are sent again as late as their connection has it.
        late = max(0.0, self.cluster.network.late_until - since - FIRST_RETRANSMISSION)
        self.cluster.run_until(lambda: not self.pending, PATIENCE + late)
        self.seconds = self.cluster.now - since
        if self.pending:
            left = ", ".join(sorted(f"{key} at {node.name}" for node, key in self.pending))
            raise Violation(f"{PATIENCE + late} s after the last fault no answer of {left}")
        self.cluster.advance(self.aftermath)
        check_accounts(self.cluster, self._running(), 2 * OLD_PATH_LIMIT)
        self.ends = self._last_reads()

    def _last_reads(self) -> dict[str, list[int]]:
        """Return all values of each key at one moment that the follower has reached.

        Tells may still be in flight. Values stored while the keys are read are in some answers
        and not in others, so they are read again until nothing changes.
        """
        asker, until = self._running()[0], self.cluster.now + REST
        while self.cluster.now < until:
            before = self._stored()
            self.cluster.run_until(
                lambda: self.follower.position >= self._stored()[0], PATIENCE
            )
            ends = {key: self._last_read(asker, key) for key in self.keys}
            if self._stored() == before:
                return ends
        raise Violation(f"{REST} s after the last fault keys are stored still")

    def _stored(self) -> tuple[int, dict[str, int]]:
        """Return the last position of the journal, and the newest snapshot of each key."""
        tables = self.cluster.database(self.url).tables
        snapshots = {key: kept[-1].number for (_, key), kept in tables.snapshots.items()}
        return tables.positions.get(self.cls.name, 0), snapshots

    def _last_read(self, node: Node, key: str) -> list[int]:
        """Return all values of a key; a database that failed over says so once to each."""
        until = self.cluster.now + PATIENCE
        while self.cluster.now < until:
            with suppress(EntityUnavailable):
                return list(self._ref(node, key).ask("read").result(3.0))
            self.cluster.advance(0.05)
        raise Violation(f"{key} does not answer {node.name} any more")

    def _look(self, node: Node, key: str) -> None:
        """Ask a key until it answers."""
        asked = self.history.ask(
            *(self._ref(node, key), "read"),
            key=key,
            operation="read",
            value=key,
            timeout=1.0,
            refused=EntityUnavailable,
        )
        asked.on_done(partial(self._looked, node, key))

    def _looked(self, node: Node, key: str, asked: Future[Any]) -> None:
        """Take an answer, or ask again."""
        if asked.exception() is None:
            self.pending.discard((node, key))
        else:
            self.cluster.clock.plan(0.05, self._look, node, key)

    def _check(self) -> None:
        """Judge all that was told and stored."""
        for key, end in self.ends.items():
            read = self.history.begin("read", key, key=key)
            self.history.answered(read, end)
        self.history.check(linearizable(Appended(self.ends)))
        everything = {value for end in self.ends.values() for value in end}
        for key, end in self.ends.items():
            if len(set(end)) < len(end):
                raise Violation(f"{key} has a message twice: {end}")
            for value in end:
                if value in self.failing:
                    raise Violation(f"{key} has {value}, whose handler raised")
                if value < 0 and -value not in everything:
                    raise Violation(f"{key} was told of {-value}, which was never stored")
        tables = self.cluster.database(self.url).tables
        is_whole = self.keep == "all" or self.cls is Saved
        check_journal(tables, self.cls.name, self.follower.seen, is_whole=is_whole)
        self.ballots.check()
        if self.corrupt:
            raise Violation(f"a node was told: {self.corrupt[0]}")
        if self.is_calm:
            self._check_order()

    def _check_order(self) -> None:
        """Judge the order of what each node sent, and that nothing was lost."""
        for (sender, key), values in self.sent.items():
            end = self.ends[key]
            found = [value for value in end if value in set(values)]
            if found != [value for value in values if value in found]:
                raise Violation(f"{key} has {found} of {sender}, which sent {values}")
        for node, key, value in self.told:
            if node not in self.closed and value not in {*self.ends[key], *self.dead}:
                raise Violation(f"{key} was told {value} by {node.name}, and has not got it")


def link_again(cluster: Cluster, node: Node) -> None:
    """Link a node that was started again with all others."""
    for other in cluster.machines():
        if isinstance(other, Node) and other is not node:
            for one, there in ((node, other), (other, node)):
                if cluster.is_running(one):
                    one._reach.dial(_endpoint(there), keep=True)


def _endpoint(node: Node) -> tuple[str, int]:
    host, _, port = node.address.removeprefix("basp://").rpartition(":")
    return host, int(port)


OWN_FAULTS: Final = (island, overtaken, stalls, stranded)
"""Printed tests import them from here."""


@cluster_test(faults=FAULTS)
def live_entities(cluster: Cluster) -> None:
    """Live a life of entities under faults of all kinds."""
    EntityLife(cluster).run()


@cluster_test(faults=CALM_FAULTS)
def live_moves(cluster: Cluster) -> None:
    """Live a life of entities that move while ways and databases are slow."""
    EntityLife(cluster, is_calm=True).run()


@cluster_test(faults=LEASE_FAULTS)
def live_leases(cluster: Cluster) -> None:
    """Live a life of entities whose owners are replaced when their leases have ended."""
    EntityLife(cluster, takeover="lease").run()
