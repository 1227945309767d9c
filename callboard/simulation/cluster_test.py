"""`@cluster_test`: run one test with many seeds and different faults, and shrink failures.

Seeds are derived from the name of the test, so it always runs the same ones. Environment
variables change that: `CALLBOARD_SEEDS` sets the number of seeds, `CALLBOARD_SECONDS` the time
in which further seeds are started, and `CALLBOARD_NEW_SEEDS=1` draws new random seeds. A failed
seed is saved in `.callboard/seeds/` and from then on runs first.
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
from callboard.simulation.current_run import marking, warn_of_missed
from callboard.simulation.faults import Fault, FaultInjector, Struck, at_its_time, resolved
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
from callboard.simulation.runs.swarm import ActivityProfile, MomentRecorder, Swarm
from callboard.simulation.runs.tries import Tries, processors
from callboard.simulation.trace import first_difference

if TYPE_CHECKING:
    import pytest

#: Default number of seeds of a test.
SEEDS: Final = 100

#: Seconds of CPU time for shrinking a failure.
SHRINK_SECONDS: Final = 20.0

#: Factor for that time while more than `_MANY` faults and steps are left.
_MANY_LONGER: Final = 3.0
_MANY: Final = 25

#: Maximum factor of real time, when other programs use the CPU.
_BUSY_LONGER: Final = 2.0

#: Folder of failed seeds, below the root folder of the tests.
KEPT: Final = Path(".callboard") / "seeds"


_DEPENDS: Final = (
    "something depends on more than the seed: on random numbers or the time in the test "
    "itself, the order of a set, an id(), or global state of an earlier run"
)


class NotDeterministic(CallboardError, AssertionError):
    """Two runs of a seed differ, so a failure cannot be reproduced."""


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
        self._rhythm: ActivityProfile | None = None
        #: Time at which `run` found a failing seed, by `time.monotonic`.
        self.found_at = math.inf

    def faults_of(self, seed: int) -> list[Fault]:
        """Return the faults of a seed."""
        if isinstance(self.faults, Swarm):
            return self.faults.draw(seed, self._rhythm)
        return self.faults

    def listen(self, arguments: dict[str, Any]) -> None:
        """Run a seed without faults, once, to learn at which moments faults can be aimed."""
        if self._rhythm is None and isinstance(self.faults, Swarm):
            run = self.live(0, [], arguments, listens=True)
            assert run.cluster is not None
            times = run.times if run.error is None else {}
            self._rhythm = ActivityProfile.of(times, len(run.cluster.machines()))

    def live(
        self,
        seed: int,
        faults: list[Fault],
        arguments: dict[str, Any],
        steps: list[int] | None = None,
        *,
        listens: bool = False,
    ) -> "TestRun":
        """Run a seed once, with all steps of the test or some of them.

        Exceptions that are not failures are raised: those of skipped tests, and those that end
        pytest, such as KeyboardInterrupt.
        """
        run = TestRun(seed, faults)
        with marking(run.met) as met:
            try:
                with closing(Cluster(seed)) as run.cluster:
                    run.cluster.kept_steps = self.steps if steps is None else steps
                    met.strike = functools.partial(run.cluster.moment, "mark")
                    run.struck = FaultInjector(run.cluster, faults).struck
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
    ) -> "TestRun | None":
        """Run all seeds; return the first failed run with the smallest faults found for it.

        Args:
            name: name of the test, from which its seeds are derived.
            arguments: arguments of the scenario besides the cluster.
            only: the only seed to run.
            root: the folder below which failed seeds are saved.

        Raises:
            NotDeterministic: two runs of a seed differ.
        """
        seeds = [only] if only is not None else _planned(self.seeds, name, root)
        self.listen(arguments)
        counted: Counter[str] = Counter()
        failed = _first_failure(self, seeds, arguments, counted)
        if failed is not None:
            self.found_at = time.monotonic()
            repeated = self.live(failed, self.faults_of(failed), arguments)
            if repeated.error is None:
                message = f"seed {failed} failed, but passed when it was repeated: {_DEPENDS}"
                raise NotDeterministic(message)
            if isinstance(self.seeds, int):  # a list of seeds stays as it is
                _save_seed(root, name, failed)
            return self._small(repeated, arguments)
        if only is None:
            warn_of_missed(name, f"{len(seeds)} seeds", self.scenario, counted)
        return None

    def only(self, seed: int, arguments: dict[str, Any], *, shrinks: bool = True) -> "TestRun":
        """Run one seed; shrink a failure if `shrinks`."""
        self.listen(arguments)
        run = self.live(seed, self.faults_of(seed), arguments)
        return self._small(run, arguments) if run.error is not None and shrinks else run

    def compare(self, run: "TestRun", again: "TestRun") -> None:
        """Raise `NotDeterministic` unless two runs of a seed had the same events."""
        assert run.cluster is not None
        assert again.cluster is not None
        difference = first_difference(run.cluster.trace.lines(), again.cluster.trace.lines())
        if difference is not None:
            number, old, new = difference
            message = (
                f"two runs of seed {run.seed} differ at event {number + 1:,}: {_DEPENDS}\n"
                f"  it was: {old}\n  it is:  {new}"
            )
            raise NotDeterministic(message)

    def _small(self, run: "TestRun", arguments: dict[str, Any]) -> "TestRun":
        """Shrink a failed run within the time limit; return it."""
        start, cpu_start, kind = time.monotonic(), time.process_time(), type(run.error)

        def is_over(parts: int) -> bool:
            return enough(parts, time.monotonic() - start, time.process_time() - cpu_start)

        def lives(faults: list[Fault], steps: list[int]) -> bool:
            try:
                return type(self.live(run.seed, faults, arguments, steps).error) is kind
            except BaseException as error:
                if ends_all(error):
                    raise
                return False  # the test skips with these faults

        tries = Tries(lives, is_over)
        assert run.cluster is not None
        count = len(run.cluster.machines())
        resolved_faults = [resolved(fault, count) for fault in run.faults]
        all_steps = list(range(run.cluster.steps_had)) if self.steps is None else self.steps
        faults = resolved_faults if tries.fails(resolved_faults, all_steps) else run.faults

        def timed(faults: list[Fault], steps: list[int]) -> list[Fault]:
            struck = self.live(run.seed, faults, arguments, steps).struck
            return [at_its_time(fault, struck) for fault in faults]

        run.smallest, steps = shrink(faults, all_steps, tries.fails, timed, tries.ahead)
        if len(steps) < run.cluster.steps_had:
            run.steps = steps
        small = self.live(run.seed, run.smallest, arguments, steps)
        if small.error is not None:  # its text fits the remaining faults
            run.error, run.struck = small.error, small.struck
        return run


@dataclass
class TestRun:
    """The run of one seed.

    Attributes:
        seed: the seed.
        faults: the faults of the seed.
        error: the failure; None if it passed.
        cluster: the cluster, closed.
        smallest: the fewest faults with which it still fails.
        steps: the steps of the test needed for the failure; None for all.
        met: number of times that each mark was reached.
        struck: actual starts and machines of the faults that waited for an event.
        times: times of events that faults can wait for, if they were recorded.
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
        """Return the source of a test that reproduces the failure of this run.

        Args:
            scenario: the function that was run.
            request: the request of its test, for parameters, fixtures and its class.
        """
        faults = self.smallest if self.smallest is not None else self.faults
        lines = "".join(f"    {fault},{self._comment(fault)}\n" for fault in faults)
        steps = "" if self.steps is None else f"steps={self.steps}, "
        options = (
            f"seeds=[{self.seed}], {steps}faults={f'[{chr(10)}{lines}]' if faults else '[]'}"
        )
        needs = {fault.kind.name for fault in faults}
        title = f"test_seed_{self.seed}"
        return Scenario(scenario, "cluster_test").program(needs, options, title, request)

    def _comment(self, fault: Fault) -> str:
        """Return a comment with the machines of a fault, and its start if it waited."""
        assert self.cluster is not None
        machines = self.cluster.machines()
        start, places = self.struck.get(fault, (fault.at, fault.machines))
        names = [machines[place].name for place in places if 0 <= place < len(machines)]
        if not all(names) or not 0 < len(names) == len(places):
            return ""
        when = f", at {start:.6g} s" if fault in self.struck else ""
        return f"  # {', '.join(names)}{when}"

    def with_seed(
        self, scenario: Callable[..., object], request: "pytest.FixtureRequest"
    ) -> BaseException:
        """Return the error with a note: the seed, and a test that reproduces the failure."""
        assert self.error is not None
        program = self.program(scenario, request)
        self.error.add_note(f"seed {self.seed}; this test reproduces the failure:\n\n{program}")
        return self.error


