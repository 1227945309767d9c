"""The search: all schedules with few deviations, then random ones; what fails is made small.

Schedules are tried in the order of their number of deviations, so what fails first fails with
the fewest (Emmi and others, "Delay-bounded scheduling", POPL 2011). From a state that an
earlier schedule came to, with as many deviations left, nothing is tried again. Random walks
come after that. One half gives each actor, way and clock a priority that falls at some steps
(Burckhardt and others, "A randomized scheduler with probabilistic guarantees of finding bugs",
ASPLOS 2010), the other half deviates at any step.
"""

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from callboard.kernel.errors import CallboardError
from callboard.simulation.cluster_test import SHRINK_SECONDS, NotDeterministic
from callboard.simulation.faults import Fault
from callboard.simulation.marks import marking
from callboard.simulation.runs.scenario import ends_all, is_failure
from callboard.simulation.runs.shrinking import fewer
from callboard.simulation.schedules.drawing import drawing
from callboard.simulation.schedules.steps import Plan, Row, SteppedCluster

#: A step at which something else happens than the simulation would let: its number, and whose.
Deviation = tuple[int, str]

#: Deviations of a schedule up to which all are tried.
DEVIATIONS: Final = 2

#: Random schedules with any number of deviations that are tried after those.
WALKS: Final = 200

#: Schedules that are tried at most before the random ones.
SCHEDULES: Final = 20_000

#: Real seconds for which further schedules are begun.
SECONDS: Final = 30.0


class NoSuchStep(CallboardError, AssertionError):
    """A kept schedule names a step that does not come: the test has changed."""


@dataclass
class Life:
    """A schedule, lived.

    Attributes:
        deviations: what was asked for.
        rows: the steps that were taken.
        error: how the test failed; None if it passed.
        cluster: in which it was lived, closed.
        missed: a deviation that could not be taken.
    """

    deviations: Sequence[Deviation]
    rows: list[Row] = field(default_factory=list)
    error: BaseException | None = None
    cluster: SteppedCluster | None = None
    missed: Deviation | None = None

    @property
    def taken(self) -> list[Deviation]:
        """The deviations that were taken."""
        return [(row.number, row.who) for row in self.rows if row.is_deviation]

    def __str__(self) -> str:
        """Return who got what in which order."""
        return drawing(self.rows)


@dataclass
class Explored:
    """What a search has tried.

    Attributes:
        tried: schedules, random ones included.
        bound: deviations up to which all schedules were to be tried.
        is_whole: whether they were.
        walks: random schedules that were tried.
        known: states that came again, from which nothing was tried twice.
        most_steps: steps of the longest schedule.
        failure: the schedule that failed, with the fewest deviations that were found for it.
    """

    bound: int
    tried: int = 0
    is_whole: bool = False
    walks: int = 0
    known: int = 0
    most_steps: int = 0
    failure: Life | None = None

    def __str__(self) -> str:
        """Say it in a line."""
        if self.failure is not None and not self.tried:
            least = _number(len(self.failure.taken), "deviation")
            return f"a schedule that was kept fails, with {least} from the usual order"
        text = f"{_number(self.tried, 'schedule')} of up to {_number(self.most_steps, 'step')}"
        if self.failure is not None:
            least = _number(len(self.failure.taken), "deviation")
            return f"{text}; one failed, and does so with {least} from the usual order"
        some = "all" if self.is_whole else "not all"
        text += f": {some} with up to {_number(self.bound, 'deviation')} from the usual order"
        return text + (f", and {self.walks:,} at random" if self.walks else "")


