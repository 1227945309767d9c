import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import (
    AuthenticationFailed,
    IncompatibleApplication,
    IncompatibleVersion,
    LinkLost,
    MalformedFrame,
    MalformedHandshake,
    PayloadTooLarge,
    PeerSilent,
    RemoteProtocolError,
)
from callboard.basp.frame import pack_frame
from callboard.basp.handshake import HANDSHAKE_LIMIT, LinkConfig
from callboard.basp.header import Operation
from callboard.basp.link import (
    Closed,
    Deliver,
    Established,
    Link,
    LinkPairs,
    LinkState,
    Parked,
    Redundant,
    Seal,
    Transmit,
)
from callboard.basp.node_id import NO_NODE
from tests.basp.wire import A, B, Wire, receive

C = b"c" * 18
DISPATCH = pack_frame(2, 5, A, B, 16, 17, b"\x81\x05")
HEARTBEAT = pack_frame(5, 0, A, B, 0, 0, b"")


def connect(a=None, b=None, dials=((A, B),)):
    wire = Wire({A: LinkConfig(A, **(a or {})), B: LinkConfig(B, **(b or {}))}, list(dials))
    wire.settle()
    return wire


def only(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


@pytest.mark.parametrize("dials", [[(A, B)], [(B, A)]])
@pytest.mark.parametrize("secret", [None, b"swordfish"])
def test_handshake_establishes_both_ends_whoever_dials(dials, secret):
    options = {"secret": secret, "published": (99, ("iface",)), "application_ids": ("x", "y")}
    wire = Wire({A: LinkConfig(A, **options), B: LinkConfig(B, **options)}, dials)
    for end in wire.ends:
        end.link.upper_state = b"state of " + end.link._config.node_id
    wire.settle()

    for end in wire.ends:
        (event,) = only(end.events, Established)
        other = end.other.link._config.node_id
        assert event.peer == end.link.peer
        assert event.peer.node_id == other
        assert event.peer.published == (99, ("iface",))
        assert event.peer.application_ids == ("x", "y")
        assert event.peer.state == b"state of " + other


def test_the_sequence_is_the_designs():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(B, A)])
    wire.settle()
    sent = [
        [Operation(e.data[3]).name.lower() for e in only(end.events, Transmit)]
        for end in wire.ends
    ]

    assert sent == [
        ["client_handshake", "responder_syn_ack", "heartbeat"],
        ["server_handshake", "hello", "originator_syn", "originator_ack"],
    ]


def test_a_run_of_dispatches_is_one_delivery():
    end = connect().ends[1]
    effects = receive(end.link, DISPATCH * 300, 0.0)

    (deliver,) = effects
    assert isinstance(deliver, Deliver)
    assert len(deliver.frames) == 300


def test_heartbeats_are_removed_and_the_order_is_kept():
    end = connect().ends[1]
    report = pack_frame(13, 0, C, B, 0, 0, b"\x80")
    effects = receive(end.link, HEARTBEAT + DISPATCH + HEARTBEAT + report + DISPATCH, 0.0)

    (deliver,) = effects
    assert [frame[0] for frame in deliver.frames] == [2, 13, 2]
    assert receive(end.link, HEARTBEAT, 0.0) == []


def test_frames_after_the_ack_in_one_read_are_delivered_after_established():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(A, B)])
    while not (wire.ends[0].link.is_established):
        wire.deliver(next(end for end in wire.ends if end.incoming))
    end = wire.ends[1]
    end.incoming[-1] += DISPATCH
    wire.settle()

    assert end.names()[-3:] == ["Established", "Transmit", "Deliver"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (pack_frame(7, 0, A, B, 0, 0, b""), MalformedHandshake),
        (pack_frame(0, 0x43420002, A, NO_NODE, 0, 0, b""), MalformedHandshake),
        (pack_frame(5, 0, C, B, 0, 0, b""), MalformedFrame),
        (pack_frame(11, 0, C, B, 0, 0, b""), MalformedFrame),
        (pack_frame(3, 0, C, B, 0, 17, b"x"), MalformedFrame),
        (pack_frame(15, 0, A, B, 0, 0, b""), RemoteProtocolError),
    ],
)
def test_a_bad_frame_closes_the_link_after_the_good_ones(bad, error):
    end = connect().ends[1]
    effects = receive(end.link, DISPATCH + bad + DISPATCH, 0.0)

    assert [type(e) for e in effects] == [Deliver, Transmit, Closed]
    assert len(effects[0].frames) == 1
    assert effects[1].data[3] == Operation.DROP_CONN
    assert isinstance(effects[2].error, error)
    assert receive(end.link, DISPATCH, 0.0) == []
    assert end.link.tick(99.0) == end.link.close("x") == end.link.lost("y") == []


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ({"version": 0x43420001}, {}, IncompatibleVersion),
        ({"application_ids": ("x",)}, {}, IncompatibleApplication),
        ({"secret": b"x"}, {}, AuthenticationFailed),
        ({"secret": b"x"}, {"secret": b"y"}, AuthenticationFailed),
        ({}, {"secret": b"y"}, AuthenticationFailed),
    ],
)
@pytest.mark.parametrize("dials", [[(A, B)], [(B, A)]])
def test_unfit_peers_are_refused_with_the_reason(a, b, error, dials):
    wire = connect(a, b, dials)
    errors = [end.closed.error for end in wire.ends]

    assert any(isinstance(e, error) for e in errors), errors
    assert all(isinstance(e, (error, LinkLost)) for e in errors)
    assert not wire.established()
    assert not any(pairs._pairs for pairs in wire.pairs.values())


