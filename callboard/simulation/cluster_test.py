"""`@cluster_test`: one test, many seeds, each with other faults; what fails is made small.

Seeds come from the name of the test, so a run is the same each time. The environment says how
long: `CALLBOARD_SEEDS` sets how many seeds there are, `CALLBOARD_SECONDS` for how long further
ones are begun, and `CALLBOARD_NEW_SEEDS=1` draws others than yesterday. A seed that failed is
kept in `.callboard/seeds/` and comes first from then on.
"""

import functools
import math
import multiprocessing
import os
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.kernel.errors import CallboardError
from callboard.simulation.cluster import Cluster
from callboard.simulation.faults import Fault, Struck, Unrest, at_its_time, resolved
from callboard.simulation.marks import marking, warn_of_missed
from callboard.simulation.programs.host import SimulatedHost
from callboard.simulation.runs import environment
from callboard.simulation.runs.logs import unlogged
from callboard.simulation.runs.scenario import (
    Scenario,
    checked_faults,
    checked_seeds,
    ends_all,
    is_failure,
    whole_numbers,
)
from callboard.simulation.runs.shrinking import shrink
from callboard.simulation.runs.suspects import watched
from callboard.simulation.runs.swarm import MomentRecorder, Rhythm, Swarm
from callboard.simulation.runs.tries import Tries, processors
from callboard.simulation.trace import first_difference

if TYPE_CHECKING:
    import pytest

#: Seeds of a test that does not say how many.
SEEDS: Final = 100

#: Seconds of a processor for which a failure is made smaller.
SHRINK_SECONDS: Final = 20.0

#: How much longer, where more faults and steps are left than anybody likes to read.
_MANY_LONGER: Final = 3.0
_MANY: Final = 25

#: How much longer at most where other programs have the processor meanwhile.
_BUSY_LONGER: Final = 2.0

#: Where seeds that failed are kept, below the root folder of the tests.
KEPT: Final = Path(".callboard") / "seeds"


_DEPENDS: Final = "something depends on more than the seed"


class NotDeterministic(CallboardError, AssertionError):
    """Two runs of a seed differ, so a failure could not be found again."""