def cluster_test(
    scenario: Callable[..., object] | None = None,
    *,
    seeds: int | Iterable[int] = SEEDS,
    faults: Swarm | Iterable[Fault] = (),
    twice: bool = False,
    steps: Iterable[int] | None = None,
) -> Any:
    """Turn a function of a cluster into a pytest test that runs with many seeds.

    Args:
        scenario: the function; its first argument is the cluster, others are fixtures.
        seeds: number of seeds, or a list of seeds. The test stops at the first failure.
        faults: the faults: `swarm(…)` draws them for each seed; a list is used for all seeds.
        twice: whether to run each seed twice; the test fails if the two runs differ.
        steps: numbers of the test's steps (`cluster.steps`) to take; all by default.

    A failure raises the exception of the scenario with a note: the seed, and a short test with
    the smallest faults found. The attribute `.scenario` of the test is the original function.

    Methods of test classes work as well; each seed gets a copy of the instance.

    Raises:
        WrongArgument: the function is not a plain function of a cluster, or an option has the
            wrong type.
        WrongValue: there is no seed, or a negative one.
    """
    if scenario is None:
        return functools.partial(
            cluster_test, seeds=seeds, faults=faults, twice=twice, steps=steps
        )
    test = ClusterTest(scenario, seeds, faults, twice=twice, steps=steps)
    function = Scenario(scenario, "cluster_test")

    @functools.wraps(scenario)
    def wrapper(*bound: object, **arguments: Any) -> None:
        from callboard.simulation.plugin import CLUSTER, seed_of

        __tracebackhide__ = True
        bound_test = copy(test)
        bound_test.scenario = function.of(bound)
        request = function.fixtures(arguments)
        root = request.config.rootpath
        only = seed_of(request.config)
        with unlogged(request):
            run = bound_test.run(request.node.nodeid, arguments, only, root)
        if run is None and only is not None:
            if request.config.getoption("--callboard-events") is not None:
                cluster = bound_test.live(only, bound_test.faults_of(only), arguments).cluster
                assert cluster is not None
                request.node.stash[CLUSTER] = cluster
        elif run is not None:
            assert run.cluster is not None
            request.node.stash[CLUSTER] = run.cluster
            if run.smallest is not None:  # once more, so that pytest shows its log
                bound_test.live(run.seed, run.smallest, arguments, run.steps)
            raise run.with_seed(scenario, request)

    wrapper.__signature__ = function.signature()  # type: ignore[attr-defined]
    wrapper.scenario = scenario  # type: ignore[attr-defined]
    wrapper.test = test  # type: ignore[attr-defined]
    return wrapper


