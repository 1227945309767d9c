"""`@schedule_test`: one small test, every order in which its steps may come.

The environment says how long, as for `@cluster_test`: `CALLBOARD_SECONDS` for how many seconds
further schedules are begun, `CALLBOARD_SEEDS` how many random ones there are, and
`CALLBOARD_NEW_SEEDS=1` draws others than yesterday. A schedule that failed is kept in
`.callboard/schedules/` and comes first from then on.
"""

import functools
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callboard.kernel.checks import require
from callboard.kernel.errors import WrongValue
from callboard.simulation.faults import Fault
from callboard.simulation.marks import warn_of_missed
from callboard.simulation.runs import environment
from callboard.simulation.runs.logs import unlogged
from callboard.simulation.runs.scenario import Scenario, checked_faults, whole_numbers
from callboard.simulation.schedules.search import (
    DEVIATIONS,
    SECONDS,
    WALKS,
    Deviation,
    Explored,
    Life,
    NoSuchStep,
    Search,
)

if TYPE_CHECKING:
    import pytest

#: Where schedules that failed are kept, below the root folder of the tests.
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
    """Make a function of a cluster a pytest test that tries the orders of its steps.

    A step is one message that an actor handles, one stretch of a coroutine handler between two
    awaits, bytes that arrive, or a timer. The usual order is that of the simulation.

    Args:
        scenario: the function; its first argument is the cluster, others are fixtures.
        deviations: all orders with up to so many deviations from the usual one are tried.
        walks: how many random orders are tried after those.
        faults: what may go wrong: each of them at most once, at any step. When it begins is for
            the search to choose; how long it lasts stands in it.
        late: virtual seconds by which a step may come later than it usually would: timers of
            up to so many seconds race with messages.
        seconds: real seconds after which no further order is begun.
        prune: whether the search goes on only once from states that are alike. Say False where
            actors share what no reference leads to, such as a file.
        seed: of the cluster; made from the name of the test by default.
        schedule: the deviations of one order, as a failed test prints them: only that is lived.

    The failure is that of the scenario, with notes: what happened in which order, and a test of
    a few lines that lives it again. `.scenario` of the test is the function itself.

    Raises:
        WrongArgument: it is no plain function of a cluster, or an option is of another kind.
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
    told = Scenario(scenario, "schedule_test")

    @functools.wraps(scenario)
    def lived(*bound: object, **arguments: Any) -> None:
        from callboard.simulation.plugin import seed_of

        __tracebackhide__ = True
        function = told.of(bound)
        request = told.fixtures(arguments)
        name = request.node.nodeid
        given = seed if seed is not None else seed_of(request.config)
        search = Search(
            *(function, arguments, deviations, environment.seeds(walks)),
            *(planned, late, zlib.crc32(name.encode()) if given is None else given),
            seconds=environment.seconds(seconds),
            prune=prune,
            chance=environment.chance(name),
        )
        if order is not None:
            _live_one(request, search, order)
            return
        kept = _kept(request.config.rootpath, name)
        explored = _explore(request, search, kept)
        if explored.failure is None:
            warn_of_missed(name, f"{explored.tried:,} schedules", function, search.met)
        if explored.failure is not None:
            _keep(request.config.rootpath, name, explored.failure.taken, kept)
            _fail(request, search, explored.failure, explored)

    lived.__signature__ = told.signature()  # type: ignore[attr-defined]
    lived.scenario = scenario  # type: ignore[attr-defined]
    return lived


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
    """Try the orders of the steps of a function of a cluster, as `schedule_test` does.

    Args:
        scenario: the function.
        deviations: see `schedule_test`, as for all that follow.
        walks: how many random orders.
        faults: what may go wrong.
        late: virtual seconds by which a step may be late.
        seconds: real seconds.
        prune: whether states that are alike are gone on from only once.

    Returns what was tried; its `failure` is None if nothing failed.

    Raises:
        WrongArgument: an option is of another kind.
        WrongValue: an option is negative.
    """
    planned = checked_faults(faults, "explore")
    _check(deviations, walks, late, seconds, None)
    search = Search(
        scenario, {}, deviations, walks, planned, late, seconds=seconds, prune=prune
    )
    return search.run()


def _check(deviations: int, walks: int, late: float, seconds: float, seed: int | None) -> None:
    """Refuse options that cannot be meant.

    Raises:
        WrongArgument: one is of another kind.
        WrongValue: one is negative.
    """
    counts = {"deviations": deviations, "walks": walks, "seed": 0 if seed is None else seed}
    for name, count in counts.items():
        whole_numbers([count], f"{name}= takes a whole number")
    for name, time in {"late": late, "seconds": seconds}.items():
        needed = f"{name}= takes seconds"
        require(type(time) in (int, float), needed, time)
        if not time >= 0.0:
            message = f"{needed} from 0 on, not {time}"
            raise WrongValue(message)


def _checked_schedule(schedule: Iterable[Deviation]) -> list[Deviation]:
    """Return the deviations of a schedule.

    Raises:
        WrongArgument: it is something else.
    """
    needed = (
        'schedule= takes deviations as a failed test prints them, such as [(1, "Stock on a")]'
    )
    require(isinstance(schedule, Iterable), needed, schedule)
    listed: list[Any] = list(schedule)
    for deviation in listed:
        kinds = [type(each) for each in deviation] if isinstance(deviation, Sequence) else []
        require(kinds == [int, str], needed, deviation)
    return [(number, who) for number, who in listed]


def _explore(
    request: "pytest.FixtureRequest", search: Search, kept: list[list[Deviation]]
) -> Explored:
    """Try the schedules of a test; pytest shows how many, and the log of a failed one."""
    from callboard.simulation.plugin import SCHEDULES

    with unlogged(request):
        explored = search.run(kept)
    request.node.user_properties.append((SCHEDULES, str(explored)))
    if explored.failure is not None:
        search.live(explored.failure.taken)
    return explored


def _live_one(
    request: "pytest.FixtureRequest", search: Search, schedule: list[Deviation]
) -> None:
    """Live one schedule.

    Raises:
        NoSuchStep: it passes, and not all its steps came.
    """
    life = search.live(schedule)
    if life.error is not None:
        _fail(request, search, life, None)
    if life.missed is not None:
        number, who = life.missed
        message = (
            f"step {number} cannot be that of {who!r}: the test has changed; search again "
            f"without schedule=. What came instead:\n{life}"
        )
        raise NoSuchStep(message)


def _fail(
    request: "pytest.FixtureRequest", search: Search, life: Life, explored: Explored | None
) -> None:
    """Raise the error of a schedule, with what led to it."""
    from callboard.simulation.plugin import CLUSTER

    assert life.error is not None
    if life.cluster is not None:
        request.node.stash[CLUSTER] = life.cluster
    found = f"{explored}:\n" if explored is not None else ""
    life.error.add_note(f"{found}{life}")
    if explored is not None:
        life.error.add_note(f"\nthis test fails alike:\n\n{_program(request, search, life)}")
    raise life.error


def _program(request: "pytest.FixtureRequest", search: Search, life: Life) -> str:
    """Return a test that lives a schedule again."""
    told, faults = Scenario(search.scenario, "schedule_test"), search.faults
    lines = "".join(f"    {deviation!r},\n" for deviation in life.taken)
    options = f"seed={search.seed}, schedule={f'[{chr(10)}{lines}]' if lines else '[]'}"
    if faults:
        options += f", faults=[{', '.join(map(str, faults))}]"
    options += f", late={search.late:g}" if search.late != 1.0 else ""
    needs = {fault.kind.name for fault in faults}
    return told.program(needs, options, f"{told.name}_in_this_order", request)


def _file(root: Path, name: str) -> Path:
    """Return where the failed schedules of a test are: one a line, as JSON."""
    return root / KEPT / f"{zlib.crc32(name.encode()):08x}.txt"


def _kept(root: Path, name: str) -> list[list[Deviation]]:
    """Return the schedules of a test that failed before."""
    path, found = _file(root, name), []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append([(int(number), str(who)) for number, who in json.loads(line)])
        except (ValueError, TypeError):  # the name of the test, or not ours
            continue
    return found


def _keep(
    root: Path, name: str, schedule: Sequence[Deviation], kept: Sequence[Sequence[Deviation]]
) -> None:
    """Keep a schedule that failed."""
    if schedule in kept:
        return
    path = _file(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = "" if path.exists() else f"# {name}\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{begin}{json.dumps(schedule)}\n")
