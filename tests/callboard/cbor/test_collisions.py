"""Keys that are chosen to have the same hash cost no quadratic time."""

import ipaddress
import uuid
from dataclasses import dataclass
from decimal import Decimal

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import CollidingKeys, MalformedPayload, NotSerializable
from callboard.basp.payload import PayloadCodec
from callboard.cbor import tags
from callboard.cbor.collisions import SAME_HASH_LIMIT, check_hashes
from callboard.cbor.plain import read_plain
from callboard.cbor.writer import head
from tests.basp.message_types import Pair, Point, make_registry

PRIME = 2**61 - 1
COUNT = 20_000


@dataclass(frozen=True)
class Counted:
    """A key that counts how often it is compared."""

    number: int
    compared = 0

    def __hash__(self) -> int:
        return self.number // SAME_HASH_LIMIT

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, Counted) and other.number == self.number


REGISTRY = make_registry()
REGISTRY.register("counted", Counted)
CODEC = PayloadCodec(REGISTRY)
PAIRS, SET, FROZENSET = (head(0xC0, tag) for tag in (tags.PAIRS, tags.SET, tags.FROZENSET))


def payload_of(tag: bytes, items: list[object]) -> bytes:
    """Return a payload that our own encoder would not write."""
    return b"\x81" + tag + CODEC.encode(items)[1:]


COLLIDING = {
    "integers": lambda n: n * PRIME,
    "negative integers": lambda n: -n * PRIME,
    "decimals": lambda n: Decimal(n * PRIME),
    "integers and decimals": lambda n: n * PRIME if n % 2 else Decimal(n * PRIME),
    "tuples": lambda n: (n * PRIME, "x"),
    "nested tuples": lambda n: ((1, (n * PRIME,)),),
    "frozensets": lambda n: frozenset([n * PRIME]),
    "records": lambda n: Point(n * PRIME, 1),
    "named tuples": lambda n: Pair(1, n * PRIME),
    "UUIDs": lambda n: uuid.UUID(int=n * PRIME),
    "networks": lambda n: ipaddress.IPv6Network((n * PRIME, 128)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLIDING)
def test_colliding_keys_are_refused_before_anything_is_built(name):
    keys = [COLLIDING[name](n) for n in range(1, COUNT)]
    assert len(set(map(hash, keys))) == 1
    flat = [part for key in keys for part in (key, 0)]

    with pytest.raises(CollidingKeys, match="19,999 of 19,999 keys .* send a list"):
        CODEC.decode_message(payload_of(PAIRS, flat))
    for tag in (SET, FROZENSET):
        with pytest.raises(CollidingKeys):
            CODEC.decode_message(payload_of(tag, keys))
    with pytest.raises(CollidingKeys):
        CODEC.decode_message(b"\x81\x82\x01" + payload_of(SET, keys)[1:])


@pytest.mark.parametrize("key", [1, -1, 2**70, 1.5, None, True, [1], (1,), uuid.UUID(int=1)])
def test_plain_maps_have_text_and_bytes_as_keys_only(key):
    body = b"\xa1" + CODEC.encode(key)[1:] + b"\x00"

    with pytest.raises(MalformedPayload):
        CODEC.decode_message(b"\x81" + body)
    with pytest.raises(MalformedPayload):
        read_plain(body)


def test_an_array_as_a_key_is_refused_while_it_is_read():
    """cbor2 creates tuples from arrays in keys, and a peer can choose their hashes."""
    many = b"".join(b"\x82" + cbor2.dumps(n * 2**40) + b"\x01\x00" for n in range(COUNT))

    with pytest.raises(MalformedPayload, match="text string or byte string"):
        CODEC.decode_message(b"\x81" + head(0xA0, COUNT) + many)


def test_a_message_that_the_receiver_would_refuse_is_refused_at_the_sender():
    colliding = [n * PRIME for n in range(SAME_HASH_LIMIT + 1)]

    for message in (set(colliding), frozenset(colliding), dict.fromkeys(colliding)):
        with pytest.raises(NotSerializable, match="65 of 65 keys of a map or set have"):
            CODEC.encode(message)
    assert CODEC.decode_message(CODEC.encode(colliding)) == colliding
    assert CODEC.decode_message(CODEC.encode(set(colliding[1:]))) == set(colliding[1:])


def test_keys_at_the_limit_of_collisions_cost_that_many_comparisons_each():
    keys = [Counted(number) for number in range(10 * SAME_HASH_LIMIT)]
    payload = payload_of(SET, keys)
    Counted.compared = 0

    assert len(CODEC.decode_message(payload)) == len(keys)

    assert 0 < Counted.compared <= len(keys) * SAME_HASH_LIMIT


def test_a_key_that_is_sent_again_and_again_counts_once():
    payload = payload_of(PAIRS, [7, 0] * COUNT)

    assert CODEC.decode_message(payload) == {7: 0}


HONEST = {
    "powers of two": {2.0**n for n in range(-1074, 1024)},
    "powers of ten": {Decimal(10) ** n for n in range(5_000)},
    "a grid around zero": {
        (x, y, z) for x in range(-9, 9) for y in range(-9, 9) for z in range(9)
    },
    "numbers": dict.fromkeys(range(-5_000, 5_000), 1),
    "far numbers": {n * 2**32 for n in range(10_000)},
    "addresses": {ipaddress.ip_network((n << 8, 24)) for n in range(5_000)},
    "text": dict.fromkeys(map(str, range(10_000)), 1),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_maps_and_sets_travel(name):
    message = HONEST[name]

    assert CODEC.decode_message(CODEC.encode(message)) == message


@given(st.dictionaries(st.integers(1, 7), st.integers(1, 2 * SAME_HASH_LIMIT)))
def test_the_limit_is_for_one_hash_not_for_all_together(counts):
    keys = [base + n * PRIME for base, count in counts.items() for n in range(count)]

    if len(keys) > SAME_HASH_LIMIT and max(counts.values()) > SAME_HASH_LIMIT:
        with pytest.raises(CollidingKeys):
            check_hashes(keys)
    else:
        check_hashes(keys)
