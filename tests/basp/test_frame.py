import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp import frame as frame_module
from callboard.basp.errors import (
    OutOfMemory,
    PayloadTooLarge,
    RemoteProtocolError,
    UnknownOperation,
)
from callboard.basp.frame import FrameReader, frame_words, pack_frame, repack_frame
from callboard.basp.header import HEADER, Operation
from tests.basp.strategies import frame_arguments
from tests.basp.wire import held_bytes

A, B = b"a" * 18, b"b" * 18
FIELDS = (2, 5, A, B, 16, 17)


@given(st.lists(frame_arguments, max_size=8), st.data())
def test_frames_survive_any_cut_of_the_stream(arguments, data):
    packed = [pack_frame(*one) for one in arguments]
    stream = b"".join(packed)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = FrameReader()

    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += reader.feed(stream[start:end])

    assert [repack_frame(frame) for frame in frames] == packed
    assert [(f[0], *f[2:]) for f in frames] == arguments
    assert all(frame[1] == len(frame[7]) for frame in frames)
    assert reader.error is None
    assert held_bytes(reader) == 0


def test_byte_by_byte_gives_the_same_as_whole():
    stream = b"".join(pack_frame(*FIELDS, b"x" * n) for n in (0, 1, 61, 200))
    reader = FrameReader()

    frames = [frame for i in range(len(stream)) for frame in reader.feed(stream[i : i + 1])]

    assert frames == FrameReader().feed(stream)
    assert len(frames) == 4


def test_a_truncated_stream_gives_only_whole_frames():
    whole = pack_frame(*FIELDS, b"abc")
    stream = whole + pack_frame(*FIELDS, b"defgh")
    for end in range(len(stream)):
        reader = FrameReader()

        assert len(reader.feed(stream[:end])) == int(end >= len(whole))
        assert reader.error is None
        assert held_bytes(reader) == end - len(whole) * int(end >= len(whole))


def test_a_length_over_the_limit_is_refused_before_the_payload_arrives():
    good = pack_frame(*FIELDS, b"ok")
    bad = HEADER.pack(2, 1025, 5, A, B, 16, 17)
    reader = FrameReader(1024)

    frames = reader.feed(good + bad)

    assert [f[7] for f in frames] == [b"ok"]
    assert isinstance(reader.error, PayloadTooLarge)
    assert "1,025 B" in str(reader.error)
    assert "1,024 B" in str(reader.error)
    assert reader.feed(good) == []
    assert held_bytes(reader) == 0


def test_payload_of_exactly_the_limit_passes():
    reader = FrameReader(1024)

    assert len(reader.feed(pack_frame(*FIELDS, bytes(1024)))) == 1


@pytest.mark.parametrize("operation", [15, 2**32 - 1])
def test_unknown_operation_is_refused(operation):
    reader = FrameReader()

    assert reader.feed(HEADER.pack(operation, 0, 0, A, B, 0, 0)) == []
    assert isinstance(reader.error, UnknownOperation)
    assert str(operation) in str(reader.error)


def test_large_frame_in_small_reads_is_joined_once():
    payload = bytes(range(256)) * 4096
    stream = pack_frame(*FIELDS, payload) + pack_frame(*FIELDS, b"next")
    reader = FrameReader()

    pieces = [reader.feed(stream[i : i + 1000]) for i in range(0, len(stream), 1000)]

    assert [f[7] for piece in pieces for f in piece] == [payload, b"next"]
    assert sum(map(bool, pieces)) == 1


@given(st.binary(max_size=400))
def test_any_bytes_give_frames_or_a_typed_error(data):
    reader = FrameReader(1000)
    frames = reader.feed(data)

    assert reader.error is None or isinstance(reader.error, RemoteProtocolError)
    consumed = b"".join(map(repack_frame, frames))
    assert data.startswith(consumed)
    if reader.error is None:
        assert held_bytes(reader) == len(data) - len(consumed)


@given(st.integers(0, 8 * 126 - 1))
def test_any_flipped_bit_gives_frames_or_a_typed_error(bit):
    stream = bytearray(pack_frame(*FIELDS, b"abc") * 2)
    stream[bit // 8] ^= 1 << bit % 8
    reader = FrameReader(1000)
    frames = reader.feed(bytes(stream))

    assert reader.error is None or isinstance(reader.error, RemoteProtocolError)
    assert bytes(stream).startswith(b"".join(map(repack_frame, frames)))


def test_a_foreign_protocol_is_detected_before_a_header_is_complete():
    reader = FrameReader()

    assert reader.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n") == []
    assert reader.other_wire == "HTTP"
    assert FrameReader().other_wire == ""


def _without_memory(monkeypatch, times):
    """Raise `MemoryError` while a payload is joined, the given number of times."""
    left = [times]

    def join(parts):
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return b"".join(parts)

    monkeypatch.setattr(frame_module, "_join", join)


def _large(payload=b"x" * 9_000):
    return pack_frame(Operation.DISPATCH_MESSAGE, 5, A, B, 7, 9, payload)


def test_bytes_of_a_payload_are_not_read_as_a_frame_after_memory_ran_out(monkeypatch):
    _without_memory(monkeypatch, 1)
    data, reader = _large(), FrameReader()
    assert reader.feed(data[:8_000]) == []

    with pytest.raises(MemoryError):
        reader.feed(data[8_000:])

    assert isinstance(reader.error, OutOfMemory)
    assert reader.feed(b"y" * 10 + _large()) == []


def test_a_payload_without_memory_arrives_empty_and_later_frames_whole(monkeypatch):
    _without_memory(monkeypatch, 1)
    data, reader, small = _large(), FrameReader(), _large(b"small")
    reader.feed(data[:8_000])
    with pytest.raises(MemoryError):
        reader.feed(data[8_000:] + small)

    frames = reader.drop_payload()

    assert [each[7] for each in frames] == [b"", b"small"]
    assert frames[0][:7] == (Operation.DISPATCH_MESSAGE, 0, 5, A, B, 7, 9)
    assert reader.error is None
    assert reader.feed(small)[0][7] == b"small"


def test_a_frame_that_is_not_a_message_cannot_be_dropped(monkeypatch):
    _without_memory(monkeypatch, 1)
    data = pack_frame(Operation.ROUTING_UPDATE, 0, A, B, 0, 0, b"x" * 9_000)
    reader = FrameReader()
    reader.feed(data[:8_000])
    with pytest.raises(MemoryError):
        reader.feed(data[8_000:])

    assert reader.drop_payload() == []
    assert isinstance(reader.error, OutOfMemory)


def test_frames_are_described_in_words():
    heartbeat = pack_frame(Operation.HEARTBEAT, 0, A, B, 0, 0, b"")
    ask = pack_frame(Operation.DISPATCH_MESSAGE, 5, A, B, 16, 17, b"\x81\x01")
    answer = pack_frame(Operation.DISPATCH_MESSAGE, 1 << 63 | 5, B, A, 17, 0, b"\x81\x01")
    announce = pack_frame(Operation.ANNOUNCE_PROXY_INSTANCE, 1, A, B, 0, 17, b"")

    words = list(frame_words(heartbeat + ask + answer + announce + b"\x00" * 20))

    assert words == [
        ("heartbeat", True), ("message", False), ("answer", False), ("announce", False)
    ]  # fmt: skip
    assert list(frame_words(b"\xff" * 60)) == []
