import pytest
from hypothesis import given

from callboard.basp.errors import InvalidNodeId
from callboard.basp.node_id import NO_NODE, make_node_id, node_id_text
from tests.basp.strategies import node_ids


def test_node_id_has_hash_and_process_id():
    made = make_node_id(b"machine", 1, 0, 0x010203)

    assert len(made) == 18
    assert made[15:] == b"\x01\x02\x03"


@pytest.mark.parametrize(
    "facts", [(b"other", 1, 0, 5), (b"m", 2, 0, 5), (b"m", 1, 1, 5), (b"m", 1, 0, 6)]
)
def test_every_fact_counts(facts):
    assert make_node_id(b"m", 1, 0, 5) != make_node_id(*facts)


def test_different_facts_are_never_hashed_alike():
    assert make_node_id(b"m1:2", 3, 0, 5) != make_node_id(b"m1", 23, 0, 5)


def test_large_process_ids_keep_their_low_bits():
    assert make_node_id(b"m", 1, 0, 2**24 + 7)[15:] == b"\x00\x00\x07"


def test_negative_facts_are_refused():
    with pytest.raises(InvalidNodeId, match="index -1"):
        make_node_id(b"m", 1, -1, 5)


@given(node_ids)
def test_text_round_trip(node_id):
    text = node_id_text(node_id)

    assert len(text) == 36
    assert text == text.lower()
    assert bytes.fromhex(text) == node_id


def test_no_node_is_zero():
    assert bytes(18) == NO_NODE
