"""Waiting for a condition that nobody tells of."""

import time
from collections.abc import Callable
from typing import Any


def eventually(check: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Poll until `check()` is true, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {check}"
        time.sleep(0.002)
    return found
