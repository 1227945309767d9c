"""Numbers as charts write them, and the positions of grid lines."""

from collections.abc import Sequence
from math import floor, log10
from typing import Final

__all__ = ["binary", "decimal", "short", "ticks"]

_STEPS: Final = (1, 2, 2.5, 5, 10)
_SPACES: Final = 4
"""Spaces between the lines behind a chart, at most."""


def ticks(longest: float) -> list[float]:
    """Return round numbers from 0 to the last one that is not above `longest`."""
    power = 10.0 ** floor(log10(longest / _SPACES))
    step = next(power * each for each in _STEPS if longest / (power * each) <= _SPACES)
    return [step * number for number in range(int(longest / step + 1e-9) + 1)]


def short(number: float, is_binary: bool = False) -> str:  # noqa: FBT001, FBT002
    """Write a number in few characters: 300, 10 k, or 4 KiB."""
    return binary(number) if is_binary else decimal(number)


def decimal(number: float) -> str:
    """Write a number in powers of 1,000."""
    return _scaled(number, 1000, ("", " k", " M", " G", " T"))


def binary(number: float) -> str:
    """Write a number of bytes in powers of 1,024."""
    return _scaled(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    """Write a number with the largest unit that leaves 1 or more."""
    for unit in units[:-1]:
        if number < step * 0.9995:
            return f"{number:.3g}{unit}"
        number /= step
    return f"{number:.3g}{units[-1]}"
