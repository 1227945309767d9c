"""Consistent hashing: shares, stability, and keys that are the same everywhere."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.proxies.names.hash_ring import HashRing, key_bytes

IDS = [f"member {number}".encode() for number in range(12)]
KEYS = [key_bytes(number) for number in range(4000)]


def ring_of(ids):
    return HashRing({member: member for member in ids})


@given(st.sets(st.sampled_from(IDS), min_size=1), st.sampled_from(IDS))
def test_keys_move_only_to_a_member_that_comes_and_only_from_one_that_goes(ids, other):
    before, after = ring_of(ids - {other}), ring_of(ids | {other})

    for key in KEYS[:200]:
        if after.find(key) != other:
            assert before.find(key) == after.find(key)


@given(st.lists(st.sets(st.sampled_from(IDS)), min_size=1, max_size=6))
def test_a_ring_that_was_updated_is_the_ring_made_at_once(steps):
    ring = ring_of([])
    for ids in steps:
        ring = ring.updated({member: member for member in ids})

    fresh = ring_of(steps[-1])
    assert [ring.find(key) for key in KEYS[:50]] == [fresh.find(key) for key in KEYS[:50]]


def test_shares_are_about_equal():
    ring = ring_of(IDS[:8])
    owners = [ring.find(key) for key in KEYS]

    for member in IDS[:8]:
        assert 0.6 < owners.count(member) / (len(KEYS) / 8) < 1.5


def test_places_are_the_same_in_every_process():
    ring = ring_of(IDS[:4])

    assert [IDS.index(ring.find(key_bytes(key))) for key in ("a", "b", b"a", 1, ("a", 1))] == [
        3,
        0,
        3,
        0,
        0,
    ]


def test_an_empty_ring_finds_nobody():
    assert ring_of([]).find(b"x") is None


@given(
    st.recursive(
        st.text() | st.binary() | st.integers() | st.booleans() | st.none() | st.uuids(),
        lambda parts: st.lists(parts, max_size=3).map(tuple),
    ),
    st.text() | st.binary() | st.integers() | st.tuples(st.text(), st.text()),
)
def test_different_keys_have_different_bytes(one, other):
    same = one == other and type(one) is type(other)
    assert (key_bytes(one) == key_bytes(other)) is same


def test_keys_of_other_types_are_refused():
    assert key_bytes(UUID(int=1))
    for key in ([1], {1: 2}, object(), {1}):
        with pytest.raises(TypeError, match="cannot be hashed alike"):
            key_bytes(key)
