"""Runs for shrinking a failure: each run once, several in parallel.

If runs are slow and processors are free, the runs that shrinking may need next are executed in
child processes. The result does not change: a run depends only on its seed, faults and steps.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from callboard.simulation.faults import Fault
from callboard.simulation.runs.shrinking import Fails

#: Minimum duration of a run, in seconds, for which a child process is worthwhile.
_WORTH: Final = 0.05

Try = tuple[list[Fault], list[int]]


def processors() -> int:
    """Return the number of processes for runs; 1 if forking is unsafe or not allowed.

    Workers of a `multiprocessing.Pool` are daemons, which cannot have children.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ or multiprocessing.current_process().daemon
    if is_worker or not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    return os.cpu_count() or 1


class Tries:
    """Runs and remembers whether they failed."""

    def __init__(self, fails: Fails, is_over: Callable[[int], bool]) -> None:
        """Start without results.

        Args:
            fails: executes a run, and returns whether it fails.
            is_over: returns whether the time limit for this many faults and steps is over.
        """
        self._fails = fails
        self._is_over = is_over
        self._known: dict[object, bool] = {}
        #: Number of faults and steps of the smallest failing run.
        self._smallest = 1_000_000
        #: Duration of the last run, in seconds.
        self._took = 0.0

    def fails(self, faults: list[Fault], steps: list[int]) -> bool:
        """Return whether a run fails; False after the time limit."""
        key = _key((faults, steps))
        if key not in self._known:
            if self._is_over(self._smallest):
                return False
            start = time.monotonic()
            self._known[key] = self._fails(faults, steps)
            self._took = time.monotonic() - start
        if self._known[key]:
            self._smallest = min(self._smallest, len(faults) + len(steps))
        return self._known[key]

    def ahead(self, tries: list[Try]) -> None:
        """Execute the next runs in parallel, one on each processor."""
        runs = [run for run in tries if _key(run) not in self._known]
        runs = runs[: processors()]
        if len(runs) < 2 or self._took < _WORTH or self._is_over(self._smallest):
            return
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        children = [
            context.Process(target=self._child, args=(place, run, answers))
            for place, run in enumerate(runs[1:], 1)
        ]
        for child in children:
            child.start()
        outcomes = {0: self._fails(*runs[0])}
        outcomes.update(answers.get() for _ in children)
        for child in children:
            child.join()
        for place, run in enumerate(runs):
            self._known[_key(run)] = outcomes[place]

    def _child(self, place: int, tried: Try, answers: Any) -> None:
        """Execute a run in a child process."""
        failed = False
        try:
            failed = self._fails(*tried)
        finally:  # also after ctrl-C, which ends the parent as well
            answers.put((place, failed))
            os._exit(0)


def _key(tried: Try) -> object:
    """Return a hashable key of a run."""
    return tuple(tried[0]), tuple(tried[1])
