import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from callboard.basp.control import (
    DETAIL_LIMIT,
    pack_announce,
    pack_down,
    pack_release,
    read_down,
)
from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.basp.frame import Frame, FrameReader
from callboard.basp.header import Operation, check_header
from callboard.cbor.plain import write_plain

A, B = b"a" * 18, b"b" * 18


def frame_of(data):
    (frame,) = FrameReader().feed(data)
    check_header(frame[:7])
    return Frame._make(frame)


def test_announce_and_release_have_no_payload():
    assert frame_of(pack_announce(A, B, 17, 5)) == (3, 0, 5, A, B, 0, 17, b"")
    assert frame_of(pack_release(A, B, 17, 4)) == (12, 0, 4, A, B, 0, 17, b"")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), st.integers(0, 7))
def test_down_round_trip(detail, reason):
    frame = frame_of(pack_down(A, 17, B, reason, detail))

    assert frame[0] == Operation.DOWN_MESSAGE
    assert read_down(frame) == (17, reason, detail)
    assert bool(frame[1]) == bool(detail)


def test_a_detail_is_cut_and_surrogates_are_replaced():
    assert read_down(frame_of(pack_down(A, 17, B, 3, "\ud800")))[2] == "?"
    assert len(read_down(frame_of(pack_down(A, 17, B, 3, "é" * 99_999)))[2]) == DETAIL_LIMIT


@pytest.mark.parametrize("payload", [write_plain(5), write_plain("x" * (DETAIL_LIMIT + 1))])
def test_other_details_are_malformed(payload):
    with pytest.raises(MalformedPayload, match="actor 17"):
        read_down(Frame(4, len(payload), 1, A, B, 17, 0, payload))


@given(st.binary(max_size=40))
def test_any_payload_is_read_or_refused(payload):
    try:
        read_down(Frame(4, len(payload), 1, A, B, 17, 0, payload))
    except RemoteProtocolError:
        event("refused")
