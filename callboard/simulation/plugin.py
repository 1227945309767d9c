"""The pytest plugin: the fixtures `cluster` and `processes`.

`callboard_cluster` and `callboard_processes` are their full names, for projects where the
short ones are taken. A test that fails with a cluster leaves its events in
`.callboard/failures/`, and prints its seed and the command that replays it.
"""

import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from callboard.simulation.cluster import Cluster
    from callboard.simulation.processes import Processes

SEED_VARIABLE = "CALLBOARD_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--callboard-seed`."""
    group = parser.getgroup("callboard")
    group.addoption("--callboard-seed", type=int, help="seed of all simulated clusters")
    text = "write the events of the last simulated cluster there, as JSON, failed or not"
    group.addoption("--callboard-events", type=Path, metavar="FILE", help=text)


@pytest.fixture
def callboard_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A maker of simulated clusters: `a, b, c = cluster(3, topology="line")`."""
    from callboard.simulation.cluster import Cluster

    seed = request.config.getoption("--callboard-seed")
    if seed is None:
        seed = int(os.environ.get(SEED_VARIABLE, zlib.crc32(request.node.nodeid.encode())))
    with closing(Cluster(seed)) as made:
        request.node.stash[_CLUSTER] = made
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


_CLUSTER = pytest.StashKey["Cluster"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the events of a simulation that failed, and tell how to replay it."""
    report = yield
    if report.when != "call" or _CLUSTER not in item.stash:
        return report
    from callboard.simulation.trace import Dump

    made = item.stash[_CLUSTER]
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