def enough(parts: int, took: float, worked: float) -> bool:
    """Return whether to stop shrinking a failure.

    Args:
        parts: number of its faults and steps.
        took: seconds of real time spent on shrinking.
        worked: seconds of CPU time spent on shrinking.
    """
    limit = SHRINK_SECONDS * (_MANY_LONGER if parts > _MANY else 1.0)
    return took > limit and (worked > limit or took > limit * _BUSY_LONGER)


# --- seeds ---


def _planned(seeds: int | list[int], name: str, root: Path | None) -> list[int]:
    """Return the seeds of a test: saved failures first, then its own."""
    if isinstance(seeds, list):
        return seeds
    chance = environment.chance(name)
    drawn = [chance.randrange(2**31) for _ in range(environment.seeds(seeds))]
    return list(dict.fromkeys([*_saved_seeds(root, name), *drawn]))


def _file(root: Path, name: str) -> Path:
    """Return the file of the failed seeds of a test."""
    return root / KEPT / f"{zlib.crc32(name.encode()):08x}.txt"


def _saved_seeds(root: Path | None, name: str) -> list[int]:
    """Return the saved failed seeds of a test."""
    if root is None or not _file(root, name).exists():
        return []
    lines = _file(root, name).read_text(encoding="utf-8").split("\n")
    return [int(line) for line in lines if line.strip().isdecimal()]


def _save_seed(root: Path | None, name: str, seed: int) -> None:
    """Save a failed seed."""
    if root is None or seed in _saved_seeds(root, name):
        return
    path = _file(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        file.write((f"# {name}\n" if is_new else "") + f"{seed}\n")


# --- parallel runs ---


def _first_failure(
    test: ClusterTest, seeds: Sequence[int], arguments: dict[str, Any], counted: Counter[str]
) -> int | None:
    """Run seeds until one fails, on all processors if possible; return the failed seed."""
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
    """Return the number of processes; 1 if forking is unsafe or not worthwhile."""
    return 1 if seeds < 8 else min(processors(), seeds)


def _child(
    test: ClusterTest,
    seeds: Sequence[int],
    arguments: dict[str, Any],
    end: float,
    over: Any,
    answers: Any,
) -> None:
    """Run a share of the seeds in a child process."""
    counted: Counter[str] = Counter()
    problem = None
    failed: int | None = None
    try:
        failed = _live_all(test, seeds, arguments, counted, end, over)
        problem = None if failed is None else "failed"
    except NotDeterministic as error:
        problem = str(error)
    except BaseException:  # noqa: BLE001 - reported to the parent
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
    """Run seeds one after another; return the first that fails.

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
            return seed  # the parent repeats it and gets the same exception
        counted.update(run.met)
        if run.error is not None:
            return seed
        if test.twice:
            test.compare(run, test.live(seed, faults, arguments))
    return None
