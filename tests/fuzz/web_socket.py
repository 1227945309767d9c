"""Zeek's WebSocket: damaged handshakes, frames and texts at the machines of both ends.

Each stream is fed twice, whole and in pieces: the result must not depend on how a network cut
them. Every decoded message must be valid: its value decodes, and goes out as a text
that is read as the same value again.
"""

import json
import random
from collections.abc import Callable
from typing import Any, Final

import cbor2
from websockets.client import ClientProtocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.model.encoding import data_from_cbor
from callboard.model.errors import UnsupportedData
from callboard.zeek.json_message import content_to_json, message_of_frame, parse_frame
from callboard.zeek.web_socket import (
    ErrorFrame,
    WebSocketAdmission,
    ZeekClientSession,
    ZeekServerSession,
    parse_address,
)
from tests.callboard.zeek.conversation import frames
from tests.fuzz.case import READ, Case, require
from tests.fuzz.mutation import mutate_bytes

_SENT, _GOT = frames("", is_sent=True), frames("", is_sent=False)
_LIMIT: Final = 4_096
_URI: Final = parse_uri("ws://zeek/v1/messages/json")
_KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="  # a seed gives the same stream again
_ACK: Final = '{"type":"ack","endpoint":"e","version":"8.1.0"}'
_FILTERS: Final = (
    '["/pong"]', "[]", '["/a","/a","/b"]', '{"a":1}', "[1]", '["', '["\\ud800"]', "[[]]",
    json.dumps(["/t"] * 5_000), json.dumps(["/" + "t" * 3_000]), "null", '["<$>"]', '[""]',
)  # fmt: skip
#: A type, and candidates for its data; the first ones are valid.
_VALUES: Final = {
    "none": ["{}", "null", "0"],
    "boolean": ["true", "false", "1", '"true"'],
    "count": ["0", "18446744073709551615", "18446744073709551616", "-1", "1.0", "9" * 5_000],
    "integer": ["-9223372036854775808", "9223372036854775808", "1e3", "true", "-0"],
    "real": ["1.5", "-0.0", "1e308", "1e999999", "-1e999999", "NaN", "Infinity", "1" * 400],
    "string": ['"x"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\u0000"', '"\x01"', "[]", '"é"'],
    "timespan": ['"1.5s"', '"2min"', '"1e400d"', '"-9223372036854775808ns"', '"s"', '"NaNs"'],
    "timestamp": ['"2023-01-02T03:04:05.678"', '"9999-12-31T23:59:59.999"', '"0000"', '""'],
    "enum-value": ['"E::A"', '""', "7"],
    "address": ['"10.1.2.3"', '"::ffff:1.2.3.4"', '"fe80::1%eth0"', '"1.2.3"', f'"{":" * 70}"'],
    "subnet": ['"10.0.0.0/8"', '"::/0"', '"10.0.0.0/129"', '"/"', '"1.2.3.4/-1"'],
    "port": ['"80/tcp"', '"65536/udp"', '"-1/?"', '"1/"', '"1/tcp/udp"', '"１/tcp"'],
    "nothing": ["1"],
}  # fmt: skip


def _value(rng: random.Random, depth: int = 0) -> str:
    """Return a value as JSON, most of them right."""
    if depth < 3 and rng.random() < 0.3:
        kind = rng.choice(("vector", "set", "table"))
        items = [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        if kind == "table":
            items = [f'{{"key":{_value(rng, depth + 1)},"value":{each}}}' for each in items]
        return f'{{"@data-type":"{kind}","data":[{",".join(items)}]}}'
    kind, forms = rng.choice(list(_VALUES.items()))
    data = forms[0] if rng.random() < 0.8 else rng.choice(forms)
    return f'{{"@data-type":"{kind}","data":{data}}}'


def _text(rng: random.Random, recorded: list[str]) -> bytes:
    """Return the text of a frame: recorded or made up, and perhaps damaged."""
    kind = rng.random()
    if kind < 0.4:
        text = rng.choice(recorded)
    elif kind < 0.9:
        topic = rng.choice(('"/t"', '"/zeek/event"', '""', '"\\ud800"', '"<$>/x"', "7"))
        rest = _value(rng)[1:]
        text = f'{{"type":"data-message","topic":{topic},{rest}'
    elif kind < 0.95:
        nested = rng.choice(("[", '{"@data-type":"vector","data":[', '{"a":')) * 130
        text = f'{{"topic":"/t","@data-type":"vector","data":[{nested}'
    else:
        text = rng.choice(
            ('{"type":"ack"}', '{"type":["x"]}', '{"type":"error","code":{}}', "")
        )
    data = text.encode()
    return mutate_bytes(rng, data) if rng.random() < 0.2 else data


def _frame(head: int, data: bytes, mask: int) -> bytes:
    """Return a frame; the key of a mask is zeros."""
    size = len(data)
    if size < 126:
        start = bytes((head, mask | size))
    elif size < 1 << 16:
        start = bytes((head, mask | 126)) + size.to_bytes(2)
    else:
        start = bytes((head, mask | 127)) + size.to_bytes(8)
    return start + (bytes(4) if mask else b"") + data


def _frames(rng: random.Random, data: bytes, mask: int) -> bytes:
    """Return a text as it may come: whole, in parts, with others between, or wrongly."""
    kind = rng.random()
    if kind < 0.8:
        made = _frame(0x81, data, mask)
    elif kind < 0.97:
        at = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 4)))
        cuts = list(zip([0, *at], [*at, len(data)], strict=True))
        made = b""
        for number, (start, end) in enumerate(cuts):
            head = (0 if number else 1) | (0x80 if number == len(cuts) - 1 else 0)
            made += _frame(head, data[start:end], mask)
            made += _frame(0x89, b"?", mask) if rng.random() < 0.3 else b""
    else:
        head = rng.choice((0x89, 0x8A, 0x88, 0x82, 0x80, 0x01, 0xC1, 0x83, 0x8F))
        made = _frame(head, data[: rng.choice((0, 1, 2, 125, 300))], mask)
    if rng.random() < 0.005:  # the mask of the other side
        made = _frame(0x81, data, mask ^ 0x80)
    return mutate_bytes(rng, made) if rng.random() < 0.02 else made


