"""What pytest shows of the log of a test that lives many runs: that of the last one.

The log of thousands of runs that passed, and of those in which a failure was made small, would
hide the few lines that tell of the failure.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


@contextmanager
def unlogged(request: "pytest.FixtureRequest") -> Iterator[None]:
    """Keep from pytest what is logged in a block, unless the test itself looks at it."""
    root = logging.getLogger()
    taken = []
    if "caplog" not in request.fixturenames:
        taken = [
            handler
            for handler in root.handlers
            if type(handler).__module__.startswith("_pytest.")
        ]
    nothing = logging.NullHandler()  # without any handler, Python writes to stderr
    root.addHandler(nothing)
    for handler in taken:
        root.removeHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(nothing)
        for handler in taken:
            root.addHandler(handler)
