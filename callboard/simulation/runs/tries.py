"""Runs that are lived to make a failure small: each once, several at a time.

Where a run takes long and processors are free, those that shrinking may ask for next are lived
in children at the same time. What is found is the same as one by one: a run depends on its
seed, faults and steps alone.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from callboard.simulation.faults import Fault
from callboard.simulation.runs.shrinking import Fails

#: Seconds of a run from which on a child is worth it.
_WORTH: Final = 0.05

Try = tuple[list[Fault], list[int]]


def processors() -> int:
    """Return how many processes may live runs; one where forks are not safe or not allowed.

    Workers of a `multiprocessing.Pool` are daemons, which may have no children.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ or multiprocessing.current_process().daemon
    if is_worker or not hasattr(os, "fork") or threading.active_count() > 1:
        return 1
    return os.cpu_count() or 1


class Tries:
    """Tells whether runs fail."""

    def __init__(self, fails: Fails, is_over: Callable[[int], bool]) -> None:
        """Begin with none.

        Args:
            fails: lives a run, and returns whether it fails.
            is_over: whether the time is over if so many faults and steps are needed.
        """
        self._fails = fails
        self._is_over = is_over
        self._known: dict[object, bool] = {}
        #: Faults and steps of the smallest run that fails.
        self._smallest = 1_000_000
        #: Seconds that a run took.
        self._took = 0.0

    def fails(self, faults: list[Fault], steps: list[int]) -> bool:
        """Return whether a run fails; False once the time is over."""
        key = _key((faults, steps))
        if key not in self._known:
            if self._is_over(self._smallest):
                return False
            begin = time.monotonic()
            self._known[key] = self._fails(faults, steps)
            self._took = time.monotonic() - begin
        if self._known[key]:
            self._smallest = min(self._smallest, len(faults) + len(steps))
        return self._known[key]

    def ahead(self, tries: list[Try]) -> None:
        """Live the next runs, as many as there are processors."""
        todo = [tried for tried in tries if _key(tried) not in self._known]
        todo = todo[: processors()]
        if len(todo) < 2 or self._took < _WORTH or self._is_over(self._smallest):
            return
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        children = [
            context.Process(target=self._child, args=(place, tried, answers))
            for place, tried in enumerate(todo[1:], 1)
        ]
        for child in children:
            child.start()
        found = {0: self._fails(*todo[0])}
        found.update(answers.get() for _ in children)
        for child in children:
            child.join()
        for place, tried in enumerate(todo):
            self._known[_key(tried)] = found[place]

    def _child(self, place: int, tried: Try, answers: Any) -> None:
        """Live a run in a process of its own."""
        failed = False
        try:
            failed = self._fails(*tried)
        finally:  # ctrl-C ends the parent as well
            answers.put((place, failed))
            os._exit(0)


def _key(tried: Try) -> object:
    """Return what a run depends on."""
    return tuple(tried[0]), tuple(tried[1])