def test_a_node_is_not_linked_to_itself():
    wire = Wire({A: LinkConfig(A)}, [(A, A)])
    wire.settle()

    assert any("connected to itself" in end.closed.reason for end in wire.ends)
    assert not wire.established()


@pytest.mark.parametrize("operation", [2, 5, 6, 7, 10, 11])
def test_anything_else_before_the_proof_closes(operation):
    wire = Wire({A: LinkConfig(A, secret=b"s"), B: LinkConfig(B, secret=b"s")}, [(A, B)])
    acceptor = wire.ends[1].link
    effects = receive(acceptor, pack_frame(operation, 0, A, B, 0, 0, b""), 0.0)

    assert acceptor.state is LinkState.CLOSED
    assert not only(effects, (Deliver, Established))


def test_handshakes_have_a_size_limit_and_links_another():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(A, B)])
    big = pack_frame(1, 0x43420002, A, B, 0, 0, bytes(HANDSHAKE_LIMIT + 1))
    (*_, closed) = receive(wire.ends[1].link, big, 0.0)
    assert isinstance(closed.error, PayloadTooLarge)

    end = connect(b={"payload_limit": 10**6}).ends[1]
    large = pack_frame(2, 0, A, B, 0, 0, bytes(10**6))
    assert len(receive(end.link, large, 0.0)) == 1
    (*_, closed) = receive(end.link, pack_frame(2, 0, A, B, 0, 0, bytes(10**6 + 1)), 0.0)
    assert isinstance(closed.error, PayloadTooLarge)


def test_heartbeats_go_out_each_interval_and_silence_kills_after_three():
    link = connect().ends[0].link
    sent = [len(only(link.tick(t / 10), Transmit)) for t in range(30)]
    assert sum(sent) == 2
    assert link.next_tick_at == 3.0

    effects = link.tick(3.0)

    assert isinstance(effects[-1], Closed)
    assert isinstance(effects[-1].error, PeerSilent)
    assert "3 heartbeats" in effects[-1].reason


def test_any_byte_is_life():
    link = connect().ends[0].link
    for now in range(1, 20):
        receive(link, b"\x00", float(now))
        assert not only(link.tick(float(now)), Closed)


def test_silent_stranger_is_closed_by_the_handshake_time_limit():
    link = Link(
        LinkConfig(A, handshake_timeout=4.0),
        dialer=True,
        nonce=bytes(16),
        now=1.0,
        pairs=LinkPairs(),
    )
    assert link.next_tick_at == 5.0
    assert link.tick(4.9) == []

    (closed,) = link.tick(5.0)

    assert "handshake took longer than 4 s" in closed.reason


def test_a_clean_close_is_sent_to_the_peer_and_is_not_an_error():
    wire = connect()
    wire.carry_out(wire.ends[0], wire.ends[0].link.close("shutdown"))
    wire.settle()

    assert wire.ends[0].closed == Closed("shutdown")
    assert wire.ends[1].closed.error is None
    assert "closing" in wire.ends[1].closed.reason


def test_only_the_originator_may_call_a_link_redundant():
    wire = connect()
    originator, responder = wire.ends
    drop = pack_frame(10, 1, B, A, 0, 0, b"")
    assert isinstance(receive(originator.link, drop, 0.0)[-1].error, LinkLost)

    drop = pack_frame(10, 1, A, B, 0, 0, b"")
    assert [type(e) for e in receive(responder.link, drop, 0.0)] == [Redundant, Closed]


