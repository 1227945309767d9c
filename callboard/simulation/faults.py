"""Faults of a simulated cluster as values: kind, machines, start, duration, amount.

Calling a kind of fault with the indices of its machines, in the order of creation, returns a
`Fault`: `partition(0, 1, at=2.0, lasts=3.5)`. A swarm draws faults from a seed
(`callboard.simulation.runs.swarm`).

A fault starts at a time, or at the first event of a given kind after that time.
`crash(1, at=2.0, on="disk")` cuts the power right after the first disk change after 2 s, in the
middle of a handler. Many bugs need a moment that no fixed time would hit. The machine that
triggers the event may be unknown beforehand: `isolate("doer", on="mark", after=0.1)` isolates
whichever machine was elected, 0.1 s after it reached the mark.

When a fault ends, its effect is undone, and the effects of other active faults of the same
machines are applied again. Restarted nodes keep the faults of their machines.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

from callboard.kernel.errors import CallboardError
from callboard.node import Node
from callboard.simulation.cluster import Cluster
from callboard.simulation.databases.model_database import LATENCY
from callboard.simulation.network import DELAY
from callboard.simulation.runner import runner_of
from callboard.support.dataclass import dataclass

#: Events of the fault's first machine that a fault may wait for: it sends bytes, changes its
#: disk, reaches a mark (`reachable`, or `sometimes` with a true condition), or has restarted.
OWN_MOMENTS: Final = ("send", "disk", "mark", "start")

#: All events that a fault may wait for: those, and two of no particular machine: a history
#: records an answer; the test makes a call.
MOMENTS: Final = (*OWN_MOMENTS, "answer", "test")

#: The index that stands for the machine that triggers the event.
DOER: Final = -1

#: The name of that index in a test.
_DOER_NAME: Final = "doer"

#: Earliest start, in seconds, of the half of the faults whose start is drawn log-uniformly:
#: many tests are over in less than a second.
SOONEST: Final = 0.002

#: Minimum duration, in seconds, of a fault of a swarm, unless its kind sets another.
SHORTEST: Final = 0.05

#: Minimum seconds until a node restarts whose previous start failed because of its disk.
_AGAIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a run.

    Attributes:
        kind: the kind of fault.
        machines: indices of the affected machines, in the order of creation.
        at: start, in virtual seconds after the creation of the cluster.
        lasts: duration in seconds.
        amount: the amount in the unit of the kind; 0 if the kind has none.
        on: the event it waits for after `at`, one of `MOMENTS`; empty for none.
        skip: number of these events to skip.
        after: seconds between the event and the start.
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
        """Return the call that creates this fault."""
        names = (f'"{_DOER_NAME}"' if place == DOER else str(place) for place in self.machines)
        places = "".join(f"{name}, " for name in names)
        amount = f", {self.kind.unit}={self.amount:g}" if self.kind.unit else ""
        on = f', on="{self.on}"' if self.on else ""
        skip = f", skip={self.skip}" if self.skip else ""
        after = f", after={self.after:g}" if self.after else ""
        when = f"at={self.at:g}{on}{skip}{after}, lasts={self.lasts:g}"
        return f"{self.kind.name}({places}{when}{amount})"


def _nothing(*_: Any) -> None:
    """Start or end a fault that has no effect of its own."""


class FaultKind:
    """A kind of fault: how it starts and ends, and how it is drawn."""

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
            name: name of the kind and of the variable that holds it; printed tests import it.
            machines: number of machines that a fault affects.
            begin: called with the cluster, the nodes, and the amount if there is a unit.
                Without it, `on_fault` of the cluster must apply the fault.
            end: called with the cluster and the nodes; without it, the fault is instantaneous.
            unit: the keyword of the amount.
            least: smallest amount that a swarm draws; the distribution is log-uniform.
            most: largest amount.
            is_signed: whether half of the drawn amounts are negative.
            often: weight of the kind in a swarm.
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
        """Create a fault of this kind.

        Args:
            machines: indices of the machines. The first may be "doer": the machine that
                triggers the event.
            at: start, in virtual seconds.
            lasts: duration in seconds.
            on: the event it waits for after that time, one of `MOMENTS`.
            skip: number of these events to skip.
            after: seconds between the event and the start; 0 starts in the middle of a turn.
            amount: the amount, with the unit as keyword.

        Raises:
            ValueError: the number of machines or the unit is wrong, or the event is unknown.
        """
        if on and on not in MOMENTS:
            message = f"a fault cannot wait for {on!r}; it waits for {', '.join(MOMENTS)}"
            raise ValueError(message)
        if len(machines) != self.machines or set(amount) != ({self.unit} - {""}):
            unit = f", {self.unit}=…" if self.unit else ""
            places = ", ".join("ij"[: self.machines])
            message = f"{self.name} is called as {self.name}({places}, at=…, lasts=…{unit})"
            raise ValueError(message)
        value = amount.get(self.unit, 0.0)
        return Fault(self, _numbers(machines, on), at, lasts, value, on, skip, after)

    def __repr__(self) -> str:
        """Return the name of the kind."""
        return self.name

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same kind; the bounds for a swarm are not compared."""
        return isinstance(other, FaultKind) and self.name == other.name

    def __hash__(self) -> int:
        """Return the hash of the name."""
        return hash(self.name)

    def draw(
        self, rng: random.Random, machines: int, span: float, lasting: float | None = None
    ) -> Fault:
        """Draw a fault of this kind.

        Args:
            rng: the random source.
            machines: number of machines in the cluster.
            span: seconds within which it starts.
            lasting: twice the maximum duration, in seconds; `span` by default.
        """
        places = tuple(rng.sample(range(max(machines, self.machines)), self.machines))
        longest = (span if lasting is None else lasting) / 2
        if self._longest < math.inf:
            longest = self._longest
        lasts = round(between(rng, self._shortest, longest), 3)
        amount = float(f"{between(rng, self._least, self._most):.3g}") if self.unit else 0.0
        if self._is_signed and rng.random() < 0.5:
            amount = -amount
        is_log_uniform = rng.random() < 0.5
        start = between(rng, SOONEST, span) if is_log_uniform else rng.uniform(0.0, span)
        return Fault(self, places, round(start, 3), lasts, amount)

    def between(self, least: float, most: float) -> "FaultKind":
        """Return this kind with other bounds for the drawn amounts."""
        kind = copy(self)
        kind._least, kind._most = least, most  # noqa: SLF001 - its own class
        return kind

    def bounded(self, seconds: float) -> float:
        """Return a duration within the bounds of this kind."""
        return min(max(seconds, self._shortest), self._longest)

    def lasting(self, shortest: float, longest: float) -> "FaultKind":
        """Return this kind with other bounds for the drawn durations, in seconds.

        Raises:
            ValueError: the bounds are not positive, or in the wrong order.
        """
        if not 0.0 < shortest <= longest < math.inf:
            message = (
                f"{self.name}.lasting({shortest!r}, {longest!r}): give the shortest and the "
                "longest time in seconds, such as lasting(2, 10)"
            )
            raise ValueError(message)
        kind = copy(self)
        kind._shortest, kind._longest = shortest, longest  # noqa: SLF001 - its own class
        return kind

    def begin(self, cluster: Cluster, nodes: Sequence[Node], amount: float) -> None:
        """Apply a fault of this kind."""
        self._begin(cluster, *nodes, *((amount,) if self.unit else ()))

    def end(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        """Undo a fault of this kind."""
        self._end(cluster, *nodes)


def _numbers(machines: tuple[int | str, ...], on: str) -> tuple[int, ...]:
    """Return the indices of machines, with `DOER` for "doer".

    Raises:
        ValueError: an item is not an index, or "doer" without an event of a machine.
    """
    numbers: list[int] = []
    for item in machines:
        if item == _DOER_NAME and not numbers and on in OWN_MOMENTS:
            numbers.append(DOER)
        elif isinstance(item, int) and item >= 0:
            numbers.append(item)
        else:
            message = (
                f"{item!r} is not a machine; give its index, which counts from 0 in the order "
                f'of creation, or "{_DOER_NAME}" as the first one if on= is one of '
                f"{', '.join(OWN_MOMENTS)}"
            )
            raise ValueError(message)
    return tuple(numbers)


def between(rng: random.Random, least: float, most: float) -> float:
    """Draw a number from a log-uniform distribution."""
    return float(least * (most / least) ** rng.random())


def _one_way(cluster: Cluster, source: Node, target: Node) -> None:
    """Block traffic from one machine to the other."""
    cluster.partition(source, target, both=False)


def _isolate(cluster: Cluster, node: Node) -> None:
    """Block traffic between a machine and all others."""
    for other in cluster.machines():
        if other.address != node.address:
            cluster.partition(node, other)


def _rejoin(cluster: Cluster, node: Node) -> None:
    """Undo `_isolate`."""
    for other in cluster.machines():
        if other.address != node.address:
            cluster.mend(node, other)


def _fill(cluster: Cluster, node: Node) -> None:
    """Limit a disk to the space that is in use."""
    disk = cluster.disk(node)
    disk.faults.capacity = disk.used


def _empty(cluster: Cluster, node: Node) -> None:
    """Remove the limit of a disk."""
    cluster.disk(node).faults.capacity = None


def _fail_fsync(cluster: Cluster, node: Node, part: float) -> None:
    """Make a fraction of fsync calls fail."""
    cluster.disk(node).faults.fsync_errors = part


def _slow(cluster: Cluster, node: Node, seconds: float) -> None:
    """Set the latency of a disk."""
    cluster.disk(node).faults.latency = seconds


def _cut_off(cluster: Cluster, node: Node) -> None:
    """Block traffic between a node and all databases."""
    for database in cluster.databases():
        database.cut(runner_of(node))


def _bring_back(cluster: Cluster, node: Node) -> None:
    """Undo `_cut_off`."""
    for database in cluster.databases():
        database.mend(runner_of(node))


def _stop_databases(cluster: Cluster) -> None:
    """Stop the servers of all databases."""
    for database in cluster.databases():
        database.down()


def _start_databases(cluster: Cluster) -> None:
    """Start the servers of all databases."""
    for database in cluster.databases():
        database.up()


def _slow_databases(cluster: Cluster, seconds: float) -> None:
    """Set the latency of all databases."""
    for database in cluster.databases():
        database.latency = seconds


def _lose_answers(cluster: Cluster, part: float) -> None:
    """Lose a fraction of the answers to commits."""
    for database in cluster.databases():
        database.lost_answers = part


def _fail_over(cluster: Cluster) -> None:
    """Fail over to standbys, which have all acknowledged commits."""
    for database in cluster.databases():
        database.fail_over()


#: Traffic between two machines is blocked.
partition: Final = FaultKind("partition", 2, Cluster.partition, Cluster.mend, often=1.5)
#: Traffic from the first machine to the second is blocked.
one_way: Final = FaultKind("one_way", 2, _one_way, Cluster.mend)
#: Traffic between a machine and all others is blocked.
isolate: Final = FaultKind("isolate", 1, _isolate, _rejoin, often=1.5)
#: Another name of `isolate`; a swarm draws it as well, so seeds keep their faults.
split: Final = FaultKind("split", 1, _isolate, _rejoin, often=0.7)
#: The connections between two machines break.
cut: Final = FaultKind("cut", 2, Cluster.cut, _nothing)
#: Bytes between two machines arrive after `seconds`.
delay: Final = FaultKind(
    "delay", 2, Cluster.delay, lambda c, a, b: c.delay(a, b, DELAY), "seconds", 0.005, 3.0
)
#: Each packet between any machines is delayed by up to `seconds`. Messages that several
#: machines send at once, such as candidates of an election, arrive in any order.
jitter: Final = FaultKind(
    "jitter", 0, Cluster.jitter, lambda c: c.jitter(0.0), "seconds", 0.002, 0.5
).lasting(1.0, 10.0)
#: A `part` of the packets between two machines is lost and retransmitted.
loss: Final = FaultKind(
    "loss", 2, Cluster.loss, lambda c, a, b: c.loss(a, b, 0.0), "part", 0.02, 0.5
)
#: A `part` of the bytes between two machines arrives, and then the connection breaks. A sender
#: that repeats unanswered messages delivers them twice.
doubling: Final = FaultKind(
    "doubling", 2, Cluster.doubling, lambda c, a, b: c.doubling(a, b, 0.0), "part", 0.01, 0.5
)
#: The bandwidth between two machines is `bytes` per second.
narrow: Final = FaultKind(
    "narrow", 2, Cluster.bandwidth, lambda c, a, b: c.bandwidth(a, b, 0), "bytes", 500, 100_000
)
#: A machine is frozen, as by SIGSTOP.
pause: Final = FaultKind("pause", 1, Cluster.pause, Cluster.resume, often=2.0)
#: The clock of a machine runs `rate` times as fast.
clock_rate: Final = FaultKind(
    "clock_rate", 1, Cluster.clock_rate, lambda c, a: c.clock_rate(a, 1.0), "rate", 0.8, 1.25
)
#: The wall clock of a machine is `seconds` ahead, or back if negative; timers are not affected.
clock_step: Final = FaultKind(
    *("clock_step", 1, Cluster.clock_step, lambda c, a: c.clock_step(a, 0.0)),
    *("seconds", 0.01, 100_000.0),
    is_signed=True,
)
#: The process on a machine is killed. It restarts if the test has set `restarted`.
kill: Final = FaultKind("kill", 1, Cluster.kill, _nothing, often=2.0)
#: A machine has a power failure: it goes silent, and data that was not synced may be lost.
crash: Final = FaultKind("crash", 1, Cluster.crash, _nothing, often=3.0)
#: The disk of a machine is full.
full_disk: Final = FaultKind("full_disk", 1, _fill, _empty)
#: Each write and each fsync on a machine takes `seconds`.
slow_disk: Final = FaultKind(
    "slow_disk", 1, _slow, lambda c, a: _slow(c, a, 0.0), "seconds", 0.001, 1.0
)
#: A `part` of the fsync calls fails.
bad_fsync: Final = FaultKind(
    "bad_fsync", 1, _fail_fsync, lambda c, a: _fail_fsync(c, a, 0.0), "part", 0.05, 1.0
)

#: Traffic between a machine and all databases is blocked.
database_cut: Final = FaultKind("database_cut", 1, _cut_off, _bring_back)
#: All databases are down; committed data is still there afterwards.
database_down: Final = FaultKind("database_down", 0, _stop_databases, _start_databases)
#: Each request, statement and answer of a database takes `seconds`.
slow_database: Final = FaultKind(
    *("slow_database", 0, _slow_databases, lambda c: _slow_databases(c, LATENCY)),
    *("seconds", 0.002, 0.5),
)
#: The answers to a `part` of commits are lost.
lost_answers: Final = FaultKind(
    *("lost_answers", 0, _lose_answers, lambda c: _lose_answers(c, 0.0)),
    *("part", 0.02, 0.8),
)
#: All databases fail over to standbys, which have all acknowledged commits.
fail_over: Final = FaultKind("fail_over", 0, _fail_over, _nothing)

#: Faults of databases, for programs that use some.
DATABASE_KINDS: Final = (database_cut, database_down, slow_database, lost_answers, fail_over)

KINDS: Final = (
    *(partition, one_way, isolate, split, cut, delay, jitter, loss),
    *(doubling, narrow),
    *(pause, clock_rate, clock_step, kill, crash, full_disk, slow_disk, bad_fsync),
)
DEADLY: Final = (kill, crash)

#: Faults that separate one machine from the others for a time.
OUTAGES: Final = (kill, crash, isolate, split, pause)


#: For each fault that waited for an event: its actual start, and the indices of its machines.
Struck = dict[Fault, tuple[float, tuple[int, ...]]]


class FaultInjector:
    """Injects planned faults into a cluster, and ends them."""

    def __init__(self, cluster: Cluster, faults: Iterable[Fault]) -> None:
        """Schedule faults, relative to now."""
        self._cluster = cluster
        self._active: list[tuple[Fault, list[int]]] = []
        #: Killed and crashed nodes that will restart, with the fault that ended them.
        self._gone: dict[Node, Fault] = {}
        #: Faults that wait for an event, and the number of events still to skip.
        self._armed: list[tuple[Fault, int]] = []
        #: Actual starts of faults that had waited for an event.
        self.struck: Struck = {}
        self._is_over = self._strikes = False
        cluster.calmed = self.end
        for fault in faults:
            cluster.clock.plan(fault.at, self._arm if fault.on else self.begin, fault)

    def end(self) -> None:
        """End all active faults, cancel later ones, and restart all ended machines."""
        self._is_over = True
        self._arm_all([])
        for fault, nodes in list(self._active):
            self._end(fault, nodes)
        for node in list(self._gone):
            self._restart(node)
        for node in self._cluster.machines():
            if self._cluster.restarted is not None and not self._cluster.is_running(node):
                self._cluster.restart(node)

    def _arm(self, fault: Fault) -> None:
        """Make a fault wait for its event."""
        if not self._is_over:
            self._arm_all([*self._armed, (fault, fault.skip)])

    def _arm_all(self, armed: list[tuple[Fault, int]]) -> None:
        """Replace the waiting faults; watch the cluster's events while there are any."""
        self._armed = armed
        self._cluster.watch(self._happened if armed else None)

    def _happened(self, moment: str, doer: Node | None) -> None:
        """Start the faults that waited for this event."""
        if self._strikes or self._cluster.is_linking:
            return
        machines = self._cluster.machines()
        due, waiting = [], []
        for fault, skip in self._armed:
            if fault.on != moment or not _concerns(fault, doer, machines):
                waiting.append((fault, skip))
            elif skip:
                waiting.append((fault, skip - 1))
            else:
                due.append(fault)
        self._arm_all(waiting)
        self._strikes = True  # the effects of a fault do not trigger other faults
        for fault in due:
            place = machines.index(doer) if doer in machines else 0
            if fault.after:
                self._cluster.clock.plan(fault.after, self.begin, fault, place)
            else:
                self.begin(fault, place)
        self._strikes = False

    def begin(self, fault: Fault, doer: int = 0) -> None:
        """Start a fault now, if the cluster has enough machines.

        Args:
            fault: the fault.
            doer: index of the machine that triggered its event.
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
        self._notify(fault, nodes, begins=True)

    def _notify(self, fault: Fault, nodes: list[Node], *, begins: bool) -> None:
        """Call `on_fault` of the cluster, if the test has set it."""
        if self._cluster.on_fault is not None:
            self._cluster.on_fault(fault, nodes, begins)

    def _end_node(self, fault: Fault, node: Node) -> None:
        """Kill or crash a node and schedule its restart.

        A node that cannot restart is spared if it is the last one that runs.
        """
        cluster = self._cluster
        running = [machine for machine in cluster.machines() if cluster.is_running(machine)]
        starts_again = cluster.restarted is not None
        if node not in running or (not starts_again and len(running) < 2):
            return
        fault.kind.begin(cluster, (node,), 0.0)
        self._notify(fault, [node], begins=True)
        if starts_again:
            self._gone[node] = fault
            cluster.clock.plan(fault.lasts, self._restart, node)

    def _restart(self, node: Node) -> None:
        """Restart a node, unless it was restarted already."""
        fault = self._gone.pop(node, None)
        if fault is None:
            return
        cluster, is_up = self._cluster, True
        if node in cluster.machines() and not cluster.is_running(node):
            is_up = self._try_restart(fault, node)
        latest = [machine for machine in cluster.machines() if machine.address == node.address]
        if is_up:
            self._notify(fault, latest, begins=False)

    def _try_restart(self, fault: Fault, node: Node) -> bool:
        """Restart a node and return whether it is up.

        If another fault ends it during its start, the start failed. If its own disk makes the
        start fail, it is killed and restarted later.
        """
        cluster = self._cluster
        place, count = cluster.machines().index(node), len(cluster.nodes)
        try:
            cluster.restart(node)
        except (CallboardError, OSError):
            restarted = (*cluster.nodes[count:], node)[0]  # the new node, if it was created
            if cluster.is_running(restarted):
                kinds = [other.kind for other, places in self._active if place in places]
                if self._is_over or not {full_disk, bad_fsync} & set(kinds):
                    raise
                cluster.kill(restarted)  # like a process that exits and is respawned
                self._gone[restarted] = fault
                cluster.clock.plan(max(fault.lasts, _AGAIN), self._restart, restarted)
            return False
        return True

    def _end(self, fault: Fault, places: list[int]) -> None:
        """Undo a fault; apply other active faults of these machines again."""
        if (fault, places) not in self._active:  # `calm` has ended it
            return
        self._active.remove((fault, places))
        machines = self._cluster.machines()  # nodes may have restarted
        nodes = [machines[place] for place in places]
        fault.kind.end(self._cluster, nodes)
        for other, concerned in self._active:
            if set(concerned) & set(places) or not (concerned or places):
                machines_of = [machines[place] for place in concerned]
                other.kind.begin(self._cluster, machines_of, other.amount)
        self._notify(fault, nodes, begins=False)


def _concerns(fault: Fault, doer: Node | None, machines: list[Node]) -> bool:
    """Return whether a fault waits for events of this machine, or of no machine."""
    first = fault.machines[:1]
    if first == (DOER,):
        return doer in machines
    if doer is None or not first or fault.on not in OWN_MOMENTS:
        return True
    return doer is machines[first[0] % len(machines)]


def at_its_time(fault: Fault, struck: Struck) -> Fault:
    """Return a fault with a fixed start and machines, as they were after the wait."""
    if fault not in struck:
        return fault
    start, places = struck[fault]
    return replace(fault, machines=places, at=float(f"{start:.6g}"), on="", skip=0, after=0.0)


def resolved(fault: Fault, count: int) -> Fault:
    """Return a fault whose indices are those of existing machines."""
    if count < len(fault.machines) or DOER in fault.machines:
        return fault
    return replace(fault, machines=tuple(_places(fault.machines, count)))


def _places(drawn: tuple[int, ...], count: int) -> list[int]:
    """Map drawn indices to different existing machines."""
    places: list[int] = []
    for draw in drawn:
        index = draw % count
        while index in places:
            index = (index + 1) % count
        places.append(index)
    return places
