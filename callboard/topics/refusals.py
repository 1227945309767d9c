"""Refusals by other endpoints, at which this node is a leaf and lacks a right."""

import logging
from collections.abc import Callable
from typing import Final

from callboard.topics.machine.effect import RefusedThere

_log: Final = logging.getLogger("callboard.topics")

#: Maximum number of remembered refusals; each of these is logged once.
REFUSALS_KEPT: Final = 256

#: Maximum number of characters of a refused topic or store in events and logs.
NAME_SHOWN: Final = 200


class Refusals:
    """The refusals since the last new link. Used on the node's thread.

    Attributes:
        listeners: called with each refusal.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[RefusedThere], object]] = []
        self._by_right: dict[tuple[str, str], RefusedThere] = {}

    def get(self, right: str, name: str) -> RefusedThere | None:
        """Return the refusal of a right to a topic or store."""
        return self._by_right.get((right, name))

    def record(self, refusal: RefusedThere) -> None:
        """Log a refusal once, and notify the listeners."""
        key = refusal.right, refusal.name
        if key not in self._by_right and len(self._by_right) < REFUSALS_KEPT:
            self._by_right[key] = refusal
            text = "node %s refuses this one the right %s for %r"
            _log.warning(text, refusal.node.hex(), refusal.right, refusal.name[:NAME_SHOWN])
        for listener in list(self.listeners):
            listener(refusal)

    def clear(self) -> None:
        """Forget all refusals: a new link may have other rights."""
        self._by_right.clear()
