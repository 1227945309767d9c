"""Adjustments of Python's garbage collector for nodes.

A message in transit consists of a dozen objects, none of them in a cycle, and hundreds of
messages are in transit at once. With Python's default threshold the collector scans them
several times per turn and finds nothing, which costs a busy node a tenth of its time. `relax`
raises the threshold.

Building many objects at once needs more. A full collection scans all objects, and runs each
time their number has grown by a quarter: three times 60 ms while half a million lists are read,
none of them garbage. So `Collector.away` moves what was built to the oldest generation without
a scan, and `catch_up` collects after much was built this way.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Threshold of young objects in the process of a node, and Python's defaults (3.11 and 3.12;
#: 3.13), which it replaces.
YOUNG: Final = 10_000
_DEFAULTS: Final = frozenset((700, 2_000))

#: Objects built between two collections: the contents of about ten of the largest messages.
BUILT_LIMIT: Final = 5_000_000

#: Objects that each part counts in addition: freezing also ages other objects of the process.
_PART: Final = 1_000


def relax() -> None:
    """Collect young objects less often, unless the program has set its own threshold."""
    young, *older = gc.get_threshold()
    if young in _DEFAULTS:
        gc.set_threshold(YOUNG, *older)


class Collector:
    """Suspends garbage collection while many objects are built."""

    def __init__(self) -> None:
        """Start with no objects built."""
        self._built = 0

    @contextmanager
    def away(self) -> Iterator[None]:
        """Build a part without collections."""
        if not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            if not gc.get_freeze_count():  # objects that the program froze have to stay frozen
                self._built += _PART + gc.get_count()[0]
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def catch_up(self) -> None:
        """Collect if much was built; the caller no longer needs any of it."""
        if self._built > BUILT_LIMIT:
            self._built = 0
            gc.collect()
