"""Both ends of Zeek's WebSocket JSON against each other and against a recorded real one."""

import json
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from callboard.basp.errors import AuthenticationFailed, LinkLost, MalformedHandshake
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.model.data import Data
from callboard.model.encoding import data_to_cbor
from callboard.model.errors import InvalidOption
from callboard.model.scalar import Count
from callboard.zeek.json_message import content_to_json
from callboard.zeek.web_socket import (
    PING_INTERVAL,
    SILENCE_LIMIT,
    ErrorFrame,
    SessionState,
    WebSocketAdmission,
    ZeekClientSession,
    ZeekServerSession,
    checked_name,
    parse_address,
)
from tests.callboard.zeek.conversation import frames

LIMIT = 4_096
ANYBODY = WebSocketAdmission()
SEVEN = data_to_cbor(Data(Count(7)))


class End:
    """One machine and what came of it."""

    def __init__(self, machine):
        self.machine = machine
        self.out = b""
        self.messages, self.admitted, self.closed = [], [], []

    def carry_out(self, effects):
        for effect in effects:
            assert not self.closed, "nothing comes behind the end"
            match effect:
                case Transmit(data):
                    self.out += data
                case Arrived(messages):
                    self.messages += messages
                case Admitted(name):
                    self.admitted.append(name)
                case Closed():
                    self.closed.append(effect)

    def take(self, data, now=0.0):
        found, effects = self.machine.take(data, now)
        assert not (found and effects)
        self.messages += found
        self.carry_out(effects)

    def send(self, text):
        self.out += self.machine.send(text)


class Pair:
    """A client and a server, and the bytes between them."""

    def __init__(
        self, entry=ANYBODY, topics=("/pong",), url="ws://zeek", headers=None, piece=None
    ):
        url = parse_address(url)
        client = ZeekClientSession(url, lambda: topics, 0.0, limit=LIMIT, headers=headers)
        self.client = End(client)
        self.server = End(ZeekServerSession(entry, "b3a6", "2.7.0", 0.0, limit=LIMIT))
        self.piece = piece
        self.client.carry_out(client.start())
        self.carry()

    def carry(self):
        """Carry bytes until nothing moves."""
        while self.client.out or self.server.out:
            for one, other in ((self.client, self.server), (self.server, self.client)):
                data, one.out = one.out, b""
                step = self.piece or max(1, len(data))
                for at in range(0, len(data), step):
                    if not other.closed:
                        other.take(data[at : at + step])

    @property
    def states(self):
        return self.client.machine.state, self.server.machine.state


@pytest.mark.parametrize("piece", [None, 1, 7])
def test_filter_and_ack_come_before_messages_both_ways(piece):
    pair = Pair(piece=piece)
    text = content_to_json("/test", SEVEN)

    pair.client.send(text)
    pair.server.send(text)
    pair.carry()

    assert pair.states == (SessionState.OPEN, SessionState.OPEN)
    assert pair.server.machine.topics == ("/pong",)
    assert (pair.client.machine.endpoint, pair.client.machine.version) == ("b3a6", "2.7.0")
    assert pair.client.messages == pair.server.messages == [("/test", SEVEN)]


def test_an_empty_filter_is_acknowledged_too():
    assert Pair(topics=()).states == (SessionState.OPEN, SessionState.OPEN)


def test_a_client_sends_nothing_before_the_ack_and_a_server_takes_what_comes_before():
    session = ZeekClientSession(parse_address("ws://zeek"), lambda: ("/a",), 0.0, limit=LIMIT)
    client, server = (
        End(session),
        End(ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=LIMIT)),
    )
    client.carry_out(session.start())
    assert session.send("text") == b""
    server.take(client.out)
    client.out = b""
    client.take(server.out)
    server.take(client.out + session._frames.framed(content_to_json("/n", SEVEN)))

    assert server.admitted
    assert server.messages == [("/n", SEVEN)]


def test_the_recorded_mistakes_get_error_frames_with_their_numbers_and_the_connection_stays():
    pair = Pair()
    expected = [
        json.loads(text)["context"].partition(" ->")[0]
        for text in frames("refused", is_sent=False)
        if '"error"' in text
    ]

    for text in frames("refused", is_sent=True)[1:]:
        pair.client.send(text)
    pair.carry()

    assert [each.context.partition(" ->")[0] for each in pair.client.messages] == expected
    assert {each.code for each in pair.client.messages} == {"deserialization_failed"}
    assert pair.server.messages == [("/test", SEVEN)]
    assert pair.states == (SessionState.OPEN, SessionState.OPEN)


