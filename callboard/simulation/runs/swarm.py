"""A swarm: the faults of each seed, drawn where a test is busy.

Each seed has another mix of kinds, since bugs need some faults to happen often and others not
at all (Groce and others, "Swarm testing", ISSTA 2012). One run without faults shows the
`Rhythm` of a test: which moments it has, how many, and how long it is busy. So each change of
a disk is as likely to be the last one before a crash, and few faults come after a short test
is over.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from callboard.simulation.cluster import Cluster, Machine
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

#: Virtual seconds in which the faults of a swarm begin, unless it says otherwise.
SPAN: Final = 20.0

#: Most faults that a swarm draws for a seed, unless it says otherwise.
MOST: Final = 12

#: Places that a swarm draws from; a place beyond the last machine stands for one before.
MACHINES: Final = 60

#: How often faults wait for a moment of each kind, beside others that the test has.
_WEIGHTS: Final = {"send": 3, "disk": 3, "mark": 2, "start": 1, "answer": 2, "test": 1}

#: Part of the faults that wait for something.
_AIMED: Final = 0.4

#: Part of these that are aimed at any moment of the whole test, not at one soon after a time.
_ANYWHERE: Final = 0.4

#: Part of those that wait for something and do not begin at once then.
_LATER: Final = 0.5

#: Part of those that wait for what a machine does, and strike whichever machine does it.
_DOER_PART: Final = 0.5

#: Part of the faults that come within two seconds of another one.
_TOGETHER: Final = 0.3

#: Part of the faults that are those of another one, on other machines: a rack loses its power,
#: a switch its ports, all get the same bad date.
_ALIKE: Final = 0.2

#: Part of the seeds that have few kinds: what needs several faults of some kinds is rare where
#: a few faults are of many kinds.
_FEW: Final = 0.5

#: Part of the seeds with a few faults of one kind, each at any moment of one kind.
_EXACT: Final = 0.1

#: The same for tests that change disks: between two changes is where programs are weak.
_EXACT_WITH_DISK: Final = 0.25

#: Most faults of these seeds.
_EXACT_MOST: Final = 4

#: How much more often an end there is one behind a change of a disk.
_DISK_OF_DEADLY: Final = 4

#: Part of the other seeds whose faults come in series.
_IN_SERIES: Final = 0.35

#: Part of the series that wait for something.
_AIMED_SERIES: Final = 0.7

#: Part of the series that strike two or three machines at once.
_RACK: Final = 0.25

#: Part of the series that strike the same machines each time.
_SAME: Final = 0.25

#: Part of the other seeds in which all machines lose their power at one moment: nothing is left
#: of what only some of them have in memory.
_BLACKOUT: Final = 0.08

#: The same for tests that change disks.
_BLACKOUT_WITH_DISK: Final = 0.2

#: Part of the other seeds in which partitions go through the whole cluster, each machine with
#: its neighbors of that moment on one side or the other, as behind a switch that fails.
_HALVES: Final = 0.12

#: Most machines of these: so many partitions are one such trouble.
_HALVES_MOST: Final = 6

#: Part of the faults of one machine that strike a machine which faults may end: programs are
#: tested, not their clients.
_ON_MORTALS: Final = 0.7

#: Part of the other seeds in which one machine after the other is away, where a swarm has
#: such kinds: programs that hand over what they do show there whether it is handed over whole.
_IN_RELAY: Final = 0.15

#: Most outages of these seeds.
_RELAY_MOST: Final = 6

#: Part of the outages in a relay that wait for a moment.
_AIMED_RELAY: Final = 0.4

#: Moments that are over in this part of a test are none to wait for: it only sets things up.
_EARLY: Final = 0.1

#: Part of the seeds whose faults are long: longer than leases and the patience of others.
_LONG: Final = 0.25

#: Part of the seeds whose faults begin while the test is busy, where that is a short time.
_BUSY: Final = 0.75


@dataclass
class Rhythm:
    """What a test does without faults, up to its calm.

    Attributes:
        busy: virtual seconds in which nearly all of it is done.
        moments: how many there are of each kind, for all machines together; empty if unknown.
        machines: how many there are; 0 if unknown.
        mortal: the places of those that faults may end; empty if unknown.
    """

    busy: float = math.inf
    moments: Mapping[str, int] = field(default_factory=dict)
    machines: int = 0
    mortal: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        times: Mapping[str, Sequence[float]],
        machines: int = 0,
        mortal: tuple[int, ...] = (),
    ) -> "Rhythm":
        """Return the rhythm of moments at these times, in rough numbers.

        Small changes of a test leave them as they are, and so its seeds.
        """
        ordered = sorted(time for each in times.values() for time in each)
        if not ordered:
            return cls(machines=machines, mortal=mortal)
        nearly_last = ordered[int(0.95 * (len(ordered) - 1))]
        busy = 2.0 ** math.ceil(math.log2(max(nearly_last, SOONEST)) + 0.1)
        counts = {
            what: _rough(len(each))
            for what, each in times.items()
            if each and max(each) > busy * _EARLY
        }
        return cls(busy, counts, machines, mortal)


def _rough(count: int) -> int:
    """Return the next number of two bits and zeros: 4, 6, 8, 12, 16, and so on."""
    unit = 1 << max(0, count.bit_length() - 2)
    return (count // unit + 1) * unit


class MomentRecorder:
    """Takes down the moments of a run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.times: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
        cluster.watch(self._happened)

    def _happened(self, what: str, doer: Machine | None) -> None:
        """Take down one, unless the test is still making its cluster."""
        if not self._cluster.is_linking:
            self.times[what].append(self._cluster.now)


