"""Building much at once beside Python's garbage collector.

A full collection goes through everything that there is, and there is one each time that a
quarter more was built: three of 60 ms while half a million lists are read, and nothing of
them is garbage. So what is built is put among the oldest objects without a look, and collected
with them when much was built so.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Objects that are built between two collections: what ten of the largest messages hold.
BUILT_LIMIT: Final = 5_000_000

#: What a part of the building counts besides: it takes others along, unseen.
_PART: Final = 1_000


class Collector:
    """Keeps the collector away from what is being built."""

    def __init__(self) -> None:
        """Begin with nothing built."""
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
            if not gc.get_freeze_count():  # what a program has frozen stays so
                self._built += _PART + gc.get_count()[0]
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    def catch_up(self) -> None:
        """Collect if much was built; called when none of it is needed."""
        if self._built > BUILT_LIMIT:
            self._built = 0
            gc.collect()
