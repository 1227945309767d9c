"""What a file in `scales/` offers: one `Scale`, measured at growing sizes."""

from collections.abc import Callable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Scale:
    """A quantity that grows, and what is measured at each size.

    Attributes:
        title: What grows, in a few words.
        size: What a size counts.
        sizes: Growing; each one is measured in a process of its own.
        run: Return the figures at one size, by their name with unit.
        limit: What it comes close to at its large end, as one sentence for the page.
    """

    title: str
    size: str
    sizes: tuple[int, ...]
    run: Callable[[int], dict[str, float]]
    limit: str


def resident() -> int:
    """Return the bytes of memory that this process occupies."""
    return int(psutil.Process().memory_info().rss)
