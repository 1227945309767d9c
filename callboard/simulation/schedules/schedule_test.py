"""`@schedule_test`: run a small test with many possible orders of its steps.

Environment variables apply as for `@cluster_test`: `CALLBOARD_SECONDS` sets the time in which
further schedules are started, `CALLBOARD_SEEDS` the number of random ones, and
`CALLBOARD_NEW_SEEDS=1` draws new random ones. A failed schedule is saved in
`.callboard/schedules/` and from then on runs first.
"""

import functools
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.arguments import require
from callboard.kernel.errors import WrongValue
from callboard.simulation.current_run import warn_of_missed
from callboard.simulation.faults import Fault
from callboard.simulation.runs import environment
from callboard.simulation.runs.logs import unlogged
from callboard.simulation.runs.scenario import Scenario, checked_faults, whole_numbers
from callboard.simulation.schedules.search import (
    DEVIATIONS,
    SECONDS,
    WALKS,
    Deviation,
    Explored,
    NoSuchStep,
    Search,
    SimulatedLife,
)

if TYPE_CHECKING:
    import pytest

#: Folder of failed schedules, below the root folder of the tests.
KEPT: Final = Path(".callboard") / "schedules"


def schedule_test(
    scenario: Callable[..., object] | None = None,
    *,
    deviations: int = DEVIATIONS,
    walks: int = WALKS,
    faults: Iterable[Fault] = (),
    late: float = 1.0,
    seconds: float = SECONDS,
    prune: bool = True,
    seed: int | None = None,
    schedule: Iterable[Deviation] | None = None,
) -> Any:
    """Turn a function of a cluster into a pytest test that tries orders of its steps.

    A step is a message that an actor handles, a part of a coroutine handler between two awaits,
    an arrival of bytes, or a timer. The usual order is that of an ordinary simulation.

    Args:
        scenario: the function; its first argument is the cluster, others are fixtures.
        deviations: number of deviations from the usual order up to which all orders are tried.
        walks: number of random orders tried after those.
        faults: possible faults; each occurs at most once. The search chooses when it starts;
            the fault determines how long it lasts.
        late: virtual seconds by which a step may be later than usual; timers of up to this
            duration race with messages.
        seconds: real seconds after which no further order is started.
        prune: whether equal states are explored only once. Set it to False if actors share
            state that is not reachable by references, such as a file.
        seed: seed of the cluster; derived from the name of the test by default.
        schedule: deviations of a single order to run, as printed by a failed test.

    A failure raises the exception of the scenario with notes: the order of steps, and a short
    test that reproduces it. The attribute `.scenario` of the test is the original function.

    Raises:
        WrongArgument: the function is not a plain function of a cluster, or an option has the
            wrong type.
        WrongValue: an option is negative.
    """
    if scenario is None:
        return functools.partial(
            schedule_test,
            deviations=deviations,
            walks=walks,
            faults=faults,
            late=late,
            seconds=seconds,
            prune=prune,
            seed=seed,
            schedule=schedule,
        )
    planned = checked_faults(faults, "schedule_test")
    _check(deviations, walks, late, seconds, seed)
    order = None if schedule is None else _checked_schedule(schedule)
    test_function = Scenario(scenario, "schedule_test")

    @functools.wraps(scenario)
    def wrapper(*bound: object, **arguments: Any) -> None:
        from callboard.simulation.plugin import seed_of

        __tracebackhide__ = True
        function = test_function.of(bound)
        request = test_function.fixtures(arguments)
        name = request.node.nodeid
        chosen_seed = seed if seed is not None else seed_of(request.config)
        search = Search(
            *(function, arguments, deviations, environment.seeds(walks)),
            *(planned, late, zlib.crc32(name.encode()) if chosen_seed is None else chosen_seed),
            seconds=environment.seconds(seconds),
            prune=prune,
            chance=environment.chance(name),
        )
        if order is not None:
            _live_one(request, search, order)
            return
        saved = _saved_schedules(request.config.rootpath, name)
        explored = _explore(request, search, saved)
        if explored.failure is None:
            warn_of_missed(name, f"{explored.tried:,} schedules", function, search.met)
        if explored.failure is not None:
            _save_schedule(request.config.rootpath, name, explored.failure.taken, saved)
            _fail(request, search, explored.failure, explored)

    wrapper.__signature__ = test_function.signature()  # type: ignore[attr-defined]
    wrapper.scenario = scenario  # type: ignore[attr-defined]
    return wrapper


def explore(
    scenario: Callable[..., object],
    *,
    deviations: int = DEVIATIONS,
    walks: int = WALKS,
    faults: Iterable[Fault] = (),
    late: float = 1.0,
    seconds: float = SECONDS,
    prune: bool = True,
) -> Explored:
    """Try orders of the steps of a function of a cluster, as `schedule_test` does.

    Args:
        scenario: the function.
        deviations: see `schedule_test`, as for all that follow.
        walks: number of random orders.
        faults: possible faults.
        late: virtual seconds by which a step may be late.
        seconds: real seconds after which no further order is started.
        prune: whether equal states are explored only once.

    Returns:
        The result of the search; its `failure` is None if all orders passed.

    Raises:
        WrongArgument: an option has the wrong type.
        WrongValue: an option is negative.
    """
    planned = checked_faults(faults, "explore")
    _check(deviations, walks, late, seconds, None)
    search = Search(
        scenario, {}, deviations, walks, planned, late, seconds=seconds, prune=prune
    )
    return search.run()


