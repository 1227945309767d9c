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
    prove,
    read_tail,
)
from tests.basp.wire import A, B

NONCE_A, NONCE_B = b"m" * 16, b"n" * 16


def frame_of(data):
    (frame,) = FrameReader().feed(data)
    return Frame._make(frame)


def acceptor(config, nonce=NONCE_A):
    return Introduction(config, dialer=False, nonce=nonce)


def dialer(config):
    return Introduction(config, dialer=True, nonce=NONCE_B)


def server_handshake(config, nonce=NONCE_A):
    return frame_of(acceptor(config, nonce).start())


def client_handshake(config, server):
    answer, identity = dialer(config).take(server_handshake(server))
    assert identity is None
    return frame_of(answer)


def hello_of(config, client, nonce=NONCE_A):
    answer, identity = acceptor(config, nonce).take(client)
    assert identity.node_id == client.source
    return frame_of(answer)


def test_golden_server_handshake():
    packed = acceptor(LinkConfig(A, application_ids=("x",))).start()

    assert packed.hex() == (
        "00000000" "00000016" "0000000043420002" + A.hex() + "00" * 18 + "00" * 8
        + NONCE_A.hex() + "00" + "82" "816178" "f6"
    )  # fmt: skip


def test_proof_is_hmac_over_role_nonces_and_nodes():
    expected = hmac.new(b"s", b"server" + NONCE_A + NONCE_B + A + B, hashlib.sha256).digest()

    assert prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B)) == expected


def test_proofs_are_at_their_offsets():
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    client = client_handshake(b, a)
    hello = hello_of(a, client)

    assert client[7][:16] == NONCE_B
    assert client[7][16] == 1
    assert client[7][17:49] == prove(b"s", b"client", (NONCE_A, NONCE_B), (A, B))
    assert hello[7] == NONCE_A + prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B))
    side = dialer(b)
    side.take(server_handshake(a))
    answer, identity = side.take(hello)
    assert answer == b""
    assert identity.node_id == A


def test_a_proof_for_another_nonce_is_refused():
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    client = client_handshake(b, a)
    with pytest.raises(AuthenticationFailed, match="another shared secret .* same one on both"):
        acceptor(a, b"o" * 16).take(client)
    other = LinkConfig(A, secret=b"t")
    hello = hello_of(other, client_handshake(LinkConfig(B, secret=b"t"), other))
    side = dialer(b)
    side.take(server_handshake(a))
    with pytest.raises(AuthenticationFailed):
        side.take(hello)


def test_hello_must_repeat_the_nonce_and_mean_us():
    a, b = LinkConfig(A), LinkConfig(B)
    client = client_handshake(b, a)
    side = dialer(b)
    side.take(server_handshake(a))
    with pytest.raises(MalformedHandshake, match="repeat its nonce"):
        side.take(hello_of(a, client, NONCE_B))
    with pytest.raises(MalformedHandshake, match="is meant for node"):
        side.take(hello_of(a, client)._replace(destination=A))


def test_a_client_handshake_must_mean_us():
    client = client_handshake(LinkConfig(B), LinkConfig(A))
    with pytest.raises(MalformedHandshake, match="is meant for node"):
        acceptor(LinkConfig(b"c" * 18)).take(client)


def test_tail_is_not_decoded_before_the_proof():
    b = LinkConfig(B, secret=b"s")
    a = LinkConfig(A, secret=b"s")
    frame = list(server_handshake(a))
    frame[7] = frame[7][:17] + b"\xff garbage"
    side = dialer(b)
    answer, identity = side.take(Frame._make(frame))

    assert answer
    assert identity is None
    hello = hello_of(a, frame_of(answer))
    with pytest.raises(MalformedHandshake, match="handshake of node"):
        side.take(hello)


def test_hello_of_a_third_node_is_refused():
    side = dialer(LinkConfig(B))
    side.take(server_handshake(LinkConfig(A)))
    third = LinkConfig(b"c" * 18)
    with pytest.raises(MalformedHandshake, match="but the handshake came from"):
        side.take(hello_of(third, client_handshake(LinkConfig(B), third)))


def test_version_is_compared():
    frame = server_handshake(LinkConfig(A, version=0x4341_0000))
    with pytest.raises(IncompatibleVersion, match="0x43410000"):
        dialer(LinkConfig(B)).take(frame)
    side = dialer(LinkConfig(B))
    side.take(server_handshake(LinkConfig(A, version=0x4342_0009)))
    assert side.peer_id == A


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
    greeted = dialer(config)
    greeted.take(server_handshake(LinkConfig(B, secret=config.secret)))
    for read in (
        lambda: dialer(config).take(server),
        lambda: acceptor(config).take(client),
        lambda: greeted.take(hello),
        lambda: read_tail(config, B, version, payload),
    ):
        try:
            read()
        except RemoteProtocolError as error:
            event(type(error).__name__)


def test_all_errors_have_one_root():
    assert issubclass(RemoteProtocolError, BaspError)
