"""The search over schedules: first all with few deviations, then random ones.

Schedules are tried in the order of their number of deviations, so the first failure has the
fewest (Emmi and others, "Delay-bounded scheduling", POPL 2011). A state that an earlier
schedule reached with as many deviations left is not explored again. Random walks follow. Half
of them assign a priority to each actor, connection and clock, which falls at some steps
(Burckhardt and others, "A randomized scheduler with probabilistic guarantees of finding bugs",
ASPLOS 2010). The other half deviates at random steps. Failures are shrunk.
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
from callboard.simulation.current_run import marking
from callboard.simulation.faults import Fault
from callboard.simulation.runs.scenario import ends_all, is_failure
from callboard.simulation.runs.shrinking import fewer
from callboard.simulation.schedules.drawing import drawing
from callboard.simulation.schedules.steps import Plan, Row, SteppedCluster

#: A step that differs from the usual order: its number, and the name of the chosen step.
Deviation = tuple[int, str]

#: Default number of deviations up to which all schedules are tried.
DEVIATIONS: Final = 2

#: Default number of random schedules tried after those.
WALKS: Final = 200

#: Maximum number of schedules tried before the random ones.
SCHEDULES: Final = 20_000

#: Default real seconds in which further schedules are started.
SECONDS: Final = 30.0


class NoSuchStep(CallboardError, AssertionError):
    """A saved schedule names a step that does not occur, because the test has changed."""


@dataclass
class SimulatedLife:
    """The run of a schedule.

    Attributes:
        deviations: the requested deviations.
        rows: the executed steps.
        error: the failure of the test; None if it passed.
        cluster: the cluster, closed.
        missed: a requested deviation that was not possible.
    """

    deviations: Sequence[Deviation]
    rows: list[Row] = field(default_factory=list)
    error: BaseException | None = None
    cluster: SteppedCluster | None = None
    missed: Deviation | None = None

    @property
    def taken(self) -> list[Deviation]:
        """The actual deviations."""
        return [(row.number, row.who) for row in self.rows if row.is_deviation]

    def __str__(self) -> str:
        """Return a drawing of the steps."""
        return drawing(self.rows)


@dataclass
class Explored:
    """The result of a search.

    Attributes:
        tried: number of schedules tried, including random ones.
        bound: number of deviations up to which the search was to be complete.
        is_whole: whether all schedules up to the bound were tried.
        walks: number of random schedules tried.
        known: number of states that occurred again and were not explored twice.
        most_steps: steps of the longest schedule.
        failure: the failed schedule, with the fewest deviations found for it.
    """

    bound: int
    tried: int = 0
    is_whole: bool = False
    walks: int = 0
    known: int = 0
    most_steps: int = 0
    failure: SimulatedLife | None = None

    def __str__(self) -> str:
        """Return a summary in one line."""
        if self.failure is not None and not self.tried:
            least = _number(len(self.failure.taken), "deviation")
            return f"a saved schedule fails, with {least} from the usual order"
        text = f"{_number(self.tried, 'schedule')} of up to {_number(self.most_steps, 'step')}"
        if self.failure is not None:
            least = _number(len(self.failure.taken), "deviation")
            return f"{text}; one failed, shrunk to {least} from the usual order"
        some = "all" if self.is_whole else "not all"
        text += f": {some} with up to {_number(self.bound, 'deviation')} from the usual order"
        return text + (f", and {self.walks:,} at random" if self.walks else "")


def _number(count: int, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Search:
    """A test and the parameters of its search.

    Attributes:
        scenario: the test; its first argument is the cluster.
        arguments: the other arguments of the test.
        deviations: number of deviations up to which all schedules are tried.
        walks: number of random schedules after that.
        faults: possible faults, each at most once, at any step.
        late: virtual seconds by which a step may be later than usual.
        seed: seed of the cluster.
        seconds: real seconds after which no further schedule is started.
        most: maximum number of schedules before the random ones.
        prune: whether equal states are explored only once.
        chance: random source of the random schedules.
        met: marks that any schedule reached.
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

    def live(self, deviations: Sequence[Deviation]) -> SimulatedLife:
        """Run a schedule: the usual order except for some deviations."""
        life = SimulatedLife(deviations)
        remaining = dict(deviations)

        def plan(number: int, could: Sequence[str]) -> int:
            step_name = remaining.pop(number, could[0])
            if step_name not in could:
                life.missed = life.missed or (number, step_name)
                return 0
            return could.index(step_name)

        self._live(life, plan, compares=self.prune)
        if remaining and life.missed is None:
            life.missed = min(remaining.items())
        return life

    def _live(self, life: SimulatedLife, plan: Plan, *, compares: bool) -> None:
        """Run the test once; record its failure."""
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
        """Try schedules until one fails, starting with saved failures.

        Raises:
            NotDeterministic: a schedule failed, but passed when it was repeated.
        """
        explored = Explored(self.deviations)
        end = time.monotonic() + self.seconds
        with _no_logs():
            failed = next((life for life in map(self.live, kept) if life.error), None)
            failed = failed or self._all(explored, end) or self._some(explored, end)
            small = failed and self._small(failed)
        if small is not None:
            explored.failure = repeated = self.live(small.taken)
            if type(repeated.error) is not type(small.error):
                raise _changed(small, repeated)
        return explored

    def _all(self, explored: Explored, end: float) -> SimulatedLife | None:
        """Try all schedules with few deviations; return the first failure."""
        todo: deque[tuple[Deviation, ...]] = deque([()])
        explored_states: set[int] = set()
        while todo:
            if explored.tried >= self.most or (explored.tried and time.monotonic() > end):
                return None
            life = self.live(todo.popleft())
            self._count(explored, life)
            if life.error is not None:
                return life
            if len(life.deviations) < self.deviations:
                first = life.deviations[-1][0] if life.deviations else 0
                for row in life.rows[first:]:
                    if len(row.could) == 1:
                        continue
                    if row.state is not None and row.state in explored_states:
                        explored.known += 1
                        continue
                    if row.state is not None:
                        explored_states.add(row.state)
                    todo += [
                        (*life.deviations, (row.number, step_name))
                        for step_name in row.could[1:]
                    ]
        explored.is_whole = True
        return None

    def _some(self, explored: Explored, end: float) -> SimulatedLife | None:
        """Try random schedules; return the first failure."""
        for number in range(self.walks):
            if time.monotonic() > end:
                return None
            life = SimulatedLife(())
            make = _falling if number % 2 else _wandering
            self._live(life, make(self.chance, explored.most_steps), compares=False)
            explored.walks += 1
            self._count(explored, life)
            if life.error is not None:
                return life
        return None

    @staticmethod
    def _count(explored: Explored, life: SimulatedLife) -> None:
        """Count a schedule."""
        explored.tried += 1
        explored.most_steps = max(explored.most_steps, len(life.rows))

    def _small(self, failed: SimulatedLife) -> SimulatedLife:
        """Shrink a failure within the time limit; return the run with the fewest deviations."""
        end = time.monotonic() + SHRINK_SECONDS
        kind, best = type(failed.error), self.live(failed.taken)
        if type(best.error) is not kind:
            raise _changed(failed, best)

        def fails(deviations: list[Deviation]) -> bool:
            nonlocal best
            if time.monotonic() > end:
                return False
            try:
                life = self.live(deviations)
            except BaseException as error:
                if ends_all(error):
                    raise
                return False  # the test skips with this schedule
            if type(life.error) is not kind or len(life.taken) > len(deviations):
                return False
            best = life
            return True

        fewer(best.taken, fails)
        return best


