"""The wall clock, where stored times need it; everything else uses the node's own clock."""

import time
from collections.abc import Callable

__all__ = ["wall_offset"]


def wall_offset(now: Callable[[], float]) -> float:
    """Return the seconds since 1970 at which the clock `now` showed 0."""
    return time.time_ns() / 1e9 - now()
