"""Processor time of tests: the slowest are listed, and each folder has a budget.

Processor time, not time on the clock, because a busy machine stretches the latter at will. It
is the time of the process and of its ended children, so it includes programs that a test
Servers that are shared by several tests are charged to the test that stops them.

A budget is several times what the tests of a folder took when it was set, in seconds of the
machine of that day: it was measured beside other work. A short loop measures how fast the
machine at hand is, at the beginning and at the end of each process of the suite, and the
budgets grow when that loop takes longer. So a run beside other work stays within them; a test
that computes for a minute does not.
"""

import json
import os
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
BUDGETS: Final = HERE / "budgets.toml"
#: File with the figures of the last whole run: processor and clock seconds by test.
REPORT: Final = HERE.parent / "build" / "test-costs.json"

#: Tests that are listed at the end of a whole run.
LISTED: Final = 20
#: Seconds of a test without the mark `slow` beyond which the end of the run names it.
QUICK_LIMIT: Final = 1.0
#: Seconds of a folder without a line in the budgets: a new package.
DEFAULT_BUDGET: Final = 40.0
#: Seconds of the loop of `measure_speed` on the machine of the budgets.
REFERENCE: Final = 0.0115
#: Budgets do not apply to runs with more examples than these.
USUAL_EXAMPLES: Final = 30


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure_speed() -> float:
    """Return how many times longer a loop takes here than on the machine of the budgets."""
    samples = []
    for _ in range(5):
        start = time.thread_time()
        sum(number * number % 7 for number in range(150_000))
        samples.append(time.thread_time() - start)
    return statistics.median(samples) / REFERENCE


def is_quick_run(config: pytest.Config) -> bool:
    """Return whether the run leaves out tests that are marked slow, as `make test` does."""
    return "not slow" in config.getoption("markexpr")


def folder_of(nodeid: str) -> str:
    """Return the folder with the budget of a test: the folder of its package."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parent.parts
    return "/".join(parts[: 3 if parts[1:2] == ("callboard",) else 2])


def over_budget(
    spent: Mapping[str, float], budgets: Mapping[str, float], speed: float
) -> list[str]:
    """Return a line for each folder that took more than its budget on such a machine."""
    lines = []
    for folder, seconds in sorted(spent.items()):
        budget = budgets.get(folder, DEFAULT_BUDGET) * max(speed, 1.0)
        if seconds > budget:
            lines.append(f"{folder} took {seconds:.1f} s, its budget is {budget:.1f} s")
    return lines


class Costs:
    """Plugin of pytest that adds up what tests cost, in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._spent: Counter[str] = Counter()
        self._waited: Counter[str] = Counter()
        self._slow: set[str] = set()
        self._speeds = [measure_speed()]
        self._total = 0.0
        self._is_worker = hasattr(config, "workerinput")

    @property
    def _budgets(self) -> Mapping[str, float]:
        """The budgets of this kind of run: without the tests marked slow, or of all."""
        kind = "quick" if is_quick_run(self._config) else "all"
        budgets: Mapping[str, float] = tomllib.loads(BUDGETS.read_text())[kind]
        return budgets

    @property
    def _is_whole(self) -> bool:
        """Whether the run is of all folders, with the usual number of examples."""
        return (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not self._config.getoption("keyword")
            and settings().max_examples <= USUAL_EXAMPLES
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Attach the cost of the test so far to the report of each phase."""
        report: Any = yield
        report.cost = processor_seconds() - item.stash[_begun]
        report.is_slow = item.get_closest_marker("slow") is not None
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Remember where the processor time of the test begins."""
        item.stash[_begun] = processor_seconds()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase up."""
        if hasattr(report, "cost") and not self._is_worker:
            self._spent[report.nodeid] = report.cost
            self._waited[report.nodeid] += report.duration
            if report.is_slow:
                self._slow.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of xdist measured."""
        output = getattr(node, "workeroutput", {})
        if "processor_seconds" in output:
            self._speeds += output["speeds"]
            self._total += output["processor_seconds"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over the figures of this process, or hold the budgets."""
        self._speeds.append(measure_speed())
        if self._is_worker:
            output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined]
            output.update(speeds=self._speeds, processor_seconds=processor_seconds())
            return
        if self._is_whole and session.exitstatus == pytest.ExitCode.OK and self._over():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the slowest tests, and folders beyond their budgets."""
        if not self._is_whole or not self._spent:
            return
        REPORT.parent.mkdir(exist_ok=True)
        costs = {each: (spent, self._waited[each]) for each, spent in self._spent.items()}
        REPORT.write_text(json.dumps(costs, indent=0))
        write = terminalreporter.write_line
        terminalreporter.section(f"{LISTED} slowest tests, in seconds of processor time")
        for nodeid, seconds in self._spent.most_common(LISTED):
            write(f"{seconds:7.2f} s, after {self._waited[nodeid]:6.2f} s: {nodeid}")
        spent = sum(self._spent.values())
        text = f"{spent:.0f} s in {len(self._spent):,} tests"
        if self._total:
            text += f", {self._total - spent:.0f} s for imports and collection"
        write(
            f"{text}; the machine takes {self._speed:.2f} times as long as that of the budgets"
        )
        if is_quick_run(self._config):
            for nodeid, seconds in self._spent.most_common():
                if seconds < QUICK_LIMIT * max(self._speed, 1.0):
                    break
                write(f"to be cheaper, or marked slow: {seconds:.1f} s in {nodeid}")
        for line in self._over():
            terminalreporter.write_line(f"over budget (tests/budgets.toml): {line}", red=True)

    @property
    def _speed(self) -> float:
        return statistics.median(self._speeds)

    def _over(self) -> list[str]:
        """Return the folders beyond their budgets."""
        spent: Counter[str] = Counter()
        for nodeid, seconds in self._spent.items():
            spent[folder_of(nodeid)] += seconds
        return over_budget(spent, self._budgets, self._speed)


_begun = pytest.StashKey[float]()