@pytest.mark.parametrize("text", ['{"a":1}', "[1]", "nonsense", '["\\ud800"]', "[" * 9_000])
def test_a_filter_that_is_no_list_of_texts_ends_the_connection_with_a_reason(text):
    pair = Pair()
    server = ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=1 << 20)
    end = End(server)
    core = ClientProtocol(parse_uri("ws://zeek/v1/messages/json"))
    core.send_request(core.connect())
    end.take(b"".join(core.data_to_send()))
    core.receive_data(end.out)
    end.out = b""
    core.send_text(text.encode())
    end.take(b"".join(core.data_to_send()))

    assert isinstance(end.closed[0].error, MalformedHandshake)
    assert b"subscriptions not an array" in end.out
    assert pair.states[0] is SessionState.OPEN


@pytest.mark.parametrize(
    ("entry", "url", "headers", "status"),
    [
        (WebSocketAdmission(), "ws://zeek/other", {}, "400"),
        (WebSocketAdmission(), "ws://zeek", {"X-Application-Name": "a b"}, "400"),
        (WebSocketAdmission(), "ws://zeek", {"Origin": "https://evil.example"}, "403"),
        (
            WebSocketAdmission(origins=("https://ours",)),
            "ws://zeek",
            {"Origin": "http://localhost"},
            "403",
        ),
        (WebSocketAdmission({"ann": "s3cret"}), "ws://zeek", {}, "401"),
        (
            WebSocketAdmission({"ann": "s3cret"}),
            "ws://zeek",
            {"Authorization": "Bearer s3cre"},
            "401",
        ),
        (WebSocketAdmission({"ann": "s3cret"}), "ws://zeek?token=wrong", {}, "401"),
    ],
)
def test_who_may_not_come_in_is_told_by_http(entry, url, headers, status):
    pair = Pair(entry, url=url, headers=headers)

    assert status in pair.client.closed[0].reason
    is_refusal = isinstance(pair.client.closed[0].error, AuthenticationFailed)
    assert is_refusal is (status != "400")
    assert pair.states == (SessionState.ENDED, SessionState.ENDED)


@pytest.mark.parametrize(
    ("entry", "url", "headers", "name"),
    [
        (
            WebSocketAdmission({"ann": "s3cret", "bob": "t"}),
            "ws://zeek",
            {"Authorization": "Bearer t"},
            "bob",
        ),
        (
            WebSocketAdmission({"ann": "s3cret"}),
            "ws://zeek?token=s3cret",
            {"Origin": "https://x"},
            "ann",
        ),
        (
            WebSocketAdmission(),
            "ws://zeek",
            {"X-Application-Name": "zeek/node-1"},
            "zeek/node-1",
        ),
        (WebSocketAdmission(), "ws://zeek", {"Origin": "http://localhost:8000"}, ""),
        (
            WebSocketAdmission(origins=("https://ours",)),
            "ws://zeek",
            {"Origin": "https://ours"},
            "",
        ),
    ],
)
def test_who_may_come_in_is_known_by_name(entry, url, headers, name):
    pair = Pair(entry, url=url, headers=headers)

    assert pair.server.admitted == [name]


def test_a_message_in_parts_is_one_and_pings_between_them_are_answered():
    pair = Pair()
    text = content_to_json("/test", data_to_cbor(Data(["grün"] * 50))).encode()
    core = pair.client.machine._core
    for number, at in enumerate(range(0, len(text), 100)):
        part, is_last = text[at : at + 100], at + 100 >= len(text)
        frame = Frame(Opcode.TEXT if number == 0 else Opcode.CONT, part, is_last)
        core.send_frame(frame)
        core.send_ping(b"there?")
    pair.client.out += b"".join(core.data_to_send())
    pair.carry()

    assert pair.server.messages == [("/test", data_to_cbor(Data(["grün"] * 50)))]
    assert pair.states == (SessionState.OPEN, SessionState.OPEN)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Opcode.TEXT, b"x" * (LIMIT + 1)),
        Frame(Opcode.BINARY, b"x"),
        Frame(Opcode.TEXT, b"\xff"),
        b"\xc1\x81" + bytes(4) + b"x",
        b"\x81\x01x",
        Frame(Opcode.CONT, b"x"),
    ],
)
def test_a_frame_against_the_rules_ends_the_connection_on_both_sides(frame):
    pair = Pair()
    core = pair.client.machine._core
    if isinstance(frame, Frame):
        core.send_frame(frame)
        frame = b"".join(core.data_to_send())
    pair.client.out += frame
    pair.carry()

    assert isinstance(pair.server.closed[0].error, LinkLost)
    assert isinstance(pair.client.closed[0].error, LinkLost)


