import hashlib
import hmac

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from callboard.basp.errors import (
    AuthenticationFailed,
    BaspError,
    IncompatibleApplication,
    IncompatibleVersion,
    MalformedHandshake,
    NotSealed,
    RemoteProtocolError,
)
from callboard.basp.frame import Frame, FrameReader, repack_frame
from callboard.basp.handshake import (
    DropReason,
    Introduction,
    LinkConfig,
    LinkGuard,
    drop_reason,
    prove,
    read_tail,
)
from callboard.cbor.plain import write_plain
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


def test_the_proof_of_the_first_release_is_hmac_over_role_nonces_and_nodes():
    expected = hmac.new(b"s", b"server" + NONCE_A + NONCE_B + A + B, hashlib.sha256).digest()

    assert prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B)) == expected


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def test_proofs_are_at_their_offsets_and_bound_to_both_handshakes():
    a, b = LinkConfig(A, secrets=(("cluster", b"s"),)), LinkConfig(B, secret=b"s")
    server, client = server_handshake(a), client_handshake(b, a)
    hello = hello_of(a, client)

    assert client[7][:16] == NONCE_B
    assert client[7][16] == server[7][16] == 1 | 2 | 4
    seen = client._replace(payload=client[7][:17] + bytes(32) + client[7][49:])
    parts = b"callboard link", repack_frame(server), repack_frame(seen), b""
    transcript = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    root = mac(b"s", b"callboard link root" + hashlib.sha256(transcript).digest())
    assert client[7][17:49] == mac(root, b"dialer proves")
    assert hello[7] == NONCE_A + mac(root, b"acceptor provescluster") + b"cluster"
    side = dialer(b)
    side.take(server_handshake(a))
    answer, identity = side.take(hello)
    assert answer == b""
    assert identity.node_id == A
    assert identity.guard is LinkGuard.SEAL
    labels = b"dialer sealscluster", b"acceptor sealscluster"
    assert side.seal_keys == tuple(mac(root, label) for label in labels)


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
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    greeting, side = acceptor(a), dialer(b)
    whole = frame_of(greeting.start())
    garbage = whole[7][:17] + b"\xff garbage"
    answer, identity = side.take(whole._replace(length=len(garbage), payload=garbage))

    assert answer
    assert identity is None
    with pytest.raises(AuthenticationFailed):  # the two sides saw different handshakes
        greeting.take(frame_of(answer))
    greeting._server = repack_frame(whole._replace(length=len(garbage), payload=garbage))
    hello, _ = greeting.take(frame_of(answer))  # an acceptor that sent it itself
    with pytest.raises(MalformedHandshake, match="handshake of node"):
        side.take(frame_of(hello))


@given(st.data())
def test_a_handshake_that_a_relay_changed_is_refused(data):
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s", release=("2", "b"))
    accepting, dialing = acceptor(a), dialer(b)
    sent = [frame_of(accepting.start())]
    kinds = ["server", "client", "hello"]
    changed = data.draw(st.sampled_from(kinds))
    position, bit = data.draw(st.integers(0, 10**6)), data.draw(st.integers(0, 7))

    def relay(kind, frame):
        if kind != changed:
            return frame
        whole = bytearray(repack_frame(frame))
        # The operation and the length of a frame come first: other ones are other frames.
        place = 8 + position % (len(whole) - 8)
        whole[place] ^= 1 << bit
        return frame_of(bytes(whole))

    def play():
        answer, _ = dialing.take(relay("server", sent[0]))
        hello, identity = accepting.take(relay("client", frame_of(answer)))
        assert changed == "hello", identity
        dialing.take(relay("hello", frame_of(hello)))

    with pytest.raises(RemoteProtocolError):
        play()
    assert dialing.seal_keys is None


def test_each_direction_of_each_link_has_its_own_key():
    keys = []
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    for nonce in (NONCE_A, b"o" * 16):
        accepting, dialing = acceptor(a, nonce), dialer(b)
        answer, _ = dialing.take(frame_of(accepting.start()))
        hello, _ = accepting.take(frame_of(answer))
        dialing.take(frame_of(hello))
        assert dialing.seal_keys == accepting.seal_keys[::-1]
        keys += dialing.seal_keys
    assert len(set(keys)) == 4


