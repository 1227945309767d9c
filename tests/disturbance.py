"""A machine of another speed: a node's work is delayed, and so is the next line of a test.

A plugin of pytest. `DISTURB=7 make test ARGS="-p tests.disturbance"` lets runners, subscribers,
log records and threads wait for a few milliseconds now and then, and the test itself between
its lines; 7 is where chance begins. A test that passes here asks for no effect at the moment of
its cause. Bounds on time that assume a fast machine fail: run those again without.
"""

import logging
import os
import random
import sys
import threading
from weakref import WeakKeyDictionary

import pytest

from callboard.actors.runner.runner import Runner
from callboard.actors.runtime import Runtime

SWITCH_INTERVAL = 0.00005
OF_A_TEST = 0.5  # seconds that the lines of one test wait at most
_never = threading.Event()
_chance = random.Random(os.environ.get("DISTURB", "0"))


def _delay(share: float, longest: float) -> float:
    """Wait with a probability of `share`, and return how long."""
    seconds = _chance.random() * longest if _chance.random() < share else 0.0
    if seconds:
        _never.wait(seconds)
    return seconds


def _delayed(owner, name: str, *speeds: tuple[float, float]) -> None:
    """Delay a method before it starts, except on the thread of the test.

    Each object has a random delay for its lifetime: of two nodes one may be quick.
    """
    method = getattr(owner, name)
    slowness: WeakKeyDictionary[object, tuple[float, float]] = WeakKeyDictionary()

    def late(*args, **options):
        if threading.current_thread() is not threading.main_thread():
            _delay(*slowness.setdefault(args[0], _chance.choice(speeds)))
        return method(*args, **options)

    setattr(owner, name, late)


def pytest_configure():
    sys.setswitchinterval(SWITCH_INTERVAL)
    never = (0.0, 0.0)
    _delayed(Runner, "_housekeep", never, (0.05, 0.02), (0.5, 0.03))  # no node takes over
    _delayed(Runtime, "report", never, (0.3, 0.01), (0.5, 0.1))
    _delayed(logging.Logger, "callHandlers", never, (0.3, 0.01), (0.5, 0.1))
    _delayed(threading.Thread, "run", never, (1.0, 0.02), (1.0, 0.1))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Delay the lines of a test."""
    body, left = getattr(pyfuncitem.obj, "__code__", None), OF_A_TEST

    def at_line(frame, event, arg):
        nonlocal left
        if event == "line" and left > 0.0:
            left -= _delay(0.2, 0.05)
        return at_line

    sys.settrace(lambda frame, event, arg: at_line if frame.f_code is body else None)
    try:
        return (yield)
    finally:
        sys.settrace(None)
