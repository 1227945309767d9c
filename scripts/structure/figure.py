"""One figure of the source."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: its key in the limits file.
        value: what was measured.
        meaning: what it counts.
        is_floor: whether the limit is the least it may be, not the most.
        found: what was counted, a line each, the worst first.
    """

    name: str
    value: float
    meaning: str
    is_floor: bool = False
    found: Sequence[str] = field(default=(), repr=False)
