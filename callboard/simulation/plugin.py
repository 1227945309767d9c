"""The pytest plugin: the fixtures `cluster` and `processes`.

`callboard_cluster` and `callboard_processes` are their full names, for projects where the
short ones are taken. A test that fails with a cluster leaves its events in
`.callboard/failures/`, and prints its seed and the command that replays it.
"""

import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callboard.kernel.errors import WrongValue
from callboard.simulation.runs import environment

if TYPE_CHECKING:
    from callboard.simulation.cluster import Cluster
    from callboard.simulation.processes import Processes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--callboard-seed`."""
    group = parser.getgroup("callboard")
    group.addoption("--callboard-seed", type=int, help="seed of all simulated clusters")
    text = "write the events of the last simulated cluster there, as JSON, failed or not"
    group.addoption("--callboard-events", type=Path, metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse variables and options that cannot be meant, once and before any test."""
    given = config.getoption("--callboard-seed")
    if given is not None and given < 0:
        message = f"--callboard-seed={given}: give a seed as it is printed"
        raise pytest.UsageError(message)
    try:
        environment.check()
    except WrongValue as error:
        raise pytest.UsageError(str(error)) from None


def seed_of(config: pytest.Config) -> int | None:
    """Return the seed that all simulations are to have; None if each has its own."""
    given: int | None = config.getoption("--callboard-seed")
    return environment.seed() if given is None else given


@pytest.fixture
def callboard_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A maker of simulated clusters: `a, b, c = cluster(3, topology="line")`."""
    from callboard.simulation.cluster import Cluster

    seed = seed_of(request.config)
    if seed is None:
        seed = zlib.crc32(request.node.nodeid.encode())
    with closing(Cluster(seed)) as made:
        request.node.stash[CLUSTER] = made
        yield made


@pytest.fixture
def cluster(callboard_cluster: "Cluster") -> "Cluster":
    """Short name of `callboard_cluster`."""
    return callboard_cluster


@pytest.fixture
def callboard_processes() -> "Iterator[Processes]":
    """A maker of node processes: `a, b = processes(2, spawnable={"echo": Echo})`."""
    from callboard.simulation.processes import Processes

    with closing(Processes()) as made:
        yield made


@pytest.fixture
def processes(callboard_processes: "Processes") -> "Processes":
    """Short name of `callboard_processes`."""
    return callboard_processes


#: The property of a test that tells which schedules were tried.
SCHEDULES = "callboard schedules"

#: The simulation of a test, where its failure looks for it.
CLUSTER = pytest.StashKey["Cluster"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the events of a simulation that failed, and tell how to replay it."""
    report = yield
    if report.when != "call" or CLUSTER not in item.stash:
        return report
    from callboard.simulation.trace import Dump

    made = item.stash[CLUSTER]
    dump = Dump(made.seed, item.nodeid, made.trace.lines())
    wanted = item.config.getoption("--callboard-events")
    if wanted is not None:
        dump.write_to(wanted)
    if report.failed:
        told = f"seed {made.seed}; replay: callboard replay {made.seed}"
        if wanted is None:
            told += f"\n{len(dump.events):,} events are in {dump.write(item.config.rootpath)}"
        report.sections.append(("callboard simulation", told))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many schedules were tried for each `@schedule_test`."""
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, tried in report.user_properties:
                    if name == SCHEDULES:
                        terminalreporter.write_line(f"{report.nodeid}: {tried}")
