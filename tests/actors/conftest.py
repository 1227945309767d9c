"""A runtime for each test, and a check that its threads end with it."""

import threading
import time

import pytest

from callboard.actors.runtime import Runtime

THREADS_END_WITHIN = 60.0
"""Seconds; executors and the watcher end a few milliseconds after the runtime."""


def runtime_threads():
    return {t for t in threading.enumerate() if t.name.startswith(("callboard-", "asyncio_"))}


@pytest.fixture
def no_thread_left():
    before = runtime_threads()
    yield
    deadline = time.monotonic() + THREADS_END_WITHIN
    for thread in runtime_threads() - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert runtime_threads() - before == set()


@pytest.fixture
def runtime(no_thread_left):
    runtime = Runtime("test")
    yield runtime
    assert runtime.end_actors()
    runtime.close()