class ClusterTest:
    """A scenario with its seeds and faults."""

    def __init__(
        self,
        scenario: Callable[..., object],
        seeds: int | Iterable[int],
        faults: Swarm | Iterable[Fault],
        *,
        twice: bool,
        steps: Iterable[int] | None = None,
    ) -> None:
        self.scenario = scenario
        self.steps = None
        if steps is not None:
            self.steps = whole_numbers(steps, "steps= takes a list of numbers of steps")
        self.seeds = checked_seeds(seeds)
        self.faults = (
            faults if isinstance(faults, Swarm) else checked_faults(faults, "cluster_test")
        )
        self.twice = twice
        self._rhythm: Rhythm | None = None
        #: When `run` found a seed that fails, in seconds of `time.monotonic`.
        self.found_at = math.inf

    def faults_of(self, seed: int) -> list[Fault]:
        """Return the faults of a seed."""
        if isinstance(self.faults, Swarm):
            return self.faults.draw(seed, self._rhythm)
        return self.faults

    def listen(self, arguments: dict[str, Any]) -> None:
        """Live a seed without faults, unless that was done, so that faults can be aimed."""
        if self._rhythm is None and isinstance(self.faults, Swarm):
            run = self.live(0, [], arguments, listens=True)
            assert run.cluster is not None
            machines = run.cluster.machines()
            mortal = tuple(
                place
                for place, machine in enumerate(machines)
                if not isinstance(machine, SimulatedHost) or machine.mortal
            )
            times = run.times if run.error is None else {}
            self._rhythm = Rhythm.of(times, len(machines), mortal)

    def live(
        self,
        seed: int,
        faults: list[Fault],
        arguments: dict[str, Any],
        steps: list[int] | None = None,
        *,
        listens: bool = False,
    ) -> "Run":
        """Live a seed once, with all steps of the test, or some of them.

        A test that skips, and what ends all tests, such as ctrl-C, is raised.
        """
        run = Run(seed, faults)
        with marking(run.met) as met:
            try:
                with closing(Cluster(seed)) as run.cluster:
                    run.cluster.kept_steps = self.steps if steps is None else steps
                    met.strike = functools.partial(run.cluster.moment, "mark")
                    run.struck = Unrest(run.cluster, faults).struck
                    if listens:
                        run.times = MomentRecorder(run.cluster).times
                    self.scenario(run.cluster, **arguments)
            except BaseException as error:
                if not is_failure(error):
                    raise
                run.error = error
        run.error = met.broken or run.error
        return run

    def run(
        self,
        name: str,
        arguments: dict[str, Any],
        only: int | None = None,
        root: Path | None = None,
    ) -> "Run | None":
        """Live all seeds, and return the first that failed, with its smallest faults.

        Args:
            name: of the test, from which its seeds come.
            arguments: what the scenario takes beside the cluster.
            only: the one seed to live.
            root: the folder below which failed seeds are kept.

        Raises:
            NotDeterministic: two runs of a seed differ.
        """
        seeds = [only] if only is not None else _planned(self.seeds, name, root)
        self.listen(arguments)
        counted: Counter[str] = Counter()
        failed = _first_failure(self, seeds, arguments, counted)
        if failed is not None:
            self.found_at = time.monotonic()
            again = self.live(failed, self.faults_of(failed), arguments)
            if again.error is None:
                message = (
                    f"seed {failed} failed, and passes when it is lived again: {_DEPENDS}\n"
                    f"{self.suspects(failed, arguments)}"
                )
                raise NotDeterministic(message)
            if isinstance(self.seeds, int):  # others have those that they name
                _keep(root, name, failed)
            return self._small(again, arguments)
        if only is None:
            warn_of_missed(name, f"{len(seeds)} seeds", self.scenario, counted)
        return None

    def only(self, seed: int, arguments: dict[str, Any], *, shrinks: bool = True) -> "Run":
        """Live one seed; a failed run has its smallest faults, if wanted."""
        self.listen(arguments)
        run = self.live(seed, self.faults_of(seed), arguments)
        return self._small(run, arguments) if run.error is not None and shrinks else run

    def compare(self, run: "Run", again: "Run", arguments: dict[str, Any]) -> None:
        """Raise `NotDeterministic` unless two runs of a seed had the same events."""
        assert run.cluster is not None
        assert again.cluster is not None
        found = first_difference(run.cluster.trace.lines(), again.cluster.trace.lines())
        if found is not None:
            number, was, now = found
            message = (
                f"two runs of seed {run.seed} differ at event {number + 1:,}: {_DEPENDS}\n"
                f"  it was: {was}\n  it is:  {now}\n{self.suspects(run.seed, arguments)}"
            )
            raise NotDeterministic(message)

    def suspects(self, seed: int, arguments: dict[str, Any]) -> str:
        """Live a seed again, and say what in it is likely to differ from run to run."""
        with watched() as calls:
            self.live(seed, self.faults_of(seed), arguments)
        if calls:
            return "  likely: " + ", ".join(calls[:5])
        return "  likely: the order of a set, an id(), or what an earlier run left behind"

    def _small(self, run: "Run", arguments: dict[str, Any]) -> "Run":
        """Return a failed run with the smallest faults that were found for it in time."""
        begin, worked, kind = time.monotonic(), time.process_time(), type(run.error)

        def is_over(parts: int) -> bool:
            return enough(parts, time.monotonic() - begin, time.process_time() - worked)

        def lives(faults: list[Fault], steps: list[int]) -> bool:
            try:
                return type(self.live(run.seed, faults, arguments, steps).error) is kind
            except BaseException as error:
                if ends_all(error):
                    raise
                return False  # it skips

        tries = Tries(lives, is_over)
        assert run.cluster is not None
        count = len(run.cluster.machines())
        known = [resolved(fault, count) for fault in run.faults]
        all_steps = list(range(run.cluster.steps_had)) if self.steps is None else self.steps
        faults = known if tries.fails(known, all_steps) else run.faults

        def timed(faults: list[Fault], steps: list[int]) -> list[Fault]:
            struck = self.live(run.seed, faults, arguments, steps).struck
            return [at_its_time(fault, struck) for fault in faults]

        run.smallest, steps = shrink(faults, all_steps, tries.fails, timed, tries.ahead)
        if len(steps) < run.cluster.steps_had:
            run.steps = steps
        small = self.live(run.seed, run.smallest, arguments, steps)
        if small.error is not None:  # its text tells of what is left
            run.error, run.struck = small.error, small.struck
        return run


