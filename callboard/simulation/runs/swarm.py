"""A swarm: random faults for each seed, aimed at the times when a test is busy.

Each seed gets a different mix of kinds, because many bugs need some faults to be frequent and
others to be absent (Groce and others, "Swarm testing", ISSTA 2012). One run without faults
measures the `ActivityProfile` of a test: which events it has, how many, and how long it is
busy. So all disk changes are equally likely to be the last one before a crash, and few faults
start after the end of a short test.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from callboard.node import Node
from callboard.simulation.cluster import Cluster
from callboard.simulation.faults import (
    DEADLY,
    DOER,
    KINDS,
    MOMENTS,
    OUTAGES,
    OWN_MOMENTS,
    SHORTEST,
    SOONEST,
    Fault,
    FaultKind,
    between,
    crash,
    partition,
)

#: Default virtual seconds within which the faults of a swarm start.
SPAN: Final = 20.0

#: Default maximum of faults per seed.
MOST: Final = 12

#: Range of the drawn indices of machines; they are reduced modulo the number of machines.
MACHINES: Final = 60

#: Weights of the events that faults wait for.
_WEIGHTS: Final = {"send": 3, "disk": 3, "mark": 2, "start": 1, "answer": 2, "test": 1}

#: Fraction of faults that wait for an event.
_AIMED: Final = 0.4

#: Fraction of these that are aimed at any event of the test, and not at one after a time.
_ANYWHERE: Final = 0.4

#: Fraction of waiting faults that start some time after their event.
_LATER: Final = 0.5

#: Fraction of faults waiting for an event of a machine that hit the machine which triggers it.
_DOER_PART: Final = 0.5

#: Fraction of faults that start within two seconds of another one.
_TOGETHER: Final = 0.3

#: Fraction of faults that repeat another one on other machines: a rack loses power, a switch
#: fails, all machines get the same wrong date.
_ALIKE: Final = 0.2

#: Fraction of seeds with few kinds. Several faults of the same kind are rare if a few faults
#: are drawn from many kinds.
_FEW: Final = 0.5

#: Fraction of seeds with a few faults of one kind, aimed at random events of one kind.
_EXACT: Final = 0.1

#: The same for tests that change disks, because programs are vulnerable between two changes.
_EXACT_WITH_DISK: Final = 0.25

#: Maximum faults of these seeds.
_EXACT_MOST: Final = 4

#: Factor for the weight of disk changes if these faults kill or crash machines.
_DISK_OF_DEADLY: Final = 4

#: Fraction of the other seeds with series of faults.
_IN_SERIES: Final = 0.35

#: Fraction of series that wait for an event.
_AIMED_SERIES: Final = 0.7

#: Fraction of series that hit two or three machines at once.
_RACK: Final = 0.25

#: Fraction of series that hit the same machines each time.
_SAME: Final = 0.25

#: Fraction of the other seeds in which all machines lose power at once, so that all data in
#: memory is lost.
_BLACKOUT: Final = 0.08

#: The same for tests that change disks.
_BLACKOUT_WITH_DISK: Final = 0.2

#: Fraction of the other seeds with partitions of the whole cluster into two sides, as when a
#: switch fails.
_HALVES: Final = 0.12

#: Maximum machines for these seeds, because each pair across the sides needs one partition.
_HALVES_MOST: Final = 6

#: Fraction of the other seeds in which the machines fail one after another, which tests whether
#: programs hand over all of their work.
_IN_RELAY: Final = 0.15

#: Maximum outages of these seeds.
_RELAY_MOST: Final = 6

#: Fraction of these outages that wait for an event.
_AIMED_RELAY: Final = 0.4

#: Kinds of events that occur only in this first fraction of a test are not used: the test is
#: still setting up.
_EARLY: Final = 0.1

#: Fraction of seeds with long faults, longer than leases and timeouts.
_LONG: Final = 0.25

#: Fraction of seeds whose faults start while the test is busy, if that time is short.
_BUSY: Final = 0.75


@dataclass
class ActivityProfile:
    """The activity of a test without faults, until it calls `calm`.

    Attributes:
        busy: virtual seconds that contain nearly all of its events.
        moments: number of events of each kind, of all machines together; empty if unknown.
        machines: number of machines; 0 if unknown.
    """

    busy: float = math.inf
    moments: Mapping[str, int] = field(default_factory=dict)
    machines: int = 0

    @classmethod
    def of(cls, times: Mapping[str, Sequence[float]], machines: int = 0) -> "ActivityProfile":
        """Compute the rhythm from the times of events.

        The numbers are rounded, so that small changes of a test do not change its seeds.
        """
        ordered = sorted(time for stamps in times.values() for time in stamps)
        if not ordered:
            return cls(machines=machines)
        nearly_last = ordered[int(0.95 * (len(ordered) - 1))]
        busy = 2.0 ** math.ceil(math.log2(max(nearly_last, SOONEST)) + 0.1)
        counts = {
            kind: _rough(len(stamps))
            for kind, stamps in times.items()
            if stamps and max(stamps) > busy * _EARLY
        }
        return cls(busy, counts, machines)


def _rough(count: int) -> int:
    """Round up to the next of 4, 6, 8, 12, 16 and so on (two leading bits, then zeros)."""
    unit = 1 << max(0, count.bit_length() - 2)
    return (count // unit + 1) * unit


class MomentRecorder:
    """Records the times of events in a run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.times: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
        cluster.watch(self._happened)

    def _happened(self, moment: str, doer: Node | None) -> None:
        """Record an event, unless the test is still creating its cluster."""
        if not self._cluster.is_linking:
            self.times[moment].append(self._cluster.now)


