import hashlib
import hmac

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from callboard.basp.cbor.plain import write_plain
from callboard.basp.errors import (
    AuthenticationFailed,
    BaspError,
    IncompatibleApplication,
    IncompatibleVersion,
    MalformedHandshake,
    RemoteProtocolError,
)
from callboard.basp.frame import Frame, FrameReader
from callboard.basp.handshake import (
    DropReason,
    Introduction,
    LinkConfig,
    drop_reason,
    pack_client_handshake,
    pack_hello,
    pack_server_handshake,
    prove,
    read_client_handshake,
    read_hello,
    read_server_handshake,
    read_tail,
)
from tests.basp.wire import A, B

NONCE_A, NONCE_B = b"m" * 16, b"n" * 16


def frame_of(data):
    (frame,) = FrameReader().feed(data)
    return Frame._make(frame)


def test_golden_server_handshake():
    packed = pack_server_handshake(LinkConfig(A, application_ids=("x",)), NONCE_A)

    assert packed.hex() == (
        "00000000" "00000016" "0000000043420002" + A.hex() + "00" * 18 + "00" * 8
        + NONCE_A.hex() + "00" + "82" "816178" "f6"
    )  # fmt: skip


def test_proof_is_hmac_over_role_nonces_and_nodes():
    expected = hmac.new(b"s", b"server" + NONCE_A + NONCE_B + A + B, hashlib.sha256).digest()

    assert prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B)) == expected


def test_proofs_are_at_their_offsets():
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    client = frame_of(pack_client_handshake(b, A, NONCE_A, NONCE_B))
    hello = frame_of(pack_hello(a, B, NONCE_A, NONCE_B))

    assert client[7][:16] == NONCE_B
    assert client[7][16] == 1
    assert client[7][17:49] == prove(b"s", b"client", (NONCE_A, NONCE_B), (A, B))
    assert hello[7] == NONCE_A + prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B))
    assert read_client_handshake(a, client, NONCE_A)[:2] == (B, NONCE_B)
    read_hello(b, hello, NONCE_A, NONCE_B)


def test_a_proof_for_another_nonce_is_refused():
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    client = frame_of(pack_client_handshake(b, A, NONCE_A, NONCE_B))
    with pytest.raises(AuthenticationFailed, match="another shared secret .* same one on both"):
        read_client_handshake(a, client, b"o" * 16)
    hello = frame_of(pack_hello(LinkConfig(A, secret=b"t"), B, NONCE_A, NONCE_B))
    with pytest.raises(AuthenticationFailed):
        read_hello(b, hello, NONCE_A, NONCE_B)


def test_hello_must_repeat_the_nonce_and_mean_us():
    a, b = LinkConfig(A), LinkConfig(B)
    with pytest.raises(MalformedHandshake, match="repeat its nonce"):
        read_hello(b, frame_of(pack_hello(a, B, NONCE_B, NONCE_B)), NONCE_A, NONCE_B)
    with pytest.raises(MalformedHandshake, match="is meant for node"):
        read_hello(b, frame_of(pack_hello(a, A, NONCE_A, NONCE_B)), NONCE_A, NONCE_B)


def test_tail_is_not_decoded_before_the_proof():
    b = LinkConfig(B, secret=b"s")
    frame = list(frame_of(pack_server_handshake(LinkConfig(A, secret=b"s"), NONCE_A)))
    frame[7] = frame[7][:17] + b"\xff garbage"
    side = Introduction(b, dialer=True, nonce=NONCE_B)
    answer, identity = side.take(Frame._make(frame))

    assert answer
    assert identity is None
    hello = frame_of(pack_hello(LinkConfig(A, secret=b"s"), B, NONCE_A, NONCE_B))
    with pytest.raises(MalformedHandshake, match="handshake of node"):
        side.take(hello)


def test_hello_of_a_third_node_is_refused():
    side = Introduction(LinkConfig(B), dialer=True, nonce=NONCE_B)
    side.take(frame_of(pack_server_handshake(LinkConfig(A), NONCE_A)))
    with pytest.raises(MalformedHandshake, match="but the handshake came from"):
        side.take(frame_of(pack_hello(LinkConfig(b"c" * 18), B, NONCE_A, NONCE_B)))


def test_version_is_compared():
    frame = frame_of(pack_server_handshake(LinkConfig(A, version=0x4341_0000), NONCE_A))
    with pytest.raises(IncompatibleVersion, match="0x43410000"):
        read_server_handshake(LinkConfig(B), frame)
    frame = frame_of(pack_server_handshake(LinkConfig(A, version=0x4342_0009), NONCE_A))
    assert read_server_handshake(LinkConfig(B), frame)[0] == A


@pytest.mark.parametrize(
    "tail",
    [
        b"", b"\xff", write_plain([]), write_plain([["x"]]), write_plain([[1], None]),
        write_plain(["x", None]), write_plain([["x"], 5]), write_plain([["x"], [1]]),
        write_plain([["x"], [-1, []]]), write_plain([["x"], [1, [2]]]),
        write_plain([["x"], [2**32, []]]), write_plain([["x"], None]) + b"\x00",
    ],
)  # fmt: skip
def test_malformed_tails_are_refused(tail):
    with pytest.raises(MalformedHandshake):
        read_tail(LinkConfig(A, application_ids=("x",)), B, 0, tail)


def test_tails_may_grow_in_later_releases():
    identity = read_tail(
        LinkConfig(A), B, 5, write_plain([["callboard"], [7, ["i"]], {"new": 1}])
    )

    assert (identity.node_id, identity.version, identity.published) == (B, 5, (7, ("i",)))
    with pytest.raises(IncompatibleApplication, match="no application id in common"):
        read_tail(LinkConfig(A), B, 5, write_plain([["other"], None]))


@pytest.mark.parametrize(
    "options",
    [
        {"node_id": b"short"},
        {"node_id": bytes(18)},
        {"application_ids": ()},
        {"secret": b""},
        {"heartbeat": 0.0},
        {"missed": 0},
        {"handshake_timeout": -1.0},
    ],
)
def test_impossible_configurations_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        LinkConfig(**{"node_id": A, **options})


def test_each_refusal_has_its_reason():
    assert drop_reason(IncompatibleVersion()) is DropReason.VERSION
    assert drop_reason(IncompatibleApplication()) is DropReason.APPLICATION
    assert drop_reason(AuthenticationFailed()) is DropReason.AUTHENTICATION
    assert drop_reason(MalformedHandshake()) is DropReason.MALFORMED


@given(st.integers(0, 2**64 - 1), st.binary(max_size=80), st.booleans())
def test_any_handshake_payload_is_read_or_refused(version, payload, demanded):
    config = LinkConfig(A, secret=b"s" if demanded else None)
    fields = (B, A, 0, 0, payload)
    server = Frame(0, len(payload), version, *fields)
    client = Frame(1, len(payload), version, *fields)
    hello = Frame(6, len(payload), 0, *fields)
    for read in (
        lambda: read_server_handshake(config, server),
        lambda: read_client_handshake(config, client, NONCE_A),
        lambda: read_hello(config, hello, NONCE_A, NONCE_B),
        lambda: read_tail(config, B, version, payload),
    ):
        try:
            read()
        except RemoteProtocolError as error:
            event(type(error).__name__)


def test_all_errors_have_one_root():
    assert issubclass(RemoteProtocolError, BaspError)
