"""One figure of the source."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: its key in the limits file.
        value: the measured value.
        meaning: description of the counted things.
        is_floor: whether the limit is the smallest allowed value, not the greatest.
        found: the counted places, one line each, the worst first.
        default_limit: the limit if the file has none; None if the file must have one.
    """

    name: str
    value: float
    meaning: str
    is_floor: bool = False
    found: Sequence[str] = field(default=(), repr=False)
    default_limit: float | None = None
