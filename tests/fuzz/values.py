"""Random messages of every kind that may travel, and the codec that knows them."""

import random
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Network
from typing import Any
from uuid import UUID

from callboard.basp.payload import PayloadCodec
from tests.basp.message_types import (
    Access,
    Box,
    Color,
    Derived,
    Empty,
    Level,
    Mode,
    Pair,
    Point,
    Ref,
    Word,
    make_registry,
)

_SCALARS: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.choice((None, True, False, 0, 23, 24, -1, 255, 256, 2**32, -(2**63))),
    lambda rng: rng.getrandbits(rng.choice((8, 32, 64, 200))) * rng.choice((1, -1)),
    lambda rng: rng.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), 1e300)),
    lambda rng: "".join(rng.choices("aé\u20ac\U0001f600 z", k=rng.randrange(40))),
    lambda rng: rng.randbytes(rng.randrange(60)),
    lambda rng: Decimal(rng.getrandbits(40)) / 1000,
    lambda rng: datetime(2026, 11, 21, tzinfo=timezone(timedelta(hours=rng.randrange(12)))),
    lambda rng: date(2026, 1, 1 + rng.randrange(28)),
    lambda rng: time(rng.randrange(24), fold=rng.randrange(2)),
    lambda rng: timedelta(rng.randrange(99), rng.randrange(99)),
    lambda rng: UUID(bytes=rng.randbytes(16)),
    lambda rng: rng.choice((IPv4Address("10.0.0.1"), IPv6Network("2001:db8::/32"))),
    lambda rng: rng.choice((*Color, *Level, *Word, *Access, Mode(3))),
    lambda rng: Ref(rng.randbytes(18), rng.getrandbits(32)),
    lambda _: Empty(),
    lambda rng: Derived(rng.getrandbits(10)),  # the last one: it is not hashable
)
_HOLDERS: tuple[Callable[[random.Random, int], Any], ...] = (
    lambda rng, depth: [value(rng, depth) for _ in range(rng.randrange(5))],
    lambda rng, depth: tuple(value(rng, depth) for _ in range(rng.randrange(4))),
    lambda rng, depth: {key(rng): value(rng, depth) for _ in range(rng.randrange(4))},
    lambda rng, _: {key(rng) for _ in range(rng.randrange(4))},
    lambda rng, _: frozenset(key(rng) for _ in range(rng.randrange(4))),
    lambda rng, depth: Point(value(rng, depth), value(rng, depth)),
    lambda rng, _: Point(scalar(rng), scalar(rng)),
    lambda rng, depth: Box(value(rng, depth), "label", [value(rng, depth)]),
    lambda rng, depth: Pair(value(rng, depth)),
    lambda rng, depth: {(key(rng), 1): value(rng, depth)},
)


def scalar(rng: random.Random) -> Any:
    """Return a message without others inside."""
    return rng.choice(_SCALARS)(rng)


def key(rng: random.Random) -> Any:
    """Return a message that may be a key."""
    return rng.choice(_SCALARS[:-1])(rng)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return a message, at most `depth` containers deep."""
    if depth and rng.random() < 0.6:
        return rng.choice(_HOLDERS)(rng, depth - 1)
    return scalar(rng)


def make_codec() -> PayloadCodec:
    """Return a codec that knows all of these types."""
    return PayloadCodec(
        make_registry(), ref_types=(Ref,), ref_to_pair=lambda ref: ref.pair, pair_to_ref=Ref
    )
