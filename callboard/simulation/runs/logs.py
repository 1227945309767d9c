"""Limit the log that pytest shows for a test with many runs to the last run.

The logs of thousands of passed runs, and of those for shrinking a failure, would hide the few
lines about the failure.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


@contextmanager
def unlogged(request: "pytest.FixtureRequest") -> Iterator[None]:
    """Hide the log of a block from pytest, unless the test itself uses `caplog`."""
    root = logging.getLogger()
    removed = []
    if "caplog" not in request.fixturenames:
        removed = [
            handler
            for handler in root.handlers
            if type(handler).__module__.startswith("_pytest.")
        ]
    null_handler = logging.NullHandler()  # without any handler, Python logs to stderr
    root.addHandler(null_handler)
    for handler in removed:
        root.removeHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(null_handler)
        for handler in removed:
            root.addHandler(handler)
