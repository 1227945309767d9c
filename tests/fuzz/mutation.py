"""Seeded damage: to bytes, to frames that know where their fields stand, and to streams."""

import random
from collections.abc import Sequence

from callboard.basp.header import HEADER, HEADER_SIZE, OPERATION_COUNT

OTHER = b"o" * 18
"""A node that nobody is linked with."""

_NUMBERS = (0, 1, 2, 3, 13, 14, 15, 16, 17, 255, 65_535, 65_536, 2**31, 2**32 - 1)
_DATA = (0, 1, 2, 7, 8, 1 << 56, 1 << 61, 1 << 62, 1 << 63, (1 << 63) | 1, 2**64 - 1)
#: First bytes of CBOR items that say much about what follows.
_HEADS = bytes.fromhex(
    "0018191a1b1f203b405840595a5b5f60787f80989a9b9fa0b8babbbfc0c2c3d8d9dadbf4f6f7f9fbff"
)
_RAREST = 20


def mutate_bytes(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return `data` with one to four small damages."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _damage(rng, made, others)
    return bytes(made)


def _damage(rng: random.Random, made: bytearray, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(made) + 1)
    kind = rng.randrange(9)
    if kind == 0 and at < len(made):
        made[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(made):
        made[at] = rng.randrange(256)
    elif kind == 2 and at < len(made):
        made[at] = rng.choice(_HEADS)
    elif kind == 3:
        made[at:at] = rng.randbytes(rng.choice((1, 2, 8, 60)))
    elif kind == 4:
        del made[at : at + rng.choice((1, 2, 8, 60))]
    elif kind == 5:
        del made[at:]
    elif kind == 6:
        made[at:at] = made[max(0, at - rng.choice((1, 4, 18, 60))) : at]
    elif kind == 7 and others:
        made[at:] = rng.choice(others)[at:]
    else:
        made[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))


def mutate_frame(
    rng: random.Random, frame: bytes, corpus: Sequence[bytes], limit: int
) -> bytes:
    """Return a frame that is damaged: its fields, its payload, its length, or anything."""
    kind = rng.randrange(8)
    if kind == 0:
        return mutate_bytes(rng, frame, corpus)
    fields = list(HEADER.unpack_from(frame))
    payload = frame[HEADER_SIZE:]
    if kind in (1, 2, 3):
        payload = mutate_bytes(rng, payload, [one[HEADER_SIZE:] for one in corpus])
    elif kind == 4:
        payload = rng.choice(corpus)[HEADER_SIZE:]
    elif kind == 5:
        payload = b""
    fields[1] = len(payload)
    if kind in (3, 6, 7):
        place = rng.choice((0, 1, 2, 3, 4, 5, 6)) if kind != 7 else rng.choice((2, 5, 6))
        fields[place] = _value(rng, place, fields, limit)
    return HEADER.pack(*fields) + payload


def _value(rng: random.Random, place: int, fields: Sequence[object], limit: int) -> object:
    length = int(fields[1])  # type: ignore[call-overload]
    if place == 0:
        return rng.choice((*range(OPERATION_COUNT + 2), 2**32 - 1))
    if place == 1:
        near = (0, max(0, length - 1), length + 1, length + HEADER_SIZE)
        return rng.choice((*near, limit, limit + 1, 2**32 - 1))
    if place == 2:
        return rng.choice((*_DATA, rng.getrandbits(64)))
    if place in (3, 4):
        return rng.choice((bytes(18), OTHER, fields[3], fields[4], rng.randbytes(18)))
    return rng.choice((*_NUMBERS, rng.getrandbits(32)))


def cut(rng: random.Random, stream: bytes) -> list[bytes]:
    """Cut a stream as a network would: whole, in segments, or in drops."""
    kind = rng.randrange(_RAREST)
    if kind < 6:
        return [stream]
    size = 1 + rng.randrange(3) if kind == _RAREST - 1 else 1 + rng.randrange(400)
    return [stream[at : at + size] for at in range(0, len(stream), size)]
