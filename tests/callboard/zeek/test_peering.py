"""Broker 2.x's peering: recorded sessions byte for byte, both roles, redundancy, the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import (
    AlreadyLinked,
    IncompatibleVersion,
    LinkLost,
    MalformedFrame,
    MalformedHandshake,
    PayloadTooLarge,
    PeerSilent,
    RemoteProtocolError,
)
from callboard.model.data import Data
from callboard.model.errors import InvalidData
from callboard.model.scalar import Count
from callboard.store.machine.command import Command
from callboard.zeek.peering import (
    FILTER_LIMIT,
    HANDSHAKE_FRAME_LIMIT,
    LEAVE_LIMIT,
    MAGIC,
    NOBODY,
    PING_INTERVAL,
    SILENCE_LIMIT,
    FrameBuffer,
    PeerFilter,
    PeeringFrame,
    PeeringState,
    PeerMessage,
    filter_from_bytes,
    filter_to_bytes,
    handshake_frame,
    message_frame,
    message_of,
)
from tests.callboard.zeek.broker_command import command_from_bytes, command_to_bytes
from tests.callboard.zeek.peering_ends import (
    LARGE,
    REAL,
    SMALL,
    End,
    frames_of,
    pair,
    recording,
    settle,
)

CLONE, MASTER = "st/<$>/data/clone", "st/<$>/data/master"
IDS = st.binary(min_size=16, max_size=16)
TOPICS = st.lists(st.text(max_size=20), max_size=6).map(tuple)

#: Each recorded session, seen by either side: its id, whether it dialed, its filter, whose
#: bytes come and whose go.
SEEN = [
    (SMALL, True, ("/pong", CLONE), "cap-originator-in", "cap-originator-out"),
    (LARGE, True, ("/pong", CLONE), "cap-responder-in", "cap-responder-out"),
    (REAL, False, ("/test", MASTER), "cap-originator-out", "cap-originator-in"),
    (REAL, False, ("/test", MASTER), "cap-responder-out", "cap-responder-in"),
]


@pytest.mark.parametrize("piece", [1, 7, 65_536])
@pytest.mark.parametrize(("own", "is_dialed", "topics", "comes", "goes"), SEEN)
def test_a_recorded_session_with_a_real_broker_is_repeated_byte_for_byte(
    own, is_dialed, topics, comes, goes, piece
):
    end = End(own, topics, is_dialed=is_dialed)

    end.feed(recording(comes), piece)
    said = end.take_out()
    for frame in frames_of(recording(goes)):
        if len(frame) > 41 and frame[36] == PeeringFrame.DATA:
            _, message = message_of(frame[4:])
            said += end.session.send(message.topic, message.payload, message.ttl)
        elif len(frame) > 41 and frame[36] == PeeringFrame.PING:  # the tool's own, with "foo"
            said = said + frame

    assert said == recording(goes)
    assert end.admitted.endpoint == (recording(comes)[9:25] if not is_dialed else REAL)
    payloads = [each.payload for each in end.messages]
    assert payloads[0] == bytes.fromhex("0e02030000000000000001050568656c6c6f")
    assert payloads[1:] == [b"\x03" + number.to_bytes(8) for number in range(20)]


def test_the_filters_of_a_recorded_session_are_known_to_both():
    end = End(SMALL, ("/pong", CLONE), is_dialed=True)
    end.feed(recording("cap-originator-in"))

    assert end.session.topics == ("/test", MASTER)
    assert (end.session.sent_filter, end.session.state) == (
        ("/pong", CLONE),
        PeeringState.PEERED,
    )


def test_the_recorded_store_has_the_state_that_was_noted():
    """Master and clone of a real Broker 2.7: `store-annotated.txt` tells the same."""
    ends = {
        "store-c2s": End(bytes.fromhex("c0e679d20e7d542f8d9d3ac2a7572f51"), is_dialed=False),
        "store-s2c": End(bytes.fromhex("60df7cb1c0035c53b214a3cddccda4b0"), is_dialed=True),
    }
    commands = {}
    for name, end in ends.items():
        end.feed(recording(name))
        payloads = [each.payload for each in end.messages if each.kind == PeeringFrame.COMMAND]
        commands[name] = [command_from_bytes(payload) for payload in payloads]
        assert [*map(command_to_bytes, commands[name])] == payloads
    snapshot = next(
        each for each in commands["store-s2c"] if each.content[0] == Command.ACK_CLONE
    )
    state, due, results = dict(snapshot.content[3].pairs), snapshot.content[1] + 1, []
    for command in commands["store-s2c"]:
        if command.content[0] >= Command.ATTACH_WRITER:
            continue
        assert command.seq == due
        due += 1
        match command.content:
            case (Command.PUT, key, value, _):
                state[key] = value
            case (Command.ERASE, key):
                del state[key]
            case (Command.RESULT, was_inserted, _, request):
                results.append((was_inserted, request))

    assert state == {
        Data("a"): Data(2),
        Data("c"): Data(Count(3)),
        Data("d"): Data("from clone"),
        Data("u"): Data(1),
    }
    assert results == [(True, 1)]
    writes = [each for each in commands["store-c2s"] if each.content[0] < Command.ATTACH_WRITER]
    assert [(each.seq, each.content[0]) for each in writes] == [(2, Command.PUT), (3, 1)]
    # The last words: a BYE, answered with the same.
    assert ends["store-c2s"].take_out().endswith(bytes.fromhex("4259450100000000000010"))


# --- both sides of ours


@pytest.mark.parametrize("piece", [1, 65_536])
@pytest.mark.parametrize("small_dials", [True, False])
def test_two_sides_peer_in_both_orders(small_dials, piece):
    small = End(SMALL, ("/s",), is_dialed=small_dials)
    large = End(LARGE, ("/l", "/x"), is_dialed=not small_dials)

    settle(small, large, piece)

    assert (small.session.topics, large.session.topics) == (("/l", "/x"), ("/s",))
    assert (small.admitted.endpoint, large.admitted.endpoint) == (LARGE, SMALL)
    assert small.admitted.name == "ffffffff-ffff-4fff-bfff-ffffffffffff"


@given(st.booleans(), IDS, IDS, TOPICS, TOPICS, st.integers(1, 50))
def test_any_two_endpoints_peer_however_the_bytes_are_cut(
    dials, one, other, ours, theirs, piece
):
    if one == other or NOBODY in (one, other):
        return
    first, second = End(one, ours, is_dialed=dials), End(other, theirs, is_dialed=not dials)
    settle(first, second, piece)
    first.out += first.session.send(b"/t", b"\x01\x01", 3)
    second.out += second.session.send_filter(("/new",))
    settle(first, second, piece)

    assert second.messages == [PeerMessage(1, NOBODY, 3, b"/t", b"\x01\x01")]
    assert (first.session.topics, second.session.topics) == (("/new",), ours)
    assert first.messages == ([] if theirs == ("/new",) else [PeerFilter(("/new",))])


def test_a_filter_that_is_known_is_not_sent_again():
    small, _ = pair(topics=(("/a",), ()))

    assert small.session.send_filter(("/a",)) == b""
    assert small.session.send_filter(("/a", "/b"))[36] == PeeringFrame.ROUTING_UPDATE
    assert small.session.send_filter(("/a", "/b")) == b""


def test_a_ping_is_answered_with_its_payload_behind_what_came_before():
    small, large = pair()
    data = large.session.send(b"/a", b"\x00", 16)
    ping = message_frame(LARGE, SMALL, PeeringFrame.PING, b"<$>", b"foo")
    small.feed(data + ping + data)

    assert [each.topic for each in small.messages] == [b"/a", b"/a"]
    pong = message_frame(SMALL, LARGE, PeeringFrame.PONG, b"<$>", b"foo")
    assert small.take_out() == pong


# --- the end


def test_the_leaving_side_says_bye_and_ends_when_it_is_answered():
    small, large = pair()
    small.carry_out(small.session.close("done"))
    assert (small.closed, small.session.state) == (None, PeeringState.LEAVING)
    bye = small.out
    assert (bye[36], bye[-11:-8]) == (PeeringFrame.PING, b"BYE")
    assert small.session.send(b"/late", b"\x00", 16) == b""
    # What the other side had on its way is not lost.
    large.out = large.session.send(b"/last", b"\x00", 16)

    settle(small, large)

    assert (small.closed.reason, small.closed.error) == ("done", None)
    assert [each.topic for each in small.messages] == [b"/last"]
    assert (small.known, large.closed) == ({}, None)


def test_the_leaving_side_waits_three_seconds_and_no_longer():
    small, _ = pair()
    small.carry_out(small.session.close("done"))
    small.tick(7.0)
    small.tick(7.0 + LEAVE_LIMIT - 0.1)
    assert small.closed is None
    assert small.session.next_tick_at == 7.0 + LEAVE_LIMIT

    small.tick(7.0 + LEAVE_LIMIT)

    assert small.closed.reason == "done"


def test_both_may_leave_at_once():
    small, large = pair()
    for end in (small, large):
        end.carry_out(end.session.close("done"))
    settle(small, large)

    assert (small.closed.error, large.closed.error) == (None, None)


def test_who_is_no_peer_yet_ends_at_once():
    end = End(is_dialed=True)
    end.carry_out(end.session.close("never mind"))

    assert end.closed.reason == "never mind"


def test_silence_is_asked_and_then_ended():
    small, large = pair()
    small.tick(PING_INTERVAL)
    assert small.out[36] == PeeringFrame.PING
    large.now = small.now
    settle(small, large)  # the pong
    small.tick(PING_INTERVAL + SILENCE_LIMIT - 0.1)
    assert small.closed is None

    small.tick(PING_INTERVAL + SILENCE_LIMIT)

    assert isinstance(small.closed.error, PeerSilent)


def test_a_lost_connection_says_what_to_look_at_if_nothing_was_said():
    end = End(is_dialed=True)
    end.carry_out(end.session.lost("closed by the other side"))

    assert "disable_ssl" in end.closed.reason
    assert isinstance(end.closed.error, LinkLost)


# --- one connection for each pair


def crossing(dials):
    """Return two connections of one pair, made at once, as their ends: small, large."""
    known = {}, {}
    return [
        (
            End(SMALL, is_dialed=small_dials, known=known[0]),
            End(LARGE, is_dialed=not small_dials, known=known[1]),
        )
        for small_dials in dials
    ]


@pytest.mark.parametrize("dials", [(True, False), (True, True), (False, False)])
def test_of_two_connections_made_at_once_one_stands(dials):
    connections = crossing(dials)
    for _ in range(5):
        for small, large in connections:
            if small.closed is None:
                small.tick(small.now + 0.1)
            settle(small, large)

    standing = [each for each in connections if each[0].admitted]
    assert len(standing) == 1
    others = [each for each in connections if not each[0].admitted]
    for ends in others:
        assert all(isinstance(end.closed.error, AlreadyLinked) for end in ends)


def test_a_parked_connection_goes_on_when_the_one_before_it_fails():
    (first, first_there), (second, second_there) = crossing((True, True))
    first.feed(first_there.take_out())
    first_there.feed(first.take_out())
    first.feed(first_there.take_out())
    settle(second, second_there)
    second.tick(0.1)
    assert second.session.state is PeeringState.PARKED

    first.carry_out(first.session.lost("cut"))
    second.tick(0.2)
    settle(second, second_there)

    assert second.admitted is not None


def test_a_further_connection_is_dropped_with_code_39_and_the_first_is_asked_for_life():
    small, large = pair()
    again = End(SMALL, is_dialed=False, known=small.known, now=5.0)
    other = End(LARGE, is_dialed=True, known=large.known, now=5.0)
    settle(again, other)
    assert isinstance(again.closed.error, AlreadyLinked)
    assert isinstance(other.closed.error, AlreadyLinked)

    small.tick(5.1)
    assert small.take_out()[36] == PeeringFrame.PING
    small.tick(8.1)

    assert isinstance(small.closed.error, PeerSilent)
    assert small.known == {}


def test_a_redundant_drop_without_another_connection_is_a_failure_to_be_tried_again():
    end = End(SMALL, is_dialed=True)
    end.feed(handshake_frame(PeeringFrame.DROP_CONN, MAGIC, LARGE, 39, rest=b"\x03red"))

    assert isinstance(end.closed.error, LinkLost)
    assert "code 39" in end.closed.reason


# --- what does not belong


def dropped_with(end):
    """Return the code and the text of the last frame of an end."""
    frame = frames_of(end.out)[-1]
    assert frame[4] == PeeringFrame.DROP_CONN
    return frame[25], frame[27:].decode()


@pytest.mark.parametrize(
    ("frame", "code", "error"),
    [
        (handshake_frame(PeeringFrame.HELLO, MAGIC, REAL, 2, 3), 2, IncompatibleVersion),
        (handshake_frame(PeeringFrame.HELLO, MAGIC, REAL, 0, 0), 2, IncompatibleVersion),
        (handshake_frame(PeeringFrame.VERSION_SELECT, MAGIC, SMALL, 2), 2, IncompatibleVersion),
        (handshake_frame(PeeringFrame.HELLO, b"ZEEX", REAL, 1, 1), 0x26, MalformedHandshake),
        (handshake_frame(PeeringFrame.PROBE, b"BROK"), 0x26, MalformedHandshake),
        (handshake_frame(PeeringFrame.HELLO, MAGIC, LARGE, 1, 1), 29, MalformedHandshake),
        (handshake_frame(PeeringFrame.HELLO, MAGIC, NOBODY, 1, 1), 29, MalformedHandshake),
        (handshake_frame(PeeringFrame.ORIGINATOR_ACK), 31, MalformedHandshake),
        (b"\x00\x00\x00\x01\x63", 31, MalformedHandshake),
        (b"\x00\x00\x00\x03\x06ZE", 20, MalformedHandshake),
        (b"\x00\x00\x00\x00", 20, MalformedFrame),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 20, PayloadTooLarge),
    ],
)
def test_what_does_not_belong_is_dropped_with_a_code_and_a_typed_error(frame, code, error):
    end = End(LARGE, is_dialed=True)
    end.take_out()
    end.feed(frame)

    assert type(end.closed.error) is error
    assert dropped_with(end)[0] == code


def test_a_stranger_that_speaks_tls_is_called_so():
    end = End(is_dialed=False)
    end.feed(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")

    assert "the peer speaks TLS" in end.closed.reason


def test_the_version_is_selected_by_the_smaller_id_that_said_hello():
    for select in (REAL, LARGE):
        end = End(SMALL if select is LARGE else LARGE, is_dialed=False)
        end.feed(
            handshake_frame(PeeringFrame.HELLO, MAGIC, SMALL if select is REAL else REAL, 1, 1)
        )
        end.feed(handshake_frame(PeeringFrame.VERSION_SELECT, MAGIC, select, 1))
        assert end.closed is not None


@pytest.mark.parametrize(
    "body",
    [
        b"\x00" * 36,
        SMALL + NOBODY + b"\x01\x00\x10\x00\x09short",
        SMALL + NOBODY + b"\x07\x00\x10\x00\x00",
        SMALL + NOBODY + b"\x03\x00\x10\x00\x03<$>\x05",
    ],
)
def test_a_malformed_message_ends_the_connection_behind_what_came(body):
    small, large = pair()
    small.feed(large.session.send(b"/a", b"\x00", 16) + len(body).to_bytes(4) + body)

    assert [each.topic for each in small.messages] == [b"/a"]
    assert isinstance(small.closed.error, RemoteProtocolError)
    assert small.out == b""


def test_a_frame_of_the_handshake_is_bounded_and_one_of_messages_may_be_larger():
    end = End(is_dialed=False)
    end.feed((HANDSHAKE_FRAME_LIMIT + 1).to_bytes(4))
    assert isinstance(end.closed.error, PayloadTooLarge)

    small, large = pair()
    payload = b"\x05" + bytes(HANDSHAKE_FRAME_LIMIT)
    small.feed(large.session.send(b"/big", payload, 16))
    assert small.messages[0].payload == payload


# --- codecs


@given(TOPICS)
def test_filters_come_back(topics):
    assert filter_from_bytes(filter_to_bytes(topics)) == topics


@given(st.binary(max_size=40))
def test_bytes_are_a_filter_or_an_error_of_ours(data):
    try:
        topics = filter_from_bytes(data)
    except InvalidData:
        return
    assert len(topics) <= len(data)


def test_a_filter_is_bounded():
    with pytest.raises(InvalidData, match="exceeds the limit of 16,384"):
        filter_from_bytes(filter_to_bytes(("",) * (FILTER_LIMIT + 1)))


@given(
    IDS, IDS, st.integers(0, 255), st.integers(0, 65_535), st.binary(max_size=30), st.binary()
)
def test_messages_come_back(sender, receiver, kind, ttl, topic, payload):
    frame = message_frame(sender, receiver, kind, topic, payload, ttl)

    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert message_of(frame[4:]) == (
        sender,
        PeerMessage(kind, receiver, ttl, topic, payload),
    )


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.integers(1, 400))
def test_frames_come_whole_however_the_stream_is_cut(bodies, piece):
    stream = b"".join(len(body).to_bytes(4) + body for body in bodies)
    buffer, found = FrameBuffer(), []
    for at in range(0, len(stream), piece):
        found += buffer.take(stream[at : at + piece], 1_000)

    assert found == bodies
