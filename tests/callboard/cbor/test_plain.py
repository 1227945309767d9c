import cbor2
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.cbor.plain import is_natural, read_plain, write_plain

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=5,
)


@given(plain)
def test_plain_values_survive(value):
    try:
        assert read_plain(write_plain(value)) == value
    except MalformedPayload as error:
        assert "depth" in str(error)  # noqa: PT017  (deeper than control payloads are)


@given(plain, st.binary(min_size=1, max_size=12))
def test_trailing_bytes_are_refused(value, rest):
    with pytest.raises(RemoteProtocolError):
        read_plain(write_plain([value])[:-1] if rest == b"\x00" else write_plain(value) + rest)


@pytest.mark.parametrize("tag", [0, 2, 3, 28, 29, 37, 258, 1004, 48900, 99999])
def test_tags_are_refused(tag):
    with pytest.raises(MalformedPayload, match="not one that control payloads use"):
        read_plain(cbor2.dumps(cbor2.CBORTag(tag, b"x")))


def test_deep_values_are_refused():
    with pytest.raises(MalformedPayload, match="depth"):
        read_plain(b"\x81" * 10_000 + b"\x00")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_typed_error(data):
    try:
        read_plain(data)
    except RemoteProtocolError:
        event("refused")


def test_bools_are_not_natural_numbers():
    values = [0, 2**64 - 1, -1, 2**64, True, 1.0, None]
    assert [is_natural(value) for value in values] == [True, True] + [False] * 5
    assert not is_natural(7, 7)
