"""What the environment says of simulated tests: how many, for how long, with which seeds.

`CALLBOARD_SEEDS` sets how many seeds or random schedules there are, `CALLBOARD_SECONDS` for how
long further ones are begun, `CALLBOARD_NEW_SEEDS=1` draws others than yesterday, and
`CALLBOARD_SEED` is the one seed of all simulations.
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
    """Read all variables.

    Raises:
        WrongValue: one has a value that cannot be meant.
    """
    seed()
    seeds(1)
    seconds(1.0)


def seed() -> int | None:
    """Return the seed that all simulations are to have; None if each has its own.

    Raises:
        WrongValue: it is none.
    """
    text = os.environ.get(_SEED)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise _wrong(_SEED, text, "a seed as it is printed")
    return int(text)


def seeds(default: int) -> int:
    """Return how many seeds, or random schedules, a test has.

    Raises:
        WrongValue: it is no whole number from 1 on.
    """
    text = os.environ.get(_SEEDS, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise _wrong(_SEEDS, text, "a whole number from 1 on")
    return int(text)


def seconds(default: float) -> float:
    """Return for how many seconds a test begins further seeds or schedules.

    Raises:
        WrongValue: it is no number from 0 on.
    """
    text = os.environ.get(_SECONDS, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not number >= 0.0:  # also what is no number
        raise _wrong(_SECONDS, text, "a number of seconds from 0 on")
    return number


def chance(test: str) -> random.Random:
    """Return where what a test tries comes from: its name, or chance where that is wanted."""
    if os.environ.get(_NEW_SEEDS, "").strip() not in ("", "0"):
        return random.SystemRandom()
    return random.Random(zlib.crc32(test.encode()))


def _wrong(variable: str, text: str, right: str) -> WrongValue:
    """Return the error of a variable."""
    return WrongValue(f"{variable} is {text!r}; give {right}, or unset it")
