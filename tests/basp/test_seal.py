"""The seal of a link: batches, their MAC, and a link on which a third party writes."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import BrokenSeal, LinkLost
from callboard.basp.frame import pack_frame
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import Operation
from callboard.basp.link import (
    BATCH_SECONDS,
    Closed,
    Deliver,
    Established,
    LinkState,
    Seal,
    Transmit,
)
from callboard.basp.seal import BATCH_LIMIT, CONTENT_LIMIT, OVERHEAD, SHORT, Opener, Sealer
from tests.basp.wire import A, B, Wire, receive
from tests.fuzz.case import Violation
from tests.fuzz.seal import Seal as SealTarget

KEY = bytes(range(32))
DISPATCH = pack_frame(2, 5, A, B, 16, 17, b"\x81\x05")


def sealed_link():
    wire = Wire({node: LinkConfig(node, secret=b"s") for node in (A, B)}, [(A, B)])
    wire.settle()
    return wire, *wire.ends


def only(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def pair(key=KEY):
    return Sealer(key), Opener(key)


@pytest.mark.parametrize("size", [1, SHORT, SHORT + 1, CONTENT_LIMIT])
def test_a_batch_is_length_counter_content_and_mac(size):
    sealer, content = Sealer(KEY), bytes(size)
    sealer.seal(b"first")
    batch = sealer.seal(content)

    head = size.to_bytes(4, "big") + (1).to_bytes(8, "big")
    label = b"short" if size <= SHORT else b"long"
    key = hashlib.blake2b(label, key=KEY, digest_size=32).digest()
    if size <= SHORT:
        mac = hashlib.blake2b(head + content, key=key, digest_size=16).digest()
    else:
        mac = hmac.digest(key, head + content, "sha256")[:16]
    assert batch == head + content + mac
    assert len(batch) <= BATCH_LIMIT


def test_a_key_has_32_bytes():
    with pytest.raises(ValueError, match="32 bytes, not 5"):
        Sealer(b"short")


@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=8), st.data())
def test_however_batches_are_cut_all_of_them_is_opened(contents, data):
    sealer, opener = pair()
    stream = b"".join(map(sealer.seal, contents))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert b"".join(map(opener.open, pieces)) == b"".join(contents)
    assert opener.error is None
    assert opener.held == 0


def test_a_large_frame_spans_batches_of_which_none_is_above_the_limit():
    sealer, opener = pair()
    frame = pack_frame(2, 5, A, B, 16, 17, bytes(300_000))
    stream, sizes = sealer.seal_all(frame), []
    start = 0
    while start < len(stream):
        sizes.append(int.from_bytes(stream[start : start + 4], "big") + OVERHEAD)
        start += sizes[-1]

    assert sizes[:-1] == [BATCH_LIMIT] * (len(sizes) - 1)
    assert opener.open(stream) == frame


@pytest.mark.parametrize("length", [0, CONTENT_LIMIT + 1, 2**32 - 1])
def test_a_length_that_no_batch_has_is_refused_before_its_bytes_are_there(length):
    opener = Opener(KEY)
    assert opener.open(length.to_bytes(4, "big") + bytes(8)) == b""
    assert isinstance(opener.error, BrokenSeal)
    assert opener.open(bytes(100)) == b""
    assert opener.held == 0


@pytest.mark.parametrize("size", [10, SHORT + 1])
def test_no_changed_bit_of_a_batch_passes(size):
    batch = Sealer(KEY).seal(bytes(size))
    for bit in range(8 * len(batch)):
        changed = bytearray(batch)
        changed[bit // 8] ^= 1 << bit % 8
        assert Opener(KEY).open(bytes(changed)) == b""


def test_while_another_thread_computes_a_long_batch_is_hashed_in_pieces_to_the_same_mac():
    for size in (SHORT + 1, 2047, 2048, 5000, CONTENT_LIMIT):
        assert Sealer(KEY, lambda: True).seal(bytes(size)) == Sealer(KEY).seal(bytes(size))


def test_the_good_batches_before_a_bad_one_are_opened():
    sealer, opener = pair()
    first, second = sealer.seal(b"first"), bytearray(sealer.seal(b"second"))
    second[-1] ^= 1

    assert opener.open(first + bytes(second) + sealer.seal(b"third")) == b"first"
    assert isinstance(opener.error, BrokenSeal)


def test_the_fuzzer_notices_a_receiver_that_checks_no_mac(monkeypatch):
    target = SealTarget()
    monkeypatch.setattr("callboard.basp.seal._equal", lambda *_: True)
    with pytest.raises(Violation, match="is opened"):
        target.run(target.make(0))


# --- links


def test_everything_after_hello_is_in_batches():
    _, dialer, acceptor = sealed_link()
    for end in (dialer, acceptor):
        kinds = [type(effect) for effect in end.events]
        first = only(end.events, Transmit)[: 1 if end is dialer else 2]
        assert end.sent[: len(first)] == [effect.data for effect in first]
        assert kinds.count(Seal) == 1
        assert kinds.index(Seal) < kinds.index(Established)
        for data in end.sent[len(first) :]:
            assert int.from_bytes(data[:4], "big") == len(data) - OVERHEAD


def test_batches_after_hello_in_the_same_read_are_opened():
    wire = Wire({node: LinkConfig(node, secret=b"s") for node in (A, B)}, [(B, A)])
    dialer, acceptor = wire.ends
    while not acceptor.sealer:
        wire.deliver(next(end for end in wire.ends if end.incoming))
    assert len(dialer.incoming) > 1  # hello and originator_syn
    dialer.incoming[:] = [b"".join(dialer.incoming)]
    wire.settle()
    assert dialer.link.is_established


@pytest.mark.parametrize("operation", [2, 4, 5, 10])
def test_a_plain_frame_ends_a_sealed_link_and_is_not_acted_on(operation):
    _, _, end = sealed_link()
    frame = pack_frame(operation, 0, A, B, int(operation == 4), 0, b"")
    effects = receive(end.link, frame, 1.0)

    assert not only(effects, Deliver)
    (closed,) = only(effects, Closed)
    assert isinstance(closed.error, BrokenSeal)
    assert "seal of the link with node" in closed.reason


def test_a_clean_end_is_inside_the_seal_and_an_end_without_it_is_a_loss():
    wire, dialer, acceptor = sealed_link()
    wire.carry_out(dialer, dialer.link.close("done"))
    wire.settle()
    assert acceptor.closed.error is None

    wire, _, acceptor = sealed_link()
    wire.carry_out(acceptor, acceptor.link.lost("end of stream"))
    assert isinstance(acceptor.closed.error, LinkLost)

    wire, _, acceptor = sealed_link()
    last = pack_frame(Operation.DROP_CONN, 0, A, B, 0, 0, b"")
    effects = receive(acceptor.link, wire.ends[0].sealer.seal(last)[:-1], 1.0)
    assert not effects
    (closed, *_) = only(acceptor.link.lost("end of stream"), Closed)
    assert isinstance(closed.error, LinkLost)


def test_a_batch_of_another_session_with_the_same_secret_is_refused():
    wire = Wire({node: LinkConfig(node, secret=b"s") for node in (A, B)}, [])
    sessions = []
    for _ in range(2):
        wire.dial(A, B)
        wire.settle()
        dialer, acceptor = wire.ends[-2:]
        sessions.append(dialer.sealer.seal(DISPATCH))
        if len(sessions) == 1:
            wire.carry_out(dialer, dialer.link.close("done"))
            wire.settle()
    assert sessions[0] != sessions[1]
    effects = receive(acceptor.link, sessions[0], 1.0)
    assert not only(effects, Deliver)
    assert isinstance(only(effects, Closed)[0].error, BrokenSeal)


def test_unchecked_bytes_keep_a_link_alive_for_one_batch_at_most():
    """Bytes of a third party must not keep the link to a dead peer alive."""
    _, dialer, end = sealed_link()
    batch = dialer.sealer.seal_all(bytes(3) * 20_000)
    now, closed = 0.0, []
    for byte in batch:
        now += 0.5
        closed = only(receive(end.link, bytes((byte,)), now), Closed)
        closed += only(end.link.tick(now), Closed)
        if closed:
            break
    assert closed
    assert BATCH_SECONDS <= now <= BATCH_SECONDS + 4.0


def test_a_slow_network_has_time_for_a_batch():
    _, dialer, end = sealed_link()
    frame = pack_frame(2, 5, A, B, 16, 17, bytes(60_000))
    batch, delivered = dialer.sealer.seal(frame), []
    for step in range(9):
        piece = batch[step * 7_000 : (step + 1) * 7_000]
        delivered += only(receive(end.link, piece, 1.0 + step), Deliver)
        assert end.link.tick(1.0 + step) is not None
        assert end.link.state is LinkState.ESTABLISHED
    assert len(delivered) == 1


def test_a_single_long_batch_is_not_copied_and_others_are_whole():
    sealer, opener = pair()
    contents = [bytes([number]) * 60_000 for number in range(3)]
    first, second, third = map(sealer.seal, contents)

    assert type(opener.open(first)) is memoryview
    assert opener.open(second + third[:100]) == contents[1]
    assert opener.missing == len(third) - 100
    assert opener.open(third[100:]) == contents[2]
    assert opener.missing == 0


@pytest.mark.parametrize("size", [3_000, 65_000, 200_000])
def test_payloads_are_bytes_however_their_batches_were_read(size):
    _, dialer, end = sealed_link()
    frames = [pack_frame(2, 5, A, B, 16, 17, bytes([number]) * size) for number in range(3)]
    read = []
    for frame in frames:
        stream = dialer.sealer.seal_all(frame)
        start = 0
        while start < len(stream):
            taken = end.opener.read_size(BATCH_LIMIT)
            read += only(receive(end.link, stream[start : start + taken], 1.0), Deliver)
            start += taken
    payloads = [frame[7] for deliver in read for frame in deliver.frames]
    assert payloads == [bytes([number]) * size for number in range(3)]
    assert {type(payload) for payload in payloads} == {bytes}