@dataclass
class Run:
    """One seed, lived.

    Attributes:
        seed: which.
        faults: what went wrong in it.
        error: how it failed; None if it passed.
        cluster: what it was lived in, closed.
        smallest: the fewest faults with which it still fails.
        steps: the steps of the test that are needed for that; None for all.
        met: how often each mark was met.
        struck: when, and at which places, faults began that waited for something.
        times: when moments came for which faults can wait, if anybody listened.
    """

    seed: int
    faults: list[Fault]
    error: BaseException | None = None
    cluster: Cluster | None = None
    smallest: list[Fault] | None = None
    steps: list[int] | None = None
    met: Counter[str] = field(default_factory=Counter)
    struck: Struck = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    def program(
        self, scenario: Callable[..., object], request: "pytest.FixtureRequest | None" = None
    ) -> str:
        """Return a test that fails as this run did.

        Args:
            scenario: the function that was lived.
            request: that of its test, for parameters, fixtures and the class it stands in.
        """
        faults = self.smallest if self.smallest is not None else self.faults
        lines = "".join(f"    {fault},{self._told_of(fault)}\n" for fault in faults)
        steps = "" if self.steps is None else f"steps={self.steps}, "
        options = (
            f"seeds=[{self.seed}], {steps}faults={f'[{chr(10)}{lines}]' if faults else '[]'}"
        )
        needs = {fault.kind.name for fault in faults}
        title = f"test_seed_{self.seed}"
        return Scenario(scenario, "cluster_test").program(needs, options, title, request)

    def _told_of(self, fault: Fault) -> str:
        """Return a comment: which machines a fault concerns, and when if it waited."""
        assert self.cluster is not None
        machines = self.cluster.machines()
        at, places = self.struck.get(fault, (fault.at, fault.machines))
        named = [machines[place].name for place in places if 0 <= place < len(machines)]
        if not all(named) or not 0 < len(named) == len(places):
            return ""
        when = f", at {at:.6g} s" if fault in self.struck else ""
        return f"  # {', '.join(named)}{when}"

    def told(
        self, scenario: Callable[..., object], request: "pytest.FixtureRequest"
    ) -> BaseException:
        """Return its error with a note: the seed, and a test that fails alike."""
        assert self.error is not None
        program = self.program(scenario, request)
        self.error.add_note(f"seed {self.seed}; this test fails alike:\n\n{program}")
        return self.error


def cluster_test(
    scenario: Callable[..., object] | None = None,
    *,
    seeds: int | Iterable[int] = SEEDS,
    faults: Swarm | Iterable[Fault] = (),
    twice: bool = False,
    steps: Iterable[int] | None = None,
) -> Any:
    """Make a function of a cluster a pytest test that lives many seeds.

    Args:
        scenario: the function; its first argument is the cluster, others are fixtures.
        seeds: how many, or which ones. It stops at the first that fails.
        faults: what goes wrong: `swarm(…)` draws it for each seed, a list is the same for all.
        twice: whether each seed is lived twice; the test fails where the two differ.
        steps: which of the test's steps (`cluster.steps`) are taken; all by default.

    The failure is that of the scenario, with a note: its seed, and a test of a few lines with
    the smallest faults that were found. `.scenario` of the test is the function itself.

    Methods of test classes are tests as well; each seed has a copy of the instance.

    Raises:
        WrongArgument: it is no plain function of a cluster, or an option is of another kind.
        WrongValue: there is no seed, or a negative one.
    """
    if scenario is None:
        return functools.partial(
            cluster_test, seeds=seeds, faults=faults, twice=twice, steps=steps
        )
    test = ClusterTest(scenario, seeds, faults, twice=twice, steps=steps)
    told = Scenario(scenario, "cluster_test")

    @functools.wraps(scenario)
    def lived(*bound: object, **arguments: Any) -> None:
        from callboard.simulation.plugin import CLUSTER, seed_of

        __tracebackhide__ = True
        here = copy(test)
        here.scenario = told.of(bound)
        request = told.fixtures(arguments)
        root = request.config.rootpath
        only = seed_of(request.config)
        with unlogged(request):
            run = here.run(request.node.nodeid, arguments, only, root)
        if run is None and only is not None:
            if request.config.getoption("--callboard-events") is not None:
                cluster = here.live(only, here.faults_of(only), arguments).cluster
                assert cluster is not None
                request.node.stash[CLUSTER] = cluster
        elif run is not None:
            assert run.cluster is not None
            request.node.stash[CLUSTER] = run.cluster
            if run.smallest is not None:  # once more, for the log
                here.live(run.seed, run.smallest, arguments, run.steps)
            raise run.told(scenario, request)

    lived.__signature__ = told.signature()  # type: ignore[attr-defined]
    lived.scenario = scenario  # type: ignore[attr-defined]
    lived.test = test  # type: ignore[attr-defined]
    return lived


