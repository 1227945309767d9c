"""The pytest plugin: the fixtures `cluster` and `processes`.

`callboard_cluster` and `callboard_processes` are their full names, for projects where the
short names are in use. A failed test with a cluster writes its events to
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
    """Add `--callboard-seed` and `--callboard-events`."""
    group = parser.getgroup("callboard")
    group.addoption("--callboard-seed", type=int, help="seed of all simulated clusters")
    text = "write the events of the last simulated cluster to FILE as JSON, failed or not"
    group.addoption("--callboard-events", type=Path, metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse invalid variables and options once, before any test."""
    seed = config.getoption("--callboard-seed")
    if seed is not None and seed < 0:
        message = f"--callboard-seed={seed} is negative; pass a seed that a failed test printed"
        raise pytest.UsageError(message)
    try:
        environment.check()
    except WrongValue as error:
        raise pytest.UsageError(str(error)) from None


def seed_of(config: pytest.Config) -> int | None:
    """Return the seed of all simulations; None if each has its own."""
    seed: int | None = config.getoption("--callboard-seed")
    return environment.seed() if seed is None else seed


@pytest.fixture
def callboard_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A simulated cluster; call it for nodes: `a, b, c = cluster(3, topology="line")`."""
    from callboard.simulation.cluster import Cluster

    seed = seed_of(request.config)
    if seed is None:
        seed = zlib.crc32(request.node.nodeid.encode())
    with closing(Cluster(seed)) as simulated:
        request.node.stash[CLUSTER] = simulated
        yield simulated


@pytest.fixture
def cluster(callboard_cluster: "Cluster") -> "Cluster":
    """The short name of `callboard_cluster`."""
    return callboard_cluster


@pytest.fixture
def callboard_processes() -> "Iterator[Processes]":
    """Node processes; call it to start some: `a, b = processes(2, spawnable={"echo": E})`."""
    from callboard.simulation.processes import Processes

    with closing(Processes()) as started:
        yield started


@pytest.fixture
def processes(callboard_processes: "Processes") -> "Processes":
    """The short name of `callboard_processes`."""
    return callboard_processes


#: The user property of a test report with the number of schedules tried.
SCHEDULES = "callboard schedules"

#: Stash key of a test's cluster, for the report of its failure.
CLUSTER = pytest.StashKey["Cluster"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the events of a failed simulation, and report how to replay it."""
    report = yield
    if report.when != "call" or CLUSTER not in item.stash:
        return report
    from callboard.simulation.trace import Dump

    simulated = item.stash[CLUSTER]
    dump = Dump(simulated.seed, item.nodeid, simulated.trace.lines())
    file = item.config.getoption("--callboard-events")
    if file is not None:
        dump.write_to(file)
    if report.failed:
        text = f"seed {simulated.seed}; replay: callboard replay {simulated.seed}"
        if file is None:
            text += f"\n{len(dump.events):,} events are in {dump.write(item.config.rootpath)}"
        report.sections.append(("callboard simulation", text))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many schedules each `@schedule_test` tried."""
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, tried in report.user_properties:
                    if name == SCHEDULES:
                        terminalreporter.write_line(f"{report.nodeid}: {tried}")
