"""Shared parts of the fault tests: marks, figures, polling, and turns.

`CALLBOARD_ROUNDS` says how often, or how many times as long, each is done; in CI once.
`make faults` runs two at a time, except for tests marked `alone`: they measure time.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LOCKS = HERE.parents[1] / "build"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, begin with those with Spark, and end with those alone.

    So one process has those with Spark: xdist gives each an eighth of all to begin with.
    """
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run beside the other process's test, or alone; its time starts after the wait."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    LOCKS.mkdir(exist_ok=True)
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with (LOCKS / "faults.lock").open("w") as place:
        with (LOCKS / "faults.turn").open("w") as turn:  # no test overtakes a waiting one
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(place, kind)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the figures of a test, also when it passes."""
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        for name, text in report.user_properties:
            if name == "figure":
                print(f"\n  {text}", flush=True)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Report a figure; it is printed when the test has ended."""
    return lambda text: request.node.user_properties.append(("figure", text))


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Poll until a check is true; what it raises counts as not yet."""

    def poll(check: Callable[[], Any], seconds: float, pause: float = 0.02) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            problem: object = None
            try:
                if found := check():
                    return found
            except Exception as error:  # noqa: BLE001  (all kinds of asks fail during faults)
                problem = error
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {problem}"
            time.sleep(pause)

    return poll