def enough(parts: int, took: float, worked: float) -> bool:
    """Return whether a failure of so many faults and steps is left as it is.

    Args:
        parts: how many there are.
        took: for how many seconds it has been made smaller.
        worked: seconds of a processor that this process had meanwhile.
    """
    limit = SHRINK_SECONDS * (_MANY_LONGER if parts > _MANY else 1.0)
    return took > limit and (worked > limit or took > limit * _BUSY_LONGER)


# --- seeds ---


def _planned(seeds: int | list[int], name: str, root: Path | None) -> list[int]:
    """Return the seeds of a test: those that failed before, then its own."""
    if isinstance(seeds, list):
        return seeds
    chance = environment.chance(name)
    drawn = [chance.randrange(2**31) for _ in range(environment.seeds(seeds))]
    return list(dict.fromkeys([*_kept(root, name), *drawn]))


def _file(root: Path, name: str) -> Path:
    """Return where the failed seeds of a test are."""
    return root / KEPT / f"{zlib.crc32(name.encode()):08x}.txt"


def _kept(root: Path | None, name: str) -> list[int]:
    """Return the seeds of a test that failed before."""
    if root is None or not _file(root, name).exists():
        return []
    lines = _file(root, name).read_text(encoding="utf-8").split("\n")
    return [int(line) for line in lines if line.strip().isdecimal()]


def _keep(root: Path | None, name: str, seed: int) -> None:
    """Keep a seed that failed."""
    if root is None or seed in _kept(root, name):
        return
    path = _file(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        file.write((f"# {name}\n" if is_new else "") + f"{seed}\n")


# --- many at once ---


def _first_failure(
    test: ClusterTest, seeds: Sequence[int], arguments: dict[str, Any], counted: Counter[str]
) -> int | None:
    """Live seeds until one fails, on all processors where that is possible."""
    end = time.monotonic() + environment.seconds(math.inf)
    jobs = _jobs(len(seeds))
    if jobs == 1:
        return _live_all(test, seeds, arguments, counted, end)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    over = context.Event()
    children = [
        context.Process(
            target=_child, args=(test, seeds[place::jobs], arguments, end, over, answers)
        )
        for place in range(jobs)
    ]
    for child in children:
        child.start()
    failed: list[int] = []
    for _ in children:
        seed, marks, problem = answers.get()
        counted.update(marks)
        if problem is not None:
            over.set()
            if seed is None:
                raise NotDeterministic(problem)
            failed.append(seed)
    for child in children:
        child.join()
    return min(failed, key=list(seeds).index) if failed else None


def _jobs(seeds: int) -> int:
    """Return how many processes live seeds; one where forks are not safe or not worth it."""
    return 1 if seeds < 8 else min(processors(), seeds)


def _child(
    test: ClusterTest,
    seeds: Sequence[int],
    arguments: dict[str, Any],
    end: float,
    over: Any,
    answers: Any,
) -> None:
    """Live a share of the seeds in a process of its own."""
    counted: Counter[str] = Counter()
    problem = None
    failed: int | None = None
    try:
        failed = _live_all(test, seeds, arguments, counted, end, over)
        problem = None if failed is None else "failed"
    except NotDeterministic as error:
        problem = str(error)
    except BaseException:  # noqa: BLE001 - the parent has to hear of it
        problem = traceback.format_exc()
    answers.put((failed, dict(counted), problem))
    os._exit(0)


def _live_all(
    test: ClusterTest,
    seeds: Sequence[int],
    arguments: dict[str, Any],
    counted: Counter[str],
    end: float,
    over: Any = None,
) -> int | None:
    """Live seeds one after the other; returns the first that fails.

    Raises:
        NotDeterministic: two runs of a seed differ.
    """
    for place, seed in enumerate(seeds):
        if (place and time.monotonic() > end) or (over is not None and over.is_set()):
            break
        faults = test.faults_of(seed)
        try:
            run = test.live(seed, faults, arguments)
        except BaseException:
            if over is None:
                raise
            return seed  # the parent lives it again, and so is told that the test skips
        counted.update(run.met)
        if run.error is not None:
            return seed
        if test.twice:
            test.compare(run, test.live(seed, faults, arguments), arguments)
    return None
