"""Environment variables of simulated tests.

`CALLBOARD_SEEDS` sets the number of seeds or random schedules, `CALLBOARD_SECONDS` the time in
which further ones are started, `CALLBOARD_NEW_SEEDS=1` draws new random ones, and
`CALLBOARD_SEED` sets a single seed for all simulations.
"""

import os
import random
import zlib
from typing import Final

from callboard.kernel.errors import WrongValue

_SEED: Final = "CALLBOARD_SEED"
_SEEDS: Final = "CALLBOARD_SEEDS"
_SECONDS: Final = "CALLBOARD_SECONDS"
_NEW_SEEDS: Final = "CALLBOARD_NEW_SEEDS"


def check() -> None:
    """Check all variables.

    Raises:
        WrongValue: a variable has an invalid value.
    """
    seed()
    seeds(1)
    seconds(1.0)


def seed() -> int | None:
    """Return the seed of all simulations; None if each has its own.

    Raises:
        WrongValue: the value is not a seed.
    """
    text = os.environ.get(_SEED)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise _wrong(_SEED, text, "a seed as it is printed")
    return int(text)


def seeds(default: int) -> int:
    """Return the number of seeds or random schedules of a test.

    Raises:
        WrongValue: the value is not a whole number of at least 1.
    """
    text = os.environ.get(_SEEDS, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise _wrong(_SEEDS, text, "a whole number of at least 1")
    return int(text)


def seconds(default: float) -> float:
    """Return the seconds in which a test starts further seeds or schedules.

    Raises:
        WrongValue: the value is not a number of at least 0.
    """
    text = os.environ.get(_SECONDS, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not number >= 0.0:  # true for NaN as well
        raise _wrong(_SECONDS, text, "a number of seconds of at least 0")
    return number


def chance(test: str) -> random.Random:
    """Return a random source seeded by the name of a test, or by the system if enabled."""
    if os.environ.get(_NEW_SEEDS, "").strip() not in ("", "0"):
        return random.SystemRandom()
    return random.Random(zlib.crc32(test.encode()))


def _wrong(variable: str, text: str, right: str) -> WrongValue:
    """Return the error for a variable."""
    return WrongValue(f"{variable} is {text!r}; give {right}, or unset it")