def _case(rng: random.Random, upgrade: bytes, first: str, mask: int, texts: list[str]) -> Case:
    """Return the parts of a stream, and how it is cut."""
    upgrade = mutate_bytes(rng, upgrade) if rng.random() < 0.1 else upgrade
    parts = [upgrade, _frame(0x81, first.encode(), mask)]
    parts += [_frames(rng, _text(rng, texts), mask) for _ in range(20)]
    return {"parts": parts, "piece": rng.choice([1, 7, 100, 1_000])}


_Session = ZeekServerSession | ZeekClientSession


def _play(session: _Session, stream: bytes, piece: int) -> tuple[list[Any], bytes, int]:
    """Feed a stream; return arrivals, written bytes, and the machine's state."""
    arrived: list[Any] = []
    written = b""
    for at in range(0, len(stream), piece):
        found, effects = session.take(stream[at : at + piece], 0.0)
        require(not (found and effects), "messages and effects in one")
        arrived += found
        for effect in effects:
            if isinstance(effect, Arrived):
                arrived += effect.messages
            elif isinstance(effect, Transmit):
                written += effect.data
            else:
                require(isinstance(effect, Admitted | Closed), "an unknown effect")
                arrived.append(type(effect))
        require(session.is_over() == (Closed in arrived), "its state is not what it told")
        require(session.held <= _LIMIT + READ, "it keeps more than a message and a read")
        if session.is_over():
            require(session.take(b"x", 0.0) == ([], []), "it goes on behind its end")
            return arrived, written, at + piece
    return arrived, written, len(stream)


def _check(arrived: list[Any]) -> None:
    """Check that all arrivals are messages."""
    for each in arrived:
        if isinstance(each, tuple):
            topic, content = each
            value = data_from_cbor(content)
            try:
                text = content_to_json(topic, content)
            except UnsupportedData:
                require(False, f"{value} was read, and cannot be written")
            again = message_of_frame(parse_frame(text))
            require(again[0] == topic, "its topic changed")
            # Moments are written to milliseconds.
            if b"\xd9\xbf\x1c" not in content:
                require(cbor2.loads(again[1]) == cbor2.loads(content), f"{value} changed")


def _run(make: Callable[[], _Session], case: Case) -> int:
    """Feed the stream whole and in pieces; returns the frames that the machine read."""
    stream = b"".join(case["parts"])
    arrived, _, _ = _play(make(), stream, len(stream))
    pieces, _, end = _play(make(), stream, case["piece"])
    require(arrived == pieces, f"it depends on the cuts: {arrived} and {pieces}")
    _check(arrived)
    read, at = 0, 0
    for part in case["parts"]:
        at += len(part)
        read += at <= end
    return max(read, 1)


class WebSocket:
    """Feeds the machine of a port."""

    name = "websocket"

    def make(self, seed: int) -> Case:
        """Return what a client says: request, filter and messages, some of them damaged."""
        rng = random.Random(seed)
        core = ClientProtocol(_URI)
        core.key = _KEY
        core.send_request(core.connect())
        upgrade = b"".join(core.data_to_send())
        first = _FILTERS[0] if rng.random() < 0.9 else rng.choice(_FILTERS)
        return _case(rng, upgrade, first, 0x80, _SENT)

    def run(self, case: Case) -> int:
        """Feed the stream; on any input the machine must continue or end."""
        return _run(
            lambda: ZeekServerSession(WebSocketAdmission(), "e", "v", 0.0, limit=_LIMIT), case
        )


class WebSocketClient:
    """Feeds the machine of who dialed."""

    name = "websocket-client"

    def make(self, seed: int) -> Case:
        """Return what a Zeek says: the upgrade, the ack and messages, some of them damaged."""
        rng = random.Random(seed)
        client, server = ClientProtocol(_URI), ServerProtocol()
        client.key = _KEY
        response = server.accept(client.connect())
        del response.headers["Date"]
        server.send_response(response)
        upgrade = b"".join(server.data_to_send())
        first = _ACK if rng.random() < 0.9 else _text(rng, _GOT).decode(errors="replace")
        return _case(rng, upgrade, first, 0, _GOT)

    def run(self, case: Case) -> int:
        """Feed the stream; on any input the machine must continue or end."""

        def make() -> ZeekClientSession:
            session = ZeekClientSession(
                parse_address("ws://zeek"), lambda: ("/t",), 0.0, limit=_LIMIT
            )
            session._core.key = _KEY
            session.start()
            return session

        return _run(make, case)


assert ErrorFrame  # arrives at a client for what it could not read