def _check(deviations: int, walks: int, late: float, seconds: float, seed: int | None) -> None:
    """Check options of a search.

    Raises:
        WrongArgument: an option has the wrong type.
        WrongValue: an option is negative.
    """
    counts = {"deviations": deviations, "walks": walks, "seed": 0 if seed is None else seed}
    for name, count in counts.items():
        whole_numbers([count], f"{name}= takes a whole number")
    for name, time in {"late": late, "seconds": seconds}.items():
        needed = f"{name}= takes seconds"
        require(type(time) in (int, float), needed, time)
        if not time >= 0.0:
            message = f"{needed} of at least 0, not {time}"
            raise WrongValue(message)


def _checked_schedule(schedule: Iterable[Deviation]) -> list[Deviation]:
    """Check the deviations of a schedule, and return them as a list.

    Raises:
        WrongArgument: the value is something else.
    """
    needed = (
        'schedule= takes deviations as a failed test prints them, such as [(1, "Stock on a")]'
    )
    require(isinstance(schedule, Iterable), needed, schedule)
    listed: list[Any] = list(schedule)
    for deviation in listed:
        kinds = [type(item) for item in deviation] if isinstance(deviation, Sequence) else []
        require(kinds == [int, str], needed, deviation)
    return [(number, step_name) for number, step_name in listed]


def _explore(
    request: "pytest.FixtureRequest", search: Search, saved: list[list[Deviation]]
) -> Explored:
    """Search the schedules of a test; pytest reports their number and the log of a failure."""
    from callboard.simulation.plugin import SCHEDULES

    with unlogged(request):
        explored = search.run(saved)
    request.node.user_properties.append((SCHEDULES, str(explored)))
    if explored.failure is not None:
        search.live(explored.failure.taken)
    return explored


def _live_one(
    request: "pytest.FixtureRequest", search: Search, schedule: list[Deviation]
) -> None:
    """Run one schedule.

    Raises:
        NoSuchStep: the test passed, but some of the deviations were not possible.
    """
    life = search.live(schedule)
    if life.error is not None:
        _fail(request, search, life, None)
    if life.missed is not None:
        number, step_name = life.missed
        message = (
            f"step {number} cannot be {step_name!r}, because the test has changed; search "
            f"again without schedule=. The steps were:\n{life}"
        )
        raise NoSuchStep(message)


def _fail(
    request: "pytest.FixtureRequest",
    search: Search,
    life: SimulatedLife,
    explored: Explored | None,
) -> None:
    """Raise the error of a schedule, with notes about its steps."""
    from callboard.simulation.plugin import CLUSTER

    assert life.error is not None
    if life.cluster is not None:
        request.node.stash[CLUSTER] = life.cluster
    prefix = f"{explored}:\n" if explored is not None else ""
    life.error.add_note(f"{prefix}{life}")
    if explored is not None:
        life.error.add_note(
            f"\nthis test reproduces the failure:\n\n{_program(request, search, life)}"
        )
    raise life.error


def _program(request: "pytest.FixtureRequest", search: Search, life: SimulatedLife) -> str:
    """Return the source of a test that reproduces a schedule."""
    function, faults = Scenario(search.scenario, "schedule_test"), search.faults
    lines = "".join(f"    {deviation!r},\n" for deviation in life.taken)
    options = f"seed={search.seed}, schedule={f'[{chr(10)}{lines}]' if lines else '[]'}"
    if faults:
        options += f", faults=[{', '.join(map(str, faults))}]"
    options += f", late={search.late:g}" if search.late != 1.0 else ""
    needs = {fault.kind.name for fault in faults}
    return function.program(needs, options, f"{function.name}_in_this_order", request)


def _file(root: Path, name: str) -> Path:
    """Return the file of the failed schedules of a test, one JSON list per line."""
    return root / KEPT / f"{zlib.crc32(name.encode()):08x}.txt"


def _saved_schedules(root: Path, name: str) -> list[list[Deviation]]:
    """Return the saved failed schedules of a test."""
    path, schedules = _file(root, name), []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            schedules.append(
                [(int(number), str(step_name)) for number, step_name in json.loads(line)]
            )
        except (ValueError, TypeError):  # the line with the test's name, or foreign text
            continue
    return schedules


def _save_schedule(
    root: Path, name: str, schedule: Sequence[Deviation], saved: Sequence[Sequence[Deviation]]
) -> None:
    """Save a failed schedule."""
    if schedule in saved:
        return
    path = _file(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = "" if path.exists() else f"# {name}\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{begin}{json.dumps(schedule)}\n")
