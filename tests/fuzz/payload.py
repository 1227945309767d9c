"""CBOR payloads: mutated messages and noise give a value or a typed error."""

import random
import sys
from collections.abc import Callable
from typing import Any

import cbor2

from callboard.basp.errors import RemoteProtocolError
from callboard.cbor import tags
from tests.basp.strategies import is_same
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.values import make_codec, value

_PAYLOADS = 40
_CODEC = make_codec()


class Payload:
    """Feeds a `PayloadCodec` that knows registered types."""

    name = "payload"

    def make(self, seed: int) -> Case:
        """Return payloads."""
        rng = random.Random(seed)
        valid = [_encode(rng) for _ in range(6)]
        return {"payloads": [_payload(rng, valid) for _ in range(_PAYLOADS)]}

    def run(self, case: Case) -> int:
        """Compare the short cut with the general decoder."""
        for payload in case["payloads"]:
            fast, slow = _outcome(_CODEC.decode_message, payload), _outcome(_decode, payload)
            is_equal = type(fast) is type(slow) and (
                isinstance(fast, RemoteProtocolError) or _is_same(fast, slow)
            )
            require(is_equal, f"{payload.hex()}: {fast!r:.200} or {slow!r:.200}")
            if payload[:1] == b"\x81":
                # With options the message takes the general way: the same has to come out.
                longer = _outcome(_CODEC.decode_message, b"\x82" + payload[1:] + b"\xa0")
                if not isinstance(fast, RemoteProtocolError):
                    require(_is_same(fast, longer), f"{payload.hex()}: {longer!r:.200}")
        return len(case["payloads"])


def _encode(rng: random.Random) -> bytes:
    options = {1: rng.getrandbits(20), 2: "00-trace"} if rng.random() < 0.3 else None
    return _CODEC.encode(value(rng), options)


def _payload(rng: random.Random, valid: list[bytes]) -> bytes:
    if rng.random() < 0.02:
        return _colliding(rng)
    if rng.random() < 0.1:
        return rng.choice((b"", b"\x81", b"\x82")) + rng.randbytes(rng.randrange(40))
    return mutate_bytes(rng, rng.choice(valid), valid)


def _colliding(rng: random.Random) -> bytes:
    """A map or set whose keys have one hash, more of them than a reader should compare."""
    tag = rng.choice((tags.SET, tags.FROZENSET, tags.PAIRS))
    count = 2 * rng.randrange(rng.choice((70, 70, 70, 5_000)))
    step = sys.hash_info.modulus
    return cbor2.dumps([cbor2.CBORTag(tag, [n * step for n in range(count)])])


def _decode(payload: bytes) -> Any:
    return _CODEC.decode(payload)[0]


def _outcome(read: Callable[[bytes], Any], payload: bytes) -> Any:
    try:
        return read(payload)
    except RemoteProtocolError as error:
        return error


def _is_same(left: Any, right: Any) -> bool:
    try:
        return is_same(left, right) or repr(left) == repr(right)
    except (ValueError, TypeError):  # the model cannot write it, e.g. an integer of a megabyte
        return type(left) is type(right)