def _number(count: int, what: str) -> str:
    """Return how many of something there are."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Search:
    """A test and how it is searched.

    Attributes:
        scenario: the test; its first argument is the cluster.
        arguments: its other ones.
        deviations: up to how many all schedules are tried.
        walks: how many random ones after that.
        faults: what may go wrong, each at most once, at any step.
        late: virtual seconds by which something may be later than usual.
        seed: of the cluster.
        seconds: of real time, after which no further schedule is begun.
        most: schedules that are tried before the random ones.
        prune: whether equal states are gone on from only once.
        chance: where random schedules come from.
        met: the marks that any schedule came to.
    """

    scenario: Callable[..., object]
    arguments: dict[str, Any] = field(default_factory=dict)
    deviations: int = DEVIATIONS
    walks: int = WALKS
    faults: Sequence[Fault] = ()
    late: float = 1.0
    seed: int = 0
    seconds: float = SECONDS
    most: int = SCHEDULES
    prune: bool = True
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    met: Counter[str] = field(default_factory=Counter)

    def live(self, deviations: Sequence[Deviation]) -> Life:
        """Live a schedule: the usual order but for some deviations."""
        life = Life(deviations)
        wanted = dict(deviations)

        def plan(number: int, could: Sequence[str]) -> int:
            who = wanted.pop(number, could[0])
            if who not in could:
                life.missed = life.missed or (number, who)
                return 0
            return could.index(who)

        self._live(life, plan, compares=self.prune)
        if wanted and life.missed is None:
            life.missed = min(wanted.items())
        return life

    def _live(self, life: Life, plan: Plan, *, compares: bool) -> None:
        """Live a test once; any error of it is its failure."""
        with marking(self.met) as met:
            try:
                cluster = SteppedCluster(
                    plan, seed=self.seed, late=self.late, faults=self.faults, compares=compares
                )
                life.cluster, life.rows = cluster, cluster.rows
                with closing(cluster):
                    self.scenario(cluster, **self.arguments)
            except BaseException as error:
                if not is_failure(error):
                    raise
                life.error = error
        life.error = met.broken or life.error

    def run(self, kept: Iterable[Sequence[Deviation]] = ()) -> Explored:
        """Try schedules until one fails, first those that failed before.

        Raises:
            NotDeterministic: a schedule failed, and passes when it is lived again.
        """
        explored = Explored(self.deviations)
        until = time.monotonic() + self.seconds
        with _no_logs():
            failed = next((life for life in map(self.live, kept) if life.error), None)
            failed = failed or self._all(explored, until) or self._some(explored, until)
            small = failed and self._small(failed)
        if small is not None:
            explored.failure = again = self.live(small.taken)
            if type(again.error) is not type(small.error):
                raise _changed(small, again)
        return explored

    def _all(self, explored: Explored, until: float) -> Life | None:
        """Try all schedules with few deviations; returns the first that fails."""
        todo: deque[tuple[Deviation, ...]] = deque([()])
        seen: set[int] = set()
        while todo:
            if explored.tried >= self.most or (explored.tried and time.monotonic() > until):
                return None
            life = self.live(todo.popleft())
            self._count(explored, life)
            if life.error is not None:
                return life
            if len(life.deviations) < self.deviations:
                begun = life.deviations[-1][0] if life.deviations else 0
                for row in life.rows[begun:]:
                    if len(row.could) == 1:
                        continue
                    if row.state is not None and row.state in seen:
                        explored.known += 1
                        continue
                    if row.state is not None:
                        seen.add(row.state)
                    todo += [(*life.deviations, (row.number, who)) for who in row.could[1:]]
        explored.is_whole = True
        return None

    def _some(self, explored: Explored, until: float) -> Life | None:
        """Try random schedules; returns the first that fails."""
        for number in range(self.walks):
            if time.monotonic() > until:
                return None
            life = Life(())
            make = _falling if number % 2 else _wandering
            self._live(life, make(self.chance, explored.most_steps), compares=False)
            explored.walks += 1
            self._count(explored, life)
            if life.error is not None:
                return life
        return None

    @staticmethod
    def _count(explored: Explored, life: Life) -> None:
        """Count a schedule."""
        explored.tried += 1
        explored.most_steps = max(explored.most_steps, len(life.rows))

    def _small(self, failed: Life) -> Life:
        """Return the failure with the fewest deviations that are found in time."""
        until = time.monotonic() + SHRINK_SECONDS
        kind, best = type(failed.error), self.live(failed.taken)
        if type(best.error) is not kind:
            raise _changed(failed, best)

        def fails(deviations: list[Deviation]) -> bool:
            nonlocal best
            if time.monotonic() > until:
                return False
            try:
                life = self.live(deviations)
            except BaseException as error:
                if ends_all(error):
                    raise
                return False  # it skips
            if type(life.error) is not kind or len(life.taken) > len(deviations):
                return False
            best = life
            return True

        fewer(best.taken, fails)
        return best


@contextmanager
def _no_logs() -> Iterator[None]:
    """Let nothing be logged: a thousand lives would tell of a thousand failures."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _changed(before: Life, after: Life) -> NotDeterministic:
    """Return the error for a schedule that did not end as before."""
    was, is_ = (
        type(life.error).__name__ if life.error else "nothing" for life in (before, after)
    )
    return NotDeterministic(
        f"a schedule failed with {was}, and with {is_ or 'nothing'} when it was lived again: "
        "something depends on more than the schedule"
    )


def _wandering(chance: random.Random, steps: int) -> Plan:
    """Return a plan that deviates now and then, anywhere."""
    share = chance.choice((0.05, 0.2, 0.5))

    def plan(_: int, could: Sequence[str]) -> int:
        return chance.randrange(len(could)) if chance.random() < share else 0

    return plan


def _falling(chance: random.Random, steps: int) -> Plan:
    """Return a plan of priorities, some of which fall on the way."""
    falls = {chance.randint(1, max(steps, 1)) for _ in range(chance.randint(0, 4))}
    priorities: dict[str, float] = {}
    lowest = 0.0

    def plan(number: int, could: Sequence[str]) -> int:
        nonlocal lowest
        for who in could:
            priorities.setdefault(who, chance.random())
        best = max(range(len(could)), key=lambda place: priorities[could[place]])
        if number in falls:
            lowest -= 1.0
            priorities[could[best]] = lowest
            best = max(range(len(could)), key=lambda place: priorities[could[place]])
        return best

    return plan