def test_parts_that_are_too_long_together_end_the_connection():
    pair = Pair()
    core = pair.client.machine._core
    for number in range(3):
        core.send_frame(Frame(Opcode.TEXT if not number else Opcode.CONT, b"x" * 2_000, False))
    pair.client.out += b"".join(core.data_to_send())
    pair.carry()

    assert pair.states == (SessionState.ENDED, SessionState.ENDED)


BROKER = b"\x00\x00\x00\x05\x07ZEEK\x02\x01"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"), (BROKER, "Zeek Broker 2.x"),
        (b"\x16\x03\x01", "TLS"),
        (bytes(8) + bytes.fromhex("0000000043420003"), "BASP"), (b"\x20\x02", "something else"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", ["client", "server"])
def test_another_protocol_is_named_at_once(side, said, name):
    url = parse_address("ws://zeek")
    client = ZeekClientSession(url, lambda: (), 0.0, limit=LIMIT)
    server = ZeekServerSession(ANYBODY, "e", "v", 0.0, limit=LIMIT)
    end = End(client if side == "client" else server)
    end.carry_out(end.machine.start())
    end.out = b""
    end.take(said)

    assert end.closed[0].reason == f"the peer speaks {name}, not WebSocket"
    assert end.out.startswith(b"HTTP/1.1 400" if side == "server" else b"")


def test_a_refusal_whose_body_has_no_length_is_told_at_its_end():
    session = ZeekClientSession(parse_address("ws://zeek"), lambda: (), 0.0, limit=LIMIT)
    end = End(session)
    end.carry_out(session.start())
    end.take(b"HTTP/1.1 404 Not Found\r\nServer: x\r\n\r\nno such")
    end.carry_out(session.lost("closed"))

    assert "HTTP 404 Not Found" in end.closed[0].reason


def test_an_upgrade_that_is_none_is_told():
    session = ZeekClientSession(parse_address("ws://zeek"), lambda: (), 0.0, limit=LIMIT)
    end = End(session)
    end.carry_out(session.start())
    end.take(
        b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: x\r\n\r\n"
    )

    assert "Sec-WebSocket-Accept" in end.closed[0].reason


def test_a_request_that_is_none_is_refused_at_once():
    end = End(ZeekServerSession(ANYBODY, "e", "v", 0.0, limit=LIMIT))
    end.take(b"GET nonsense\r\n\r\n")

    assert end.out.startswith(b"HTTP/1.1 400")
    assert end.closed


@pytest.mark.slow
def test_empty_parts_without_end_cost_no_memory():
    pair = Pair()
    pair.server.take(b"\x01\x80" + bytes(4))
    tracemalloc.start()
    try:
        for _ in range(100):
            pair.server.take((b"\x00\x80" + bytes(4)) * 100)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert pair.states == (SessionState.OPEN, SessionState.OPEN)
    assert grown < 40_000  # a pointer for each would take 80,000


def test_silence_is_pinged_and_then_ended():
    pair = Pair()
    for end in (pair.client, pair.server):
        end.carry_out(end.machine.tick(PING_INTERVAL + 1.0))
        assert end.out
        end.out = b""
        assert end.machine.next_tick_at > PING_INTERVAL + 1.0

        end.carry_out(end.machine.tick(SILENCE_LIMIT + 1.0))

        assert "nothing was received" in end.closed[0].reason


def test_a_pong_is_life():
    pair = Pair()
    pair.client.carry_out(pair.client.machine.tick(PING_INTERVAL + 1.0))
    pair.server.take(pair.client.out, PING_INTERVAL + 1.0)
    pair.client.take(pair.server.out, PING_INTERVAL + 1.0)

    pair.client.carry_out(pair.client.machine.tick(SILENCE_LIMIT + 1.0))
    assert not pair.client.closed


def test_an_error_instead_of_the_ack_is_told():
    pair = Pair()
    session = ZeekClientSession(parse_address("ws://zeek"), lambda: (), 0.0, limit=LIMIT)
    client = End(session)
    client.carry_out(session.start())
    server = pair.server.machine
    other = End(ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=LIMIT))
    other.take(client.out)
    client.take(other.out)
    other.machine.state = SessionState.OPEN
    client.take(other.machine.refuse("invalid_uri", "no such place"))

    assert "invalid_uri: no such place" in client.closed[0].reason
    assert server.state is SessionState.OPEN


