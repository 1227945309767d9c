"""Waiting for a condition without a notification."""

import time
from collections.abc import Callable
from typing import Any


def eventually(
    check: Callable[[], Any], seconds: float = 60.0, *, interval: float = 0.002
) -> Any:
    """Poll until `check()` is true, and return its result.

    Raises:
        AssertionError: it was not true in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {check}"
        time.sleep(interval)  # the one for all tests: nothing tells when the condition holds
    return found