class Swarm:
    """Draws the faults for each seed."""

    def __init__(self, kinds: Sequence[FaultKind], span: float, most: int) -> None:
        self.kinds = tuple(kinds) or KINDS
        self.span = span
        self.most = most

    def draw(self, seed: int, rhythm: ActivityProfile | None = None) -> list[Fault]:
        """Return the faults of a seed, in the order of their start."""
        rng = random.Random(f"swarm {seed}")
        faults = self._draw(rng, rhythm)
        return sorted(faults, key=lambda fault: fault.at)

    def _draw(self, rng: random.Random, rhythm: ActivityProfile | None) -> list[Fault]:
        """Draw the faults of a seed.

        Most seeds use some of the kinds with random weights, and any number of faults: a
        mixture, or one or two series. The others have a few faults of one kind, power failures
        or partitions of the whole cluster, or one outage after another.
        """
        moments = {} if rhythm is None else rhythm.moments
        part = _EXACT_WITH_DISK if "disk" in moments else _EXACT
        if rhythm is not None and moments and self.most and rng.random() < part:
            often = [kind.often**2 for kind in self.kinds]
            kind = rng.choices(self.kinds, often)[0]
            draft = _Draft(self.span, rhythm, rng, starts=False)
            return draft.exact(kind, rng.randint(1, min(_EXACT_MOST, self.most)))
        part = _BLACKOUT_WITH_DISK if "disk" in moments else _BLACKOUT
        profile = rhythm or ActivityProfile()
        count = profile.machines or 3
        if crash in self.kinds and 1 < count <= self.most and rng.random() < part:
            draft = _Draft(self.span, profile, rng, starts=True)
            return draft.blackouts(crash, count, rng.randint(1, min(2, self.most // count)))
        is_whole = 2 < count <= _HALVES_MOST and self.most > 2
        if partition in self.kinds and is_whole and rng.random() < _HALVES:
            draft = _Draft(self.span, rhythm or ActivityProfile(), rng, starts=False)
            return draft.halves(partition, count, self.most)
        outages = [kind for kind in self.kinds if kind in OUTAGES]
        if outages and self.most > 1 and rng.random() < _IN_RELAY:
            draft = _Draft(self.span, rhythm or ActivityProfile(), rng, starts=True)
            return draft.relay(outages, rng.randint(2, min(_RELAY_MOST, self.most)))
        kinds = [kind for kind in self.kinds if rng.random() < 0.5] or [rng.choice(self.kinds)]
        if rng.random() < _FEW:
            often = [kind.often for kind in kinds]
            drawn = rng.choices(kinds, often, k=rng.randint(1, 3))
            kinds = list(dict.fromkeys(drawn))
        weights = [(rng.random() + 0.1) * kind.often for kind in kinds]
        has_deadly = any(kind in DEADLY for kind in kinds)
        draft = _Draft(self.span, rhythm or ActivityProfile(), rng, starts=has_deadly)
        if rng.random() < _IN_SERIES and self.most:
            first, second = rng.choices(kinds, weights, k=2)
            count = rng.randint(1, self.most)
            beside = rng.randint(0, count // 2)
            faults = [*draft.series(first, count - beside), *draft.series(second, beside)]
        else:
            count = rng.randint(0, self.most)
            faults = draft.mixture(rng.choices(kinds, weights, k=count))
        return faults


class _Draft:
    """Draws the faults of one seed."""

    def __init__(
        self, span: float, rhythm: ActivityProfile, rng: random.Random, *, starts: bool
    ) -> None:
        self._rng = rng
        self._lasting = span
        self._shortest = span / 8 if rng.random() < _LONG else SHORTEST
        self._span = min(span, rhythm.busy) if rng.random() < _BUSY else span
        self._moments = rhythm.moments
        usable = {
            moment for moment in MOMENTS if not rhythm.moments or moment in rhythm.moments
        }
        usable = usable | {"start"} if starts else usable - {"start"}
        self._known = [moment for moment in MOMENTS if moment in usable]

    def mixture(self, kinds: list[FaultKind]) -> list[Fault]:
        """Draw a fault of each of these kinds.

        Some faults start soon after another fault, and are often of the same kind. Real
        failures are correlated, and a second failure matters most while a program still handles
        the first.
        """
        rng = self._rng
        faults: list[Fault] = []
        for kind in kinds:
            fault = self._aimed(self._fault(kind))
            company = rng.random() if faults else 1.0
            previous = rng.choice(faults) if faults else fault
            if company < _ALIKE:
                other = self._fault(previous.kind)
                fault = replace(previous, machines=other.machines, lasts=other.lasts)
            elif company < _ALIKE + _TOGETHER:
                follow_up = self._aimed(self._fault(rng.choice((kind, previous.kind))))
                earliest = previous.at + (previous.lasts if rng.random() < 0.3 else 0.0)
                start = min(earliest + between(rng, SOONEST, 2.0), self._lasting)
                fault = replace(follow_up, at=round(start, 3))
            faults.append(fault)
        return faults

    def series(self, kind: FaultKind, size: int) -> list[Fault]:
        """Draw a series of similar faults.

        All faults of a series wait for the same event, or for none, and have similar durations.
        They hit the same machine each time, the one that triggers the event, or several.
        """
        rng = self._rng
        on = self._moment() if rng.random() < _AIMED_SERIES else ""
        lasts = between(rng, self._shortest, self._lasting / 4)
        delay = between(rng, SOONEST / 4, 1.0) if on and rng.random() < _LATER else 0.0
        in_turn = on not in ("send", "disk") and rng.random() < 0.5
        at_once = rng.randint(2, 3) if rng.random() < _RACK else 1
        first, target_draw = self._fault(kind), rng.random()
        end = min(first.at + between(rng, 1.0, self._lasting), self._lasting)
        times = sorted(rng.uniform(first.at, end) for _ in range(size))
        faults: list[Fault] = []
        for number in range(size):
            fault = self._fault(kind)
            start, skip = times[number - number % at_once], 0
            if on and in_turn:
                start, skip = first.at, number // at_once
            elif on:
                skip = self._few()
            machines = first.machines if target_draw < _SAME else fault.machines
            if at_once > 1:  # consecutive indices are different machines
                machines = tuple(place + number % at_once for place in first.machines)
            elif on in OWN_MOMENTS and machines and target_draw > 1.0 - _DOER_PART:
                machines = (DOER, *machines[1:])
            fault = replace(
                fault,
                machines=machines,
                at=round(start, 3),
                lasts=kind.bounded(round(between(rng, lasts / 2, lasts * 2), 3)),
                on=on,
                skip=skip,
                after=float(f"{delay * rng.uniform(0.2, 1.0):.3g}"),
            )
            faults.append(fault)
        return faults

    def exact(self, kind: FaultKind, size: int) -> list[Fault]:
        """Draw faults of a kind at events of one kind; all events are equally likely."""
        rng = self._rng
        usable = [moment for moment in self._known if moment in self._moments]
        is_deadly = kind in DEADLY
        weights = [
            _WEIGHTS[moment] * (_DISK_OF_DEADLY if is_deadly and moment == "disk" else 1)
            for moment in usable
        ]
        on = rng.choices(usable, weights)[0]
        is_doer = on in OWN_MOMENTS and bool(kind.machines) and rng.random() < 0.75
        faults: list[Fault] = []
        for _ in range(size):
            fault = self._fault(kind)
            skip = rng.randrange(self._moments[on])
            after = 0.0
            if rng.random() < _LATER / 2:
                after = float(f"{between(rng, SOONEST / 4, 1.0):.3g}")
            machines = (DOER, *fault.machines[1:]) if is_doer else fault.machines
            fault = replace(fault, machines=machines, at=0.0, on=on, skip=skip, after=after)
            faults.append(fault)
        return faults

    def blackouts(self, kind: FaultKind, count: int, times: int) -> list[Fault]:
        """Draw power failures of all machines at once, mostly right after a client's answer.

        The answer confirms an operation, and then only the disks can have its effects.
        """
        rng = self._rng
        faults: list[Fault] = []
        for _ in range(times):
            first = self._fault(kind)
            start, on, skip, after = first.at, "", 0, 0.0
            usable = [moment for moment in ("answer", "test") if self._moments.get(moment)]
            if usable and rng.random() < 0.75:
                on = usable[0] if rng.random() < 0.75 else usable[-1]
                start, skip = 0.0, rng.randrange(self._moments[on])
            if on and rng.random() < _LATER / 2:
                after = float(f"{between(rng, SOONEST / 4, 1.0):.3g}")
            lasts = between(rng, self._shortest, self._lasting / 4)
            for place in range(count):
                length = round(between(rng, lasts / 2, lasts * 2), 3)
                duration = kind.bounded(length)
                faults.append(Fault(kind, (place,), start, duration, 0.0, on, skip, after))
        return faults

    def halves(self, kind: FaultKind, count: int, most: int) -> list[Fault]:
        """Draw partitions of all machines into two sides, one after another."""
        rng = self._rng
        shared = [moment for moment in ("answer", "test") if self._moments.get(moment)]
        lasts = between(rng, 0.2, self._lasting / 4)
        faults: list[Fault] = []
        for _ in range(rng.randint(1, 3)):
            first = self._fault(kind)
            if shared and rng.random() < _AIMED:
                on = rng.choice(shared)
                first = replace(first, at=0.0, on=on, skip=rng.randrange(self._moments[on]))
            sides = [rng.random() < 0.5 for _ in range(count)]
            if len(set(sides)) == 1:
                sides[rng.randrange(count)] ^= True
            length = kind.bounded(round(between(rng, lasts / 2, lasts * 2), 3))
            faults += [
                replace(first, machines=(left, right), lasts=length)
                for left in range(count)
                for right in range(left + 1, count)
                if sides[left] != sides[right]
            ]
        return faults[:most]

    def relay(self, kinds: list[FaultKind], size: int) -> list[Fault]:
        """Draw outages of one machine after another.

        The next outage starts shortly before or after the previous machine is back, or during
        its outage. So the set of running machines changes each time.
        """
        rng = self._rng
        if rng.random() < 0.5:
            kinds = [rng.choices(kinds, [kind.often for kind in kinds])[0]]
        lasts = between(rng, 0.2, self._lasting / 4)
        faults: list[Fault] = []
        begin = self._fault(kinds[0]).at
        place = rng.randrange(MACHINES)
        for _ in range(size):
            kind = rng.choices(kinds, [kind.often for kind in kinds])[0]
            length = between(rng, lasts / 4, lasts * 2)
            fault = Fault(kind, (place,), round(begin, 3), kind.bounded(round(length, 3)))
            if faults and rng.random() < _AIMED_RELAY:
                on = self._moment()
                machines = (DOER,) if on in OWN_MOMENTS and rng.random() < 0.5 else (place,)
                delay = between(rng, SOONEST / 4, 1.0) if rng.random() < _LATER else 0.0
                fault = replace(
                    fault,
                    machines=machines,
                    on=on,
                    skip=self._few(),
                    after=float(f"{delay:.3g}"),
                )
            faults.append(fault)
            begin = fault.at
            if rng.random() < 0.7:
                begin += fault.lasts + between(rng, SOONEST, 1.0) * rng.choice((-1, 1))
            else:
                begin += rng.random() * fault.lasts
            begin = min(max(begin, fault.at), self._lasting)
            place += rng.choice((1, 1, 2))
        return faults

    def _fault(self, kind: FaultKind) -> Fault:
        """Draw a fault that does not wait for an event."""
        fault = kind.draw(self._rng, MACHINES, self._span, self._lasting)
        if self._shortest == SHORTEST:
            return fault
        lasts = round(between(self._rng, self._shortest, self._lasting / 2), 3)
        return replace(fault, lasts=kind.bounded(lasts))

    def _aimed(self, fault: Fault) -> Fault:
        """Make a fraction of faults wait for an event."""
        rng = self._rng
        if not self._known or rng.random() >= _AIMED:
            return fault
        on, start, skip, after = self._moment(), fault.at, self._few(), 0.0
        machines = fault.machines
        if on in OWN_MOMENTS and machines and rng.random() < _DOER_PART:
            machines = (DOER, *machines[1:])
        if on in self._moments and rng.random() < _ANYWHERE:
            start, skip = 0.0, rng.randrange(self._moments[on])
        if rng.random() < _LATER:
            after = float(f"{between(rng, SOONEST / 4, 1.0):.3g}")
        return replace(fault, machines=machines, at=start, on=on, skip=skip, after=after)

    def _moment(self) -> str:
        """Draw the event that a fault waits for; empty if the test has none."""
        if not self._known:
            return ""
        weights = [_WEIGHTS[moment] for moment in self._known]
        return self._rng.choices(self._known, weights)[0]

    def _few(self) -> int:
        """Draw the number of events to skip; 0 with probability 1/2, 1 with 1/4, and so on."""
        return int(-math.log2(1.0 - self._rng.random()))


def swarm(*kinds: FaultKind, span: float = SPAN, most: int = MOST) -> Swarm:
    """Return a source of random faults with a different mix of kinds for each seed.

    Args:
        kinds: the kinds of faults; all by default.
        span: virtual seconds within which faults start. Each lasts at most half as long.
        most: maximum faults per seed.
    """
    return Swarm(kinds, span, most)