@pytest.mark.parametrize("position", [0, 31, 63])
def test_all_of_64_secrets_are_tried_whichever_is_the_right_one(position, monkeypatch):
    secrets = tuple((f"peer-{number}", b"%d" % number) for number in range(64))
    a, b = LinkConfig(A, secrets=secrets), LinkConfig(B, secret=b"%d" % position)
    client, compared = client_handshake(b, a), []
    compare = hmac.compare_digest

    def record(left, right):
        compared.append((left, right))
        return compare(left, right)

    monkeypatch.setattr("callboard.basp.handshake.hmac.compare_digest", record)
    accepting = acceptor(a)
    accepting.take(client)
    assert len(compared) == len({left for left, _ in compared}) == 64
    assert accepting.secret == b"%d" % position
    with pytest.raises(ValueError, match="65 secrets are too many"):
        LinkConfig(A, secrets=(*secrets, ("one more", b"x")))


def first_release(frame):
    """Return the frame that a node of release 0.1 would have sent: it has only bit 0."""
    flags = bytes((frame.payload[16] & 1,))
    return frame._replace(payload=frame.payload[:16] + flags + frame.payload[17:])


def test_no_proof_is_sent_to_a_node_that_does_not_seal():
    a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
    with pytest.raises(NotSealed, match=r"release 0\.1, .* allow_unsealed=True"):
        dialer(b).take(first_release(server_handshake(a)))
    with pytest.raises(NotSealed):
        acceptor(a).take(first_release(client_handshake(b, a)))
    assert drop_reason(NotSealed()) is DropReason.VERSION


def test_nodes_of_the_first_release_are_admitted_with_allow_unsealed():
    a, b = (LinkConfig(node, secret=b"s", allow_unsealed=True) for node in (A, B))
    side = dialer(b)
    answer, _ = side.take(first_release(server_handshake(a)))
    client = frame_of(answer)
    assert client[7][17:49] == prove(b"s", b"client", (NONCE_A, NONCE_B), (A, B))
    accepting = acceptor(a)
    hello, identity = accepting.take(first_release(client))
    assert frame_of(hello)[7] == NONCE_A + prove(b"s", b"server", (NONCE_A, NONCE_B), (A, B))
    seen = side.take(frame_of(hello))[1]
    for found, node in ((identity, B), (seen, A)):
        assert (found.node_id, found.guard, found.release) == (
            node,
            LinkGuard.FIRST_WORDS,
            "0.1",
        )
    assert side.seal_keys is accepting.seal_keys is None


@pytest.mark.parametrize("refusing", ["dialer", "acceptor"])
def test_a_link_is_sealed_if_one_side_requires_it(refusing):
    allowed = {"dialer": refusing != "dialer", "acceptor": refusing != "acceptor"}
    a = LinkConfig(A, secret=b"s", allow_unsealed=allowed["acceptor"])
    b = LinkConfig(B, secret=b"s", allow_unsealed=allowed["dialer"])
    side, accepting = dialer(b), acceptor(a)

    def play():  # a relay strips the flags of both
        answer, _ = side.take(first_release(frame_of(accepting.start())))
        accepting.take(first_release(frame_of(answer)))

    with pytest.raises(NotSealed):
        play()


def test_with_two_certificates_the_proof_is_bound_to_tls_and_the_link_is_not_sealed():
    def sides(first, second):
        a, b = LinkConfig(A, secret=b"s"), LinkConfig(B, secret=b"s")
        accepting = Introduction(a, dialer=False, nonce=NONCE_A, channel=first)
        dialing = Introduction(b, dialer=True, nonce=NONCE_B, channel=second)
        answer, _ = dialing.take(frame_of(accepting.start()))
        hello, identity = accepting.take(frame_of(answer))
        assert dialing.take(frame_of(hello))[1].guard is identity.guard
        return identity.guard, dialing.seal_keys

    assert sides(b"one", b"one") == (LinkGuard.TLS, None)
    for first, second in ((b"one", b""), (b"", b"one")):
        guard, keys = sides(first, second)
        assert guard is LinkGuard.SEAL
        assert keys is not None
    with pytest.raises(AuthenticationFailed):  # a relay with a certificate of its own
        sides(b"one", b"other")


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([], ("0.1", "")),
        ([["0.2", "abc"]], ("0.2", "abc")),
        ([["", "abc"]], ("0.1", "abc")),
        ([["0.2"]], ("0.1", "")),
        ([["0.2", 5]], ("0.1", "")),
        ([["0.2\n", "x"]], ("0.1", "")),
        ([["0.2", "x" * 65]], ("0.1", "")),
        ([{"new": 1}], ("0.1", "")),
    ],
)
def test_release_and_build_of_a_peer_are_read_where_they_can_be_shown(items, told):
    identity = read_tail(LinkConfig(A), B, 5, write_plain([["callboard"], None, *items]))

    assert (identity.release, identity.build) == told


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