class Swarm:
    """Draws the faults of each seed."""

    def __init__(self, kinds: Sequence[FaultKind], span: float, most: int) -> None:
        self.kinds = tuple(kinds) or KINDS
        self.span = span
        self.most = most

    def draw(self, seed: int, rhythm: Rhythm | None = None) -> list[Fault]:
        """Return the faults of a seed, in the order of their begin."""
        rng = random.Random(f"swarm {seed}")
        faults = self._draw(rng, rhythm)
        mortal = () if rhythm is None else rhythm.mortal
        if mortal and rhythm is not None and len(mortal) < rhythm.machines:
            faults = [_on_mortals(fault, mortal, rng) for fault in faults]
        return sorted(faults, key=lambda fault: fault.at)

    def _draw(self, rng: random.Random, rhythm: Rhythm | None) -> list[Fault]:
        """Draw the faults of a seed.

        Most seeds have some of the kinds, each with its own weight, and any number of faults:
        a mixture, or one or two series of troubles. The others have a few faults of one kind,
        power failures or partitions of the whole cluster, or one outage after the other.
        """
        moments = {} if rhythm is None else rhythm.moments
        part = _EXACT_WITH_DISK if "disk" in moments else _EXACT
        if rhythm is not None and moments and self.most and rng.random() < part:
            often = [kind.often**2 for kind in self.kinds]
            kind = rng.choices(self.kinds, often)[0]
            draft = _Draft(self.span, rhythm, rng, starts=False)
            return draft.exact(kind, rng.randint(1, min(_EXACT_MOST, self.most)))
        part = _BLACKOUT_WITH_DISK if "disk" in moments else _BLACKOUT
        known = rhythm or Rhythm()
        count, doomed = known.machines or 3, len(known.mortal) or 3
        if crash in self.kinds and 1 < doomed <= self.most and rng.random() < part:
            draft = _Draft(self.span, known, rng, starts=True)
            return draft.blackouts(crash, doomed, rng.randint(1, min(2, self.most // doomed)))
        is_whole = 2 < count <= _HALVES_MOST and self.most > 2
        if partition in self.kinds and is_whole and rng.random() < _HALVES:
            draft = _Draft(self.span, rhythm or Rhythm(), rng, starts=False)
            return draft.halves(partition, count, self.most)
        outages = [kind for kind in self.kinds if kind in OUTAGES]
        if outages and self.most > 1 and rng.random() < _IN_RELAY:
            draft = _Draft(self.span, rhythm or Rhythm(), rng, starts=True)
            return draft.relay(outages, rng.randint(2, min(_RELAY_MOST, self.most)))
        kinds = [kind for kind in self.kinds if rng.random() < 0.5] or [rng.choice(self.kinds)]
        if rng.random() < _FEW:
            often = [kind.often for kind in kinds]
            drawn = rng.choices(kinds, often, k=rng.randint(1, 3))
            kinds = list(dict.fromkeys(drawn))
        weights = [(rng.random() + 0.1) * kind.often for kind in kinds]
        has_deadly = any(kind in DEADLY for kind in kinds)
        draft = _Draft(self.span, rhythm or Rhythm(), rng, starts=has_deadly)
        if rng.random() < _IN_SERIES and self.most:
            first, second = rng.choices(kinds, weights, k=2)
            count = rng.randint(1, self.most)
            beside = rng.randint(0, count // 2)
            faults = [*draft.series(first, count - beside), *draft.series(second, beside)]
        else:
            count = rng.randint(0, self.most)
            faults = draft.mixture(rng.choices(kinds, weights, k=count))
        return faults


def _on_mortals(fault: Fault, mortal: tuple[int, ...], rng: random.Random) -> Fault:
    """Return a fault of machines that faults may end, if it is to end one, or often."""
    if len(fault.machines) != 1 or fault.machines == (DOER,):
        return fault
    if fault.kind not in DEADLY and rng.random() >= _ON_MORTALS:
        return fault
    return replace(fault, machines=(mortal[fault.machines[0] % len(mortal)],))


class _Draft:
    """Draws the faults of one seed."""

    def __init__(
        self, span: float, rhythm: Rhythm, rng: random.Random, *, starts: bool
    ) -> None:
        self._rng = rng
        self._lasting = span
        self._shortest = span / 8 if rng.random() < _LONG else SHORTEST
        self._span = min(span, rhythm.busy) if rng.random() < _BUSY else span
        self._moments = rhythm.moments
        known = {moment for moment in MOMENTS if not rhythm.moments or moment in rhythm.moments}
        known = known | {"start"} if starts else known - {"start"}
        self._known = [moment for moment in MOMENTS if moment in known]

    def mixture(self, kinds: list[FaultKind]) -> list[Fault]:
        """Draw a fault of each of these kinds.

        A part of them come soon after another one, often of the same kind: troubles come
        together, and a second one matters most while a program still deals with the first.
        """
        rng = self._rng
        faults: list[Fault] = []
        for kind in kinds:
            fault = self._aimed(self._fault(kind))
            company = rng.random() if faults else 1.0
            before = rng.choice(faults) if faults else fault
            if company < _ALIKE:
                other = self._fault(before.kind)
                fault = replace(before, machines=other.machines, lasts=other.lasts)
            elif company < _ALIKE + _TOGETHER:
                again = self._aimed(self._fault(rng.choice((kind, before.kind))))
                since = before.at + (before.lasts if rng.random() < 0.3 else 0.0)
                soon = min(since + between(rng, SOONEST, 2.0), self._lasting)
                fault = replace(again, at=round(soon, 3))
            faults.append(fault)
        return faults

    def series(self, kind: FaultKind, size: int) -> list[Fault]:
        """Draw the same trouble again and again.

        All faults of a series wait for the same, or for nothing; they strike the same machine
        each time, or whichever it was, or several at once, and last about as long.
        """
        rng = self._rng
        on = self._moment() if rng.random() < _AIMED_SERIES else ""
        lasts = between(rng, self._shortest, self._lasting / 4)
        late = between(rng, SOONEST / 4, 1.0) if on and rng.random() < _LATER else 0.0
        in_turn = on not in ("send", "disk") and rng.random() < 0.5
        at_once = rng.randint(2, 3) if rng.random() < _RACK else 1
        first, whom = self._fault(kind), rng.random()
        end = min(first.at + between(rng, 1.0, self._lasting), self._lasting)
        times = sorted(rng.uniform(first.at, end) for _ in range(size))
        faults: list[Fault] = []
        for number in range(size):
            fault = self._fault(kind)
            at, skip = times[number - number % at_once], 0
            if on and in_turn:
                at, skip = first.at, number // at_once
            elif on:
                skip = self._few()
            machines = first.machines if whom < _SAME else fault.machines
            if at_once > 1:  # neighbors, so each another one
                machines = tuple(place + number % at_once for place in first.machines)
            elif on in OWN_MOMENTS and machines and whom > 1.0 - _DOER_PART:
                machines = (DOER, *machines[1:])
            fault = replace(
                fault,
                machines=machines,
                at=round(at, 3),
                lasts=kind.bounded(round(between(rng, lasts / 2, lasts * 2), 3)),
                on=on,
                skip=skip,
                after=float(f"{late * rng.uniform(0.2, 1.0):.3g}"),
            )
            faults.append(fault)
        return faults

    def exact(self, kind: FaultKind, size: int) -> list[Fault]:
        """Draw faults of a kind at moments of one kind, each of them as likely."""
        rng = self._rng
        known = [moment for moment in self._known if moment in self._moments]
        is_deadly = kind in DEADLY
        weights = [
            _WEIGHTS[moment] * (_DISK_OF_DEADLY if is_deadly and moment == "disk" else 1)
            for moment in known
        ]
        on = rng.choices(known, weights)[0]
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
        """Draw power failures of all machines at once, mostly when a client had an answer.

        A client's answer is a promise, and what holds it now is on the disks alone.
        """
        rng = self._rng
        faults: list[Fault] = []
        for _ in range(times):
            first = self._fault(kind)
            at, on, skip, after = first.at, "", 0, 0.0
            known = [each for each in ("answer", "test") if self._moments.get(each)]
            if known and rng.random() < 0.75:
                on = known[0] if rng.random() < 0.75 else known[-1]
                at, skip = 0.0, rng.randrange(self._moments[on])
            if on and rng.random() < _LATER / 2:
                after = float(f"{between(rng, SOONEST / 4, 1.0):.3g}")
            lasts = between(rng, self._shortest, self._lasting / 4)
            for place in range(count):
                length = round(between(rng, lasts / 2, lasts * 2), 3)
                lasts_here = kind.bounded(length)
                faults.append(Fault(kind, (place,), at, lasts_here, 0.0, on, skip, after))
        return faults

    def halves(self, kind: FaultKind, count: int, most: int) -> list[Fault]:
        """Draw partitions of all machines into two parts, one after the other."""
        rng = self._rng
        shared = [each for each in ("answer", "test") if self._moments.get(each)]
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
                replace(first, machines=(one, other), lasts=length)
                for one in range(count)
                for other in range(one + 1, count)
                if sides[one] != sides[other]
            ]
        return faults[:most]

    def relay(self, kinds: list[FaultKind], size: int) -> list[Fault]:
        """Draw outages of one machine after the other.

        The next one begins shortly before or after the machine before is back, or at a moment
        while it is away: so those that are there are others each time.
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
                late = between(rng, SOONEST / 4, 1.0) if rng.random() < _LATER else 0.0
                fault = replace(
                    fault,
                    machines=machines,
                    on=on,
                    skip=self._few(),
                    after=float(f"{late:.3g}"),
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
        """Draw a fault that waits for nothing."""
        fault = kind.draw(self._rng, MACHINES, self._span, self._lasting)
        if self._shortest == SHORTEST:
            return fault
        lasts = round(between(self._rng, self._shortest, self._lasting / 2), 3)
        return replace(fault, lasts=kind.bounded(lasts))

    def _aimed(self, fault: Fault) -> Fault:
        """Let a part of the faults wait for something."""
        rng = self._rng
        if not self._known or rng.random() >= _AIMED:
            return fault
        on, at, skip, after = self._moment(), fault.at, self._few(), 0.0
        machines = fault.machines
        if on in OWN_MOMENTS and machines and rng.random() < _DOER_PART:
            machines = (DOER, *machines[1:])
        if on in self._moments and rng.random() < _ANYWHERE:
            at, skip = 0.0, rng.randrange(self._moments[on])
        if rng.random() < _LATER:
            after = float(f"{between(rng, SOONEST / 4, 1.0):.3g}")
        return replace(fault, machines=machines, at=at, on=on, skip=skip, after=after)

    def _moment(self) -> str:
        """Draw what a fault waits for; nothing where a test has no such moments."""
        if not self._known:
            return ""
        weights = [_WEIGHTS[moment] for moment in self._known]
        return self._rng.choices(self._known, weights)[0]

    def _few(self) -> int:
        """Draw how many moments a fault lets pass: none in half of the cases."""
        return int(-math.log2(1.0 - self._rng.random()))


def swarm(*kinds: FaultKind, span: float = SPAN, most: int = MOST) -> Swarm:
    """Return a drawer of faults: each seed another mix of the kinds.

    Args:
        kinds: what may go wrong; everything by default.
        span: virtual seconds in which faults begin. Each lasts up to half of that.
        most: faults of one seed.
    """
    return Swarm(kinds, span, most)
