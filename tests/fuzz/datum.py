"""Random values of the data model of topics."""

import random
from collections.abc import Callable
from typing import Any

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import Data
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp

_EDGES = (0, 1, 23, 24, 255, 256, 2**31, 2**32 - 1, 2**63 - 1)
#: Thirty years of nanoseconds, a usual range of times.
_MOMENT = 2**60

_SCALARS: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.choice((None, True, False)),
    lambda rng: rng.choice(_EDGES) * rng.choice((1, -1)),
    lambda rng: rng.getrandbits(60),
    lambda rng: rng.choice((0.0, -0.0, 1.5, float("inf"), 1e300, rng.random())),
    lambda rng: "".join(rng.choices("a\u00e9\u20ac\U0001f600 z", k=rng.randrange(30))),
    lambda rng: rng.randbytes(rng.randrange(20)),
    lambda rng: Count(rng.choice((*_EDGES, 2**64 - 1))),
    lambda rng: Enum("".join(rng.choices("AB_:", k=rng.randrange(9)))),
    lambda rng: _address(rng),
    lambda rng: Subnet(Address(rng.randbytes(4), 4), rng.randrange(33)),
    lambda rng: Port(rng.getrandbits(16), rng.randrange(4)),
    lambda rng: Timestamp(rng.randrange(_MOMENT) / 1e9),
    lambda rng: Timespan(rng.randrange(-_MOMENT, _MOMENT)),
)


def _address(rng: random.Random) -> Address:
    return Address(rng.randbytes(4), 4) if rng.random() < 0.5 else Address(rng.randbytes(16), 6)


def datum(rng: random.Random, depth: int = 3) -> Data:
    """Return a value, at most `depth` containers deep."""
    kind = rng.randrange(4) if depth else 3
    if kind == 3:
        return Data(rng.choice(_SCALARS)(rng))
    inner = [datum(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 0:
        return Data(inner)
    if kind == 1:
        return Data(set(inner))
    return Data({key: datum(rng, depth - 1) for key in inner})
