"""Adjustments of Python's garbage collector for nodes.

A message consists of a dozen objects, none of them in a reference cycle, and hundreds of
messages are in memory at once. With Python's default threshold the collector scans them several
times per turn and finds nothing, which costs a busy node a tenth of its time. `relax` raises
the threshold.

Code that creates many objects at once needs another measure. A full collection scans all
objects, and runs each time their number has grown by a quarter. While half a million lists are
decoded, none of which is garbage, three collections take 60 ms each. So `Collector.away` moves
the new objects to the oldest generation without a scan. When many objects were created in this
way, `catch_up` runs a collection.
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
        """Run a block that creates many objects without collections."""
        if not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
        finally:
            # Otherwise objects that the program has frozen would be unfrozen.
            if not gc.get_freeze_count():
                self._built += _PART + gc.get_count()[0]
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def catch_up(self) -> None:
        """Collect if much was built; the caller no longer needs any of it."""
        if self._built > BUILT_LIMIT:
            self._built = 0
            gc.collect()
