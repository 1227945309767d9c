"""Faults of a simulated cluster, as values: when, to which machines, how long, how much.

A kind of fault is called with the places of its machines, in the order in which they were made,
and gives a `Fault`: `partition(0, 1, at=2.0, lasts=3.5)`. A swarm draws them from a seed
(`callboard.simulation.runs.swarm`).

A fault begins at a time, or behind it when something happens: `crash(1, at=2.0, on="disk")`
takes the power away in the middle of a handler, behind the first change of that disk from then
on. Much of what goes wrong needs a moment that no time would hit by chance. Which machine comes
to such a moment is not known before: `isolate("doer", on="mark", after=0.1)` cuts off the one
that was elected, whichever it is, a tenth of a second later.

When a fault ends, what it did is undone; others of the same machines that still last are done
again. Machines keep their faults when their nodes start again.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

from callboard.kernel.errors import CallboardError
from callboard.node import Node
from callboard.simulation.cluster import Cluster, Machine
from callboard.simulation.databases.model_database import LATENCY
from callboard.simulation.network import DELAY
from callboard.simulation.programs.host import SimulatedHost
from callboard.simulation.runner import runner_of
from callboard.support.dataclass import dataclass

#: What a fault may wait for: its first machine sends bytes, changes its disk, comes to a mark
#: (`reachable`, or `sometimes` with a condition that holds), or has started again.
OWN_MOMENTS: Final = ("send", "disk", "mark", "start")

#: The same, and moments of no machine: a history notes an answer; the test did something.
MOMENTS: Final = (*OWN_MOMENTS, "answer", "test")

#: The place of the machine that comes to the moment for which a fault waits.
DOER: Final = -1

#: What stands for that place in a program.
_DOER_NAME: Final = "doer"

#: Half of the faults begin between this time and the last, each order of magnitude as likely:
#: tests may be over in less than a second.
SOONEST: Final = 0.002

#: Seconds that a fault of a swarm lasts at least, unless its kind says otherwise.
SHORTEST: Final = 0.05

#: Seconds until a node starts again that its disk did not let start, at least.
_AGAIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a run.

    Attributes:
        kind: what goes wrong.
        machines: which ones, by the order in which the cluster made them.
        at: virtual seconds after the cluster was made at which it begins.
        lasts: seconds until it ends.
        amount: how much, in the unit of the kind; 0 where there is nothing to say.
        on: what it waits for from then on, one of `MOMENTS`; empty for nothing.
        skip: how many of these it lets pass.
        after: seconds between that moment and its begin.
    """

    kind: "FaultKind"
    machines: tuple[int, ...]
    at: float
    lasts: float
    amount: float = 0.0
    on: str = ""
    skip: int = 0
    after: float = 0.0

    def __str__(self) -> str:
        """Return the call that makes this fault."""
        names = (f'"{_DOER_NAME}"' if place == DOER else str(place) for place in self.machines)
        places = "".join(f"{name}, " for name in names)
        amount = f", {self.kind.unit}={self.amount:g}" if self.kind.unit else ""
        on = f', on="{self.on}"' if self.on else ""
        skip = f", skip={self.skip}" if self.skip else ""
        after = f", after={self.after:g}" if self.after else ""
        when = f"at={self.at:g}{on}{skip}{after}, lasts={self.lasts:g}"
        return f"{self.kind.name}({places}{when}{amount})"


def _nothing(*_: Any) -> None:
    """Do, or undo, nothing."""