def test_unknown_drop_reasons_are_shown_as_numbers():
    end = connect().ends[1]
    effects = receive(end.link, pack_frame(10, 77, A, B, 0, 0, b""), 0.0)
    assert "77" in effects[-1].reason


def test_dial_to_a_living_link_parks_and_is_redundant_a_heartbeat_later():
    wire = connect()
    wire.settle(5.0)
    first, second = wire.dial(B, A)
    wire.settle()
    assert only(second.events, Parked) == [Parked(B)]

    wire.settle(3.0)

    assert only(first.events, Redundant) == [Redundant(A)]
    assert first.closed.error is second.closed.error is None
    assert [end.link.state for end in wire.ends[:2]] == [LinkState.ESTABLISHED] * 2


@pytest.mark.parametrize("dials", [(A, B), (B, A)])
@pytest.mark.parametrize("notices", [0, 1])
def test_a_redial_continues_after_a_loss_that_one_side_has_not_noticed(dials, notices):
    wire = connect()
    wire.settle(5.0)
    wire.cut(wire.ends[0])
    wire.carry_out(wire.ends[notices], wire.ends[notices].link.lost("reset"))
    first, second = wire.dial(*dials)
    wire.settle()
    assert not first.link.is_established
    wire.settle(4.0)

    assert wire.established() == [first, second]
    assert isinstance(wire.ends[1 - notices].closed.error, PeerSilent)


def test_parked_connections_have_a_limit():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(B, A)] * 40)
    wire.settle()
    wire.settle(3.0)

    assert len(wire.established()) == 2
    assert len(wire.pairs[A].parked(B)) == 0


def test_crossing_dials_are_settled_without_waiting():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(A, B), (B, A)])
    for _ in range(10):
        for end in wire.ends:
            if end.incoming:
                wire.deliver(end)

    states = sorted(end.link.state.name for end in wire.ends)
    assert states == ["CLOSED", "CLOSED", "ESTABLISHED", "ESTABLISHED"]
    assert sorted(end.names().count("Redundant") for end in wire.ends) == [0, 0, 1, 1]


def test_no_heartbeat_passes_for_the_confirmation_that_the_ack_arrived():
    wire = Wire({A: LinkConfig(A), B: LinkConfig(B)}, [(A, B)])
    responder = wire.ends[1]
    while responder.link.state is not LinkState.AWAIT_ACK:
        wire.deliver(next(end for end in wire.ends if end.incoming))

    assert responder.link.tick(1.5) == []
    assert responder.link.next_tick_at > 1.5


def test_resume_of_a_link_that_is_not_parked_does_nothing():
    wire = connect()
    assert [end.link.resume(0.0) for end in wire.ends] == [[], []]


def test_nonce_has_a_length():
    with pytest.raises(ValueError, match="16 bytes"):
        Link(LinkConfig(A), dialer=True, nonce=b"", now=0.0, pairs=LinkPairs())


def transcript(secret):
    """Return the bytes that the acceptor B receives from the dialer A."""
    wire = Wire({A: LinkConfig(A, secret=secret), B: LinkConfig(B, secret=secret)}, [(A, B)])
    wire.settle()
    if secret is not None:
        wire.send(wire.ends[0], DISPATCH)
        return wire.ends[0].sent
    return [*wire.ends[0].sent, DISPATCH]


def fresh_acceptor(secret):
    wire = Wire({A: LinkConfig(A, secret=secret), B: LinkConfig(B, secret=secret)}, [(A, B)])
    return wire.ends[1].link


@pytest.mark.parametrize("secret", [None, b"s"])
def test_byte_by_byte_is_the_same_as_whole(secret):
    stream = b"".join(transcript(secret))
    whole, single = fresh_acceptor(secret), fresh_acceptor(secret)
    expected = receive(whole, stream, 0.0)

    got = [e for i in range(len(stream)) for e in receive(single, stream[i : i + 1], 0.0)]

    def without_seal(effects):
        return [effect for effect in effects if not isinstance(effect, Seal)]

    assert without_seal(got) == without_seal(expected)
    assert len(only(got, Seal)) == len(only(expected, Seal)) == (secret is not None)
    assert len(only(got, Deliver)) == 1
    assert single.is_established


