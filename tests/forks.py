"""A plugin of pytest: `--forks 4` runs tests in four forks of the process that collected them.

xdist starts an interpreter for each of its workers, and each imports and collects all tests:
more than ten seconds of processor time per worker. A fork begins with what its parent
collected, at no cost. So more workers are affordable, which keeps the processors busy while
tests wait.

As with `--dist loadfile`, all tests of a file are run by one worker (or all of a folder, see
`unit_of` in conftest.py), in the order of the collection. A worker asks for its next unit
before it runs the last test of the current one, because fixtures are torn down according to the
following test. Tests and plugins see what they see in a worker of xdist: `config.workerinput`,
and `PYTEST_XDIST_WORKER`.

A worker that dies fails the test that it ran. Another fork takes its place and continues with
the rest of its unit.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import pytest
from _pytest.config import create_terminal_writer
from xdist.remote import serialize_warning_message
from xdist.workermanage import unserialize_warning_message

#: Seconds between two looks for workers that ended while a process of a test keeps their
#: connection open.
LOOK: Final = 1.0
#: Seconds in which the workers of an interrupted run clean up.
GRACE: Final = 10.0
#: Seconds after which a worker ends although a function of `atexit` hangs.
EXIT_LIMIT: Final = 60.0
#: Folders whose files are run by one worker, which so starts Spark once.
TOGETHER: Final = ("tests/callboard/pipeline/",)


def unit_of(nodeid: str) -> str:
    """Return the file or the folder whose tests are run by one worker."""
    folders = (folder for folder in TOGETHER if nodeid.startswith(folder))
    return next(folders, nodeid.partition("::")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--forks`."""
    text = "run the tests in NUMBER forks of the process that collected them"
    group = parser.getgroup("forks")
    group.addoption("--forks", type=int, default=0, metavar="NUMBER", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in forks if the option asks for it."""
    config = session.config
    count = config.getoption("forks")
    if not count or config.option.collectonly:
        return None
    if session.testsfailed and not config.option.continue_on_collection_errors:
        message = f"{session.testsfailed} errors during collection"
        raise session.Interrupted(message)
    units: dict[str, list[int]] = {}
    for index, item in enumerate(session.items):
        units.setdefault(unit_of(item.nodeid), []).append(index)
    Parent(session, deque(units.values())).run(min(count, len(units)))
    return True


@dataclass
class Worker:
    """A forked process, as its parent sees it."""

    name: str
    process: int
    connection: Connection
    #: Indices of tests that the worker has received and not finished.
    left: list[int] = field(default_factory=list)


class Parent:
    """Hands units of tests to workers, and passes on their reports."""

    def __init__(self, session: pytest.Session, units: deque[list[int]]) -> None:
        self._session = session
        self._config: Any = session.config
        self._units = units
        self._workers: list[Worker] = []
        self._started = 0

    def run(self, count: int) -> None:
        """Run all units, or those before the run has to stop."""
        try:
            for _ in range(count):
                self._fork()
            while self._workers:
                self._poll()
        finally:
            self._interrupt()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    @property
    def _stops(self) -> bool:
        """Whether no further test shall begin."""
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _fork(self) -> None:
        """Start a worker."""
        name = f"gw{self._started}"
        self._started += 1
        folder = self._config._tmp_path_factory.getbasetemp() / f"popen-{name}"
        own, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            # Each copy of the parent's end keeps a worker from noticing that the parent died.
            for connection in (own, *(worker.connection for worker in self._workers)):
                connection.close()
            Child(self._session, other, name, folder).run()
        other.close()
        self._workers.append(Worker(name, process, own))

    def _poll(self) -> None:
        """Handle the messages that have arrived, and the ends of workers."""
        ready = wait([worker.connection for worker in self._workers], LOOK)
        for worker in [*self._workers]:
            if worker.connection in ready:
                try:
                    kind, value = worker.connection.recv()
                except (EOFError, OSError):
                    self._remove(worker, os.waitpid(worker.process, 0)[1])
                else:
                    self._handle(worker, kind, value)
            elif not ready:
                process, status = os.waitpid(worker.process, os.WNOHANG)
                if process:
                    self._remove(worker, status)

    def _handle(self, worker: Worker, kind: str, value: Any) -> None:
        """Handle a message of a worker."""
        hook = self._config.hook
        if kind == "next":
            unit = self._units.popleft() if self._units and not self._stops else []
            worker.left += unit
            self._send(worker, unit)
        elif kind == "finished":
            worker.left.remove(value)
            if self._stops:
                self._send(worker, [])
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=value)
            report.node = _node(worker.name)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            value["warning_message"] = unserialize_warning_message(value["warning_message"])
            hook.pytest_warning_recorded.call_historic(kwargs=value)
        else:
            if self._stops:  # else tests that were not run are missed, as after a crash
                worker.left.clear()
            hook.pytest_testnodedown(node=SimpleNamespace(workeroutput=value), error=None)

    def _send(self, worker: Worker, unit: list[int]) -> None:
        """Send a unit; an empty one makes the worker end."""
        with contextlib.suppress(OSError):  # it has died, which the next poll shows
            worker.connection.send(unit)

    def _remove(self, worker: Worker, status: int) -> None:
        """Forget a worker that has ended, and replace it if it had tests left."""
        self._workers.remove(worker)
        worker.connection.close()
        if not worker.left:
            return
        item = self._session.items[worker.left.pop(0)]
        code = os.waitstatus_to_exitcode(status)
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"worker {worker.name} ended with {reason} in {item.nodeid}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if worker.left:
            self._units.appendleft(worker.left)
        if not self._stops:
            self._fork()

    def _interrupt(self) -> None:
        """End the workers that are left."""
        for number in (signal.SIGINT, signal.SIGKILL):
            for worker in self._workers:
                os.kill(worker.process, number)
            end = time.monotonic() + GRACE
            while self._workers and time.monotonic() < end:
                for worker in [*self._workers]:
                    if os.waitpid(worker.process, os.WNOHANG)[0]:
                        self._workers.remove(worker)
                time.sleep(0.01)


def _node(name: str) -> SimpleNamespace:
    """Return what pytest reads of a worker of xdist; it prints their results in one line."""
    gateway = SimpleNamespace(id=name)
    return SimpleNamespace(gateway=gateway, _workerinfocache=f"[{name}]")


class Child:
    """Runs the units that the parent hands out, in a forked process."""

    def __init__(
        self, session: pytest.Session, connection: Connection, name: str, folder: Path
    ) -> None:
        self._session = session
        self._config: Any = session.config
        self._connection = connection
        self._name = name
        self._folder = folder
        self._indices: deque[int] = deque()

    def run(self) -> NoReturn:
        """Run units until there are none, and end the process."""
        code = 1
        try:
            self._begin()
            self._run_units()
            self._config.hook.pytest_sessionfinish(session=self._session, exitstatus=0)
            self._connection.send(("output", self._config.workeroutput))
            code = 0
        except BaseException as error:  # noqa: BLE001  # the callers are those of the parent
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exc()
            with contextlib.suppress(BaseException):
                self._session._setupstate.teardown_exact(None)
        finally:
            faulthandler.dump_traceback_later(EXIT_LIMIT, exit=True)
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()  # `os._exit` calls none
            os._exit(code)

    def _begin(self) -> None:
        """Become a worker: own files, and reports to the parent instead of the terminal."""
        os.environ["PYTEST_XDIST_WORKER"] = self._name
        self._config.workerinput = {"workerid": self._name}
        self._config.workeroutput = {}
        self._folder.mkdir(mode=0o700)
        self._config._tmp_path_factory._basetemp = self._folder
        manager = self._config.pluginmanager
        manager.unregister(name="terminalreporter")
        writer = create_terminal_writer(self._config, sys.stderr)
        manager.register(SimpleNamespace(_tw=writer), "terminalreporter")  # of pytest-timeout
        manager.register(self, "forks-child")
        capture = manager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are shared with the other forks
        # Between tests nothing is captured, and threads may print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def _run_units(self) -> None:
        """Run the tests of all units, each with the test that follows it."""
        index = self._next()
        while index is not None:
            item = self._session.items[index]
            following = self._next()
            next_item = None if following is None else self._session.items[following]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
            self._connection.send(("finished", index))
            index = following
            if self._session.shouldfail or self._session.shouldstop or self._connection.poll():
                break  # the parent sends nothing that was not asked for but the end
        self._session._setupstate.teardown_exact(None)

    def _next(self) -> int | None:
        """Return the index of the next test; None if there is none."""
        if not self._indices:
            self._connection.send(("next", None))
            self._indices.extend(self._connection.recv())
        return self._indices.popleft() if self._indices else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        data = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning."""
        data = {
            "warning_message": serialize_warning_message(warning_message),
            "when": when,
            "nodeid": nodeid,
            "location": location,
        }
        self._connection.send(("warning", data))
