"""Nodes beside Python's garbage collector.

A message on its way is a dozen objects, none of them in a cycle, and hundreds are under way at
once. With Python's default threshold the collector looks through them several times in each
turn and finds nothing: a tenth of the time of a busy node. `relax` lets it look less often.

Building much at once has its own way. A full collection goes through everything that there is,
and there is one each time that a quarter more was built: three of 60 ms while half a million
lists are read, and nothing of them is garbage. So what is built is put among the oldest objects
without a look, and collected with them when much was built so.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Young objects after which a node's process looks for garbage, and Python's defaults (3.11 and
#: 3.12; 3.13), which are replaced by it.
YOUNG: Final = 10_000
_DEFAULTS: Final = frozenset((700, 2_000))

#: Objects that are built between two collections: what ten of the largest messages hold.
BUILT_LIMIT: Final = 5_000_000

#: What a part of the building counts besides: it takes others along, unseen.
_PART: Final = 1_000


def relax() -> None:
    """Look through the young objects less often, unless the program has said how often."""
    young, *older = gc.get_threshold()
    if young in _DEFAULTS:
        gc.set_threshold(YOUNG, *older)


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
