"""The pytest plugin: the fixtures `cluster` and `processes`.

`callboard_cluster` and `callboard_processes` are their full names, for projects where the
short ones are taken. A test that fails with a cluster prints its seed and the command that
replays it.
"""

import os
import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from callboard.simulation.cluster import Cluster
    from callboard.simulation.processes import Processes

SEED_VARIABLE = "CALLBOARD_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--callboard-seed`."""
    group = parser.getgroup("callboard")
    group.addoption(
        "--callboard-seed", type=int, default=None, help="seed of all simulated clusters"
    )


@pytest.fixture
def callboard_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A maker of simulated clusters: `a, b, c = cluster(3, topology="line")`."""
    from callboard.simulation.cluster import Cluster

    seed = request.config.getoption("--callboard-seed")
    if seed is None:
        seed = int(os.environ.get(SEED_VARIABLE, zlib.crc32(request.node.nodeid.encode())))
    made = Cluster(seed)
    request.node.stash[_SEED] = seed
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(callboard_cluster: "Cluster") -> "Cluster":
    """Short name of `callboard_cluster`."""
    return callboard_cluster


@pytest.fixture
def callboard_processes() -> "Iterator[Processes]":
    """A maker of node processes: `a, b = processes(2, spawnable={"echo": Echo})`."""
    from callboard.simulation.processes import Processes

    made = Processes()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def processes(callboard_processes: "Processes") -> "Processes":
    """Short name of `callboard_processes`."""
    return callboard_processes


_SEED = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed of a failed simulation to its report."""
    report = yield
    if report.failed and _SEED in item.stash:
        seed = item.stash[_SEED]
        command = f"PYTHONHASHSEED=0 python -m pytest --callboard-seed={seed} '{item.nodeid}'"
        report.sections.append(("callboard simulation", f"seed {seed}; replay: {command}"))
    return report