@contextmanager
def _no_logs() -> Iterator[None]:
    """Disable logging: thousands of runs would log thousands of expected failures."""
    was_disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(was_disabled)


def _changed(first: SimulatedLife, second: SimulatedLife) -> NotDeterministic:
    """Return the error for a schedule whose outcome changed."""
    was, is_ = (
        type(life.error).__name__ if life.error else "nothing" for life in (first, second)
    )
    return NotDeterministic(
        f"a schedule failed with {was}, and with {is_ or 'nothing'} when it was repeated: "
        "something depends on more than the schedule"
    )


def _wandering(chance: random.Random, steps: int) -> Plan:
    """Return a plan that deviates at random steps."""
    share = chance.choice((0.05, 0.2, 0.5))

    def plan(_: int, could: Sequence[str]) -> int:
        return chance.randrange(len(could)) if chance.random() < share else 0

    return plan


def _falling(chance: random.Random, steps: int) -> Plan:
    """Return a plan of random priorities, some of which fall at random steps."""
    falls = {chance.randint(1, max(steps, 1)) for _ in range(chance.randint(0, 4))}
    priorities: dict[str, float] = {}
    lowest = 0.0

    def plan(number: int, could: Sequence[str]) -> int:
        nonlocal lowest
        for step_name in could:
            priorities.setdefault(step_name, chance.random())
        best = max(range(len(could)), key=lambda place: priorities[could[place]])
        if number in falls:
            lowest -= 1.0
            priorities[could[best]] = lowest
            best = max(range(len(could)), key=lambda place: priorities[could[place]])
        return best

    return plan