def test_an_error_frame_of_a_server_is_handed_on_and_unknown_frames_are_not():
    pair = Pair()
    pair.client.take(pair.server.machine.refuse("no_such_event", "what is that"))
    pair.client.take(pair.server.machine.send('{"type": "weather"}'))
    pair.client.take(pair.server.machine.send('{"type": "data-message"}'))

    known, unreadable = pair.client.messages
    assert known == ErrorFrame("no_such_event", "what is that")
    assert unreadable.code == "unreadable"


@pytest.mark.parametrize("url", ["http://zeek", "ws://", "zeek:27759", "ws://zeek:port/", 7])
def test_what_is_no_address_is_refused(url):
    with pytest.raises((InvalidOption, AttributeError, TypeError)):
        parse_address(url)


def test_names_of_applications_are_zeeks():
    assert checked_name("a/b_c-d.e=f:g*h@i") == "a/b_c-d.e=f:g*h@i"
    with pytest.raises(InvalidOption):
        checked_name("a b")


class Sessions(RuleBasedStateMachine):
    """Both ends in any order of sending, carrying, waiting, cutting and closing.

    Whatever happens, each side gets what the other sent, once and in order, or a beginning of
    it where the connection ended.
    """

    def __init__(self):
        super().__init__()
        self.pair = SimpleNamespace()
        session = ZeekClientSession(
            parse_address("ws://zeek"), lambda: ("/s",), 0.0, limit=LIMIT
        )
        self.ends = [
            End(session),
            End(ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=LIMIT)),
        ]
        self.ends[0].carry_out(session.start())
        self.sent = [[], []]
        self.now = 0.0

    @rule(side=st.sampled_from([0, 1]), length=st.integers(0, 300))
    def send(self, side, length):
        end = self.ends[side]
        if end.machine.state is SessionState.OPEN:
            content = data_to_cbor(Data([len(self.sent[side]), "ü" * length]))
            end.send(content_to_json("/s", content))
            self.sent[side].append(("/s", content))

    @rule(side=st.sampled_from([0, 1]), count=st.integers(1, 400))
    def carry(self, side, count):
        one, other = self.ends[side], self.ends[1 - side]
        data, one.out = one.out[:count], one.out[count:]
        if data and not other.closed:
            other.take(data, self.now)

    @rule(seconds=st.sampled_from([0.1, 5.0, 11.0]))
    def wait(self, seconds):
        self.now += seconds
        for end in self.ends:
            if not end.closed and self.now >= end.machine.next_tick_at:
                end.carry_out(end.machine.tick(self.now))

    @rule(side=st.sampled_from([0, 1]), is_cut=st.booleans())
    def end(self, side, is_cut):
        end = self.ends[side]
        if not end.closed:
            end.carry_out(end.machine.lost("cut") if is_cut else end.machine.close("bye"))
            assert end.closed

    @invariant()
    def what_came_is_what_was_sent(self):
        for side in (0, 1):
            came = self.ends[1 - side].messages
            assert came == self.sent[side][: len(came)]

    def teardown(self):
        for _ in range(4):
            for side in (0, 1):
                with suppress(IndexError):
                    self.carry(side, 1 << 30)
        if not (self.ends[0].closed or self.ends[1].closed):
            assert [end.messages for end in reversed(self.ends)] == self.sent


TestSessions = Sessions.TestCase


@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_taken_or_end_the_connection(data, which):
    pair = Pair()
    end = (pair.client, pair.server)[which % 2]
    if which > 1:  # before the handshake
        end = End(ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=LIMIT))

    end.take(data)
    if not end.closed:
        end.take(data)
