"""One random life of a store, by seed: a master that crashes, clones that come and go.

Up to nine nodes in a ring, one of them with the master, the others with clones; all of them
Rules:

- of several `put_unique` of one key exactly one is told that it won, and its value stays;
- increments add up: each write counts once, writes of clones that died at most once;
- acknowledged writes (a clone or master was idle after them) are durable, and never lost;
- a master that is idle has only clones with the same entries;
- when all faults are over, all parties become idle, and all entries are equal.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from callboard import CallboardError, Node
from callboard.actors.future import Future
from callboard.simulation import (
    Cluster,
    cluster_test,
    cut,
    delay,
    doubling,
    isolate,
    loss,
    narrow,
    one_way,
    partition,
    swarm,
)
from callboard.store import MasterExists, Store, StoreOptions, attach_clone, attach_master
from callboard.topics.hub import Hub, HubOptions
from tests.simulation.rules import Violation
from tests.simulation.simulated_backend import SimulatedBackend

NAME = "things"
COUNTERS = ("n0", "n1")
CLONES_ONLY = "n2"
PATIENCE = 90.0
"""Virtual seconds in which a store comes to rest when nothing disturbs it."""


@dataclass(eq=False)
class Keeper:
    """A node with a store, from its start to its end."""

    number: int
    slot: int
    node: Node
    store: Store
    is_alive: bool = True
    written: int = 0
    #: Writes and increments until the last moment at which it was idle.
    acknowledged: int = 0
    increments: Counter[str] = field(default_factory=Counter)
    sure_increments: Counter[str] = field(default_factory=Counter)

    def key(self, number: int) -> str:
        """Return the key of one of its writes."""
        return f"w{self.number}-{number}"


@dataclass
class Contest:
    """Several `put_unique` of one key."""

    key: str
    answers: list[tuple[str, Future[bool]]]


FAULTS = swarm(
    *(partition, one_way, isolate, cut, doubling, loss),
    *(delay.between(0.0001, 0.4), narrow.between(2_000, 50_000)),
    span=40.0,
)


class StoreLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster) -> None:
        self.random = cluster.random
        self.cluster = cluster
        self.backend = SimulatedBackend(
            self.cluster.clock, self.random.choice((0.0, 0.002, 0.05))
        )
        #: With a small buffer, clones that are out of reach miss commands for good.
        self.options = StoreOptions(buffer_limit=self.random.choice((65_536, 30)))
        self.slots: list[Node] = []
        self.master: Keeper | None = None
        self.keepers: list[Keeper] = []
        self.contests: list[Contest] = []
        self.found: list[str] = []

    def run(self) -> "StoreLife":
        """Live the life of this seed."""
        self._begin()
        begun = self.random
        for _, chance in self.cluster.steps(begun.randint(20, 50), within=0.0):
            self.random = chance
            self._act()
            self.cluster.advance(chance.choice((0.0, 0.001, 0.02, 0.3, 2.0, 6.0)))
            self._report()
        self.random = begun
        self._rest()
        self._check_end()
        return self

    # --- begin ---

    def _begin(self) -> None:
        self.slots = self.cluster(self.random.choice((3, 4, 5, 6, 9)), topology="ring")
        if self.random.random() < 0.5:
            self._start_master()
        for slot in range(1, len(self.slots)):
            self._start_clone(slot)

    def _start_master(self) -> None:
        node = self.slots[0]
        try:
            store = attach_master(
                self._hub(node), NAME, self.backend, store_options=self.options
            )
        except MasterExists as error:
            raise Violation(f"there is no other master, but: {error}") from error
        self.master = Keeper(len(self.keepers), 0, node, store)
        self.keepers.append(self.master)

    def _start_clone(self, slot: int) -> None:
        node = self.slots[slot]
        store = attach_clone(self._hub(node), NAME)
        self.keepers.append(Keeper(len(self.keepers), slot, node, store))

    def _hub(self, node: Node) -> Hub:
        return Hub.of(node, HubOptions(endpoint_id=node.node_id[-16:]))

    def _alive(self) -> list[Keeper]:
        return [keeper for keeper in self.keepers if keeper.is_alive]

    # --- what happens ---

    def _act(self) -> None:
        actions: dict[Callable[[], None], int] = {
            self._write: 10,
            self._increment: 8,
            self._contest: 4,
            self._wait_for_idleness: 8,
            self._crash_master: 1,
            self._crash_in_the_middle: 1,
            self._return_master: 3,
            self._crash_clone: 1,
            self._leave_behind: 2,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()

    def _write(self) -> None:
        keeper = self.random.choice(self._alive())
        for _ in range(self.random.choice((1, 5, 60))):
            keeper.written += 1
            keeper.store.put(keeper.key(keeper.written), keeper.written)
            if keeper.written > 2 and self.random.random() < 0.02:
                keeper.store.put("temporary", keeper.written, 0.5)

    def _increment(self) -> None:
        for keeper in self._some(2):
            for _ in range(self.random.choice((1, 3, 20))):
                counter = self.random.choice(COUNTERS)
                keeper.increments[counter] += 1
                keeper.store.increment(counter)

    def _contest(self) -> None:
        self._ask_unique(self._some(3))

    def _some(self, count: int) -> list[Keeper]:
        """Return a few keepers, or now and then all of them."""
        alive = self._alive()
        wanted = self.random.choice((count, count, len(alive)))
        return self.random.sample(alive, min(wanted, len(alive)))

    def _ask_unique(self, keepers: list[Keeper]) -> None:
        key = f"u{len(self.contests)}"
        answers = []
        for keeper in keepers:
            value = f"{key} of {keeper.number}"
            answers.append((value, keeper.store.ask_unique(key, value)))
        self.contests.append(Contest(key, answers))

    def _wait_for_idleness(self) -> None:
        keeper = self.random.choice(self._alive())
        seen = (keeper.written, Counter(keeper.increments))
        keeper.store.await_idle(
            self.random.choice((0.5, 5.0, 20.0)), partial(self._became_idle, keeper, *seen)
        )

    def _became_idle(
        self, keeper: Keeper, written: int, increments: Counter[str], is_idle: bool
    ) -> None:
        if not is_idle or not keeper.is_alive:
            return
        keeper.acknowledged = max(keeper.acknowledged, written)
        keeper.sure_increments |= increments
        durable = self.backend.contents.rows
        for number in range(1, written + 1):
            if keeper.key(number) not in durable:
                self.found.append(f"{keeper.key(number)} was acknowledged and is not durable")
                return
        if keeper is self.master:
            self._compare_with_clones(keeper)

    def _compare_with_clones(self, master: Keeper) -> None:
        machine: Any = master.store._actor.machine
        for clone in self._alive():
            other: Any = clone.store._actor.machine
            if clone is not master and other.reader in machine.output.consumers:
                self._compare(machine, other, clone)

    def _compare(self, machine: Any, other: Any, clone: Keeper) -> None:
        if other.entries != machine.entries:
            self.found.append(f"the master was idle before clone {clone.number}")

    def _report(self) -> None:
        if self.found:
            raise Violation(self.found[0])

    def _crash_master(self) -> None:
        if self.master is not None and len(self._alive()) > 1:
            self.backend.crash()
            self._crash(self.master)
            self.master = None

    def _crash_in_the_middle(self) -> None:
        """Deliver writes of clones to the master, but drop the acknowledgements."""
        if self.master is None:
            return
        for node in self.slots[1:]:
            self.cluster.partition(self.slots[0], node, both=False)
        clones = [keeper for keeper in self._alive() if keeper is not self.master]
        for keeper in clones:
            keeper.increments[CLONES_ONLY] += 3
            for _ in range(3):
                keeper.store.increment(CLONES_ONLY)
        self._ask_unique(clones)
        self.cluster.advance(self.random.choice((0.02, 0.2)))
        self._crash_master()
        self.cluster.heal()

    def _return_master(self) -> None:
        if self.master is None:
            self._start_master()

    def _crash_clone(self) -> None:
        clones = [keeper for keeper in self._alive() if keeper is not self.master]
        if len(clones) > 1:
            clone = self.random.choice(clones)
            self._crash(clone)
            self._start_clone(clone.slot)

    def _leave_behind(self) -> None:
        """Make a clone miss commands for long enough to break links, but not channels."""
        slot = self.random.randrange(1, len(self.slots))
        for step in (-1, 1):
            self.cluster.partition(
                self.slots[slot], self.slots[(slot + step) % len(self.slots)], both=True
            )
        self._write()
        self.cluster.advance(self.random.choice((2.0, 5.0, 8.0)))
        self._write()
        self.cluster.heal()

    def _crash(self, keeper: Keeper) -> None:
        keeper.is_alive = False
        self.cluster.kill(keeper.node)
        node = self.slots[keeper.slot] = self.cluster.restart(keeper.node)
        for step in (-1, 1):
            other = self.slots[(keeper.slot + step) % len(self.slots)]
            for one, there in ((node, other), (other, node)):
                self.cluster.link(one, there)

    # --- the end ---

    def _rest(self) -> None:
        self.cluster.calm()
        for one, other in zip(self.slots, [*self.slots[1:], self.slots[0]], strict=True):
            self.cluster.link(one, other)
        self._return_master()
        assert self.master is not None
        self.cluster.run_until(self._is_whole, PATIENCE)
        for keeper in [*[one for one in self._alive() if one is not self.master], self.master]:
            try:
                became_idle = keeper.store.await_idle(PATIENCE)
            except CallboardError as error:
                raise Violation(f"{keeper.store} failed: {error}") from error
            if not became_idle:
                raise Violation(f"{keeper.store} on slot {keeper.slot} does not come to rest")
            keeper.acknowledged = keeper.written
            keeper.sure_increments = Counter(keeper.increments)
        self._report()

    def _is_whole(self) -> bool:
        """Return whether all clones have found the master."""
        assert self.master is not None
        entity = self.master.store._actor.machine.entity
        return all(
            keeper is self.master or keeper.store._actor.machine.master == entity
            for keeper in self._alive()
        )

    def _check_end(self) -> None:
        assert self.master is not None
        entries = dict(self.master.store._actor.machine.entries)
        for keeper in self._alive():
            if keeper.store._actor.machine.entries != entries:
                raise Violation(f"clone {keeper.number} differs from its master at the end")
        for keeper in self.keepers:
            for number in range(1, keeper.acknowledged + 1):
                if entries.get(keeper.key(number)) != number:
                    raise Violation(f"{keeper.key(number)} was acknowledged and is lost")
        for counter in (*COUNTERS, CLONES_ONLY):
            least = sum(keeper.sure_increments[counter] for keeper in self.keepers)
            most = sum(keeper.increments[counter] for keeper in self.keepers)
            if not least <= entries.get(counter, 0) <= most:
                raise Violation(
                    f"{counter} is {entries.get(counter)}, not between {least} and {most}"
                )
        for contest in self.contests:
            self._check_contest(contest, entries)

    def _check_contest(self, contest: Contest, entries: dict[Any, Any]) -> None:
        winners = [value for value, answer in contest.answers if _is_won(answer)]
        told = [value for value, answer in contest.answers if _is_told(answer)]
        if len(winners) > 1:
            raise Violation(f"{contest.key} was won by all of {winners}")
        value = entries.get(contest.key)
        if winners and value != winners[0]:
            raise Violation(f"{winners[0]!r} won {contest.key}, which holds {value!r}")
        if told and value is None:
            raise Violation(f"{contest.key} was answered, and holds nothing")
        if len(told) == len(contest.answers) and not winners:
            raise Violation(f"no clone won {contest.key}")


def _is_told(answer: Future[bool]) -> bool:
    return answer.done() and answer.exception() is None


def _is_won(answer: Future[bool]) -> bool:
    return _is_told(answer) and answer.result(0)


@cluster_test(faults=FAULTS)
def live_stores(cluster: Cluster) -> None:
    """Live a life of a store."""
    StoreLife(cluster).run()