@pytest.mark.parametrize("secret", [None, b"s"])
def test_truncated_handshakes_wait(secret):
    stream = b"".join(transcript(secret)[:-1])
    for end in range(len(stream)):
        link = fresh_acceptor(secret)
        effects = receive(link, stream[:end], 0.0)
        assert not only(effects, (Closed, Established))


@pytest.mark.parametrize("secret", [None, b"s"])
def test_every_flipped_bit_of_a_handshake_is_harmless_or_typed(secret):
    stream = b"".join(transcript(secret))
    for bit in range(8 * len(stream)):
        bad = bytearray(stream)
        bad[bit // 8] ^= 1 << bit % 8
        link = fresh_acceptor(secret)
        for closed in only(receive(link, bytes(bad), 0.0), Closed):
            assert closed.error is None or isinstance(closed.error, RemoteProtocolError)


def test_a_flipped_bit_in_a_proven_handshake_is_refused():
    client, *_rest = transcript(b"s")
    for bit in range(8 * 16, 8 * (60 + 49)):
        if bit // 8 in range(52, 60) or bit // 8 == 76:
            continue
        bad = bytearray(client)
        bad[bit // 8] ^= 1 << bit % 8
        link = fresh_acceptor(b"s")
        (*_, closed) = receive(link, bytes(bad), 0.0)
        assert isinstance(closed, Closed), bit
        assert isinstance(closed.error, RemoteProtocolError)


@given(
    st.lists(st.tuples(st.integers(0, 14), st.binary(max_size=80)), max_size=6), st.booleans()
)
def test_any_frames_give_effects_or_a_typed_error(frames, established):
    link = connect().ends[1].link if established else fresh_acceptor(None)
    stream = b"".join(pack_frame(op, 0x43420002, A, B, 0, 0, data) for op, data in frames)
    for closed in only(receive(link, stream, 0.0), Closed):
        assert closed.error is None or isinstance(closed.error, RemoteProtocolError)


TIMED = LinkConfig(A, heartbeat=1.0, missed=3, handshake_timeout=5.0)
IDENTIFIED = [
    LinkState.AWAIT_SYN,
    LinkState.PARKED,
    LinkState.AWAIT_SYN_ACK,
    LinkState.AWAIT_ACK,
    LinkState.ESTABLISHED,
]
SPEAKING = [state for state in IDENTIFIED if state is not LinkState.AWAIT_ACK]


def link_in(state):
    """A link that began at 10.0, and whose peer did its part at 11.0."""
    link = Link(TIMED, dialer=True, nonce=bytes(16), now=10.0, pairs=LinkPairs())
    link.state, link._peer_id, link.heard_at = state, B, 11.0
    link._end_part(11.0)
    return link


def test_a_stranger_has_the_time_of_a_part_of_the_handshake_and_gets_no_heartbeat():
    link = Link(TIMED, dialer=True, nonce=bytes(16), now=10.0, pairs=LinkPairs())

    assert link.next_tick_at == 15.0
    assert link.tick(14.9) == []
    (closed,) = link.tick(15.0)
    assert closed.reason.endswith("handshake took longer than 5 s")


@pytest.mark.parametrize("state", SPEAKING)
def test_a_heartbeat_is_due_an_interval_after_the_last_one(state):
    link = link_in(state)

    assert link.next_tick_at == 12.0
    assert link.tick(11.9) == []
    assert [type(effect) for effect in link.tick(12.5)] == [Transmit]
    assert link.tick(13.4) == []
    assert link.next_tick_at == 13.5


def test_a_link_that_awaits_the_ack_sends_no_heartbeat():
    link = link_in(LinkState.AWAIT_ACK)

    assert link.tick(13.9) == []
    assert link.next_tick_at == 14.0


@pytest.mark.parametrize("state", IDENTIFIED)
def test_silence_ends_every_link_whose_peer_is_identified(state):
    link = link_in(state)
    link.heard_at = 12.0
    link._sent_at = 14.5

    assert link.tick(14.9) == []
    *_, closed = link.tick(15.0)
    assert closed.reason.endswith("silent for 3.0 s, 3 heartbeats")


def test_each_part_of_the_handshake_has_its_own_time_limit():
    link = link_in(LinkState.AWAIT_SYN)
    link._peer_id, link.upper_state = B, b""
    link._proceed(14.0, [])
    link.heard_at = link._sent_at = 18.5

    assert link.tick(18.9) == []
    *_, closed = link.tick(19.0)
    assert closed.reason.endswith("handshake took longer than 5 s")