class FaultKind:
    """What can go wrong, and how it is done and undone."""

    def __init__(
        self,
        name: str,
        machines: int = 0,
        begin: Callable[..., object] = _nothing,
        end: Callable[..., object] = _nothing,
        unit: str = "",
        least: float = 0.0,
        most: float = 0.0,
        *,
        is_signed: bool = False,
        often: float = 1.0,
    ) -> None:
        """Define a kind.

        Args:
            name: of the kind, that of the variable which holds it: printed tests import it.
            machines: how many machines a fault of it concerns.
            begin: called with the cluster, the nodes, and the amount if there is a unit.
                Without it, `on_fault` of the cluster does what there is to do.
            end: called with the cluster and the nodes; without it a fault lasts no time.
            unit: the name of the amount.
            least: the least amount that a swarm draws; small ones are as likely as large ones.
            most: the largest amount.
            is_signed: whether half of the amounts that a swarm draws are below 0.
            often: how often a swarm draws it, beside others.
        """
        self.name = name
        self.machines = machines
        self.unit = unit
        self.often = often
        self.is_lasting = end is not _nothing
        self._begin, self._end = begin, end
        self._least, self._most, self._is_signed = least, most, is_signed
        self._shortest, self._longest = SHORTEST, math.inf

    def __call__(
        self,
        *machines: int | str,
        at: float = 0.0,
        lasts: float = 1.0,
        on: str = "",
        skip: int = 0,
        after: float = 0.0,
        **amount: float,
    ) -> Fault:
        """Make a fault of this kind.

        Args:
            machines: their places. The first may be "doer": the machine, whichever it is, that
                comes to the moment for which the fault waits.
            at: when it begins, in virtual seconds.
            lasts: for how long.
            on: what it waits for behind that time, one of `MOMENTS`.
            skip: how many of these it lets pass.
            after: seconds between that moment and its begin; 0 is in the middle of a turn.
            amount: how much, under the name of its unit.

        Raises:
            ValueError: it needs another number of machines, or another unit, or waits for
                something that is not known.
        """
        if on and on not in MOMENTS:
            message = f"a fault cannot wait for {on!r}; it waits for {', '.join(MOMENTS)}"
            raise ValueError(message)
        if len(machines) != self.machines or set(amount) != ({self.unit} - {""}):
            unit = f", {self.unit}=…" if self.unit else ""
            places = ", ".join("ij"[: self.machines])
            message = f"{self.name} is called as {self.name}({places}, at=…, lasts=…{unit})"
            raise ValueError(message)
        how_much = amount.get(self.unit, 0.0)
        return Fault(self, _numbers(machines, on), at, lasts, how_much, on, skip, after)

    def __repr__(self) -> str:
        """Return its name."""
        return self.name

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same kind, whatever a swarm draws of it."""
        return isinstance(other, FaultKind) and self.name == other.name

    def __hash__(self) -> int:
        """Return the hash of its name."""
        return hash(self.name)

    def draw(
        self, rng: random.Random, machines: int, span: float, lasting: float | None = None
    ) -> Fault:
        """Draw a fault of this kind for so many machines.

        Args:
            rng: where chance comes from.
            machines: how many there are.
            span: seconds within which it begins.
            lasting: seconds, half of which it lasts at most; the same by default.
        """
        places = tuple(rng.sample(range(max(machines, self.machines)), self.machines))
        longest = (span if lasting is None else lasting) / 2
        if self._longest < math.inf:
            longest = self._longest
        lasts = round(between(rng, self._shortest, longest), 3)
        amount = float(f"{between(rng, self._least, self._most):.3g}") if self.unit else 0.0
        if self._is_signed and rng.random() < 0.5:
            amount = -amount
        is_soon = rng.random() < 0.5
        at = between(rng, SOONEST, span) if is_soon else rng.uniform(0.0, span)
        return Fault(self, places, round(at, 3), lasts, amount)

    def between(self, least: float, most: float) -> "FaultKind":
        """Return this kind with other bounds of what a swarm draws."""
        made = copy(self)
        made._least, made._most = least, most  # noqa: SLF001 - its own class
        return made

    def bounded(self, seconds: float) -> float:
        """Return how long it lasts if a swarm wants these seconds."""
        return min(max(seconds, self._shortest), self._longest)

    def lasting(self, shortest: float, longest: float) -> "FaultKind":
        """Return this kind with other bounds of how long a swarm lets it last, in seconds.

        Raises:
            ValueError: they are not two positive numbers, the smaller one first.
        """
        if not 0.0 < shortest <= longest < math.inf:
            message = (
                f"{self.name}.lasting({shortest!r}, {longest!r}): give the shortest and the "
                "longest time in seconds, such as lasting(2, 10)"
            )
            raise ValueError(message)
        made = copy(self)
        made._shortest, made._longest = shortest, longest  # noqa: SLF001 - its own class
        return made

    def begin(self, cluster: Cluster, nodes: Sequence[Machine], amount: float) -> None:
        """Do it."""
        self._begin(cluster, *nodes, *((amount,) if self.unit else ()))

    def end(self, cluster: Cluster, nodes: Sequence[Machine]) -> None:
        """Undo it."""
        self._end(cluster, *nodes)


def _numbers(machines: tuple[int | str, ...], on: str) -> tuple[int, ...]:
    """Return places as numbers.

    Raises:
        ValueError: one is no place, or of a machine that does nothing.
    """
    numbers: list[int] = []
    for place in machines:
        if place == _DOER_NAME and not numbers and on in OWN_MOMENTS:
            numbers.append(DOER)
        elif isinstance(place, int) and place >= 0:
            numbers.append(place)
        else:
            message = (
                f"{place!r} is no machine: they are counted from 0 on, in the order in which "
                f'the test makes them; the first one may be "{_DOER_NAME}", with on= one of '
                f"{', '.join(OWN_MOMENTS)}"
            )
            raise ValueError(message)
    return tuple(numbers)


def between(rng: random.Random, least: float, most: float) -> float:
    """Draw a number of which each order of magnitude is as likely."""
    return float(least * (most / least) ** rng.random())


def _one_way(cluster: Cluster, one: Machine, other: Machine) -> None:
    """Let nothing pass from one to the other."""
    cluster.partition(one, other, both=False)


def _isolate(cluster: Cluster, node: Machine) -> None:
    """Let nothing pass between a machine and others."""
    for other in cluster.machines():
        if other.address != node.address:
            cluster.partition(node, other)


def _colleagues(cluster: Cluster, node: Machine) -> list[Machine]:
    """Return the other machines that faults may end: clients of a test are not among them."""
    return [
        other
        for other in cluster.machines()
        if other.address != node.address
        and (not isinstance(other, SimulatedHost) or other.mortal)
    ]


def _split(cluster: Cluster, node: Machine) -> None:
    """Let nothing pass between a machine and others that faults may end."""
    for other in _colleagues(cluster, node):
        cluster.partition(node, other)


def _unite(cluster: Cluster, node: Machine) -> None:
    """Let it pass again."""
    for other in _colleagues(cluster, node):
        cluster.mend(node, other)


def _rejoin(cluster: Cluster, node: Machine) -> None:
    """Let it pass again."""
    for other in cluster.machines():
        if other.address != node.address:
            cluster.mend(node, other)


def _fill(cluster: Cluster, node: Machine) -> None:
    """Leave no room on a disk."""
    disk = cluster.disk(node)
    disk.faults.capacity = disk.used


def _empty(cluster: Cluster, node: Machine) -> None:
    """Make room again."""
    cluster.disk(node).faults.capacity = None


def _fail_fsync(cluster: Cluster, node: Machine, part: float) -> None:
    """Let a part of the calls of fsync fail."""
    cluster.disk(node).faults.fsync_errors = part


def _slow(cluster: Cluster, node: Machine, seconds: float) -> None:
    """Let a disk take its time."""
    cluster.disk(node).faults.latency = seconds


def _cut_off(cluster: Cluster, node: Machine) -> None:
    """Let nothing pass between a node and databases."""
    if isinstance(node, Node):
        for database in cluster.databases():
            database.cut(runner_of(node))


def _bring_back(cluster: Cluster, node: Machine) -> None:
    """Let it pass again."""
    if isinstance(node, Node):
        for database in cluster.databases():
            database.mend(runner_of(node))


def _stop_databases(cluster: Cluster) -> None:
    """Stop the servers of all databases."""
    for database in cluster.databases():
        database.down()


def _start_databases(cluster: Cluster) -> None:
    """Start them again."""
    for database in cluster.databases():
        database.up()


def _slow_databases(cluster: Cluster, seconds: float) -> None:
    """Let databases take their time."""
    for database in cluster.databases():
        database.latency = seconds


def _lose_answers(cluster: Cluster, part: float) -> None:
    """Lose answers of commits."""
    for database in cluster.databases():
        database.lost_answers = part


def _fail_over(cluster: Cluster) -> None:
    """Let standbys take over that have all that was acknowledged."""
    for database in cluster.databases():
        database.fail_over()


#: Nothing passes between two machines.
partition: Final = FaultKind("partition", 2, Cluster.partition, Cluster.mend, often=1.5)
#: Nothing passes from the first machine to the second.
one_way: Final = FaultKind("one_way", 2, _one_way, Cluster.mend)
#: Nothing passes between a machine and all others.
isolate: Final = FaultKind("isolate", 1, _isolate, _rejoin, often=1.5)
#: Nothing passes between a machine and others that faults may end; clients still reach it.
split: Final = FaultKind("split", 1, _split, _unite, often=0.7)
#: The connections between two machines break.
cut: Final = FaultKind("cut", 2, Cluster.cut, _nothing)
#: Bytes between two machines are `seconds` under way.
delay: Final = FaultKind(
    "delay", 2, Cluster.delay, lambda c, a, b: c.delay(a, b, DELAY), "seconds", 0.005, 3.0
)
#: Each packet is up to `seconds` late, whichever machines it is between: what several send at
#: once, such as candidates of an election, arrives in any order.
jitter: Final = FaultKind(
    "jitter", 0, Cluster.jitter, lambda c: c.jitter(0.0), "seconds", 0.002, 0.5
).lasting(1.0, 10.0)
#: A `part` of the packets between two machines is lost, and sent again.
loss: Final = FaultKind(
    "loss", 2, Cluster.loss, lambda c, a, b: c.loss(a, b, 0.0), "part", 0.02, 0.5
)
#: A `part` of what passes between two machines arrives, and its connection breaks before an
#: answer: who says again what it has no answer to says it twice.
doubling: Final = FaultKind(
    "doubling", 2, Cluster.doubling, lambda c, a, b: c.doubling(a, b, 0.0), "part", 0.01, 0.5
)
#: So many `bytes` pass between two machines in a second.
narrow: Final = FaultKind(
    "narrow", 2, Cluster.bandwidth, lambda c, a, b: c.bandwidth(a, b, 0), "bytes", 500, 100_000
)
#: A machine stands still, as by SIGSTOP.
pause: Final = FaultKind("pause", 1, Cluster.pause, Cluster.resume, often=2.0)
#: The clock of a machine runs `rate` times as fast.
clock_rate: Final = FaultKind(
    "clock_rate", 1, Cluster.clock_rate, lambda c, a: c.clock_rate(a, 1.0), "rate", 0.8, 1.25
)
#: The date of a machine is `seconds` ahead, or back if below 0; its timers do not notice.
clock_step: Final = FaultKind(
    *("clock_step", 1, Cluster.clock_step, lambda c, a: c.clock_step(a, 0.0)),
    *("seconds", 0.01, 100_000.0),
    is_signed=True,
)
#: The process on a machine is killed; it starts again if the test says how.
kill: Final = FaultKind("kill", 1, Cluster.kill, _nothing, often=2.0)
#: A machine has a power failure: it is silent, and what was not synced may be lost.
crash: Final = FaultKind("crash", 1, Cluster.crash, _nothing, often=3.0)
#: The disk of a machine takes no byte more.
full_disk: Final = FaultKind("full_disk", 1, _fill, _empty)
#: Each write and each fsync on a machine takes `seconds`.
slow_disk: Final = FaultKind(
    "slow_disk", 1, _slow, lambda c, a: _slow(c, a, 0.0), "seconds", 0.001, 1.0
)
#: A `part` of the calls of fsync fails.
bad_fsync: Final = FaultKind(
    "bad_fsync", 1, _fail_fsync, lambda c, a: _fail_fsync(c, a, 0.0), "part", 0.05, 1.0
)

#: Nothing passes between a machine and databases.
database_cut: Final = FaultKind("database_cut", 1, _cut_off, _bring_back)
#: All databases are away; what was committed is there afterwards.
database_down: Final = FaultKind("database_down", 0, _stop_databases, _start_databases)
#: Each request, statement and answer of databases takes `seconds`.
slow_database: Final = FaultKind(
    *("slow_database", 0, _slow_databases, lambda c: _slow_databases(c, LATENCY)),
    *("seconds", 0.002, 0.5),
)
#: The answers of a `part` of commits are lost.
lost_answers: Final = FaultKind(
    *("lost_answers", 0, _lose_answers, lambda c: _lose_answers(c, 0.0)),
    *("part", 0.02, 0.8),
)
#: Standbys take over from all databases, and have what was acknowledged.
fail_over: Final = FaultKind("fail_over", 0, _fail_over, _nothing)

#: What goes wrong with databases: for programs that have some.
DATABASE_KINDS: Final = (database_cut, database_down, slow_database, lost_answers, fail_over)

KINDS: Final = (
    *(partition, one_way, isolate, split, cut, delay, jitter, loss),
    *(doubling, narrow),
    *(pause, clock_rate, clock_step, kill, crash, full_disk, slow_disk, bad_fsync),
)
DEADLY: Final = (kill, crash)

#: What takes one machine away from the others for a time.
OUTAGES: Final = (kill, crash, isolate, split, pause)


#: When faults began that had waited for something, and at which places.
Struck = dict[Fault, tuple[float, tuple[int, ...]]]


class Unrest:
    """Lets the faults of a plan happen in a cluster, and ends them."""

    def __init__(self, cluster: Cluster, faults: Iterable[Fault]) -> None:
        """Plan faults, counted from now."""
        self._cluster = cluster
        self._active: list[tuple[Fault, list[int]]] = []
        #: Ended nodes that start again, by the fault that ended them.
        self._gone: dict[Machine, Fault] = {}
        #: Faults that wait for something, and how many of these each has to let pass.
        self._armed: list[tuple[Fault, int]] = []
        #: What waited for a moment has begun at these times, at these places.
        self.struck: Struck = {}
        self._is_over = self._strikes = False
        cluster.calmed = self.end
        for fault in faults:
            cluster.clock.plan(fault.at, self._arm if fault.on else self.begin, fault)

    def end(self) -> None:
        """End all faults, now and later, and start again what is to be started again."""
        self._is_over = True
        self._arm_all([])
        for fault, nodes in list(self._active):
            self._end(fault, nodes)
        for node in list(self._gone):
            self._restart(node)
        for node in self._cluster.machines():
            if isinstance(node, SimulatedHost):  # its program may have come to its end
                continue
            if self._cluster.restarted is not None and not self._cluster.is_running(node):
                self._cluster.restart(node)

    def _arm(self, fault: Fault) -> None:
        """Let a fault wait for what it begins with."""
        if not self._is_over:
            self._arm_all([*self._armed, (fault, fault.skip)])

    def _arm_all(self, armed: list[tuple[Fault, int]]) -> None:
        """Watch what happens as long as faults wait for something."""
        self._armed = armed
        self._cluster.watch(self._happened if armed else None)

    def _happened(self, what: str, doer: Machine | None) -> None:
        """Let the faults begin that waited for this."""
        if self._strikes or self._cluster.is_linking:
            return
        machines = self._cluster.machines()
        due, waiting = [], []
        for fault, skip in self._armed:
            if fault.on != what or not _concerns(fault, doer, machines):
                waiting.append((fault, skip))
            elif skip:
                waiting.append((fault, skip - 1))
            else:
                due.append(fault)
        self._arm_all(waiting)
        self._strikes = True  # what a fault does is no moment for another one
        for fault in due:
            place = machines.index(doer) if doer in machines else 0
            if fault.after:
                self._cluster.clock.plan(fault.after, self.begin, fault, place)
            else:
                self.begin(fault, place)
        self._strikes = False

    def begin(self, fault: Fault, doer: int = 0) -> None:
        """Let a fault happen now, if there are machines for it.

        Args:
            fault: which.
            doer: the place of the machine that came to the moment for which it waited.
        """
        if self._is_over:
            return
        if self._cluster.is_linking:
            self._cluster.clock.plan(SOONEST, self.begin, fault, doer)
            return
        machines = self._cluster.machines()
        if len(machines) < len(fault.machines):
            return
        drawn = tuple(doer if place == DOER else place for place in fault.machines)
        places = _places(drawn, len(machines))
        if fault.on:
            self.struck.setdefault(fault, (self._cluster.now, tuple(places)))
        nodes = [machines[place] for place in places]
        if fault.kind in DEADLY:
            self._end_node(fault, nodes[0])
            return
        if not all(map(self._cluster.is_running, nodes)):
            return
        fault.kind.begin(self._cluster, nodes, fault.amount)
        if fault.kind.is_lasting:
            self._active.append((fault, places))
            self._cluster.clock.plan(fault.lasts, self._end, fault, places)
        self._tell(fault, nodes, begins=True)

    def _tell(self, fault: Fault, nodes: list[Machine], *, begins: bool) -> None:
        """Tell the test, if it wants to know."""
        if self._cluster.on_fault is not None:
            self._cluster.on_fault(fault, nodes, begins)

    def _end_node(self, fault: Fault, node: Machine) -> None:
        """End a node, and start it again later; without a way to start it, one remains."""
        cluster = self._cluster
        running = [each for each in cluster.machines() if cluster.is_running(each)]
        starts_again = isinstance(node, SimulatedHost) or cluster.restarted is not None
        if node not in running or (not starts_again and len(running) < 2):
            return
        if isinstance(node, SimulatedHost) and not node.mortal:
            return
        fault.kind.begin(cluster, (node,), 0.0)
        self._tell(fault, [node], begins=True)
        if starts_again:
            self._gone[node] = fault
            cluster.clock.plan(fault.lasts, self._restart, node)

    def _restart(self, node: Machine) -> None:
        """Start a node again, unless that has happened."""
        fault = self._gone.pop(node, None)
        if fault is None:
            return
        cluster, again = self._cluster, True
        if node in cluster.machines() and not cluster.is_running(node):
            again = self._starts(fault, node)
        latest = [each for each in cluster.machines() if each.address == node.address]
        if again:
            self._tell(fault, latest, begins=False)

    def _starts(self, fault: Fault, node: Machine) -> bool:
        """Start a node again; it may die of a fault meanwhile, or of its disk: then later."""
        cluster = self._cluster
        place, count = cluster.machines().index(node), len(cluster.nodes)
        try:
            cluster.restart(node)
        except (CallboardError, OSError):
            made = (*cluster.nodes[count:], node)[0]  # it may be back already
            if cluster.is_running(made):
                ill = [each.kind for each, places in self._active if place in places]
                if self._is_over or not {full_disk, bad_fsync} & set(ill):
                    raise
                cluster.kill(made)  # as a process that fails, and is begun again
                self._gone[made] = fault
                cluster.clock.plan(max(fault.lasts, _AGAIN), self._restart, made)
            return False
        return True

    def _end(self, fault: Fault, places: list[int]) -> None:
        """Undo a fault; those that still last for some of the machines are done again."""
        if (fault, places) not in self._active:  # the test is calm
            return
        self._active.remove((fault, places))
        machines = self._cluster.machines()  # nodes may have started again
        nodes = [machines[place] for place in places]
        fault.kind.end(self._cluster, nodes)
        for other, concerned in self._active:
            if set(concerned) & set(places) or not (concerned or places):
                again = [machines[place] for place in concerned]
                other.kind.begin(self._cluster, again, other.amount)
        self._tell(fault, nodes, begins=False)


def _concerns(fault: Fault, doer: Machine | None, machines: list[Machine]) -> bool:
    """Return whether a fault waits for what this machine does, or the test or a history."""
    first = fault.machines[:1]
    if first == (DOER,):
        return doer in machines
    if doer is None or not first or fault.on not in OWN_MOMENTS:
        return True
    return doer is machines[first[0] % len(machines)]


def at_its_time(fault: Fault, struck: Struck) -> Fault:
    """Return a fault that begins when, and where, this one began after it had waited."""
    if fault not in struck:
        return fault
    at, places = struck[fault]
    return replace(fault, machines=places, at=float(f"{at:.6g}"), on="", skip=0, after=0.0)


def resolved(fault: Fault, count: int) -> Fault:
    """Return a fault with places of machines that there are."""
    if count < len(fault.machines) or DOER in fault.machines:
        return fault
    return replace(fault, machines=tuple(_places(fault.machines, count)))


def _places(drawn: tuple[int, ...], count: int) -> list[int]:
    """Return places of machines that there are, each another one."""
    places: list[int] = []
    for place in drawn:
        found = place % count
        while found in places:
            found = (found + 1) % count
        places.append(found)
    return places
